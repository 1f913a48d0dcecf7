// ---- no weight is changed by a step whose loss or gradients are not finite
enum { NOT_FINITE = 2 };  // a word of the first counter's line, which the launch before has cleared: not 0 after a watch has said so

// No element of sum over rows of dy x^T is larger than the rows times the largest |dy| times the largest |x|. Where that,
// or its square, may not be a float the launch is not to change anything. Without x it is the sum of dy.
VP_ROUTINE void watch(const Vp& vp, const Watch& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        const Word dy = largest_of_rows(vp, r0, r1, i.head.width, [&](int r) { return i.dy.row(r); });
        Word x = as_word(1.f);
        VP_ROLLED for (int s = 0; s < i.x.count; s++) {
            int width;
            const Operand rows = segment(vp, i.x, s, &width);
            const Word found = largest_of_rows(vp, r0, r1, width, [&](int r) { return rows.row(r); });
            x = found > x ? found : x;
        }
        const float bound = as_float(dy) * as_float(x) * (float)i.head.n;
        if (first_thread() && !(bound < 0x1p60f)) mark(vp.counters + NOT_FINITE);
    });
}

// Whether the launch goes on; says so to the host.
VP_DEVICE bool goes_on(const Vp& vp, Word left_out, bool fine)
{
    if (vp.id == 0) tell(vp, left_out, fine ? 0.f : 1.f);
    return fine;
}

// Behind a barrier behind the watches: all virtual processors find the same.
VP_ROUTINE bool guard(const Vp& vp, const Guard& i)
{
    const bool fine = !marked(vp.counters + NOT_FINITE) && magnitude(vp.pool[i.loss]) < 0x7f800000u;
    return goes_on(vp, i.left_out, fine);
}
