// ---- slots: weights that a block holds from the beginning of a launch to its end
//
// A slot of shape (R, C, W): W warps along a row, C columns a lane, so a row may have 32 * C * W of them; each of the
// WARPS / W groups of warps holds R rows. Of a warp's 32 * C columns, which lie side by side, a lane holds four neighbours
// where there are as many, then two, then one: as many loads bring it what it needs of a vector.
// The weights are in registers, or in shared memory where each thread finds its own.
enum {
    TILE = VP_TILE,    // vectors whose products a thread sums up at a time
    FEW = TILE < 2 ? TILE : 2,  // likewise, where no more are left: one costs as much as two
    PASS = VP_TILES * TILE,  // vectors that are brought, multiplied and finished together, between barriers of the block
    STAGE = VP_STAGE,  // floats of a vector in shared memory: the columns of the widest slot
    BUFFERS = VP_BUFFERS,
    SUMS = VP_SUMS,  // partial sums of a pass, or the gradients of its results
    RESULTS = VP_RESULTS ? VP_RESULTS : SCRATCH,  // of products, that wait for the tail behind them
};
VP_DEVICE float* stage_buffer(int k) { return slot_memory() + k % BUFFERS * (PASS * STAGE); }
VP_DEVICE float* sums_buffer() { return slot_memory() + VP_STAGED; }
VP_DEVICE float* results_buffer() { return VP_RESULTS ? sums_buffer() + SUMS : scratch(); }
VP_DEVICE float* shared_weights() { return sums_buffer() + SUMS + VP_RESULTS; }

// Calls f(Slot) for the slots of a range. Which slot it is must be known when compiling: registers have no addresses.
template <int S, int END = VP_SLOTS, class F> VP_DEVICE void for_slots(Range range, F f)
{
    if constexpr (END - S > 1) {  // by halves: a matrix has one slot of many
        if (range.first < (S + END) / 2) for_slots<S, (S + END) / 2>(range, f);
        if (range.last > (S + END) / 2) for_slots<(S + END) / 2, END>(range, f);
    } else if constexpr (END > S) {
        if (S >= range.first && S < range.last) f(Slot<S>(), S - range.first);
    }
}

// The same by a table of branches: what many slots search for one by one takes.
template <int S = 0, class F> VP_DEVICE void at_slot(int s, F f)
{
    if constexpr (S + 1 >= VP_SLOTS) f(Slot<S>());
    else if (s == S) f(Slot<S>());
    else at_slot<S + 1>(s, f);
}
template <class F> VP_DEVICE void for_slots_by_table(Range range, F f)
{
    VP_ROLLED for (int s = range.first; s < range.last; s++) at_slot(s, [&](auto slot) { f(slot, s - range.first); });
}

template <class S> struct Shape {
    enum { GROUPS = WARPS / S::W, ROWS = S::R * GROUPS };
};
template <class S> struct Fragments;  // what a slot has whose KIND is not 0 (cuda/fragments.cuh)
template <int S> constexpr bool fragments_from()
{
    if constexpr (S < VP_SLOTS) return Slot<S>::KIND || fragments_from<S + 1>();
    else return false;
}
enum { FRAGMENTS = fragments_from<0>() };  // whether some slots have them
// With how many columns next to each other the c-th of a lane's comes, where a lane has so many.
VP_DEVICE constexpr int neighbours_at(int columns, int c) { return c < columns / 4 * 4 ? 4 : c < columns / 2 * 2 ? 2 : 1; }
template <class S> VP_DEVICE int column_of(int c)
{
    const int n = neighbours_at(S::C, c), first = c - c % n;
    return (warp() % S::W * S::C + first) * WARP + n * lane() + c - first;
}

// Neighbours among a lane's columns, from column K on.
template <int K, int COUNT> struct Neighbours {
    enum { FIRST = K, N = COUNT };
    struct alignas(4 * COUNT) Floats { float of[COUNT]; };
    // What a staged vector has there for lane l; `vector` points to what it has for the warp.
    VP_DEVICE Floats load(const float* vector, int l) const { return *(const Floats*)(vector + K * WARP + COUNT * l); }
};
template <class S, int K = 0, class F> VP_DEVICE void for_neighbours(F f)
{
    if constexpr (K < S::C) {
        constexpr int N = neighbours_at(S::C, K);
        f(Neighbours<K, N>());
        for_neighbours<S, K + N>(f);
    }
}
template <class S> VP_DEVICE int first_row(int w) { return w / S::W * S::R; }  // of warp w, in the slot

