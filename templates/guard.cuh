// ---- no weight is changed by a step whose loss or gradients are not finite
enum { NOT_FINITE = 2 };  // a word of the first counter's line, which the launch before has cleared: not 0 after a watch has said so

// Whether no sum of products of such magnitudes, a term for every row and more, has a square that is no float.
VP_DEVICE bool fits(const Watch& i, Word dy, Word x)
{
#if VP_ROUNDS
    if ((dy > x ? dy : x) >= 0x7f7f8000u) return false;  // to bf16 that is infinite, and its product with 0 no number
#endif
    return as_float(dy) * as_float(x) * ((float)i.head.n * (float)i.terms) < 0x1p60f;
}

// Whether gradients fit, by the largest magnitudes in all rows of a virtual processor. If not, rows are to be looked at.
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

// No element of sum over rows of dy x^T is larger than the terms times the largest of a row's |dy| |x|. Where that, or its
// square, may not be a float the launch is not to change anything. Without x it is the sum of dy. Row by row, so that the
// answer does not depend on who looks at which rows; where one thread has many, all at once nearly always say enough.
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

// VP 0 keeps the loss of this launch where the next launch does not overwrite it.
VP_ROUTINE void report_loss(const Vp& vp, const Loss& i)
{
    if (vp.id == 0) tell(vp, i.slot, vp.pool[i.source]);
}

// Whether the launch goes on; says so to the host: a loss that is 0 or not finite.
VP_DEVICE bool goes_on(const Vp& vp, Word left_out, bool fine, Word why)
{
    if (vp.id == 0) tell(vp, left_out, fine ? 0.f : as_float(why));
    return fine;
}

// Behind a barrier behind the watches: all virtual processors find the same.
VP_ROUTINE bool guard(const Vp& vp, const Guard& i)
{
    const bool fine = !marked(vp.counters + NOT_FINITE) && magnitude(vp.pool[i.loss]) < 0x7f800000u;
    return goes_on(vp, i.left_out, fine, 0x7fc00000u);
}
