// ---- the end of a launch, for matrices whose gradients the chip keeps: steps, norms, and gradients that stay or come back

// New weights from slot_memory() into the transpose: lanes side by side take rows that lie side by side there, as far as
// this virtual processor owns such rows, so that they write to the same sectors.
template <class Args> VP_DEVICE void store_transposed(const Vp& vp, const Args& i, const Owned& owned, const Piece& piece)
{
    const Piece p = piece.again();
    const Geometry& g = p.slot;
    const int first = p.slot_number() * g.all_rows() + p.first_row;
    const int count = least(WARPS / g.warps * p.rows, owned.count - first);
    const int beside = most(1, least(owned.turn ? owned.turn : owned.units, count));
    const int worker = small_quotient(thread(), beside), workers = small_quotient(THREADS, beside);
    const int across = (int)i.columns;
    __syncthreads();
    VP_ROLLED for (int k = thread() - worker * beside; k < count; k += beside) {
        const int row = worker < workers ? owned.row(first + k) : -1, group = small_quotient(k, p.rows);
        if (row < 0) continue;
        const float* from = slot_memory() + (k - group * p.rows) * p.columns * THREADS;
        float* to = vp.pool + i.transposed + row;
        VP_ROLLED for (int at = worker; at < across; at += workers) {
            const int w = small_quotient(at, p.columns * WARP), rest = at - w * p.columns * WARP;  // of a warp
            const int c = rest / WARP, n = neighbours_at(p.columns, c), first = c & -n;
            // The thread that has it is that of a lane with n columns.
            to[(size_t)at * i.head.width] = from[first * THREADS + n * (group * g.warps + w) * WARP + rest - first * WARP];
        }
    }
}

// Floats of a thread that the step of a piece takes in slot_memory(), at most: its gradients, and a row of `each` floats for every
// weight.
template <int S> constexpr int most_for_step(int each)
{
    if constexpr (S < VP_SLOTS) {
        const int mine = Slot<S>::TRAINED ? (Slot<S>::R + each) * Slot<S>::C : 0, others = most_for_step<S + 1>(each);
        return mine > others ? mine : others;
    } else {
        return 0;
    }
}

// The steps of the weights of a piece. Their gradients are in slot_memory(); weights and moments come to what is left of it
// by copies all in flight at once, of as many rows as there is room for (where for none they are read one by one).
template <class Rule, class Args>
VP_DEVICE void step_of_piece(const Vp& vp, const Args& i, const Hyper& h, const Owned& owned, const Piece& piece)
{
    const Weights at = weights_of(vp, i);
    const Piece p = piece.again();
    const bool by_fours = ((i.weights | i.moment0 | i.moment1 | i.columns) & 3) == 0;
    enum { COPIES = VP_STAGED / THREADS >= most_for_step<0>(1 + Rule::MOMENTS) };
    const int columns = (int)i.columns, held = p.rows * p.columns, there = p.there(owned);
    const int rows = COPIES ? small_quotient(VP_STAGED / THREADS - held, (1 + Rule::MOMENTS) * p.columns) : p.rows;
    const int apart = rows * p.columns * THREADS;  // weights, first moments and second moments
    VP_ROLLED for (int from = 0; from < there; from += rows) {
        const int to = least(from + rows, there), shift = (held - from * p.columns) * THREADS;
        VP_ROLLED for (int copies = COPIES; copies >= 0; copies--) {
            for_places_of_piece(owned, p, from, to, columns, [&](float* places, int row, int column, int, int inside) {
                const int k = row * columns + column;
                float* here = places + shift;
                const auto for_state = [&](auto f) {  // what comes and goes: where it is meanwhile, and where it lies
                    f(here, at.w + k);
                    if constexpr (Rule::MOMENTS > 0) f(here + apart, at.m + k);
                    if constexpr (Rule::MOMENTS > 1) f(here + 2 * apart, at.v + k);
                };
                const bool four = by_fours && inside == 4;
                if (VP_OPAQUE(copies)) {
                    if (four) for_state(copy_async16);
                    else VP_ROLLED for (int n = 0; n < inside; n++)
                        for_state([&](float* to, float* from) { copy_async4(to + n, from + n); });
                    return;
                }
                VP_ROLLED for (int n = 0; n < inside; n++) {
                    float& place = places[n];
                    // Decided when compiling: an address that may be of shared memory or not costs twice the time.
                    if constexpr (COPIES) {
                        float none = 0.f, &m = Rule::MOMENTS > 0 ? here[apart + n] : none;
                        float& v = Rule::MOMENTS > 1 ? here[2 * apart + n] : none;
                        Rule::step(here[n], place * vp.gradient_scale, m, v, h);
                        place = here[n];
                    } else {
                        place = step<Rule>(at, k + n, place * vp.gradient_scale, h);
                    }
                }
                if constexpr (COPIES) {
                    if (four) for_state([](const float* from, float* to) { *(float4*)to = *(const float4*)from; });
                    else VP_ROLLED for (int n = 0; n < inside; n++)
                        for_state([&](const float* from, float* to) { to[n] = from[n]; });
                }
                if (VP_OPAQUE(at.average)) {
                    VP_ROLLED for (int n = 0; n < inside; n++) average(at, k + n, i.complement);
                }
            });
            copy_async_wait();  // for weights and moments
        }
    }
    store_transposed(vp, i, owned, p);
}

