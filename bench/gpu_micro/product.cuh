// A product whose warps divide K: the partial sums of eight warps are added in order, so only K determines the order of
// additions. Macros: R rows and K columns of a block's weights, KC of them copied at a time, to one of BUFFERS; KIND, RT, VT;
// LV and UNROLL for float32.
//
// KIND 0: float32. Weights are in shared memory, a lane owns RT x VT results: LV lanes for vectors, the others for rows.
// KIND 1, 2, 3: bf16, tf32, 3xtf32 on tensor cores. Weights are fragments in registers; a warp has RT x 16 rows, VT x 8 vectors.
enum { CHUNKS = K / KC, KW = KC / WARPS };  // KC columns are copied at a time, KW of them for each warp
#if KIND == 0
enum { LR = 32 / LV, V = LV * VT, ROWS = RT * LR, XS = KC + 4, WS = K + 4, HELD = ROWS * WS, AT_ONCE = 1 };
struct Factors {
    float sum[RT][VT];
    DEV void load(const float* weights)
    {
#pragma unroll 1
        for (int i = threadIdx.x; i < R * (K / 4); i += THREADS)
            copy_async16(shared_memory() + i / (K / 4) * WS + i % (K / 4) * 4, weights + 4 * i);
        copy_async_wait();
    }
    DEV void clear()
    {
#pragma unroll
        for (int k = 0; k < RT * VT; k++) sum[k / VT][k % VT] = 0.f;
    }
    DEV void multiply(const float* x, int c)
    {
        x += lane() % LV * XS + warp() * KW;
        const float* w = shared_memory() + lane() / LV * WS + c * KC + warp() * KW;
#pragma unroll UNROLL
        for (int k = 0; k < KW; k += 4) {
            float4 e[VT];
#pragma unroll
            for (int j = 0; j < VT; j++) e[j] = ld4(x + j * LV * XS + k);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                const float4 a = ld4(w + r * LR * WS + k);
#pragma unroll
                for (int j = 0; j < VT; j++) {
                    float s = __fmaf_rn(a.y, e[j].y, __fmaf_rn(a.x, e[j].x, sum[r][j]));
                    sum[r][j] = __fmaf_rn(a.w, e[j].w, __fmaf_rn(a.z, e[j].z, s));
                }
            }
        }
    }
    DEV void store(float* part) const
    {
#pragma unroll
        for (int k = 0; k < RT * VT; k++)
            part[(warp() * ROWS + k / VT * LR + lane() / LV) * V + lane() % LV + k % VT * LV] = sum[k / VT][k % VT];
    }
};
#else
enum { V = 8 * VT, ROWS = 16 * RT, XS = KC + 16, HELD = 0, STEPS = KW / 16, WORDS = KIND == 1 ? 4 : 8, AT_ONCE = CHUNKS };
DEV unsigned word(float x) { return KIND == 2 ? tf32_of(x) : __float_as_uint(x); }
DEV void split(unsigned x, unsigned& high, unsigned& low)
{
    const float f = __uint_as_float(x);
    high = tf32_of(f) & ~0x1fffu;
    low = tf32_of(f - __uint_as_float(high));
}
struct Factors {
    unsigned w[CHUNKS][STEPS][RT][WORDS];  // a lane has four adjacent ones of 16 columns, from rows 8 apart
    float sum[RT][VT][4];
    DEV void load(const float* weights)
    {
#pragma unroll
        for (int k = 0; k < CHUNKS * STEPS * RT; k++) {
            const int c = k / (STEPS * RT), s = k / RT % STEPS, t = k % RT, row = 16 * t + lane() / 4;
            const float* at = weights + row * K + c * KC + warp() * KW + 16 * s + 4 * (lane() % 4);
            const float4 none = {0.f, 0.f, 0.f, 0.f}, a = row < R ? ld4(at) : none, b = row + 8 < R ? ld4(at + 8 * K) : none;
            if constexpr (KIND == 1) {
                w[c][s][t][0] = bf16_pair(a.x, a.y), w[c][s][t][1] = bf16_pair(b.x, b.y);
                w[c][s][t][2] = bf16_pair(a.z, a.w), w[c][s][t][3] = bf16_pair(b.z, b.w);
            } else {
                const float of[8] = {a.x, b.x, a.y, b.y, a.z, b.z, a.w, b.w};
#pragma unroll
                for (int i = 0; i < 8; i++) w[c][s][t][i % WORDS] = word(of[i]);
            }
        }
    }
    DEV void clear()
    {
#pragma unroll
        for (int k = 0; k < RT * VT * 4; k++) sum[k / 4 / VT][k / 4 % VT][k % 4] = 0.f;
    }
    DEV void multiply(const float* x, int c)
    {
        x += lane() / 4 * XS + warp() * KW + 4 * (lane() % 4);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < VT; j++) {
                const float4 e = ld4(x + 8 * j * XS + 16 * s);
#pragma unroll
                for (int t = 0; t < RT; t++) {
                    const unsigned(&a)[WORDS] = w[c][s][t];
                    float(&to)[4] = sum[t][j];
                    if constexpr (KIND == 1) mma_bf16(to, a[0], a[1], a[2], a[3], bf16_pair(e.x, e.y), bf16_pair(e.z, e.w));
                    else by_eights(to, a, word(e.x), word(e.y), word(e.z), word(e.w));
                }
            }
    }
    DEV static void by_eights(float (&to)[4], const unsigned (&a)[WORDS], unsigned x, unsigned y, unsigned z, unsigned u)
    {
        const unsigned e[4] = {x, y, z, u};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const unsigned* b = a + WORDS / 2 * h;
            if constexpr (KIND == 2) {
                mma_tf32(to, b[0], b[1], b[2], b[3], e[2 * h], e[2 * h + 1]);
            } else {
                unsigned high[6], low[6];
#pragma unroll
                for (int i = 0; i < 6; i++) split(i < 4 ? b[i] : e[2 * h + i - 4], high[i], low[i]);
                mma_tf32(to, low[0], low[1], low[2], low[3], high[4], high[5]);
                mma_tf32(to, high[0], high[1], high[2], high[3], low[4], low[5]);
                mma_tf32(to, high[0], high[1], high[2], high[3], high[4], high[5]);
            }
        }
    }
    DEV void store(float* part) const
    {
#pragma unroll
        for (int k = 0; k < RT * VT * 4; k++) {
            const int t = k / 4 / VT, j = k / 4 % VT, row = 16 * t + k % 4 / 2 * 8 + lane() / 4;
            part[(warp() * ROWS + row) * V + 8 * j + 2 * (lane() % 4) + k % 2] = sum[t][j][k % 4];
        }
    }
};
#endif
DEV float* staged(int k) { return shared_memory() + HELD + k % BUFFERS * (V * XS); }
DEV float* partial() { return shared_memory() + HELD + BUFFERS * V * XS; }
DEV float* behind_partial() { return partial() + WARPS * ROWS * V; }

