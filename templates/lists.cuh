// ---- instructions on lists: counted in vertices, they work on the rows of the elements of their lists
// Elements [from, to) of a vertex's list, and some units of them.
struct Strip {
    int vertex, from, to, unit, width;
    VP_DEVICE float* row(const Operand& x, int r) const { return x.row(r) + unit; }

    // total[u] = sum over the elements of f(element, u), in chunks to keep the rounding error of long lists small.
    template <class F> VP_DEVICE void sum(float* total, F f) const
    {
        float part[STRIP];
        for (int u = 0; u < width; u++) total[u] = 0.f;
        for (int chunk = from; chunk < to; chunk += CHUNK) {
            for (int u = 0; u < width; u++) part[u] = 0.f;
            for (int e = chunk; e < least(chunk + CHUNK, to); e++) f(e, part);
            VP_SIMD for (int u = 0; u < width; u++) total[u] += part[u];
        }
    }
};

template <auto F, class Args> VP_ROUTINE void lists(const Vp& vp, const Args& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_strips(vp, r0, r1, u0, u1, [&](int r, int u, int width) {
            F(i, {r, (int)i.elements[r], (int)i.elements[r + 1], u, width});
        });
    });
}
