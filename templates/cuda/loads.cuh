// ---- the beginning of a launch: weights on their way to the slots

// Those of slots in registers, and those that are rounded, come through slot_memory(), as many slots at once (a wave) as there
// is room for: UNIT is the first float of each thread there. The others come to where they stay. A slot that has more pieces
// than there is room for, of SIZE floats each, takes several waves, AT_ONCE pieces each.
template <int S> struct Arrival {
    enum {
        ROOM = VP_STAGED / THREADS,
        KIND = Slot<S>::KIND,
        R = Slot<S>::R,
        C = Slot<S>::C,
        THROUGH = Slot<S>::IN_REGISTERS || KIND,
        SIZE = !THROUGH ? 0 : KIND ? PIECE_ROWS * (C < PIECE_COLUMNS ? C : PIECE_COLUMNS) : R * C,
        PIECES = KIND ? R / PIECE_ROWS * ((C + PIECE_COLUMNS - 1) / PIECE_COLUMNS) : 1,
        AT_ONCE = PIECES * SIZE <= ROOM ? PIECES : ROOM / SIZE,
        NEXT = S % 32 == 0 || Arrival<S - 1>::END + PIECES * SIZE > ROOM,
        WAVE = Arrival<S - 1>::LAST_WAVE + NEXT,
        LAST_WAVE = WAVE + (PIECES - 1) / AT_ONCE,
        UNIT = NEXT ? 0 : Arrival<S - 1>::END,
        END = UNIT + PIECES * SIZE,
    };
};
template <> struct Arrival<-1> { enum { LAST_WAVE = -1, END = 0 }; };

struct Coming {
    int wave;    // of the slots whose copies have begun
    Word slots;  // a bit for each, modulo 32: a wave has no more
};

// What a thread holds of slot `s` arrives so many floats behind its places in slot_memory(), the first pieces of it.
VP_DEVICE void find_arrival(int s, int* wave, int* floats, int* at_once)
{
    for_numbers<VP_SLOTS>([&](auto number) {
        enum { S = number.VALUE };
        if (s == S) {
            *wave = Arrival<S>::WAVE;
            *at_once = Arrival<S>::AT_ONCE;
            *floats = Arrival<S>::THROUGH ? Arrival<S>::UNIT * THREADS
                                              : (int)(shared_weights() - slot_memory()) + Slot<S>::AT * THREADS;
        }
    });
}
VP_DEVICE void take(Vp& vp, const Coming& coming)
{
    for_numbers<VP_SLOTS>([&](auto number) {
        enum { S = number.VALUE };
        if constexpr (Arrival<S>::THROUGH) {
            using A = Arrival<S>;
            if ((A::WAVE == coming.wave || (A::WAVE < coming.wave && coming.wave <= A::LAST_WAVE)) && coming.slots >> S % 32 & 1) {
                const float* buffer = slot_memory() + A::UNIT * THREADS;
                if constexpr (!Slot<S>::KIND) Held<Slot<S>>::fill_from(vp.store, buffer);
                else for_numbers<A::PIECES>([&](auto piece) {
                    if (coming.wave != A::WAVE + piece.VALUE / A::AT_ONCE) return;
                    const float* from = buffer + piece.VALUE % A::AT_ONCE * A::SIZE * THREADS;
                    Fragments<Slot<S>>::template fill<piece.VALUE>(vp.store, from);
                });
            }
        }
    });
}

// Begin to copy the owned rows of a matrix; the copies of all loads that follow each other are in flight together. What is
// no load any more waits for them (false).
VP_DEVICE bool load(Vp& vp, const Word* ip, bool more, Coming& coming)
{
#if VP_DENSE
    if (more && (!VP_SLOTS || dense(ip[VP_HEAD_WORDS + 2]).window >= 0)) {
        load_dense(vp, Load::decode(vp, ip));
        return true;
    }
#endif
#if !VP_SLOTS
    copy_async_wait();
    return false;
#endif
    Range slots = {0, 1};
    if (more) slots = slots_of(Load::decode(vp, ip).matrix);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        int first = -1, unit = 0, at_once = 1;
        if (more) find_arrival(s, &first, &unit, &at_once);
        Piece piece(slots, s);
        do {
            const int waves = FRAGMENTS && more ? small_quotient(piece.number, at_once) : 0, wave = first + waves;
            const int here = piece.number - waves * at_once;  // of the wave
            const int floats = unit + here * (PIECE_ROWS * THREADS) * least(PIECE_COLUMNS, piece.slot.columns);
            if (wave != coming.wave) {
                copy_async_wait();  // the thread's own
                take(vp, coming);
                if (more) __syncthreads();  // what is a thread's place in one slot may be another's in the next one
                coming = {wave, 0};
            }
            if (!more) return false;
            const Load i = Load::decode(vp, ip);
            const Owned owned(vp, i.head);
            VP_TIMELINE(if (s == slots.first && piece.number == 0) count_elements(vp, i, 1);)
            const bool by_fours = ((i.weights | i.columns) & 3) == 0;
            const Piece p = piece.again();
            const auto begin = [&](float* places, int row, int column, int n, int inside) {
                const float* from = vp.pool + (i.weights + (Word)row * i.columns + column);
                float* to = places + floats;
                if (by_fours && inside == 4) return copy_async16(to, from);
                VP_ROLLED for (int k = 0; k < n; k++) {
                    if (k < inside) copy_async4(to + k, from + k);
                    else to[k] = 0.f;
                }
            };
            for_places_of_piece(owned, p, 0, p.there(owned), (int)i.columns, begin);
            if (FRAGMENTS) clear_rest(owned, p, slot_memory() + floats);
            coming.slots |= 1u << s % 32;
        } while (piece.next());
    }
    return true;
}