template <class Rule> VP_ROUTINE void held_update_matrix(Vp& vp, const UpdateMatrix& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const Range slots = slots_of(i.matrix);
    VP_TIMELINE(count_elements(vp, i, updated_floats<Rule>(false) + 1);)  // the transpose
    const Owned owned(vp, i.head);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        const Piece p(slots, s);
        bring_gradient(vp, i, owned, p);
        step_of_piece<Rule>(vp, i, h, owned, p);
        __syncthreads();
    }
}

// Partial sums of squares: what this virtual processor owns of the matrix goes to the first of its rows' tiles.
VP_ROUTINE void held_squares_matrix(Vp& vp, const SquaresMatrix& i)
{
    float sum = 0.f;
    for_gradients_in_slots(vp, i, slots_of(i.matrix), [&](float g, int, int) { sum = fma_(g, g, sum); });
    sum = sum_of_warp(sum);
    if (first_lane()) scratch()[warp()] = sum;
    __syncthreads();
    const int across = ((int)i.columns + VP_TILE_COLUMNS - 1) / VP_TILE_COLUMNS;
    const Owned owned(vp, i.head);
    VP_ROLLED for (int k = thread(); k < owned.count * across; k += THREADS) {
        const int row = owned.row(k / across);
        if (row < 0) continue;
        float total = 0.f;
        if (k == 0) {
            VP_UNROLL for (int w = 0; w < WARPS; w++) total += scratch()[w];
        }
        vp.pool[i.partials + (size_t)row * across + k % across] = total;
    }
}

// The gradient that the chip keeps, to memory: nothing updates with it in this launch.
VP_ROUTINE void store_gradient(Vp& vp, const KeptGradient& i)
{
    VP_TIMELINE(count_elements(vp, i, 1);)
    const auto keep = [&](float g, int row, int column) { vp.pool[i.gradient + (size_t)row * i.columns + column] = g; };
    for_gradients_in_slots(vp, i, slots_of(i.matrix), keep);
}

// And back: what earlier calls accumulated.
VP_ROUTINE void load_gradient(Vp& vp, const KeptGradient& i)
{
    VP_TIMELINE(count_elements(vp, i, 1);)
    const Owned owned(vp, i.head);
    const Range slots = slots_of(i.matrix);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        const Piece p(slots, s);
        for_elements(owned, p, (int)i.columns, [&](float& place, int row, int column) {
            if (row >= 0) copy_async4(&place, vp.pool + i.gradient + (size_t)row * i.columns + column);
            else place = 0.f;
        });
        copy_async_wait();
        for_slots<0>({s, s + 1}, [&](auto slot, int) {
            using S = decltype(slot);
            if constexpr (S::KEEPS_GRADIENT) Held<S>::fill_from(vp.store, slot_memory());
        });
    }
}
