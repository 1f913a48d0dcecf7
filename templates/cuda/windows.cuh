// ---- windows: shared memory in which the rows of a matrix lie, one after the other, to be multiplied by
//
// A matrix and its transpose may have one window. Then the transpose is in registers from the beginning of the launch, and takes
// the window when it is needed: by then the matrix is not needed any more, or else is brought again.
VP_DEVICE float* windows() { return slot_memory() + VP_WINDOWS_AT; }
VP_DEVICE int& shown(const Dense& m) { return ((int*)(windows() + VP_WINDOW_FLOATS))[m.window]; }  // number of the matrix there
VP_DEVICE int fours_of(int columns) { return (columns + 7) / 8 * 2; }  // with zeros behind the last column
VP_DEVICE int pitch_of(int columns) { return 4 * (fours_of(columns) + 1); }  // eight rows begin in different banks

// Calls f(registers, row, four) for the fours of elements that a thread holds of the matrix with that number, the first element
// in registers AT and on.
template <class F> VP_DEVICE void for_fours_in_registers(int number, int rows, int fours, F f)
{
    for_numbers<VP_HOMES>([&](auto home) {
        using H = Home<home.VALUE>;
        if (number != H::NUMBER) return;
        const int me = VP_OPAQUE(thread());
        for_numbers<H::FOURS>([&](auto k) {
            const int place = k.VALUE * THREADS + me, row = small_quotient(place, fours);
            if (row < rows) f(Number<H::AT + 4 * k.VALUE>(), row, place - row * fours);
        });
    });
}

// Begin to copy the owned rows to the window.
VP_DEVICE void bring_rows(const Vp& vp, const Dense& m, const Owned& owned, Word weights, int columns)
{
    const bool by_fours = ((weights | (Word)columns) & 3) == 0;
    for_places(owned.count, fours_of(columns), [&](int k, int four) {
        const float* from = vp.pool + (weights + (Word)owned.row(k) * (Word)columns + (Word)(4 * four));
        float* to = windows() + m.at + k * pitch_of(columns) + 4 * four;
        if (by_fours && 4 * four < columns) return copy_async16(to, from);
        VP_ROLLED for (int c = 0; c < 4; c++) {
            if (4 * four + c < columns) copy_async4(to + c, from + c);
            else to[c] = 0.f;
        }
    });
}

// At the beginning of a launch. The next instruction waits for the copies.
VP_DEVICE void load_dense(Vp& vp, const Load& i)
{
    const Dense m = dense(i.matrix);
    const Owned owned(vp, i.head);
    const int columns = (int)i.columns;
    VP_TIMELINE(count_elements(vp, i, 1);)
    if (!m.is_at_home) {
        if (thread() == 0) shown(m) = (int)i.matrix;
        return bring_rows(vp, m, owned, i.weights, columns);
    }
    if (thread() == 0 && shown(m) == (int)i.matrix) shown(m) = 0;  // left there by an earlier launch
    const bool by_fours = ((i.weights | i.columns) & 3) == 0;
    for_fours_in_registers((int)i.matrix, owned.count, fours_of(columns), [&](auto at, int row, int four) {
        const float* from = vp.pool + (i.weights + (Word)owned.row(row) * i.columns + (Word)(4 * four));
        enum { AT = decltype(at)::VALUE };
        float4 e = {0.f, 0.f, 0.f, 0.f};
        if (by_fours && 4 * four < columns) {
            e = *(const float4*)from;
        } else {
            const auto element = [&](int c) { return 4 * four + c < columns ? from[c] : 0.f; };
            e = {element(0), element(1), element(2), element(3)};
        }
        write_register<AT>(vp.store, e.x), write_register<AT + 1>(vp.store, e.y);
        write_register<AT + 2>(vp.store, e.z), write_register<AT + 3>(vp.store, e.w);
    });
}

// See to it that the matrix is in its window.
VP_DEVICE void show(const Vp& vp, const Dense& m, const Owned& owned, int number, Word weights, int columns)
{
#if VP_HOMES
    if (shown(m) == number) return;
    if (m.is_at_home) {
        for_fours_in_registers(number, owned.count, fours_of(columns), [&](auto at, int row, int four) {
            enum { AT = decltype(at)::VALUE };
            *(float4*)(windows() + m.at + row * pitch_of(columns) + 4 * four) = {
                read_register<AT>(vp.store), read_register<AT + 1>(vp.store), read_register<AT + 2>(vp.store),
                read_register<AT + 3>(vp.store)};
        });
    } else {
        bring_rows(vp, m, owned, weights, columns);
        copy_async_wait();
    }
    __syncthreads();
    if (thread() == 0) shown(m) = number;
#endif
}
