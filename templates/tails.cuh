#pragma once
#include "prelude.h"
// ---- tails: runs of elementwise instructions, computed by generated programs (vpps/script/tails.py)

// sum[u] = sum (or mean) over the rows that CSR offsets list for row r, of units [from, from + width). The order is that of
// gather_sum, the instruction for such sums outside of tails.
VP_DEVICE void list_sum(const Vp& vp, const Word* offsets, int r, size_t from, bool mean, int width, float* sum)
{
    const Word* entries = vp.script + offsets[r];
    const int n = (int)(offsets[r + 1] - offsets[r]);
    if (STRIP > 1 && n == 1) {  // the usual case; a separate loop pays off if one thread computes many sums
        const float* x = vp.pool + entries[0] + from;
        VP_SIMD for (int u = 0; u < width; u++) sum[u] = 0.f + x[u];
        return;
    }
    const float factor = mean && n ? 1.f / (float)n : 1.f;
    sum_strip(n, width, [&](int k) { return vp.pool + entries[k] + from; }, [&](int u, float s) { sum[u] = s * factor; });
}
