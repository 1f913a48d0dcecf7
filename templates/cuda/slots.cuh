// ---- slots: weights that a block holds from the beginning of a launch to its end (kernel.md 4)
//
// A slot of shape (R, C, W): W warps along a row, C columns a lane, so a row may have 32 * C * W of them; each of the
// WARPS / W groups of warps holds R rows. Lane l of the p-th warp along a row holds columns (p * C + c) * 32 + l.
// The weights are in registers, or in shared memory where each thread finds its own.
enum {
    TILE = VP_TILE,    // vectors of a pass
    STAGE = VP_STAGE,  // floats of a vector in shared memory: the columns of the widest slot
    BUFFERS = VP_BUFFERS,
    SUMS = VP_SUMS,  // partial sums of a pass, or the gradients of its results
};
VP_DEVICE float* stage_buffer(int k) { return slot_memory() + k % BUFFERS * (TILE * STAGE); }
VP_DEVICE float* sums_buffer() { return slot_memory() + VP_STAGED; }
VP_DEVICE float* shared_weights() { return sums_buffer() + SUMS; }

// Calls f(Slot) for the slots of a range. Which slot it is must be known when compiling: registers have no addresses.
template <int S, class F> VP_DEVICE void for_slots(Range range, F f)
{
    if constexpr (S < VP_SLOTS) {
        if (S >= range.first && S < range.last) f(Slot<S>(), S - range.first);
        for_slots<S + 1>(range, f);
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
template <class S> VP_DEVICE int column_of(int c) { return (warp() % S::W * S::C + c) * WARP + lane(); }
template <class S> VP_DEVICE int first_row() { return warp() / S::W * S::R; }  // of this warp, in the slot

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
// One after the other from memory to registers: N values on their way would need N registers more.
template <int AT, int K, int N> VP_DEVICE void fill_registers(Store& store, const float* mine)
{
    if constexpr (K < N) {
        write_register<AT + K>(store, mine[K * THREADS]);
        fill_registers<AT, K + 1, N>(store, mine);
    }
}
template <int AT, bool IN_REGISTERS, int N> VP_DEVICE void fill(Store& store, const float* mine)
{
    if constexpr (IN_REGISTERS) fill_registers<AT, 0, N>(store, mine);
    else {
        VP_UNROLL for (int k = 0; k < N; k++) shared_weights()[(AT + k) * THREADS + thread()] = mine[k * THREADS];
    }
}
template <int AT, int K, int N> VP_DEVICE void drain_registers(const Store& store, float* mine)
{
    if constexpr (K < N) {
        mine[K * THREADS] = read_register<AT + K>(store);
        drain_registers<AT, K + 1, N>(store, mine);
    }
}
template <int AT, bool IN_REGISTERS, int N> VP_DEVICE void drain(const Store& store, float* mine)
{
    if constexpr (IN_REGISTERS) drain_registers<AT, 0, N>(store, mine);
    else {
        VP_UNROLL for (int k = 0; k < N; k++) mine[k * THREADS] = shared_weights()[(AT + k) * THREADS + thread()];
    }
}
template <int AT, bool IN_REGISTERS, int N> VP_DEVICE void read(const Store& store, float (&v)[N])
{
    if constexpr (IN_REGISTERS) read_registers<AT, 0>(store, v);
    else {
        VP_UNROLL for (int k = 0; k < N; k++) v[k] = shared_weights()[(AT + k) * THREADS + thread()];
    }
}
template <int AT, bool IN_REGISTERS, int N> VP_DEVICE void write(Store& store, const float (&v)[N])
{
    if constexpr (IN_REGISTERS) write_registers<AT, 0>(store, v);
    else {
        VP_UNROLL for (int k = 0; k < N; k++) shared_weights()[(AT + k) * THREADS + thread()] = v[k];
    }
}

// The weights of a slot, row after row, and their gradients.
template <class S> struct Values {
    float of[S::R * S::C];

    VP_DEVICE float& at(int r, int c) { return of[r * S::C + c]; }
    VP_DEVICE void clear()
    {
        VP_UNROLL for (int k = 0; k < S::R * S::C; k++) of[k] = 0.f;
    }
    VP_DEVICE void read_weights(const Store& store) { read<S::AT, S::IN_REGISTERS>(store, of); }
    VP_DEVICE void write_weights(Store& store) { write<S::AT, S::IN_REGISTERS>(store, of); }
    VP_DEVICE void read_gradient(const Store& store) { read<S::GRADIENT, S::GRADIENT_IN_REGISTERS>(store, of); }
    VP_DEVICE void write_gradient(Store& store) { write<S::GRADIENT, S::GRADIENT_IN_REGISTERS>(store, of); }
    // By way of memory of the thread's own in `buffer`.
    VP_DEVICE static void weights_to(float* buffer, const Store& store)
    {
        drain<S::AT, S::IN_REGISTERS, S::R * S::C>(store, buffer + thread());
    }
    VP_DEVICE static void gradient_to(float* buffer, const Store& store)
    {
        drain<S::GRADIENT, S::GRADIENT_IN_REGISTERS, S::R * S::C>(store, buffer + thread());
    }
    VP_DEVICE static void weights_from(const float* buffer, Store& store)
    {
        fill<S::AT, S::IN_REGISTERS, S::R * S::C>(store, buffer + thread());
    }
    VP_DEVICE static void gradient_from(const float* buffer, Store& store)
    {
        fill<S::GRADIENT, S::GRADIENT_IN_REGISTERS, S::R * S::C>(store, buffer + thread());
    }
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
            part = rows / h.parts;
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
        const int r = (k / turn * vps + vp) * turn + k % turn;
        return r < rows ? r : -1;
    }
};

// The shape of a slot, where code is not to be there once for each.
struct Geometry {
    int rows, columns, warps;

    VP_DEVICE int row(int number, int r) const { return (number * (WARPS / warps) + warp() / warps) * rows + r; }
    VP_DEVICE int column(int c) const { return (warp() % warps * columns + c) * WARP + lane(); }
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

// Calls f(place, row, column) for what this thread holds of slot `s`, with row -1 beyond the matrix: places in shared
// memory, by way of which values go to and from registers (Values), so that f is there once and not for each register.
template <class F> VP_DEVICE void for_elements(const Owned& owned, Range slots, int s, int columns, F f)
{
    float* mine = slot_memory() + thread();
    const Geometry g = geometry(s);
    VP_ROLLED for (int r = 0; r < g.rows; r++) {
        const int row = owned.row(g.row(s - slots.first, r));
        VP_ROLLED for (int c = 0; c < g.columns; c++, mine += THREADS) f(*mine, g.column(c) < columns ? row : -1, g.column(c));
    }
}

// Take the owned rows of a matrix into its slots.
VP_ROUTINE void load(Vp& vp, const Load& i)
{
    const Owned owned(vp, i.head);
    VP_TIMELINE(count_elements(vp, i, 1);)
    const Range slots = slots_of(i.matrix);
    VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
        for_elements(owned, slots, s, (int)i.columns, [&](float& place, int row, int column) {
            if (row >= 0) copy_async4(&place, vp.pool + i.weights + (size_t)row * i.columns + column);
            else place = 0.f;
        });
        copy_async_wait();  // the thread's own, all in flight at once
        for_slots<0>({s, s + 1}, [&](auto slot, int) {
            Values<decltype(slot)>::weights_from(slot_memory(), vp.store);
        });
    }
}

// Copy vectors [row, row + n) to a buffer, with zeros behind them: weights are zero there, but zero times NaN is not.
// A warp copies a segment of a vector at a time.
VP_DEVICE void stage(const Vp& vp, const Segments& x, int columns, int row, int n, float* buffer)
{
    for_warps(n * x.count, [&](int k, bool mine) {
        if (!mine) return;
        const int v = k / x.count;
        int width, offset = 0;
        VP_ROLLED for (int s = 0; s < k % x.count; s++) {
            segment(vp, x, s, &width);
            offset += width;
        }
        const float* from = segment(vp, x, k % x.count, &width).row(row + v);
        float* to = buffer + v * STAGE + offset;
        if ((((size_t)from / 4 | (size_t)offset | (size_t)width) & 3) == 0) {
            VP_ROLLED for (int c = 4 * lane(); c < width; c += 4 * WARP) copy_async16(to + c, from + c);
        } else {
            VP_ROLLED for (int c = lane(); c < width; c += WARP) copy_async4(to + c, from + c);
        }
    });
    for_places(n, STAGE - columns, [&](int v, int c) { buffer[v * STAGE + columns + c] = 0.f; });
}

// Calls f(buffer, row, n) for tiles of the staged vectors of rows [0, total); the next tile comes while f works. f must
// come to a barrier of the block after its last use of the buffer.
template <class F> VP_DEVICE void for_staged(const Vp& vp, const Segments& x, int columns, int total, F f)
{
    int row = 0, n = 0;  // of the tile that is there
    VP_ROLLED for (int k = 0; true; k++) {
        const int next = row + n, rest = total - next, size = rest > 2 ? least(TILE, rest) : least(rest, 1);  // few: one by one
        if (BUFFERS > 1 && size) stage(vp, x, columns, next, size, stage_buffer(k));
        if (n) f(stage_buffer(k + BUFFERS - 1), row, n);
        if (!size) return;
        if (BUFFERS == 1) stage(vp, x, columns, next, size, stage_buffer(0));
        copy_async_wait();
        __syncthreads();
        row = next;
        n = size;
    }
}

// ---- sums over the lanes of a warp, of N values at once: a step adds the halves of pairs of lanes and leaves each with
// half of the values. Recursion, because a loop that halves the number of values would keep them in memory.
template <int N, int O, class T> VP_DEVICE void sum_over_lanes(T& v)
{
    if constexpr (O > 0) {
        constexpr int HALF = (N + 1) / 2;
        const bool upper = lane() & O;
        VP_UNROLL for (int k = 0; k < HALF; k++) {
            if (k + HALF < N) {
                const float give = upper ? v[k] : v[k + HALF], keep = upper ? v[k + HALF] : v[k];
                v[k] = keep + __shfl_xor_sync(~0u, give, O);
            } else {
                v[k] += __shfl_xor_sync(~0u, v[k], O);
            }
        }
        sum_over_lanes<HALF, O / 2>(v);
    }
}

// Which of the N values a lane's k-th one is in the end; -1: another lane has it as well.
template <int N, int O> VP_DEVICE int value_of_lane(int k)
{
    if constexpr (O == 0) {
        return k;
    } else {
        constexpr int HALF = (N + 1) / 2;
        const int inner = value_of_lane<HALF, O / 2>(k);
        if (inner < 0 || !(lane() & O)) return inner;
        return inner + HALF < N ? inner + HALF : -1;
    }
}
template <int N> struct Left { enum { COUNT = (N + WARP - 1) / WARP }; };

// A slot times NV staged vectors: the sums of each warp go to sums[(row in the slot * NV + vector) * W + warp along the row].
template <class S, int NV> VP_DEVICE void slot_product(Store& store, const float* x, float* sums)
{
    enum { N = S::R * NV };
    Values<S> w;
    w.read_weights(store);
    float sum[N];
    VP_UNROLL for (int k = 0; k < N; k++) sum[k] = 0.f;
    VP_UNROLL for (int c = 0; c < S::C; c++) {
        const float* column = x + column_of<S>(c);
        float e[NV];
        VP_UNROLL for (int v = 0; v < NV; v++) e[v] = column[v * STAGE];
        VP_UNROLL for (int r = 0; r < S::R; r++)
            VP_UNROLL for (int v = 0; v < NV; v++) sum[r * NV + v] = fma_(w.at(r, c), e[v], sum[r * NV + v]);
    }
    sum_over_lanes<N, WARP / 2>(sum);
    VP_UNROLL for (int k = 0; k < Left<N>::COUNT; k++) {
        const int value = value_of_lane<N, WARP / 2>(k);
        if (value >= 0 && value < N) sums[(first_row<S>() * NV + value) * S::W + warp() % S::W] = sum[k];
    }
}

// dst = W x + bias from the slots of W: tile by tile of vectors.
VP_DEVICE void product_of_slots(Vp& vp, const Matvec& i, Range slots)
{
    const Owned owned(vp, i.head);
    const bool accumulate = i.head.flags & ACCUMULATE;
    for_staged(vp, i.x, (int)i.columns, i.head.n, [&](const float* x, int row, int n) {
        int along = 1;  // warps along a row
        for_slots<0>(slots, [&](auto slot, int number) {
            using S = decltype(slot);
            along = S::W;
            float* sums = sums_buffer() + number * (Shape<S>::ROWS * S::W) * (n == 1 ? 1 : TILE);
            if (n == 1) slot_product<S, 1>(vp.store, x, sums);
            else slot_product<S, TILE>(vp.store, x, sums);
        });
        __syncthreads();
        for_places(n, owned.count, [&](int v, int k) {
            const int u = owned.row(k);
            if (u < 0) return;
            const float* part = sums_buffer() + (k * (n == 1 ? 1 : TILE) + v) * along;
            float sum = part[0];
            VP_ROLLED for (int w = 1; w < along; w++) sum += part[w];
            sum += i.bias.row(row + v)[VP_OPAQUE(i.bias.scalar) ? 0 : u];
            float* y = i.dst.row(row + v) + u;
            *y = VP_OPAQUE(accumulate) ? sum + *y : sum;
        });
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
            const int first = number * Shape<S>::ROWS + first_row<S>();
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

// Calls f(x, dy, n) for tiles: x the staged vectors, dy[v * owned.count + k] the gradient of the k-th owned row.
template <class Args, class F> VP_DEVICE void for_outer(Vp& vp, const Args& i, const Owned& owned, F f)
{
    for_staged(vp, i.x, (int)i.columns, i.head.n, [&](const float* x, int row, int n) {
        float* dy = sums_buffer();
        for_places(n, owned.count, [&](int v, int k) {
            const int u = owned.row(k);
            dy[v * owned.count + k] = u < 0 ? 0.f : i.dy.row(row + v)[u];
        });
        __syncthreads();
        f(x, dy, n);
        __syncthreads();
    });
}

template <class S>
VP_DEVICE void add_outer(const Owned& owned, int number, const float* x, const float* dy, int n, float (&g)[S::R * S::C])
{
    const int first = number * Shape<S>::ROWS + first_row<S>();
    if (VP_GROUPS > 1 && first >= owned.count) return;  // all groups divide the rows: a slot has room for more
    VP_ROLLED for (int v = 0; v < n; v++) {
        float d[S::R];
        VP_UNROLL for (int r = 0; r < S::R; r++) d[r] = first + r < owned.count ? dy[v * owned.count + first + r] : 0.f;
        VP_UNROLL for (int c = 0; c < S::C; c++) {
            const float e = x[v * STAGE + column_of<S>(c)];
            VP_UNROLL for (int r = 0; r < S::R; r++) g[r * S::C + c] = fma_(d[r], e, g[r * S::C + c]);
        }
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
    for_outer(vp, i, owned, [&](const float* x, const float* dy, int n) {
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
// Where the chip does not keep gradients: finish(g, row, column) gets every element, slot after slot, with as many passes
// over the vectors as there are slots. The slots of a matrix have one shape. Sums take the place of the slot's weights: nothing
// is multiplied by them any more, and the update has them in memory.
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
        for_outer(vp, i, owned, [&](const float* x, const float* dy, int n) {
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
            if constexpr (S::TRAINED) Values<S>::weights_to(slot_memory(), vp.store);
        });
        for_elements(owned, slots, s, (int)i.columns, [&](float sum, int row, int column) {
            if (row < 0) return;
            const float before = VP_OPAQUE(accumulate) ? vp.pool[i.gradient + (size_t)row * i.columns + column] : 0.f;
            finish(before + sum, row, column);
        });
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

// Calls f(g, row, column) for the elements of a gradient that this virtual processor owns.
template <class Args, class F> VP_DEVICE void for_gradients(Vp& vp, const Args& i, F f)
{
    const bool none = i.head.flags & NO_GRADIENT;
    const float* g = vp.pool + i.gradient;
    const int columns = (int)i.columns;
    const Range slots = slots_of(i.matrix);
    if (slots.first == slots.last) {
        for_tiles(vp, i.head.width, columns, [&](int row, int from, int to, int) {
            VP_ROLLED for (int c = from + thread(); c < to; c += THREADS) f(VP_OPAQUE(none) ? 0.f : g[(size_t)row * columns + c], row, c);
        });
        return;
    }
    const Owned owned(vp, i.head);
#if VP_KEEPS
    if (keeps(slots)) {
        VP_ROLLED for (int s = slots.first; s < slots.last; s++) {
            for_slots<0>({s, s + 1}, [&](auto slot, int) {
                using S = decltype(slot);
                if constexpr (S::GRADIENT >= 0) Values<S>::gradient_to(slot_memory(), vp.store);
            });
            for_elements(owned, slots, s, columns, [&](float g, int row, int column) {
                if (row >= 0) f(VP_OPAQUE(none) ? 0.f : g, row, column);
            });
        }
        return;
    }
#endif
#if VP_PASSES
    VP_ROLLED for (int k = warp(); k < owned.count; k += WARPS) {
        const int row = owned.row(k);
        if (row < 0) continue;
        VP_ROLLED for (int c = lane(); c < columns; c += WARP) f(VP_OPAQUE(none) ? 0.f : g[(size_t)row * columns + c], row, c);
    }
#endif
}
