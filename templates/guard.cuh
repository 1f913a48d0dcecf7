// ---- no weight is changed by a step whose loss or gradients are not finite
enum { NOT_FINITE = 2 };  // a word of the first counter's line, which the launch before has cleared: not 0 after a watch has said so

// No element of sum over rows of dy x^T is larger than the terms times the largest of a row's |dy| |x|. Where that, or its
// square, may not be a float the launch is not to change anything. Without x it is the sum of dy. All rows at once nearly
// always say enough; if not, row by row, so that the answer does not depend on who looks at which rows.
VP_ROUTINE void watch(const Vp& vp, const Watch& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        bool going = true, bad = false;
        for (int from = r0, to = r1; VP_AGREED(going);) {
            const Word dy = largest_of_rows(vp, from, to, i.head.width, [&](int r) { return i.dy.row(r); });
            Word x = as_word(1.f);
            VP_ROLLED for (int s = 0; s < i.x.count; s++) {
                int width;
                const Operand rows = segment(vp, i.x, s, &width);
                const Word found = largest_of_rows(vp, from, to, width, [&](int r) { return rows.row(r); });
                x = found > x ? found : x;
            }
            const float bound = as_float(dy) * as_float(x) * ((float)i.head.n * (float)i.terms);
            const bool fine = bound < 0x1p60f;
            bad = !fine && to - from == 1;
            from = fine || bad ? to : from;
            to = from + 1;
            going = from < r1 && !bad;
        }
        if (first_thread() && bad) mark(vp.counters + NOT_FINITE);
    });
}

// Whether the launch goes on; says so to the host, and to the second launch of the script: a loss that is 0 or not finite.
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