// Where a thread has the k-th value of a slot with C columns a lane in a buffer, or in shared memory where the slot is there:
// neighbours of a row side by side.
template <int C> VP_DEVICE int place_of(int k)
{
    const int c = k % C, n = neighbours_at(C, c), first = c - c % n;
    return (k - c + first) * THREADS + n * thread() + c - first;
}

// What a thread holds of a slot S, in registers or in shared memory: weights, or the gradient that has taken their place.
template <class S> struct Held {
    enum { N = S::R * S::C, BESIDE = S::KIND ? 4 : S::C };
    template <int K> VP_DEVICE static float get(const Store& store)
    {
        if constexpr (S::IN_REGISTERS) return read_register<S::AT + K>(store);
        else return shared_weights()[S::AT * THREADS + place_of<BESIDE>(K)];
    }
    template <int K> VP_DEVICE static void set(Store& store, float v)
    {
        if constexpr (S::IN_REGISTERS) write_register<S::AT + K>(store, v);
        else shared_weights()[S::AT * THREADS + place_of<BESIDE>(K)] = v;
    }
    VP_DEVICE static void read(const Store& store, float (&v)[N])
    {
        for_numbers<N>([&](auto k) { v[k.VALUE] = get<k.VALUE>(store); });
    }
    VP_DEVICE static void write(Store& store, const float (&v)[N])
    {
        for_numbers<N>([&](auto k) { set<k.VALUE>(store, v[k.VALUE]); });
    }
    // By way of a buffer in shared memory, one after the other: N values on their way would need N registers more.
    VP_DEVICE static void fill_from(Store& store, const float* buffer)
    {
        if (FRAGMENTS) __syncwarp();  // lanes have places of each other
        for_numbers<N>([&](auto k) { set<k.VALUE>(store, buffer[place_of<S::C>(k.VALUE)]); });
    }
    VP_DEVICE static void drain(const Store& store, float* buffer)
    {
        for_numbers<N>([&](auto k) { buffer[place_of<S::C>(k.VALUE)] = get<k.VALUE>(store); });
    }
};

// What a thread holds of a slot, row after row.
template <class S> struct Values {
    float of[S::R * S::C];

    VP_DEVICE float& at(int r, int c) { return of[r * S::C + c]; }
    VP_DEVICE void clear()
    {
        VP_UNROLL for (int k = 0; k < S::R * S::C; k++) of[k] = 0.f;
    }
    VP_DEVICE void read(const Store& store) { Held<S>::read(store, of); }
    VP_DEVICE void write(Store& store) const { Held<S>::write(store, of); }
};

// The rows of a matrix that this virtual processor owns, counted from 0: those of its units, part after part; or, where
// matrices are dealt in turns, blocks of as many rows as a slot holds, each to the next one.
struct Owned {
    int rows, count, units, part, from, turn, vp, vps;  // in turns, vp is 0 for who begins

    VP_DEVICE Owned(const Vp& v, const Head& h) : rows(h.width), vps(v.count)
    {
        turn = VP_TURNS && h.flags & TURNS ? h.parts & 0xffff : 0;
        if (turn) {
            vp = v.id - (h.parts >> 16);
            vp += vp < 0 ? vps : 0;
            count = ((rows + turn - 1) / turn - vp + vps - 1) / vps * turn;
            units = part = from = 0;
        } else {
            vp = v.id;
            part = small_quotient(rows, h.parts);
            from = share(part, vp, vps);
            units = share(part, vp + 1, vps) - from;
            count = units * h.parts;
        }
    }
    // How many there are; `count` takes the last block for whole.
    VP_DEVICE int there() const
    {
        return turn && count ? count - turn + least(turn, rows - ((count / turn - 1) * vps + vp) * turn) : count;
    }
    // Number of the k-th one in the matrix; -1: there is none.
    VP_DEVICE int row(int k) const
    {
        if (k >= count) return -1;
        if (!VP_TURNS || !VP_OPAQUE(turn)) {
            const int p = small_quotient(k, units);
            return p * part + from + k - p * units;
        }
        const int t = small_quotient(k, turn), r = (t * vps + vp) * turn + k - t * turn;
        return r < rows ? r : -1;
    }
};

struct Geometry : SlotShape {
    VP_DEVICE int all_rows() const { return WARPS / warps * rows; }
    VP_DEVICE int row(int number, int r) const { return number * all_rows() + warp() / warps * rows + r; }
};
VP_DEVICE Geometry shape_of(int s) { return {SHAPES[s]}; }

