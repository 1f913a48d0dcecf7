// ---- slots of fragments: weights as tensor cores take them (PTX ISA, "Matrix fragments for mma.m16n8k16", "... m16n8k8")
//
// Such a slot has a multiple of 8 rows. A lot of 16, of which the last one may have only the first 8, is multiplied by 8
// vectors at a time; where there are fewer, one that is there takes the place of the others, and what comes of those is
// dropped. Of 16 rows and 32 columns next to each other, which are a warp's, a lane has two rows, 8 apart, and twice four
// columns: which of them is which term of a sum is free, so one load brings four of a staged vector. As vectors lie a multiple
// of 32 floats and 8 apart, lanes find them in different banks.
// Whether vectors may be multiplied where they lie in memory. For sm_120 compilers spill: of what is on its way there, and of
// tf32, which takes twice as many registers as bf16 (NVRTC 13.5).
#define VP_IN_PLACE (VP_AMPLE && __CUDA_ARCH__ < 1000)
enum { BF16_FRAGMENTS = 1, TF32_FRAGMENTS = 2, TF32_PAIRS = 3 };  // KIND of a slot; a pair: a float32 as the sum of two tf32
VP_DEVICE int row_of_lane() { return VP_OPAQUE(lane()) >> 2; }  // and the vector that it brings
VP_DEVICE int column_of_lane(int t) { return 4 * (t + (t & 2)); }  // of 32, the first one of the t-th of 4 lanes; 8 on come others

// Four floats of a row or of a vector, rounded: a lane's share of a product of 16 terms.
template <int KIND> struct Factors {
    enum { WORDS = KIND == BF16_FRAGMENTS ? 2 : KIND == TF32_PAIRS ? 8 : 4 };
    Word of[WORDS];

    VP_DEVICE void round(const float (&x)[4])
    {
        if constexpr (KIND == BF16_FRAGMENTS) {
            VP_UNROLL for (int k = 0; k < 4; k += 2) of[k / 2] = bf16_pair(x[k], x[k + 1]);
        } else {
            VP_UNROLL for (int k = 0; k < 4; k++) {
                of[k] = tf32_of(x[k]);
                // What is left, rounded as well once the last 13 bits are cut off; where it is a NaN, of[k] is one or infinite.
                if constexpr (KIND == TF32_PAIRS) of[4 + k] = as_word(x[k] - as_float(of[k] & ~0x1fffu)) + 0x1000;
            }
        }
    }
};

// sum += products of two lots of 8 rows with 8 vectors: a lane has of each lot a row, with two vectors next to each other.
template <int KIND> VP_DEVICE void multiply(float (&sum)[4], const Factors<KIND> (&w)[2], const Factors<KIND>& x)
{
    const auto &a = w[0].of, &b = w[1].of;
    if constexpr (KIND == BF16_FRAGMENTS) {
        mma_bf16(sum, a[0], b[0], a[1], b[1], x.of[0], x.of[1]);
    } else {
        VP_UNROLL for (int k = 0; k < 4; k += 2) {
            if constexpr (KIND == TF32_PAIRS) {  // small parts with small ones are less than what the sum is rounded by
                mma_tf32(sum, a[4 + k], b[4 + k], a[5 + k], b[5 + k], x.of[k], x.of[k + 1]);
                mma_tf32(sum, a[k], b[k], a[k + 1], b[k + 1], x.of[4 + k], x.of[5 + k]);
            }
            mma_tf32(sum, a[k], b[k], a[k + 1], b[k + 1], x.of[k], x.of[k + 1]);
        }
    }
}

// Of 16 rows (HALVES = 2) or 8 and 16 columns, what multiplies as the transpose: two lots of 8 columns, of 16 rows.
template <int HALVES, int KIND> VP_DEVICE void transpose(const Factors<KIND> (&w)[2], Factors<KIND> (&to)[2])
{
    if constexpr (HALVES == 1) to[0] = {}, to[1] = {};
    VP_UNROLL for (int k = 0; k < 2 * HALVES; k++) {
        const int rows = k / 2, columns = k % 2;
        if constexpr (KIND == BF16_FRAGMENTS) {
            to[columns].of[rows] = transposed_halves(w[rows].of[columns]);
        } else {
            VP_UNROLL for (int part = 0; part < Factors<KIND>::WORDS; part += 4) {
                const Word a = w[rows].of[part + 2 * columns], b = w[rows].of[part + 2 * columns + 1];
                const Word upper = transposed_halves(a >> 16 | (b & 0xffff0000u));
                const Word lower = transposed_halves((a & 0xffffu) | b << 16);
                to[columns].of[part + 2 * rows] = upper << 16 | (lower & 0xffffu);
                to[columns].of[part + 2 * rows + 1] = (upper & 0xffff0000u) | lower >> 16;
            }
        }
    }
}

