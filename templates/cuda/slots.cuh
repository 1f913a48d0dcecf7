// ---- slots: weights that a block holds from the beginning of a launch to its end (kernel.md 4)
//
// A slot of shape (R, C, W): W warps along a row, C columns a lane, so a row may have 32 * C * W of them; each of the
// WARPS / W groups of warps holds R rows. Of a warp's 32 * C columns, which lie side by side, a lane holds four neighbours
// where there are as many, then two, then one: as many loads bring it what it needs of a vector.
// The weights are in registers, or in shared memory where each thread finds its own.
enum {
    TILE = VP_TILE,    // vectors of a pass
    FEW = TILE < 2 ? TILE : 2,  // likewise, where no more are left: one costs as much as two
    STAGE = VP_STAGE,  // floats of a vector in shared memory: the columns of the widest slot
    BUFFERS = VP_BUFFERS,
    SUMS = VP_SUMS,  // partial sums of a pass, or the gradients of its results
    RESULTS = VP_RESULTS ? VP_RESULTS : SCRATCH,  // of products, that wait for the tail behind them
};
VP_DEVICE float* stage_buffer(int k) { return slot_memory() + k % BUFFERS * (TILE * STAGE); }
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

template <class S> struct Shape {
    enum { GROUPS = WARPS / S::W, ROWS = S::R * GROUPS };
};
VP_DEVICE int rows_of_slot(int s)
{
    int rows = 0;
    for_slots<0>({s, s + 1}, [&](auto slot, int) { rows = Shape<decltype(slot)>::ROWS; });
    return rows;
}
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

// What a thread holds of a slot: values in registers, or in shared memory, from AT on.
template <int AT, int K, int N> VP_DEVICE void read_registers(const Store& store, float (&v)[N])
{
    if constexpr (K < N) {
        v[K] = read_register<AT + K>(store);
        read_registers<AT, K + 1>(store, v);
    }
}
template <int AT, int K, int N> VP_DEVICE void write_registers(Store& store, const float (&v)[N])
{
    if constexpr (K < N) {
        write_register<AT + K>(store, v[K]);
        write_registers<AT, K + 1>(store, v);
    }
}
// Where a thread has the k-th value of a slot with C columns a lane in a buffer, or in shared memory where the slot is there:
// neighbours of a row side by side.
template <int C> VP_DEVICE int place_of(int k)
{
    const int c = k % C, n = neighbours_at(C, c), first = c - c % n;
    return (k - c + first) * THREADS + n * thread() + c - first;
}

// One after the other from memory to registers: N values on their way would need N registers more.
template <int AT, int C, int K, int N> VP_DEVICE void fill_registers(Store& store, const float* buffer)
{
    if constexpr (K < N) {
        write_register<AT + K>(store, buffer[place_of<C>(K)]);
        fill_registers<AT, C, K + 1, N>(store, buffer);
    }
}
template <int AT, int C, int K, int N> VP_DEVICE void drain_registers(const Store& store, float* buffer)
{
    if constexpr (K < N) {
        buffer[place_of<C>(K)] = read_register<AT + K>(store);
        drain_registers<AT, C, K + 1, N>(store, buffer);
    }
}

// What a thread holds of a slot S, from AT on in registers or in shared memory.
template <class S, int AT, bool IN_REGISTERS> struct Held {
    enum { N = S::R * S::C };
    VP_DEVICE static float& shared(int k) { return shared_weights()[AT * THREADS + place_of<S::C>(k)]; }
    VP_DEVICE static void read(const Store& store, float (&v)[N])
    {
        if constexpr (IN_REGISTERS) read_registers<AT, 0>(store, v);
        else {
            VP_UNROLL for (int k = 0; k < N; k++) v[k] = shared(k);
        }
    }
    VP_DEVICE static void write(Store& store, const float (&v)[N])
    {
        if constexpr (IN_REGISTERS) write_registers<AT, 0>(store, v);
        else {
            VP_UNROLL for (int k = 0; k < N; k++) shared(k) = v[k];
        }
    }
    // By way of a buffer in shared memory.
    VP_DEVICE static void fill(Store& store, const float* buffer)
    {
        if constexpr (IN_REGISTERS) fill_registers<AT, S::C, 0, N>(store, buffer);
        else {
            VP_UNROLL for (int k = 0; k < N; k++) shared(k) = buffer[place_of<S::C>(k)];
        }
    }
    VP_DEVICE static void drain(const Store& store, float* buffer)
    {
        if constexpr (IN_REGISTERS) drain_registers<AT, S::C, 0, N>(store, buffer);
        else {
            VP_UNROLL for (int k = 0; k < N; k++) buffer[place_of<S::C>(k)] = shared(k);
        }
    }
};