// What is in slot_memory() of a slot at a time: all of it, or of fragments, for which the room need not suffice, 8 rows (of
// each group of warps) and 4 columns (of each lane).
enum { PIECE_ROWS = 8, PIECE_COLUMNS = 4 };
struct Piece {
    Geometry slot;
    int s, first_slot, number = 0, first_row = 0, first_column = 0, rows, columns;

    // The first one of slot s.
    VP_DEVICE Piece(Range slots, int s) : slot(shape_of(s)), s(s), first_slot(slots.first)
    {
        rows = slot.rows, columns = slot.columns;
        if constexpr (FRAGMENTS)
            for_slots<0>({s, s + 1}, [&](auto slot, int) {
                if (decltype(slot)::KIND) rows = PIECE_ROWS, columns = least(PIECE_COLUMNS, columns);
            });
    }
    // Whether there is a next one: it is that.
    VP_DEVICE bool next()
    {
        if constexpr (!FRAGMENTS) return false;
        first_column += columns, number++;
        if (first_column >= slot.columns) first_column = 0, first_row += rows;
        columns = least(PIECE_COLUMNS, slot.columns - first_column);
        return first_row < slot.rows;
    }
    // The same, with its slot's shape looked up anew: from one use to the next registers need not hold it.
    VP_DEVICE Piece again() const
    {
        Piece p = *this;
        p.slot = shape_of(s);
        if (!FRAGMENTS) p.rows = p.slot.rows, p.columns = p.slot.columns;
        return p;
    }
    VP_DEVICE int slot_number() const { return s - first_slot; }
    // How many of its rows the warp has; those behind them are not owned.
    VP_DEVICE int there(const Owned& owned) const
    {
        return FRAGMENTS ? least(rows, owned.count - slot.row(slot_number(), first_row)) : rows;
    }
};

// Calls f(places, row, column, n, inside) for what this thread holds of rows of a piece: n columns next to each other, of which
// the matrix has `inside`. They have n places side by side in shared memory, by way of which values go to and from registers
// (Values), so that f is there once and not for each register. Where lanes have places of each other (fragments), a lane takes
// four columns whatever the slot's shape, so that the warp goes through as many as four rows at once.
template <class F> VP_DEVICE void for_places_of_piece(const Owned& owned, const Piece& p, int from, int to, int columns, F f)
{
    const int number = p.slot_number();
    const auto inside = [&](int row, int column, int n) { return row < 0 ? 0 : most(0, least(n, columns - column)); };
    if constexpr (FRAGMENTS) {
        int n = 0;
        VP_ROLLED for (int c = 0; c < p.columns; c += n) {
            n = neighbours_at(p.columns, c);
            const int k = 4 * lane() & (n * WARP - 1);
            const int column = (warp() % p.slot.warps * p.slot.columns + p.first_column + c) * WARP + k;
            VP_ROLLED for (int r = from + (lane() >> (3 + n / 2)); r < to; r += 4 >> n / 2) {
                const int row = owned.row(p.slot.row(number, p.first_row + r));
                f(slot_memory() + (r * p.columns + c) * THREADS + n * WARP * warp() + k, row, column, 4, inside(row, column, 4));
            }
        }
        return;
    }
    float* places = slot_memory() + from * p.columns * THREADS;
    VP_ROLLED for (int r = from; r < to; r++, places += p.columns * THREADS) {
        const int row = owned.row(p.slot.row(number, p.first_row + r));
        int n = 0;
        VP_ROLLED for (int c = 0; c < p.columns; c += n) {
            n = neighbours_at(p.columns, c);
            const int column = (warp() % p.slot.warps * p.slot.columns + p.first_column + c) * WARP + n * lane();
            f(places + c * THREADS + n * thread(), row, column, n, inside(row, column, n));
        }
    }
}

// Calls f(place, row, column) for each value, with row -1 beyond the matrix.
template <class F> VP_DEVICE void for_elements(const Owned& owned, const Piece& piece, int columns, F f)
{
    const Piece p = piece.again();
    for_places_of_piece(owned, p, 0, p.rows, columns, [&](float* places, int row, int column, int n, int inside) {
        VP_ROLLED for (int k = 0; k < n; k++) f(places[k], k < inside ? row : -1, column + k);
    });
}
// Zeros for rows that are not owned, in places from `places` on.
VP_DEVICE void clear_rest(const Owned& owned, const Piece& p, float* places)
{
    const int end = p.rows * p.columns;
    int n = 0;
    VP_ROLLED for (int k = most(0, p.there(owned)) * p.columns; k < end; k += n) {
        n = neighbours_at(p.columns, k % p.columns);
        VP_ROLLED for (int j = 0; j < n; j++) places[k * THREADS + n * thread() + j] = 0.f;
    }
}