// Start copying the k-th chunk of all vectors: V consecutive vectors, then the next V.
template <class From> DEV void stage(From from, int k, int n)
{
    const int row = k / CHUNKS * V;
#pragma unroll 2
    for (int q = warp(); q < least(V, n - row); q += WARPS) {
        const float* x = from(row + q, k % CHUNKS);
#pragma unroll
        for (int i = 4 * lane(); i < KC; i += 128) copy_async16(staged(k) + q * XS + i, x + i);
    }
    copy_async_commit();
}

// Calls put(row, vector, result) for n vectors; from(vector, chunk) finds their chunks. A barrier precedes the next call.
template <class From, class Put> DEV void product(Factors& f, int n, From from, Put put)
{
#pragma unroll
    for (int k = 0; k < BUFFERS - 1; k++) stage(from, k, n);
    int k = 0;
#pragma unroll 1
    for (int row = 0; row < n; row += V) {
        f.clear();
#pragma unroll AT_ONCE
        for (int c = 0; c < CHUNKS; c++, k++) {
            copy_async_wait<BUFFERS - 2>();
            __syncthreads();
            stage(from, k + BUFFERS - 1, n);
            f.multiply(staged(k), c);
        }
        f.store(partial());
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < ROWS * V; i += THREADS) {
            float sum = partial()[i];
#pragma unroll
            for (int w = 1; w < WARPS; w++) sum += partial()[w * ROWS * V + i];
            if (i / V < R && row + i % V < n) put(i / V, row + i % V, sum);
        }
    }
}