// The weights of a slot, row after row, and their gradients.
template <class S> struct Values {
    using Weights = Held<S, S::AT, S::IN_REGISTERS>;
    using Gradient = Held<S, S::GRADIENT, S::GRADIENT_IN_REGISTERS>;
    float of[S::R * S::C];

    VP_DEVICE float& at(int r, int c) { return of[r * S::C + c]; }
    VP_DEVICE void clear()
    {
        VP_UNROLL for (int k = 0; k < S::R * S::C; k++) of[k] = 0.f;
    }
    VP_DEVICE void read_weights(const Store& store) { Weights::read(store, of); }
    VP_DEVICE void write_weights(Store& store) { Weights::write(store, of); }
    VP_DEVICE void read_gradient(const Store& store) { Gradient::read(store, of); }
    VP_DEVICE void write_gradient(Store& store) { Gradient::write(store, of); }
};

// The rows of a matrix that this virtual processor owns, counted from 0: those of its units, part after part; or, where
// matrices are dealt in turns, blocks of as many rows as a slot holds, each to the next one.
struct Owned {
    int rows, count, units, part, from, turn, vp, vps;  // in turns, vp is 0 for who begins

    VP_DEVICE Owned(const Vp& v, const Head& h) : rows(h.width), vps(v.count)
    {
        turn = h.flags & TURNS ? h.parts & 0xffff : 0;
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
    // Number of the k-th one in the matrix; -1: there is none.
    VP_DEVICE int row(int k) const
    {
        if (k >= count) return -1;
        if (!VP_OPAQUE(turn)) {
            const int p = small_quotient(k, units);
            return p * part + from + k - p * units;
        }
        const int t = small_quotient(k, turn), r = (t * vps + vp) * turn + k - t * turn;
        return r < rows ? r : -1;
    }
};

// The shape of a slot, where code is not to be there once for each.
struct Geometry {
    int rows, columns, warps;

