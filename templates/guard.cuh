#pragma once
#include "sync.h"
// ---- guard: a step changes no weight if its loss or gradients are not finite
enum { NOT_FINITE = 2 };  // a word in the first counter's line; the previous launch clears it, a watch sets it

// True if the square of any sum of n * terms products, with factors up to these magnitudes, is below the largest float.
VP_DEVICE bool fits(const Watch& i, Word dy, Word x)
{
#if VP_ROUNDS
    if ((dy > x ? dy : x) >= 0x7f7f8000u) return false;  // rounds to infinity in bf16, and infinity times 0 is NaN
#endif
    return as_float(dy) * as_float(x) * ((float)i.head.n * (float)i.terms) < 0x1p60f;
}

// True if the largest magnitudes in a virtual processor's rows prove that all gradients fit. If false, check each row.
VP_DEVICE bool all_fit(const Vp& vp, const Watch& i, int r0, int r1)
{
    const Word dy = largest_of_rows(r0, r1, i.head.width, [&](int r) { return i.dy.row(r); });
    Word x = as_word(1.f);
    VP_ROLLED for (int s = 0; s < i.x.count; s++) {
        int width;
        const Operand rows = segment(vp, i.x, s, &width);
        const Word found = largest_of_rows(r0, r1, width, [&](int r) { return rows.row(r); });
        x = found > x ? found : x;
    }
    return fits(i, dy, x);
}

// Marks the launch as not finite if a gradient, or its square, may exceed the largest float. An element of the sum of dy
// x^T over rows is at most the number of terms times a row's largest |dy| |x|. Without x it sums dy. The check is per
// row, so that its result does not depend on how rows are divided. A cheap check of all rows usually suffices.
VP_ROUTINE void watch(const Vp& vp, const Watch& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        if (all_fit(vp, i, r0, r1)) return;
        for_rows(vp, r0, r1, [&](int r, bool mine) {
            const float* dy = i.dy.row(r);
            const Word largest_dy = reduce_largest(i.head.width, [&](int u) { return magnitude(dy[u]); });
            Word largest_x = as_word(1.f);
            VP_ROLLED for (int s = 0; s < i.x.count; s++) {
                int width;
                const float* x = segment(vp, i.x, s, &width).row(r);
                const Word found = reduce_largest(width, [&](int u) { return magnitude(x[u]); });
                largest_x = found > largest_x ? found : largest_x;
            }
            if (mine && first_lane() && !fits(i, largest_dy, largest_x)) mark(vp.counters + NOT_FINITE);
        });
    });
}

// VP 0 copies the loss of this launch to a slot that the next launch does not overwrite.
VP_ROUTINE void report_loss(const Vp& vp, const Loss& i)
{
    if (vp.id == 0) tell(vp, i.slot, vp.pool[i.source]);
}

// Returns `fine`: true if the launch continues. Tells the host 0 if fine, else the float `why`, which is not finite.
VP_DEVICE bool goes_on(const Vp& vp, Word left_out, bool fine, Word why)
{
    if (vp.id == 0) tell(vp, left_out, fine ? 0.f : as_float(why));
    return fine;
}

// Runs after the watches and a barrier, so that all virtual processors make the same decision.
VP_ROUTINE bool guard(const Vp& vp, const Guard& i)
{
    const bool fine = !marked(vp.counters + NOT_FINITE) && magnitude(vp.pool[i.loss]) < 0x7f800000u;
    return goes_on(vp, i.left_out, fine, 0x7fc00000u);
}
