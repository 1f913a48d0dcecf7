// ---- products from slots

// Sums over the lanes of a warp, of N values at once: a step adds the halves of pairs of lanes and leaves each with
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
    int rows;  // of all slots of the matrix
    int pass;  // vectors
    float* at;
    VP_DEVICE float* of(int k, int v, int w) const { return at + (w * pass + v) * rows + k; }
    VP_DEVICE int apart() const { return pass * rows; }  // from one warp's to the next one's
};

// A slot, of rows `first` and on, times NV staged vectors: `x` is the first of them, number `at` of its pass. A lane goes through
// them in an order of its own: with its number's highest bits changed in that of the vector (sum_over_lanes_by_vector).
template <class S, int NV> VP_DEVICE void slot_product(Store& store, const float* x, int at, int first, const PartialSums& sums)
{
    enum { LANES = WARP / NV, LEFT = (S::R + LANES - 1) / LANES };  // lanes that sum up one vector; rows of each in the end
    // The compiler must not know that the thread is the same one in every pass: it would work out before the first one what
    // all slots need of it, also those of other matrices.
    const int l = VP_OPAQUE(lane()), along = VP_OPAQUE(warp()) % S::W, mine = l / LANES;
    Values<S> w;
    w.read(store);
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
        if (row >= 0 && row < S::R) *sums.of(first + first_row<S>(VP_OPAQUE(warp())) + row, at + mine, along) = sum[k];
    }
}

// What a thread finishes of a pass: row `k` of the owned ones, of vectors v, v + step, ...
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
    int room;  // vectors; asked only where there are several passes
    VP_DEVICE bool is_full(int next, int pass) const { return next + pass > first + room; }
};
VP_DEVICE void chained_tail(const Vp& vp, const Word* ip, const Owned& owned, int first, int last);
#endif

#if VP_SLOTS
// dst = W x + bias from the slots of W: pass after pass of vectors. Or, where a tail takes the result, no dst: when the vectors
// are done, or there is room for no more, the tail is executed for those that are.
VP_DEVICE void slot_matvec(Vp& vp, const Matvec& i)
{
    const Range slots = slots_of(i.matrix);
    const Owned owned(vp, i.head);
    const Finishing mine(owned.count, i.head.n);
    const bool accumulate = i.head.flags & ACCUMULATE;
#if VP_CHAINS
    const bool chained = i.head.flags & CHAINED;
    Results results = {0, i.head.n > PASS ? small_quotient(RESULTS, most(1, owned.count)) : 0};
#endif
    const auto bias_of = [&](int u, int r) {
        return u < 0 ? 0.f : i.bias.row(least(r, i.head.n - 1))[VP_OPAQUE(i.bias.scalar) ? 0 : u];
    };
    // Of the first result that the thread finishes of the next pass: no time to wait then.
    const int first_unit = mine.k < owned.count ? owned.row(mine.k) : -1;
    float bias = bias_of(first_unit, mine.v);
    int pass = PASS;
    bool stages = true;
#if VP_IN_PLACE
    int room = VectorsInMemory::MOST;
#if VP_CHAINS
    if (VP_OPAQUE(chained) && i.head.n > PASS) room = results.room;
#endif
    VectorsInMemory in_memory({vp, i.x, i.head.n, (int)i.columns, slots.columns}, slots, room);
    bool all = ALL_MULTIPLY_IN_MEMORY;
    if (!ALL_MULTIPLY_IN_MEMORY)
        for_slots<0>({slots.first, slots.first + 1}, [&](auto slot, int) { all = MULTIPLIES_IN_MEMORY<decltype(slot)>; });
    if (all && in_memory.pass) pass = in_memory.pass, stages = false;
#endif
    for_staged(vp, i.x, (int)i.columns, slots.columns, i.head.n, [&](const float* x, int row, int n) {
        PartialSums sums = {0, pass, stages ? sums_buffer() : slot_memory()};
        int along = 1;  // warps along a row
#if VP_IN_PLACE
        if (!stages) in_memory.look_up(row), sums.rows = in_memory.apart;
#endif
        const auto multiply = [&](auto slot, int number) {
            using S = decltype(slot);
            along = S::W;
#if VP_IN_PLACE
            if constexpr (MULTIPLIES_IN_MEMORY<S>)
                if (!stages) return Fragments<S>::product(vp.store, in_memory, n, number * Shape<S>::ROWS);
#endif
            sums.rows = (slots.last - slots.first) * Shape<S>::ROWS;
            const int first = number * Shape<S>::ROWS;
            VP_ROLLED for (int v = 0; v < n; v += S::KIND ? 8 : TILE) {
                if constexpr (S::KIND) Fragments<S>::product(vp.store, x + v * STAGE, least(8, n - v), v, first, sums);
                else if (n - v <= FEW) slot_product<S, FEW>(vp.store, x + v * STAGE, v, first, sums);
                else slot_product<S, TILE>(vp.store, x + v * STAGE, v, first, sums);
            }
        };
        if constexpr (FRAGMENTS) for_slots_by_table(slots, multiply);
        else for_slots<0>(slots, multiply);
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
        if (VP_OPAQUE(chained) && (next == i.head.n || results.is_full(next, pass))) {
            __syncthreads();
            chained_tail(vp, behind(vp), owned, results.first, next);
            results.first = next;
        }
#endif
    }, pass, stages);
}
#endif

#if VP_DENSE
VP_DEVICE void dense_matvec(Vp& vp, const Matvec& i);
#endif
VP_ROUTINE void held_matvec(Vp& vp, const Matvec& i)
{
#if VP_DENSE
    if (!VP_SLOTS || dense(i.matrix).window >= 0) return dense_matvec(vp, i);
#endif
#if VP_SLOTS
    slot_matvec(vp, i);
#endif
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
            if constexpr (S::KIND) {
                const auto y = [&](int v) { return i.dst.row(row + v); };
                return Fragments<S>::add_transposed(vp.store, dy, n, owned.count, first, columns, y);
            }
            Values<S> w;
            w.read(vp.store);
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
