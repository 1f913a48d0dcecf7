// ---- tails: runs of elementwise instructions that generated programs compute (vpps/script/tails.py)

// sum[u] = sum (or mean) over the rows that CSR offsets list for row r, of units [from, from + width): in the order of
// gather_sum, which makes the same sums where they stand alone.
VP_DEVICE void list_sum(const Vp& vp, const Word* offsets, int r, size_t from, bool mean, int width, float* sum)
{
    const Word* entries = vp.script + offsets[r];
    const int n = (int)(offsets[r + 1] - offsets[r]);
    if (STRIP > 1 && n == 1) {  // nearly always: where one thread makes many sums that is worth a loop
        const float* x = vp.pool + entries[0] + from;
        VP_SIMD for (int u = 0; u < width; u++) sum[u] = 0.f + x[u];
        return;
    }
    const float factor = mean && n ? 1.f / (float)n : 1.f;
    sum_strip(n, width, [&](int k) { return vp.pool + entries[k] + from; }, [&](int u, float s) { sum[u] = s * factor; });
}
