// ---- matrices, CUDA: in slots where the chip has room for them, else in memory, row after row
enum {
    MEMORY_VECTORS = 4,  // that a warp multiplies by a row from memory
    FEW_COLUMNS = 16,    // for fewer a warp is too many: a thread makes a result
};

// Where rows of W have few columns: a thread for each result.
VP_DEVICE void product_of_few_columns(const Vp& vp, const Matvec& i, int r0, int r1, int u0, int u1)
{
    const bool accumulate = i.head.flags & ACCUMULATE;
    VP_TIMELINE(count_floats(vp, (size_t)(u1 - u0) * (r1 - r0) * i.columns);)
    for_units(vp, r0, r1, u0, u1, [](int r) { return r; }, [&](int r, int u) {
        const float* w = vp.pool + i.weights + (size_t)u * i.columns;
        float sum = i.bias.row(r)[VP_OPAQUE(i.bias.scalar) ? 0 : u];
        VP_ROLLED for (int s = 0; s < i.x.count; s++) {
            int width;
            const float* from = segment(vp, i.x, s, &width).row(r);
            VP_TWICE for (int c = 0; c < width; c++) sum = fma_(*w++, from[c], sum);
        }
        float* y = i.dst.row(r) + u;
        *y = VP_OPAQUE(accumulate) ? sum + *y : sum;
    });
}

// Rows [u0, u1) of W times vectors [r0, r1), W in memory: a warp per row and some vectors.
VP_DEVICE void product_from_memory(const Vp& vp, const Matvec& i, int r0, int r1, int u0, int u1)
{
    if (i.columns < FEW_COLUMNS) return product_of_few_columns(vp, i, r0, r1, u0, u1);
    const bool accumulate = i.head.flags & ACCUMULATE;
    const int units = u1 - u0, tiles = (r1 - r0 + MEMORY_VECTORS - 1) / MEMORY_VECTORS;
    VP_TIMELINE(count_floats(vp, (size_t)units * tiles * i.columns);)
    for_warps(units * tiles, [&](int item, bool mine) {
        const int u = u0 + item % units, r = r0 + item / units * MEMORY_VECTORS, n = least(MEMORY_VECTORS, r1 - r);
        const float* w = vp.pool + i.weights + (size_t)u * i.columns;
        float sum[MEMORY_VECTORS] = {};
        VP_ROLLED for (int s = 0; s < i.x.count; s++) {
            int width;
            const Operand x = segment(vp, i.x, s, &width);
            const float* from[MEMORY_VECTORS];
            VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) from[v] = x.row(r + least(v, n - 1));
            VP_TWICE for (int c = lane(); c < width; c += WARP) {
                const float e = w[c];
                VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) sum[v] = fma_(e, from[v][c], sum[v]);
            }
            w += width;
        }
        float result = 0.f;
        VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) {
            const float total = sum_of_warp(sum[v]);
            result = lane() == v ? total : result;
        }
        if (mine && lane() < n) {
            const int v = r + lane();
            float* y = i.dst.row(v) + u;
            result += i.bias.row(v)[VP_OPAQUE(i.bias.scalar) ? 0 : u];
            *y = VP_OPAQUE(accumulate) ? result + *y : result;
        }
    });
}

// dst = W x + bias for n vectors; x may lie in several segments (a concatenation that is never materialised).
VP_ROUTINE void matvec(Vp& vp, const Matvec& i)
{
    const Range slots = slots_of(i.matrix);
    if (slots.first < slots.last) {
        product_of_slots(vp, i, slots);
        return;
    }
    vp.slices = slices_of(vp, script_buffer() + (vp.position - vp.fetched));  // not known yet: most products need none
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) { product_from_memory(vp, i, r0, r1, u0, u1); });
}

