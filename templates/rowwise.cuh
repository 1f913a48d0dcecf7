// ---- row-wise instructions: a virtual processor owns whole rows
struct Row {
    float* y;            // result
    const float* x[4];   // operands; in a gradient: the forward pass's operands, its result, its gradient
    int width;           // of the operands
    int label;           // of the vertex; 0 where the op takes none (its list is at position 0, the script itself)
    float value;         // a Python constant of the op
    bool accumulate;
    bool mine;           // else another one computes it, and this one only keeps in step

    // The result of a unit; of all units; the sum of f over units; the result of a row that has a single one.
    VP_DEVICE void put(int u, float v) const { y[u] = accumulate ? y[u] + v : v; }
    template <class F> VP_DEVICE void fill(F f) const
    {
        if (!mine) return;
        // A loop each, over copies that no store can change: a CPU compiler makes vector code of these only.
        float* const to = y;
        const bool add = accumulate;
        if (ONE_LOOP) for_lanes(width, [=](int u) VP_INLINE {
            const float v = f(u);
            to[u] = VP_OPAQUE(add) ? to[u] + v : v;
        });
        else if (add) for_lanes(width, [=](int u) VP_INLINE { to[u] += f(u); });
        else for_lanes(width, [=](int u) VP_INLINE { to[u] = f(u); });
    }
    template <class F> VP_DEVICE float sum(F f) const { return reduce_sum(width, f); }
    VP_DEVICE void give(float v) const
    {
        if (mine && first_lane()) put(0, v);
    }
};

template <auto F, class Args, int N>
VP_DEVICE void each_row(const Vp& vp, const Args& i, const Operand (&source)[N])
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        for_rows(vp, r0, r1, [&](int r, bool mine) {
            Row row = {i.dst.row(r), {nullptr, nullptr, nullptr, nullptr}, (int)i.row_width, i.labels == vp.script ? 0 : (int)i.labels[r],
                       i.value, (i.head.flags & ACCUMULATE) != 0, mine};
            VP_UNROLL for (int k = 0; k < N; k++) row.x[k] = source[k].row(r);
            F(row);
        });
    });
}

template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row1& i) { each_row<F>(vp, i, {i.a}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row2& i) { each_row<F>(vp, i, {i.a, i.b}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row3& i) { each_row<F>(vp, i, {i.a, i.b, i.c}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row4& i) { each_row<F>(vp, i, {i.a, i.b, i.c, i.d}); }
