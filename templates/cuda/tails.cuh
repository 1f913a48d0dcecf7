// ---- tails, CUDA: a thread computes a unit. Where its views lie it reads from the instruction, in shared memory, when it
// comes to them: in registers there would be no room for as many addresses beside the weights.
struct Unit {
    const Vp& vp;
    const Word* views;
    int r, u;
    float sums[VP_MOST_SUMS ? VP_MOST_SUMS : 1];
    VP_DEVICE float* row(int k) const
    {
        const Word address = views[3 * k], mode = views[3 * k + 1], step = mode & VP_OFFSET_MASK;
        Word at = address + (Word)r * step;
        if (VP_OPAQUE(mode & VP_INDEXED)) at = vp.script[address + r] + step;
        return vp.pool + at;
    }
    VP_DEVICE float sum(int k) const { return sums[k]; }
    VP_DEVICE float load(int k) const { return row(k)[u]; }
    VP_DEVICE float one(int k) const { return row(k)[0]; }
    VP_DEVICE float constant(int k) const { return as_float(views[3 * k]); }
    VP_DEVICE void store(int k, float v) const { row(k)[u] = v; }
};

// Calls f(unit) for the units that this virtual processor owns, after making their sums: code that all tails share.
template <class F> VP_DEVICE void for_tail(const Vp& vp, const Tail& i, F f)
{
    const Word* views = i.views.first;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, [](int r) { return r; }, [&](int r, int u) {
            Unit at = {vp, views, r, u, {}};
            VP_ROLLED for (int k = 0; k < VP_MOST_SUMS; k++) {
                const Word offsets = views[3 * k], use = views[3 * k + 2];
                if (use != USE_SUM && use != USE_MEAN) break;  // sums come first
                float total;
                list_sum(vp, vp.script + offsets, r, views[3 * k + 1] + u, use == USE_MEAN, 1, &total);
                VP_UNROLL for (int s = 0; s < VP_MOST_SUMS; s++) at.sums[s] = s == k ? total : at.sums[s];
            }
            f(at);
        });
    });
}