// Whether slots multiply vectors where they lie in memory: there are registers for what a lane needs of them.
template <class S> constexpr bool MULTIPLIES_IN_MEMORY = S::KIND == BF16_FRAGMENTS && S::C <= 5;
template <int S> VP_DEVICE constexpr bool all_multiply_in_memory()
{
    if constexpr (S == VP_SLOTS) return true;
    else return MULTIPLIES_IN_MEMORY<Slot<S>> && all_multiply_in_memory<S + 1>();
}
constexpr bool ALL_MULTIPLY_IN_MEMORY = all_multiply_in_memory<0>();

template <class S> struct Fragments {
    using Factor = Factors<S::KIND>;
    using Words = Held<S>;
    enum {
        EIGHTS = S::R / 8,  // of rows
        LOTS = (EIGHTS + 1) / 2,
        STEPS = 2 * S::C,  // along a row, of 16 columns each
        ACROSS = (S::C + PIECE_COLUMNS - 1) / PIECE_COLUMNS,  // pieces along a row
    };
    VP_DEVICE static constexpr int halves(int lot) { return EIGHTS - 2 * lot < 2 ? 1 : 2; }

    // ---- weights: of 16 rows and 16 columns at a time words of both rows of a lane in turn, as they are multiplied
    VP_DEVICE static constexpr int word_at(int eight, int step, int k)
    {
        const int lot = eight / 2, n = halves(lot);
        return (lot * STEPS * 2 + step * n) * Factor::WORDS + k * n + eight % 2;
    }
    template <int LOT, int STEP> VP_DEVICE static void read(const Store& store, Factor (&w)[2])
    {
        w[1] = {};
        for_numbers<halves(LOT) * Factor::WORDS>([&](auto k) {
            constexpr int HALF = k.VALUE % halves(LOT), WORD = k.VALUE / halves(LOT);
            w[HALF].of[WORD] = as_word(Words::template get<word_at(2 * LOT + HALF, STEP, WORD)>(store));
        });
    }
    // Of a piece. The block meets before the buffer is used again.
    template <int PIECE> VP_DEVICE static void fill(Store& store, const float* buffer)
    {
        __syncwarp();  // lanes have places of each other
        const float* from = buffer + column_of_lane(lane() & 3);
        const int row = row_of_lane();
        for_numbers<2 * columns_of(PIECE)>([&](auto k) {
            constexpr int K = k.VALUE, STEP = PIECE % ACROSS * 2 * PIECE_COLUMNS + K;
            Factor w;
            w.round(Neighbours<0, 4>().load(from + place_of_row(PIECE, row, K / 2) + K % 2 * 8, 0).of);
            for_numbers<Factor::WORDS>([&](auto word) {
                Words::template set<word_at(PIECE / ACROSS, STEP, word.VALUE)>(store, as_float(w.of[word.VALUE]));
            });
        });
    }

    // ---- a piece in a buffer, where it lies as what other slots have
    VP_DEVICE static constexpr int columns_of(int piece)
    {
        const int rest = S::C - piece % ACROSS * PIECE_COLUMNS;
        return rest < PIECE_COLUMNS ? rest : (int)PIECE_COLUMNS;
    }
    // Where the warp's k-th 32 columns of a row begin.
    VP_DEVICE static int place_of_row(int piece, int row, int k)
    {
        const int columns = columns_of(piece), n = neighbours_at(columns, k), first = k - k % n;
        return (row * columns + first) * THREADS + (n * warp() + k - first) * WARP;
    }

    // Times n staged vectors, 8 at most: `x` is the first of them, number `at` of its pass; the slot's rows begin at `first`.
    template <class Sums>
    VP_DEVICE static void product(const Store& store, const float* x, int n, int at, int first, const Sums& sums)
    {
        const int t = VP_OPAQUE(lane()) & 3, mine = row_of_lane(), along = VP_OPAQUE(warp()) % S::W;
        const float* from = x + least(mine, n - 1) * STAGE + along * (S::C * WARP) + column_of_lane(t);
        float sum[LOTS][4] = {};
        for_numbers<STEPS>([&](auto step) {
            constexpr int STEP = step.VALUE;
            Factor w[2], e;
            e.round(Neighbours<0, 4>().load(from + STEP / 2 * WARP + STEP % 2 * 8, 0).of);
            for_numbers<LOTS>([&](auto lot) {
                read<lot.VALUE, STEP>(store, w);
                multiply(sum[lot.VALUE], w, e);
            });
        });
        float* to = sums.of(first + first_row<S>(VP_OPAQUE(warp())) + mine, at + 2 * t, along);
        VP_UNROLL for (int k = 0; k < 2 * EIGHTS; k++)
            if (2 * t + k % 2 < n) to[k / 2 * 8 + k % 2 * sums.rows] = sum[k / 4][k % 4];
    }

    // Times n vectors of a pass where they lie in memory, 8 at a time; those of the next turn come meanwhile.
    template <class X> VP_DEVICE static void product(const Store& store, const X& x, int n, int first)
    {
        if (x.aligned) product_in_memory<4>(store, x, n, first);
        else product_in_memory<1>(store, x, n, first);
    }
    template <int BESIDE, class X> VP_DEVICE static void product_in_memory(const Store& store, const X& x, int n, int first)
    {
        enum { CHAINS = LOTS == 1 && STEPS > 4 ? 2 : 1 };  // a product waits for the one before it of the same sums
        float ahead[STEPS][4];
        const auto load = [&](const float* vector) {
            VP_UNROLL for (int k = 0; k < STEPS; k++)
                VP_UNROLL for (int j = 0; j < 4; j += BESIDE) {
                    const auto e = Neighbours<0, BESIDE>().load(vector + k / 2 * WARP + k % 2 * 8 + j, 0);
                    VP_UNROLL for (int i = 0; i < BESIDE; i++) ahead[k][j + i] = e.of[i];
                }
        };
        load(x.first);
        float* to = x.sums + first;  // there is room for eight vectors, however few are left
        VP_ROLLED for (int at = 8; true; at += 8) {
            Factor e[STEPS], rows[2];
            VP_UNROLL for (int k = 0; k < STEPS; k++) e[k].round(ahead[k]);
            if (at < n) load(x.of_lane(at));
            float sum[LOTS][CHAINS][4] = {};
            for_numbers<STEPS>([&](auto step) {
                constexpr int STEP = step.VALUE;
                for_numbers<LOTS>([&](auto lot) {
                    read<lot.VALUE, STEP>(store, rows);
                    multiply(sum[lot.VALUE][STEP % CHAINS], rows, e[STEP]);
                });
            });
            VP_UNROLL for (int k = 0; k < 2 * EIGHTS; k++) {
                float all = sum[k / 4][0][k % 4];
                VP_UNROLL for (int chain = 1; chain < CHAINS; chain++) all += sum[k / 4][chain][k % 4];
                to[k / 2 * 8 + k % 2 * x.apart] = all;
            }
            if (at >= n) return;
            to += 8 * x.apart;
        }
    }

    // The transpose times n vectors, 8 at most, of which dy + v * count has the v-th, added to y(v).
    template <class Y>
    VP_DEVICE static void add_transposed(const Store& store, const float* dy, int n, int count, int first, int columns, Y y)
    {
        const int t = lane() % 4, mine = row_of_lane();
        Factor w[2], to[2], d[LOTS];
        VP_UNROLL for (int lot = 0; lot < LOTS; lot++) {
            float of[4];
            VP_UNROLL for (int k = 0; k < 4; k++) {
                const int r = first + 16 * lot + k / 2 * 8 + 2 * t + k % 2;
                of[k] = r < count ? dy[least(mine, n - 1) * count + r] : 0.f;
            }
            d[lot].round(of);
        }
        for_numbers<STEPS>([&](auto step) {
            constexpr int STEP = step.VALUE;
            float sum[4] = {};
            for_numbers<LOTS>([&](auto lot) {
                read<lot.VALUE, STEP>(store, w);
                transpose<halves(lot.VALUE)>(w, to);
                multiply(sum, to, d[lot.VALUE]);
            });
            const int from = (warp() % S::W * S::C + STEP / 2) * WARP + STEP % 2 * 8 + column_of_lane(mine / 2) + mine % 2;
            VP_UNROLL for (int k = 0; k < 4; k++) {
                const int v = 2 * t + k % 2, column = from + k / 2 * 2;
                if (v < n && column < columns && first < count) add_float(y(v) + column, sum[k]);
            }
        });
    }
};
