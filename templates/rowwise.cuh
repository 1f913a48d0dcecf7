// ---- row-wise instructions: a virtual processor owns whole rows
struct Row {
    float* y;            // result
    const float* x[4];   // operands; in a gradient: the forward pass's operands, its result, its gradient
    int width;           // of the operands
    int label;           // of the vertex; 0 where the op takes none (its list is at position 0, the script itself)
    float value;         // a Python constant of the op
    bool accumulate;
    void put(int u, float v) const { y[u] = accumulate ? y[u] + v : v; }
};

template <auto F, class Args, int N>
VP_DEVICE void for_rows(const Vp& vp, const Args& i, const Operand (&source)[N])
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        for (int r = r0; r < r1; r++) {
            Row row = {i.dst.row(r), {nullptr, nullptr, nullptr, nullptr}, (int)i.row_width, i.labels == vp.script ? 0 : (int)i.labels[r],
                       i.value, (i.head.flags & ACCUMULATE) != 0};
            for (int k = 0; k < N; k++) row.x[k] = source[k].row(r);
            F(row);
        }
    });
}

template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row1& i) { for_rows<F>(vp, i, {i.a}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row2& i) { for_rows<F>(vp, i, {i.a, i.b}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row3& i) { for_rows<F>(vp, i, {i.a, i.b, i.c}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row4& i) { for_rows<F>(vp, i, {i.a, i.b, i.c, i.d}); }