// G = dy x^T summed over n vertices, for the tiles of G that this virtual processor owns: each warp sums some of the
// vertices, for up to VP_TILE_COLUMNS columns of one row. finish(g, row, column) gets every element.
template <class Args, class Finish> VP_DEVICE void outer_in_memory(const Vp& vp, const Args& i, Finish finish)
{
    enum { COLUMNS = VP_TILE_COLUMNS / WARP };
    const int n = i.head.n, v0 = share(n, warp(), WARPS), v1 = share(n, warp() + 1, WARPS);
    for_tiles(vp, i.head.width, (int)i.columns, [&](int row, int from, int to, int) {
        VP_UNROLL for (int k = 0; k < COLUMNS; k++) {
            const int column = from + k * WARP + lane();
            float sum = 0.f;
            if (column < to) {
                int s = 0, first = 0, width;
                Operand x = segment(vp, i.x, 0, &width);
                VP_ROLLED while (column >= first + width) {
                    first += width;
                    x = segment(vp, i.x, ++s, &width);
                }
                VP_TWICE for (int v = v0; v < v1; v++) sum = fma_(i.dy.row(v)[row], x.row(v)[column - first], sum);
            }
            scratch()[warp() * VP_TILE_COLUMNS + k * WARP + lane()] = sum;
        }
        __syncthreads();
        if (from + thread() < to) {
            const size_t at = (size_t)row * i.columns + from + thread();
            float g = VP_OPAQUE(i.head.flags) & ACCUMULATE ? vp.pool[i.gradient + at] : 0.f;
            VP_UNROLL for (int w = 0; w < WARPS; w++) g += scratch()[w * VP_TILE_COLUMNS + thread()];
            finish(g, row, from + thread());
        }
        __syncthreads();
    });
}

VP_ROUTINE void outer(Vp& vp, const Outer& i)
{
    const auto keep = [&](float g, int row, int column) { vp.pool[i.gradient + (size_t)row * i.columns + column] = g; };
    const Range slots = slots_of(i.matrix);
    VP_TIMELINE(if (!keeps(slots)) count_elements(vp, i, i.head.flags & ACCUMULATE ? 2 : 1);)
    if (slots.first == slots.last) return outer_in_memory(vp, i, keep);
#if VP_KEEPS
    if (keeps(slots)) return keep_outer(vp, i, slots);
#endif
#if VP_PASSES
    outer_in_passes(vp, i, slots, [&](const Owned& owned, int s) {
        for_elements(owned, slots, s, (int)i.columns, [&](float g, int row, int column) {
            if (row >= 0) keep(g, row, column);
        });
    });
#endif
}

// The step of one weight, and the new weight into the transpose as well.
template <class Rule, class Args>
VP_DEVICE void step_of_matrix(const Vp& vp, const Args& i, const Hyper& h, float g, int row, int column)
{
    const Weights at = weights_of(vp, i);
    const int k = row * (int)i.columns + column;
    vp.pool[i.transposed + (size_t)column * i.head.width + row] = step<Rule>(at, k, g * vp.gradient_scale, h);
    if (VP_OPAQUE(at.average)) average(at, k, i.complement);
}

// New weights from slot_memory() into the transpose: lanes side by side take rows that lie side by side there, as far as
// this virtual processor owns such rows, so that they write to the same sectors.
template <class Args> VP_DEVICE void store_transposed(const Vp& vp, const Args& i, const Owned& owned, Range slots, int s)
{
    const Geometry g = geometry(s);
    const int first = (s - slots.first) * g.all_rows(), count = least(g.all_rows(), owned.count - first);
    const int beside = most(1, least(owned.turn ? owned.turn : owned.units, count));
    const int worker = small_quotient(thread(), beside), workers = small_quotient(THREADS, beside);
    __syncthreads();
    VP_ROLLED for (int k = thread() - worker * beside; k < count; k += beside) {
        const int row = worker < workers ? owned.row(first + k) : -1, group = small_quotient(k, g.rows);
        if (row < 0) continue;
        const float* from = slot_memory() + (k - group * g.rows) * g.columns * THREADS;
        float* to = vp.pool + i.transposed + row;
        VP_ROLLED for (int column = worker; column < (int)i.columns; column += workers) {
            const int p = small_quotient(column, g.columns * WARP), rest = column - p * g.columns * WARP;  // of a warp
            const int c = rest / WARP, n = neighbours_at(g.columns, c), first = c & -n;
            // The thread that has it is that of a lane with n columns.
            to[(size_t)column * i.head.width] = from[first * THREADS + n * (group * g.warps + p) * WARP + rest - first * WARP];
        }
    }
}

// Floats of a thread that the step of a slot takes in slot_memory(), in the largest slot: its gradients, and a row of `each`
// floats for every weight.
template <int S> constexpr int most_for_step(int each)
{
    if constexpr (S < VP_SLOTS) {
        const int mine = Slot<S>::TRAINED ? (Slot<S>::R + each) * Slot<S>::C : 0, others = most_for_step<S + 1>(each);
        return mine > others ? mine : others;
    } else {
        return 0;
    }
}

