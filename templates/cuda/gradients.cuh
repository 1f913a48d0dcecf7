// ---- gradients that the chip keeps, in the published scheme: G += dy x^T over n vertices, in the shape of the matrix's slots

// Rows of a slot lie so far apart in shared memory, group of warps by group of warps, that a few loads bring those of a warp.
VP_DEVICE constexpr int rows_apart(int rows, int warps)
{
    const int padded = rows > 2 ? (rows + 3) / 4 * 4 : rows;
    return WARPS / warps * padded <= WARPS * rows ? padded : rows;  // as many floats as partial sums take
}
template <int N, int K = 0> VP_DEVICE void load_rows(const float* from, float (&d)[N])
{
    if constexpr (K < N) {
        constexpr int COUNT = K + 4 <= N ? 4 : 1;
        const auto found = *(const typename Neighbours<0, COUNT>::Floats*)(from + K);
        VP_UNROLL for (int k = 0; k < COUNT; k++) d[K + k] = found.of[k];
        load_rows<N, K + COUNT>(from, d);
    }
}

// Gradients of the results of a pass: `of` points to those of the first vector, the next one's are `apart` floats on.
struct RowGradients {
    const float* of;
    int apart;
};

// Calls f(x, dy, n) for passes: x the staged vectors, dy the gradients of their products with the rows of all slots.
template <class Args, class F> VP_DEVICE void for_outer(Vp& vp, const Args& i, const Owned& owned, F f)
{
    const Range slots = slots_of(i.matrix);
    const Geometry g = shape_of(slots.first);
    const int rows = (slots.last - slots.first) * g.all_rows(), apart = rows_apart(g.rows, g.warps);
    const int vectors_apart = (slots.last - slots.first) * (WARPS / g.warps) * apart;
    const auto place_of = [&](int k) {
        const int group = small_quotient(k, g.rows);
        return group * apart + k - group * g.rows;
    };
    const Finishing mine(rows, i.head.n);
    const int first_place = place_of(mine.k);
    const auto dy_of = [&](int u, int r) { return u < 0 ? 0.f : i.dy.row(least(r, i.head.n - 1))[u]; };
    const int first_unit = mine.k < owned.count ? owned.row(mine.k) : -1;
    float ahead = dy_of(first_unit, mine.v);  // the first that the thread brings of the next pass
    for_staged(vp, i.x, (int)i.columns, slots.columns, i.head.n, [&](const float* x, int row, int n) {
        float* dy = sums_buffer();
        mine.each(rows, n, [&](int k, int v) {
            const bool is_first = k == mine.k && v == mine.v;
            const int at = k == mine.k ? first_place : place_of(k);
            dy[v * vectors_apart + at] = is_first ? ahead : dy_of(k == mine.k ? first_unit : owned.row(k), row + v);
        });
        __syncthreads();
        ahead = dy_of(first_unit, row + n + mine.v);
        f(x, RowGradients{dy, vectors_apart}, n);
        __syncthreads();
    });
}

template <class S>
VP_DEVICE void add_outer_of(const float* x, const float* rows, int apart, int n, float (&g)[S::R * S::C])
{
    enum { APART = rows_apart(S::R, S::W) };
    const float* vector = x + warp() % S::W * (S::C * WARP);
    VP_TWICE for (int v = 0; v < n; v++, rows += apart, vector += STAGE) {
        float d[S::R];
        if constexpr (APART % 4 == 0) {
            load_rows(rows, d);
        } else {
            VP_UNROLL for (int r = 0; r < S::R; r++) d[r] = rows[r];
        }
        for_neighbours<S>([&](auto columns) {
            const auto e = columns.load(vector, lane());
            VP_UNROLL for (int k = 0; k < columns.N; k++)
                VP_UNROLL for (int r = 0; r < S::R; r++) {
                    float& to = g[r * S::C + columns.FIRST + k];
                    to = fma_(d[r], e.of[k], to);
                }
        });
    }
}
template <class S> VP_DEVICE void add_outer(int number, const float* x, RowGradients dy, int n, float (&g)[S::R * S::C])
{
    enum { APART = rows_apart(S::R, S::W) };
    const float* rows = dy.of + (number * Shape<S>::GROUPS + warp() / S::W) * APART;
    add_outer_of<S>(x, rows, dy.apart, n, g);
}

VP_ROUTINE void held_outer(Vp& vp, const Outer& i)
{
    const Owned owned(vp, i.head);
    const Range slots = slots_of(i.matrix);
    if (!(i.head.flags & ACCUMULATE))
        for_slots<0>(slots, [&](auto slot, int) {
            using S = decltype(slot);
            if constexpr (S::KEEPS_GRADIENT) {
                Values<S> g;
                g.clear();
                g.write(vp.store);
            }
        });
    for_outer(vp, i, owned, [&](const float* x, RowGradients dy, int n) {
        for_slots<0>(slots, [&](auto slot, int number) {
            using S = decltype(slot);
            if constexpr (S::KEEPS_GRADIENT) {
                Values<S> g;
                g.read(vp.store);
                add_outer<S>(number, x, dy, n, g.of);
                g.write(vp.store);
            }
        });
    });
}

// The gradient of a piece from where the chip keeps it to slot_memory(), where each thread has its own; zeros if there is none.
template <class Args> VP_DEVICE void bring_gradient(Vp& vp, const Args& i, const Owned& owned, const Piece& p)
{
    if (i.head.flags & NO_GRADIENT) return for_elements(owned, p, (int)i.columns, [](float& place, int, int) { place = 0.f; });
    for_slots<0>({p.s, p.s + 1}, [&](auto slot, int) {
        using S = decltype(slot);
        if constexpr (S::KEEPS_GRADIENT) Held<S>::drain(vp.store, slot_memory());
    });
}

// Calls f(g, row, column) for the elements of a gradient that this virtual processor owns.
template <class Args, class F> VP_DEVICE void for_gradients_in_slots(Vp& vp, const Args& i, Range slots, F f)
{
    const Owned owned(vp, i.head);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        const Piece p(slots, s);
        bring_gradient(vp, i, owned, p);
        for_elements(owned, p, (int)i.columns, [&](float g, int row, int column) {
            if (row >= 0) f(g, row, column);
        });
    }
}
