// The product routine of 28 November 2026 (held_matvec, slot_product, for_staged), frozen, so that it can be measured after its
// removal. Reduced to one matrix in one slot, whose W warps share a row, C columns a lane, R rows a warp, and to vectors
// of one piece from a list. Arguments as in product.cu.
#define VP_UNROLL _Pragma("unroll")
#define VP_ROLLED _Pragma("unroll 1")
enum { WARP = 32, TILE = 8, FEW = 2, PASS = 16, STAGE = C * W * WARP, ROWS = R * WARPS / W };
struct Pieces {
    const Launch& p;
    int n;
    DEV unsigned look_up(int row) const { return p.script[HEAD + least(row + lane(), n - 1)]; }
    DEV void copy(int count, unsigned found, float* buffer) const
    {
        const int to = lane() * STAGE, floats = lane() < count ? STAGE : 0;
        VP_ROLLED for (int k = 0; k < count; k += 2 * WARPS) copy_two(k + warp(), found, to, floats, buffer);
    }
    DEV void copy_two(int k, unsigned from, int to, int floats, float* buffer) const
    {
        const float* source[2];
        float* target[2];
        int left[2], all = 0;
        VP_UNROLL for (int j = 0; j < 2; j++) {
            source[j] = p.pool + __shfl_sync(~0u, from, k + j * WARPS);
            target[j] = buffer + __shfl_sync(~0u, to, k + j * WARPS);
            left[j] = __shfl_sync(~0u, floats, k + j * WARPS);
            all = all < left[j] ? left[j] : all;
        }
        VP_UNROLL for (int j = 0; j < 2; j++) left[j] -= 4 * lane(), source[j] += 4 * lane(), target[j] += 4 * lane();
        VP_ROLLED for (int c = 0; c < all; c += 8 * WARP)
            VP_UNROLL for (int j = 0; j < 2; j++) {
                copy_async16_if(c < left[j], target[j], source[j]);
                copy_async16_if(c + 4 * WARP < left[j], target[j] + 4 * WARP, source[j] + 4 * WARP);
                target[j] += 8 * WARP, source[j] += 8 * WARP;
            }
    }
};
template <int N, int O, class T> DEV void sum_over_lanes(T& v, int l)
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
template <int N, int O> DEV int value_of_lane(int k, int l)
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
template <int N, int NV, int O, class T> DEV void sum_over_lanes_by_vector(T& v)
{
    if constexpr (NV > 1) {
        VP_UNROLL for (int k = 0; k < N / 2; k++) v[k] += __shfl_xor_sync(~0u, v[k + N / 2], O);
        sum_over_lanes_by_vector<N / 2, NV / 2, O / 2>(v);
    }
}
DEV constexpr int neighbours(int c) { return c < C / 4 * 4 ? 4 : c < C / 2 * 2 ? 2 : 1; }
template <int K, int COUNT> struct Neighbours {
    enum { FIRST = K, N = COUNT };
    struct alignas(4 * COUNT) Floats { float of[COUNT]; };
    DEV Floats load(const float* vector, int l) const { return *(const Floats*)(vector + K * WARP + COUNT * l); }
};
template <int K = 0, class F> DEV void for_neighbours(F f)
{
    if constexpr (K < C) f(Neighbours<K, neighbours(K)>()), for_neighbours<K + neighbours(K)>(f);
}
template <int NV> DEV void slot_product(const float (&w)[R * C], const float* x, int at, float* sums)
{
    enum { LANES = WARP / NV, LEFT = (R + LANES - 1) / LANES };
    const int l = opaque(lane()), along = opaque(warp()) % W, mine = l / LANES;
    float sum[NV * R];
    VP_UNROLL for (int k = 0; k < NV * R; k++) sum[k] = 0.f;
    VP_UNROLL for (int v = 0; v < NV; v++) {
        const float* from = x + (v ^ mine) * STAGE + along * (C * WARP);
        for_neighbours([&](auto columns) {
            const auto e = columns.load(from, l);
            VP_UNROLL for (int c = 0; c < columns.N; c++)
                VP_UNROLL for (int r = 0; r < R; r++)
                    sum[v * R + r] = __fmaf_rn(w[r * C + columns.FIRST + c], e.of[c], sum[v * R + r]);
        });
    }
    sum_over_lanes_by_vector<NV * R, NV, WARP / 2>(sum);
    sum_over_lanes<R, LANES / 2>(sum, l);
    VP_UNROLL for (int k = 0; k < LEFT; k++) {
        const int row = value_of_lane<R, LANES / 2>(k, l);
        if (row >= 0 && row < R) sums[(along * PASS + at + mine) * ROWS + opaque(warp()) / W * R + row] = sum[k];
    }
}
DEV void held_matvec(const Launch& p, const float (&w)[R * C], int n, float* out)
{
    const Pieces pieces = {p, n};
    float* sums = shared_memory() + 2 * PASS * STAGE;
    const int step = ROWS < THREADS && n > 2 ? THREADS / ROWS : 2;  // vectors finished together
    unsigned found = pieces.look_up(0);
    int row = 0, there = 0;
    VP_ROLLED for (int k = 0; true; k++) {
        const int next = row + there, size = least(PASS, n - next);
        if (size) {
            pieces.copy(size, found, shared_memory() + k % 2 * (PASS * STAGE));
            if (next + size < n) found = pieces.look_up(next + size);
        }
        if (there) {
            const float* x = shared_memory() + (k + 1) % 2 * (PASS * STAGE);
            VP_ROLLED for (int v = 0; v < there; v += TILE) {
                if (there - v <= FEW) slot_product<FEW>(w, x + v * STAGE, v, sums);
                else slot_product<TILE>(w, x + v * STAGE, v, sums);
            }
            __syncthreads();
            const int u = threadIdx.x % ROWS;
            if (threadIdx.x / ROWS < step) VP_ROLLED for (int v = threadIdx.x / ROWS; v < there; v += step) {
                float part[WARPS];
                VP_UNROLL for (int i = 0; i < WARPS; i++) part[i] = i < W ? sums[(i * PASS + v) * ROWS + u] : 0.f;
                float sum = part[0];
                VP_UNROLL for (int i = 1; i < WARPS; i++) sum += part[i];
                out[(row + v) * ROWS + u] = sum + p.pool[u];
            }
        }
        if (!size) return;
        copy_async_wait();
        __syncthreads();
        row = next, there = size;
    }
}
KERNEL
{
    const int n = p.script[1];
    float w[R * C];
    for_neighbours([&](auto columns) {
        VP_UNROLL for (int k = 0; k < R * columns.N; k++) {
            const int r = k / columns.N, c = k % columns.N;
            const int column = (warp() % W * C + columns.FIRST) * WARP + columns.N * lane() + c;
            w[r * C + columns.FIRST + c] = p.pool[64 + (warp() / W * R + r) * STAGE + column];
        }
    });
    float* out = p.pool + p.script[4] + (size_t)blockIdx.x * n * ROWS;
    const unsigned long long began = nanoseconds();
    VP_ROLLED for (int k = 0; k < p.script[2]; k++) {
        held_matvec(p, w, n, out);
        __syncthreads();
    }
    tell(p, began);
}
