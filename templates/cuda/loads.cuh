// ---- the beginning of a launch: weights on their way to the slots

// Those of slots in registers, and those that are rounded, come through slot_memory(), as many slots at once (a wave) as there
// is room for: UNIT is the first float of each thread there. The others come to where they stay.
template <int S> struct Arrival {
    enum {
        THROUGH = Slot<S>::IN_REGISTERS || Slot<S>::KIND,
        SIZE = THROUGH ? Slot<S>::R * Slot<S>::C : 0,
        NEXT = S % 32 == 0 || Arrival<S - 1>::END + SIZE > VP_STAGED / THREADS,
        WAVE = Arrival<S - 1>::WAVE + NEXT,
        UNIT = NEXT ? 0 : Arrival<S - 1>::END,
        END = UNIT + SIZE,
    };
};
template <> struct Arrival<-1> { enum { WAVE = -1, END = 0 }; };

struct Coming {
    int wave;    // of the slots whose copies have begun
    Word slots;  // a bit for each, modulo 32: a wave has no more
};

// What a thread holds of slot `s` arrives so many floats behind its places in slot_memory().
VP_DEVICE void find_arrival(int s, int* wave, int* floats)
{
    for_numbers<VP_SLOTS>([&](auto number) {
        enum { S = number.VALUE };
        if (s == S) {
            *wave = Arrival<S>::WAVE;
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
            if (Arrival<S>::WAVE == coming.wave && coming.slots >> S % 32 & 1) {
                const float* buffer = slot_memory() + Arrival<S>::UNIT * THREADS;
                if constexpr (Slot<S>::KIND) Fragments<Slot<S>>::fill(vp.store, buffer);
                else Values<Slot<S>>::Weights::fill(vp.store, buffer);
            }
        }
    });
}

// Begin to copy the owned rows of a matrix; the copies of all loads that follow each other are in flight together. What is
// no load any more waits for them (false).
VP_DEVICE bool load(Vp& vp, const Word* ip, bool more, Coming& coming)
{
    Range slots = {0, 1};
    if (more) slots = slots_of(Load::decode(vp, ip).matrix);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        int wave = -1, floats = 0;
        if (more) find_arrival(s, &wave, &floats);
        if (wave != coming.wave) {
            copy_async_wait();  // the thread's own
            take(vp, coming);
            if (more) __syncthreads();  // what is a thread's place in one slot may be another's in the next one
            coming = {wave, 0};
        }
        if (!more) return false;
        const Load i = Load::decode(vp, ip);
        const Owned owned(vp, i.head);
        VP_TIMELINE(if (s == slots.first) count_elements(vp, i, 1);)
        const bool by_fours = ((i.weights | i.columns) & 3) == 0;
        const Geometry g = shape_of(s);
        const auto begin = [&](float* places, int row, int column, int n, int inside) {
            const float* from = vp.pool + (i.weights + (Word)row * i.columns + column);
            float* to = places + floats;
            if (by_fours && inside == 4) return copy_async16(to, from);
            VP_ROLLED for (int k = 0; k < n; k++) {
                if (k < inside) copy_async4(to + k, from + k);
                else to[k] = 0.f;
            }
        };
        for_places_of_slot(owned, g, s - slots.first, 0, g.rows, (int)i.columns, begin);
        coming.slots |= 1u << s % 32;
    }
    return true;
}