// The steps of the weights of a slot. Their gradients are in slot_memory(); weights and moments come to what is left of it
// by copies all in flight at once, of as many rows as there is room for (where for none they are read one by one).
template <class Rule, class Args>
VP_DEVICE void step_of_slot(const Vp& vp, const Args& i, const Hyper& h, const Owned& owned, Range slots, int s)
{
    const Weights at = weights_of(vp, i);
    const Geometry g = geometry(s);
    const bool by_fours = ((i.weights | i.moment0 | i.moment1 | i.columns) & 3) == 0;
    enum { COPIES = VP_STAGED / THREADS >= most_for_step<0>(1 + Rule::MOMENTS) };
    const int columns = (int)i.columns, held = g.rows * g.columns;
    const int rows = COPIES ? small_quotient(VP_STAGED / THREADS - held, (1 + Rule::MOMENTS) * g.columns) : g.rows;
    const int apart = rows * g.columns * THREADS;  // weights, first moments and second moments
    VP_ROLLED for (int from = 0; from < g.rows; from += rows) {
        const int to = least(from + rows, g.rows), shift = (held - from * g.columns) * THREADS;
        VP_ROLLED for (int copies = COPIES; copies >= 0; copies--) {
            for_places_of_slot(owned, g, s - slots.first, from, to, columns, [&](float* places, int row, int column, int, int inside) {
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
    store_transposed(vp, i, owned, slots, s);
}

template <class Rule> VP_ROUTINE void outer_update(Vp& vp, const OuterUpdate& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const auto finish = [&](float g, int row, int column) { step_of_matrix<Rule>(vp, i, h, g, row, column); };
    const Range slots = slots_of(i.matrix);
    VP_TIMELINE(count_elements(vp, i, updated_floats<Rule>(i.head.flags & ACCUMULATE) + 1);)  // the transpose
    if (slots.first == slots.last) return outer_in_memory(vp, i, finish);
#if VP_PASSES
    // Where the chip keeps the gradient, an instruction of its own makes the step.
    outer_in_passes(vp, i, slots, [&](const Owned& owned, int s) { step_of_slot<Rule>(vp, i, h, owned, slots, s); });
#endif
}

template <class Rule> VP_ROUTINE void update_matrix(Vp& vp, const UpdateMatrix& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    VP_TIMELINE(const bool from_memory = !(i.head.flags & NO_GRADIENT) && !keeps(slots_of(i.matrix));)
    VP_TIMELINE(count_elements(vp, i, updated_floats<Rule>(from_memory) + 1);)  // the transpose
    const Range slots = slots_of(i.matrix);
    if (slots.first == slots.last) {
        for_gradients_in_memory(vp, i, [&](float g, int row, int column) { step_of_matrix<Rule>(vp, i, h, g, row, column); });
        return;
    }
    const Owned owned(vp, i.head);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        bring_gradient(vp, i, owned, slots, s);
        step_of_slot<Rule>(vp, i, h, owned, slots, s);
        __syncthreads();
    }
}

// Partial sums of squares: of a row's tile of columns, or where rows are in slots, what a virtual processor owns of a tile.
VP_ROUTINE void squares_matrix(Vp& vp, const SquaresMatrix& i)
{
    const int columns = (int)i.columns, across = (columns + VP_TILE_COLUMNS - 1) / VP_TILE_COLUMNS;
    const Range slots = slots_of(i.matrix);
    if (slots.first == slots.last) {
        const int first = share(i.head.width * across, vp.id, vp.count), last = share(i.head.width * across, vp.id + 1, vp.count);
        for_warps(last - first, [&](int t, bool mine) {
            const int row = (first + t) / across, from = (first + t) % across * VP_TILE_COLUMNS;
            const float* g = vp.pool + i.gradient + (size_t)row * columns + from;
            const float sum = reduce_sum(least(VP_TILE_COLUMNS, columns - from), [&](int c) { return g[c] * g[c]; });
            if (mine && first_lane()) vp.pool[i.partials + first + t] = sum;
        });
        return;
    }
    float sum = 0.f;
    for_gradients_in_slots(vp, i, slots, [&](float g, int, int) { sum = fma_(g, g, sum); });
    sum = sum_of_warp(sum);
    if (first_lane()) scratch()[warp()] = sum;
    __syncthreads();
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
#if VP_KEEPS
    const Owned owned(vp, i.head);
    const Range slots = slots_of(i.matrix);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        for_elements(owned, slots, s, (int)i.columns, [&](float& place, int row, int column) {
            if (row >= 0) copy_async4(&place, vp.pool + i.gradient + (size_t)row * i.columns + column);
            else place = 0.f;
        });
        copy_async_wait();
        for_slots<0>({s, s + 1}, [&](auto slot, int) {
            using S = decltype(slot);
            if constexpr (S::GRADIENT >= 0) {
                Values<S>::Gradient::fill(vp.store, slot_memory());
            }
        });
    }
#endif
}
