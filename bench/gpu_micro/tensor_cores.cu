// Matrix-vector products on tensor cores: the matrix as A fragments in registers, 8 vectors per pass.
//
// Warps form a grid of ROW_WARPS x COLUMN_WARPS; each holds ROW_TILES x DEPTH fragments of 16 rows by 16 (bf16) or 8
// (tf32) columns, 4 registers each. The warps of a row add up through shared memory.
#include "ptx.cuh"

constexpr int COLUMN_WARPS = WARPS / ROW_WARPS;
constexpr int DEPTH_OF_MMA = BF16 ? 16 : 8;
constexpr int WIDTH = COLUMN_WARPS * DEPTH * DEPTH_OF_MMA;
constexpr int BLOCK_ROWS = ROW_WARPS * ROW_TILES * 16;
constexpr int PASS = 8;                             // vectors: the n of m16n8k16 and m16n8k8
constexpr int WORDS = BF16 ? WIDTH / 2 : WIDTH;     // of a row: two columns or one
constexpr int STRIDE = WORDS + 4;                   // words of a staged vector: 8 vectors then hit 32 different banks
constexpr int PARTIALS = COLUMN_WARPS * BLOCK_ROWS * PASS;

/// matrix [blocks * BLOCK_ROWS][WORDS]; x [sets][n][WIDTH]; y [sets][n][rows]. Repetition k takes set k % sets.
///
/// The host rounds the matrix: bf16 pairs, the even column in the lower half, or tf32. Rounding here would take a stack:
/// the compiler has the floats of all fragments under way at once. `staged` is a multiple of PASS; shared memory holds
/// 2 * PARTIALS floats, then that many vectors of STRIDE words.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
tensor_cores(const Word* matrix, const float* x, float* y, Word rows, Word n, Word staged, Word sets, Word repeats)
{
    const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
    const int g = lane / 4, t = lane % 4; // "group" and "thread in group" of the PTX ISA
    const int row_warp = warp / COLUMN_WARPS, column_warp = warp % COLUMN_WARPS;
    Word a[ROW_TILES][DEPTH][4];
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int e = 0; e < 4; ++e) { // rows g, g + 8, g, g + 8; words t, t, t + 4, t + 4 of the fragment's 8
                const Word row = blockIdx.x * BLOCK_ROWS + (row_warp * ROW_TILES + i) * 16 + g + e % 2 * 8;
                a[i][d][e] = load(matrix + row * WORDS + (column_warp * DEPTH + d) * 8 + t + e / 2 * 4);
            }
    float* partials = shared();
    Word* vectors = reinterpret_cast<Word*>(partials + 2 * PARTIALS);
    Word passes = 0;
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k) {
        const float* from = x + k % sets * n * WIDTH;
        float* to = y + k % sets * n * rows;
#pragma unroll 1
        for (Word first = 0; first < n; first += staged) {
            const Word here = n - first < staged ? n - first : staged;
            __syncthreads(); // until all have read the vectors before
            const float4* quads = reinterpret_cast<const float4*>(from + first * WIDTH);
#pragma unroll 4
            for (Word i = thread; i < here * (WIDTH / 4); i += THREADS) {
                const float4 q = load(quads + i);
                Word* words = vectors + i / (WIDTH / 4) * STRIDE + i % (WIDTH / 4) * (BF16 ? 2 : 4);
                if constexpr (BF16)
                    words[0] = bf16_pair(q.x, q.y), words[1] = bf16_pair(q.z, q.w);
                else
                    words[0] = tf32(q.x), words[1] = tf32(q.y), words[2] = tf32(q.z), words[3] = tf32(q.w);
            }
            __syncthreads();
#pragma unroll 1
            for (Word v = 0; v < here; v += PASS) { // vectors from `here` on hold anything: their products are dropped
                float d[ROW_TILES][4];
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0.f;
                const Word* own = vectors + (v + g) * STRIDE + column_warp * DEPTH * 8 + t; // a fragment is 8 words deep
#pragma unroll
                for (int k_tile = 0; k_tile < DEPTH; ++k_tile) {
                    const Word b0 = own[k_tile * 8], b1 = own[k_tile * 8 + 4];
#pragma unroll
                    for (int i = 0; i < ROW_TILES; ++i) {
                        if constexpr (BF16)
                            mma_bf16(d[i], a[i][k_tile], b0, b1);
                        else
                            mma_tf32(d[i], a[i][k_tile], b0, b1);
                    }
                }
                float* sums = partials + passes++ % 2 * PARTIALS; // two areas: one block barrier per pass is enough
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int row = (row_warp * ROW_TILES + i) * 16 + g + e / 2 * 8, vector = 2 * t + e % 2;
                        sums[(column_warp * PASS + vector) * BLOCK_ROWS + row] = d[i][e];
                    }
                __syncthreads();
                for (int i = thread; i < BLOCK_ROWS * PASS; i += THREADS) {
                    float sum = 0.f;
#pragma unroll
                    for (int c = 0; c < COLUMN_WARPS; ++c) sum += sums[c * PASS * BLOCK_ROWS + i];
                    const Word vector = v + i / BLOCK_ROWS, row = blockIdx.x * BLOCK_ROWS + i % BLOCK_ROWS;
                    if (vector < here && row < rows) to[(first + vector) * rows + row] = sum;
                }
            }
        }
    }
}