    VP_DEVICE int all_rows() const { return WARPS / warps * rows; }
    VP_DEVICE int row(int number, int r) const { return number * all_rows() + warp() / warps * rows + r; }
};
VP_DEVICE Geometry geometry(int s)
{
    Geometry g = {0, 0, 1};
    for_slots<0>({s, s + 1}, [&](auto slot, int) {
        using S = decltype(slot);
        g = {S::R, S::C, S::W};
    });
    return g;
}

// Calls f(places, row, column, n, inside) for what this thread holds of a slot: n columns next to each other, of which the
// matrix has `inside`. They have n places side by side in shared memory, by way of which values go to and from registers
// (Values), so that f is there once and not for each register.
template <class F>
VP_DEVICE void for_places_of_slot(const Owned& owned, const Geometry& g, int number, int from, int to, int columns, F f)
{
    float* places = slot_memory() + from * g.columns * THREADS;
    VP_ROLLED for (int r = from; r < to; r++, places += g.columns * THREADS) {
        const int row = owned.row(g.row(number, r));
        int n = 0;
        VP_ROLLED for (int c = 0; c < g.columns; c += n) {
            n = neighbours_at(g.columns, c);
            const int column = (warp() % g.warps * g.columns + c) * WARP + n * lane();
            f(places + c * THREADS + n * thread(), row, column, n, row < 0 ? 0 : most(0, least(n, columns - column)));
        }
    }
}

// Calls f(place, row, column) for each value, with row -1 beyond the matrix.
template <class F>
VP_DEVICE void for_elements(const Owned& owned, const Geometry& g, int number, int from, int to, int columns, F f)
{
    for_places_of_slot(owned, g, number, from, to, columns, [&](float* places, int row, int column, int n, int inside) {
        VP_ROLLED for (int k = 0; k < n; k++) f(places[k], k < inside ? row : -1, column + k);
    });
}
template <class F> VP_DEVICE void for_elements(const Owned& owned, Range slots, int s, int columns, F f)
{
    const Geometry g = geometry(s);
    for_elements(owned, g, s - slots.first, 0, g.rows, columns, f);
}

// ---- the beginning of a launch: weights on their way to the slots

// Those of slots in registers come through slot_memory(), as many slots at once (a wave) as there is room for: UNIT is the
// first float of each thread there. The others come to where they stay.
template <int S> struct Arrival {
    enum {
        SIZE = Slot<S>::IN_REGISTERS ? Slot<S>::R * Slot<S>::C : 0,
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
template <int S = 0> VP_DEVICE void find_arrival(int s, int* wave, int* floats)
{
    if constexpr (S < VP_SLOTS) {
        if (s == S) {
            *wave = Arrival<S>::WAVE;
            *floats = Slot<S>::IN_REGISTERS ? Arrival<S>::UNIT * THREADS
                                              : (int)(shared_weights() - slot_memory()) + Slot<S>::AT * THREADS;
        }
        find_arrival<S + 1>(s, wave, floats);
    }
}
template <int S = 0> VP_DEVICE void take(Vp& vp, const Coming& coming)
{
    if constexpr (S < VP_SLOTS) {
        if constexpr (Slot<S>::IN_REGISTERS) {
            if (Arrival<S>::WAVE == coming.wave && coming.slots >> S % 32 & 1)
                Values<Slot<S>>::Weights::fill(vp.store, slot_memory() + Arrival<S>::UNIT * THREADS);
        }
        take<S + 1>(vp, coming);
    }
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
        const Geometry g = geometry(s);
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

// ---- vectors in shared memory, a tile of them at a time

// The pieces that vectors consist of: the k-th one is segment k % count of vector k / count. Lane l of every warp looks up
// pieces l, l + 32 ... where they lie, and whichever warp copies a piece asks that lane.
struct Pieces {
    const Vp& vp;
    const Segments& x;
    int rows;     // vectors of the instruction
    int columns;  // of a vector
    int width;    // of a vector in the slots of the matrix: with zeros behind it, as zero times NaN is not zero

    struct Place {
        Word address, mode;
        int vector, offset, width;
        VP_DEVICE bool indexed() const { return mode & VP_INDEXED; }
    };
    VP_DEVICE Place place(int k) const
    {
        const int vector = x.count <= 2 ? k >> (x.count - 1) : small_quotient(k, x.count), mine = k - vector * x.count;
        int offset = 0;
        VP_ROLLED for (int s = 0; s < x.count - 1; s++) offset += s < mine ? (int)x.first[3 * s + 2] : 0;
        const Word* segment = x.first + 3 * mine;
        return {segment[0], segment[1], vector, offset, (int)segment[2]};
    }
    // Begin to look up where a piece of the tile at `row` lies; nobody waits for it here.
    VP_DEVICE Word look_up(const Place& p, int row) const
    {
        const int r = least(row + p.vector, rows - 1);
        return p.indexed() ? vp.script[p.address + r] : p.address + (Word)r * (p.mode & VP_OFFSET_MASK);
    }
    // Begin to copy vectors [row, row + n) to a buffer. `found` is what look_up(mine, row) found, of the lane's first piece.
    VP_DEVICE void copy(int row, int n, const Place& mine, Word found, float* buffer) const
    {
        const int count = n * x.count;
        VP_ROLLED for (int first = 0; first < count; first += WARP) {
            Place p = mine;
            if (first) p = place(first + lane());
            Word from = first ? look_up(p, row) : found;
            if (p.indexed()) from += p.mode & VP_OFFSET_MASK;
            const int to = p.vector * STAGE + p.offset, floats = p.vector < n ? p.width : 0;
            VP_ROLLED for (int k = 0; k < least(WARP, count - first); k += WARPS) copy_piece(k + warp(), from, to, floats, buffer);
        }
        if (columns < width) for_places(n, width - columns, [&](int v, int c) { buffer[v * STAGE + columns + c] = 0.f; });
    }
    // By the whole warp, the piece that lane `k` has looked up.
    VP_DEVICE void copy_piece(int k, Word from, int to, int floats, float* buffer) const
    {
        const float* source = vp.pool + __shfl_sync(~0u, from, k);
        float* target = buffer + __shfl_sync(~0u, to, k);
        const int n = __shfl_sync(~0u, floats, k);
        if ((((size_t)source / 4 | (size_t)(target - buffer) | (size_t)n) & 3) == 0) {
            VP_ROLLED for (int c = 4 * lane(); c < n; c += 8 * WARP) {
                copy_async16(target + c, source + c);
                if (c + 4 * WARP < n) copy_async16(target + c + 4 * WARP, source + c + 4 * WARP);
            }
        } else {
            VP_ROLLED for (int c = lane(); c < n; c += WARP) copy_async4(target + c, source + c);
        }
    }
};

// Calls f(buffer, row, n) for tiles of the staged vectors of rows [0, total); the next tile comes while f works, and where
// the one after that lies. f must come to a barrier of the block after its last use of the buffer.
template <class F> VP_DEVICE void for_staged(const Vp& vp, const Segments& x, int columns, int width, int total, F f)
{
    const Pieces pieces = {vp, x, total, columns, width};
    int row = 0, n = 0;  // of the tile that is there
    // Where registers are scarce it is worked out anew for every tile.
    const bool held = VP_CACHED <= 128;
    Pieces::Place mine = pieces.place(lane());
    Word found = pieces.look_up(mine, 0);
    VP_ROLLED for (int k = 0; true; k++) {
        const int next = row + n, size = least(TILE, total - next);
        if (!held) mine = pieces.place(VP_OPAQUE(lane()));
        if (BUFFERS > 1 && size) {
            pieces.copy(next, size, mine, found, stage_buffer(k));
            if (next + size < total) found = pieces.look_up(mine, next + size);
        }
        if (n) f(stage_buffer(k + BUFFERS - 1), row, n);
        if (!size) return;
        if (BUFFERS == 1) {
            if (!held) mine = pieces.place(VP_OPAQUE(lane()));
            pieces.copy(next, size, mine, found, stage_buffer(0));
            if (next + size < total) found = pieces.look_up(mine, next + size);
        }
        copy_async_wait();
        __syncthreads();
        row = next;
        n = size;
    }
}

// ---- sums over the lanes of a warp, of N values at once: a step adds the halves of pairs of lanes and leaves each with
// half of the values. Recursion, because a loop that halves the number of values would keep them in memory.
template <int N, int O, class T> VP_DEVICE void sum_over_lanes(T& v, int l)
{
    if constexpr (O > 0) {
        constexpr int HALF = (N + 1) / 2;
        const bool upper = l & O;
        VP_UNROLL for (int k = 0; k < HALF; k++) {
            if (k + HALF < N) {
                const float give = upper ? v[k] : v[k + HALF], keep = upper ? v[k + HALF] : v[k];
                v[k] = keep + __shfl_xor_sync(~0u, give, O);
            } else {
                v[k] += __shfl_xor_sync(~0u, v[k], O);
            }
        }
        sum_over_lanes<HALF, O / 2>(v, l);
    }
}

// Which of the N values the k-th one of lane l is in the end; -1: another lane has it as well.
template <int N, int O> VP_DEVICE int value_of_lane(int k, int l)
{
    if constexpr (O == 0) {
        return k;
    } else {
        constexpr int HALF = (N + 1) / 2;
        const int inner = value_of_lane<HALF, O / 2>(k, l);
        if (inner < 0 || !(l & O)) return inner;
        return inner + HALF < N ? inner + HALF : -1;
    }
}
// The same for NV groups of R values, one after the other, of which a lane's own vector comes first, then the one of the lane
// beyond the next half ...: a step adds what a lane has of the other half's vectors to what those have, with nothing to choose.
template <int N, int NV, int O, class T> VP_DEVICE void sum_over_lanes_by_vector(T& v)
{
    if constexpr (NV > 1) {
        VP_UNROLL for (int k = 0; k < N / 2; k++) v[k] += __shfl_xor_sync(~0u, v[k + N / 2], O);
        sum_over_lanes_by_vector<N / 2, NV / 2, O / 2>(v);
    }
}

// Partial sums of a pass: of row k of the slots of a matrix, vector v, w-th warp along the row.
struct PartialSums {
    int rows, vectors;  // rows of all slots of the matrix
    VP_DEVICE float* of(int k, int v, int w) const { return sums_buffer() + (w * vectors + v) * rows + k; }
    VP_DEVICE int apart() const { return vectors * rows; }  // from one warp's to the next one's
};

// A slot, of rows `first` and on, times NV staged vectors. A lane goes through the vectors in an order of its own: with its
// number's highest bits changed in that of the vector (sum_over_lanes_by_vector).
template <class S, int NV> VP_DEVICE void slot_product(Store& store, const float* x, int first, const PartialSums& sums)
{
    enum { LANES = WARP / NV, LEFT = (S::R + LANES - 1) / LANES };  // lanes that sum up one vector; rows of each in the end
    // The compiler must not know that the thread is the same one in every pass: it would work out before the first one what
    // all slots need of it, also those of other matrices.
    const int l = VP_OPAQUE(lane()), along = VP_OPAQUE(warp()) % S::W, mine = l / LANES;
    Values<S> w;
    w.read_weights(store);
    float sum[NV * S::R];
    VP_UNROLL for (int k = 0; k < NV * S::R; k++) sum[k] = 0.f;
    VP_UNROLL for (int v = 0; v < NV; v++) {  // a vector after the other: registers for as many addresses would be scarce
        const float* from = x + (v ^ mine) * STAGE + along * (S::C * WARP);
        for_neighbours<S>([&](auto columns) {
            const auto e = columns.load(from, l);
            VP_UNROLL for (int c = 0; c < columns.N; c++)
                VP_UNROLL for (int r = 0; r < S::R; r++)
                    sum[v * S::R + r] = fma_(w.at(r, columns.FIRST + c), e.of[c], sum[v * S::R + r]);
        });
    }
    sum_over_lanes_by_vector<NV * S::R, NV, WARP / 2>(sum);
    sum_over_lanes<S::R, LANES / 2>(sum, l);
    VP_UNROLL for (int k = 0; k < LEFT; k++) {
        const int row = value_of_lane<S::R, LANES / 2>(k, l);
        if (row >= 0 && row < S::R) *sums.of(first + first_row<S>(VP_OPAQUE(warp())) + row, mine, along) = sum[k];
    }
}

// What a thread finishes of a tile: row `k` of the owned ones, of vectors v, v + step, ...
struct Finishing {
    int k, v, step;
    // Of `count` rows, n vectors at a time: no division for a vector or two.
    VP_DEVICE Finishing(int count, int n)
    {
        step = 1, v = 0;
        if (count < THREADS && n > 2) {
            step = small_quotient(THREADS, most(1, count)), v = small_quotient(thread(), most(1, count));
        } else if (2 * count <= THREADS) {
            step = 2, v = thread() < count ? 0 : 1;
        }
        k = v < step ? thread() - v * count : count;
        if (k >= count && count < THREADS) k = count;
    }
    // Calls f(k, v) for all that the thread finishes of `count` rows, n vectors.
    template <class F> VP_DEVICE void each(int count, int n, F f) const
    {
        int row = k, vector = v;
        VP_ROLLED while (row < count && vector < n) {
            f(row, vector);
            vector += step;
            if (vector >= n) vector = v, row += THREADS;
        }
    }
};

#if VP_CHAINS
// Results of vectors from `first` on, as many as there is room for: what a thread block owns of each, side by side.
struct Results {
    int first;
    int room;  // vectors; asked only where there are several tiles
    VP_DEVICE bool is_full(int next) const { return next + TILE > first + room; }
};
VP_DEVICE void chained_tail(const Vp& vp, const Word* ip, const Owned& owned, int first, int last);
#endif

// dst = W x + bias from the slots of W: tile by tile of vectors. Or, where a tail takes the result, no dst: when the vectors
// are done, or there is room for no more, the tail is executed for those that are.
VP_DEVICE void product_of_slots(Vp& vp, const Matvec& i, Range slots)
{
    const Owned owned(vp, i.head);
    const Finishing mine(owned.count, i.head.n);
    const bool accumulate = i.head.flags & ACCUMULATE;
#if VP_CHAINS
    const bool chained = i.head.flags & CHAINED;
    Results results = {0, i.head.n > TILE ? small_quotient(RESULTS, most(1, owned.count)) : 0};
#endif
    const auto bias_of = [&](int u, int r) {
        return u < 0 ? 0.f : i.bias.row(least(r, i.head.n - 1))[VP_OPAQUE(i.bias.scalar) ? 0 : u];
    };
    // Of the first result that the thread finishes of the next tile: no time to wait then.
    const int first_unit = mine.k < owned.count ? owned.row(mine.k) : -1;
    float bias = bias_of(first_unit, mine.v);
    for_staged(vp, i.x, (int)i.columns, slots.columns, i.head.n, [&](const float* x, int row, int n) {
        PartialSums sums = {0, n <= FEW ? FEW : TILE};
        int along = 1;  // warps along a row
        for_slots<0>(slots, [&](auto slot, int number) {
            using S = decltype(slot);
            along = S::W;
            sums.rows = (slots.last - slots.first) * Shape<S>::ROWS;
            const int first = number * Shape<S>::ROWS;
            if (n <= FEW) slot_product<S, FEW>(vp.store, x, first, sums);
            else slot_product<S, TILE>(vp.store, x, first, sums);
        });
        __syncthreads();
        mine.each(owned.count, n, [&](int k, int v) {
            const bool is_first = k == mine.k && v == mine.v;
            const int u = k == mine.k ? first_unit : owned.row(k);
            if (u < 0) return;
            float part[WARPS];
            const float* from = sums.of(k, v, 0);
            const int apart = sums.apart();
            VP_UNROLL for (int w = 0; w < WARPS; w++) part[w] = w < along ? from[w * apart] : 0.f;  // all on their way at once
            float sum = part[0];
            VP_UNROLL for (int w = 1; w < WARPS; w++) sum += part[w];
            sum += is_first ? bias : bias_of(u, row + v);
#if VP_CHAINS
            if (VP_OPAQUE(chained)) {
                results_buffer()[(row + v - results.first) * owned.count + k] = sum;
                return;
            }
#endif
            float* y = i.dst.row(row + v) + u;
            *y = VP_OPAQUE(accumulate) ? sum + *y : sum;
        });
        const int next = row + n;
        bias = bias_of(first_unit, next + mine.v);
#if VP_CHAINS
        if (VP_OPAQUE(chained) && (next == i.head.n || results.is_full(next))) {
            __syncthreads();
            chained_tail(vp, behind(vp), owned, results.first, next);
            results.first = next;
        }
#endif
    });
}

// dst += W^T x from the slots of W: every virtual processor adds what its rows give (VPPS III-C1). The order of the
// additions is not fixed, so the last bits of results differ from run to run.
VP_ROUTINE void matvec_transposed(Vp& vp, const MatvecTransposed& i)
{
    const Owned owned(vp, i.head);
    const int columns = (int)i.columns;
    VP_ROLLED for (int row = 0; row < i.head.n; row += TILE) {
        const int n = least(TILE, i.head.n - row);
        float* dy = sums_buffer();
        for_places(n, owned.count, [&](int v, int k) {
            const int u = owned.row(k);
            dy[v * owned.count + k] = u < 0 ? 0.f : i.x.row(row + v)[u];
        });
        __syncthreads();
        for_slots<0>(slots_of(i.matrix), [&](auto slot, int number) {
            using S = decltype(slot);
            const int first = number * Shape<S>::ROWS + first_row<S>(warp());
            Values<S> w;
            w.read_weights(vp.store);
            VP_ROLLED for (int v = 0; v < n; v++) {
                float d[S::R];
                VP_UNROLL for (int r = 0; r < S::R; r++) d[r] = first + r < owned.count ? dy[v * owned.count + first + r] : 0.f;
                float* y = i.dst.row(row + v);
                VP_UNROLL for (int c = 0; c < S::C; c++) {
                    float sum = 0.f;
                    VP_UNROLL for (int r = 0; r < S::R; r++) sum = fma_(w.at(r, c), d[r], sum);
                    if (column_of<S>(c) < columns && first < owned.count) add_float(y + column_of<S>(c), sum);
                }
            }
        });
        __syncthreads();
    }
}

// ---- gradients: G += dy x^T over n vertices, in the shape of the matrix's slots

// Rows of a slot lie so far apart in shared memory, group of warps by group of warps, that a few loads bring those of a warp.
VP_DEVICE constexpr int rows_apart(int rows, int warps)
{
    const int padded = rows > 2 ? (rows + 3) / 4 * 4 : rows;
    return WARPS / warps * padded <= WARPS * rows ? padded : rows;  // as many floats as partial sums take
}
template <int N, int K = 0> VP_DEVICE void load_rows(const float* from, float (&d)[N])
{
    if constexpr (K < N) {
        constexpr int COUNT = K + 4 <= N ? 4 : 1;
        const auto found = *(const typename Neighbours<0, COUNT>::Floats*)(from + K);
        VP_UNROLL for (int k = 0; k < COUNT; k++) d[K + k] = found.of[k];
        load_rows<N, K + COUNT>(from, d);
    }
}

// Gradients of the results of a tile: `of` points to those of the first vector, the next one's are `apart` floats on.
struct RowGradients {
    const float* of;
    int apart;
};

// Calls f(x, dy, n) for tiles: x the staged vectors, dy the gradients of their products with the rows of all slots.
template <class Args, class F> VP_DEVICE void for_outer(Vp& vp, const Args& i, const Owned& owned, F f)
{
    const Range slots = slots_of(i.matrix);
    const Geometry g = geometry(slots.first);
    const int rows = (slots.last - slots.first) * g.all_rows(), apart = rows_apart(g.rows, g.warps);
    const int vectors_apart = (slots.last - slots.first) * (WARPS / g.warps) * apart;
    const auto place_of = [&](int k) {
        const int group = small_quotient(k, g.rows);
        return group * apart + k - group * g.rows;
    };
    const Finishing mine(rows, i.head.n);
    const int first_place = place_of(mine.k);
    const auto dy_of = [&](int u, int r) { return u < 0 ? 0.f : i.dy.row(least(r, i.head.n - 1))[u]; };
    const int first_unit = mine.k < owned.count ? owned.row(mine.k) : -1;
    float ahead = dy_of(first_unit, mine.v);  // the first that the thread brings of the next tile
    for_staged(vp, i.x, (int)i.columns, slots.columns, i.head.n, [&](const float* x, int row, int n) {
        float* dy = sums_buffer();
        mine.each(rows, n, [&](int k, int v) {
            const bool is_first = k == mine.k && v == mine.v;
            const int at = k == mine.k ? first_place : place_of(k);
            dy[v * vectors_apart + at] = is_first ? ahead : dy_of(k == mine.k ? first_unit : owned.row(k), row + v);
        });
        __syncthreads();
        ahead = dy_of(first_unit, row + n + mine.v);
        f(x, RowGradients{dy, vectors_apart}, n);
        __syncthreads();
    });
}

template <class S>
VP_DEVICE void add_outer(const Owned& owned, int number, const float* x, RowGradients dy, int n, float (&g)[S::R * S::C])
{
    if (VP_GROUPS > 1 && number * Shape<S>::ROWS + first_row<S>(warp()) >= owned.count) return;  // a slot has room for more
    enum { APART = rows_apart(S::R, S::W) };
    const float* rows = dy.of + (number * Shape<S>::GROUPS + warp() / S::W) * APART;
    const float* vector = x + warp() % S::W * (S::C * WARP);
    VP_TWICE for (int v = 0; v < n; v++, rows += dy.apart, vector += STAGE) {
        float d[S::R];
        if constexpr (APART % 4 == 0) {
            load_rows(rows, d);
        } else {
            VP_UNROLL for (int r = 0; r < S::R; r++) d[r] = rows[r];
        }
        for_neighbours<S>([&](auto columns) {
            const auto e = columns.load(vector, lane());
            VP_UNROLL for (int k = 0; k < columns.N; k++)
                VP_UNROLL for (int r = 0; r < S::R; r++) {
                    float& to = g[r * S::C + columns.FIRST + k];
                    to = fma_(d[r], e.of[k], to);
                }
        });
    }
}

#if VP_KEEPS
// Outer products add to the gradient where the chip keeps it.
template <class Args> VP_DEVICE void keep_outer(Vp& vp, const Args& i, Range slots)
{
    const Owned owned(vp, i.head);
    if (!(i.head.flags & ACCUMULATE))
        for_slots<0>(slots, [&](auto slot, int) {
            using S = decltype(slot);
            if constexpr (S::GRADIENT >= 0) {
                Values<S> g;
                g.clear();
                g.write_gradient(vp.store);
            }
        });
    for_outer(vp, i, owned, [&](const float* x, RowGradients dy, int n) {
        for_slots<0>(slots, [&](auto slot, int number) {
            using S = decltype(slot);
            if constexpr (S::GRADIENT >= 0) {
                Values<S> g;
                g.read_gradient(vp.store);
                add_outer<S>(owned, number, x, dy, n, g.of);
                g.write_gradient(vp.store);
            }
        });
    });
}
#endif

#if VP_PASSES
// Where the chip does not keep gradients: finish(s) is called for slot after slot, its gradients in slot_memory(), with as
// many passes over the vectors as there are slots. The slots of a matrix have one shape. Sums take the place of the slot's
// weights: nothing is multiplied by them any more, and the update has them in memory.
template <class Args, class Finish> VP_DEVICE void outer_in_passes(Vp& vp, const Args& i, Range slots, Finish finish)
{
    const Owned owned(vp, i.head);
    const bool accumulate = i.head.flags & ACCUMULATE;
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        if (VP_GROUPS > 1 && (s - slots.first) * rows_of_slot(s) >= owned.count) return;
        for_slots<0>({s, s + 1}, [&](auto slot, int) {
            using S = decltype(slot);
            if constexpr (S::TRAINED) {
                Values<S> g;
                g.clear();
                g.write_weights(vp.store);
            }
        });
        for_outer(vp, i, owned, [&](const float* x, RowGradients dy, int n) {
            for_slots<0>({s, s + 1}, [&](auto slot, int) {
                using S = decltype(slot);
                if constexpr (S::TRAINED) {
                    Values<S> g;
                    g.read_weights(vp.store);
                    add_outer<S>(owned, s - slots.first, x, dy, n, g.of);
                    g.write_weights(vp.store);
                }
            });
        });
        for_slots<0>({s, s + 1}, [&](auto slot, int) {
            using S = decltype(slot);
            if constexpr (S::TRAINED) Values<S>::Weights::drain(vp.store, slot_memory());
        });
        if (accumulate)
            for_elements(owned, slots, s, (int)i.columns, [&](float& sum, int row, int column) {
                if (row >= 0) sum = vp.pool[i.gradient + (size_t)row * i.columns + column] + sum;
            });
        finish(owned, s);
        __syncthreads();
    }
}
#endif

// Whether the chip keeps the gradient of what is in some slots.
VP_DEVICE bool keeps(Range slots)
{
    bool found = false;
    for_slots<0>(slots, [&](auto slot, int) { found = decltype(slot)::GRADIENT >= 0; });
    return found;
}

// The gradient of a slot to slot_memory(), where each thread has its own: from where the chip keeps it, or from memory.
template <class Args> VP_DEVICE void bring_gradient(Vp& vp, const Args& i, const Owned& owned, Range slots, int s)
{
    const bool none = i.head.flags & NO_GRADIENT;
    for_slots<0>({s, s + 1}, [&](auto slot, int) {
        using S = decltype(slot);
        if (VP_OPAQUE(none) || S::GRADIENT < 0) {
            VP_ROLLED for (int k = 0; k < S::R * S::C; k++) slot_memory()[place_of<S::C>(k)] = 0.f;
        } else if constexpr (S::GRADIENT >= 0) {
            Values<S>::Gradient::drain(vp.store, slot_memory());
        }
    });
#if VP_PASSES
    if (none || keeps(slots)) return;
    const float* g = vp.pool + i.gradient;
    for_elements(owned, slots, s, (int)i.columns, [&](float& place, int row, int column) {
        if (row >= 0) copy_async4(&place, g + (size_t)row * i.columns + column);
    });
    copy_async_wait();
#endif
}

// Calls f(g, row, column) for the elements of a gradient that this virtual processor owns: of a matrix in memory, or in slots.
template <class Args, class F> VP_DEVICE void for_gradients_in_memory(Vp& vp, const Args& i, F f)
{
    const bool none = i.head.flags & NO_GRADIENT;
    const float* g = vp.pool + i.gradient;
    const int columns = (int)i.columns;
    for_tiles(vp, i.head.width, columns, [&](int row, int from, int to, int) {
        VP_ROLLED for (int c = from + thread(); c < to; c += THREADS) f(VP_OPAQUE(none) ? 0.f : g[(size_t)row * columns + c], row, c);
    });
}
template <class Args, class F> VP_DEVICE void for_gradients_in_slots(Vp& vp, const Args& i, Range slots, F f)
{
    const Owned owned(vp, i.head);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        bring_gradient(vp, i, owned, slots, s);
        for_elements(owned, slots, s, (int)i.columns, [&](float g, int row, int column) {
            if (row >= 0) f(g, row, column);
        });
    }
}
