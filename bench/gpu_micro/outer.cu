// Sums of outer products into a register slot: the gradient of a matrix over n vectors.
#include "slot.cuh"

constexpr int STRIDE = (BLOCK_ROWS + 3) / 4 * 4;

/// x [sets][n][WIDTH]; dy [sets][n][rows]; gradient [rows][WIDTH], written once at the end.
///
/// Repetition k takes set k % sets. Shared memory: [staged][WIDTH] of x, then [staged][STRIDE] of dy.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
outer(const float* x, const float* dy, float* gradient, Word rows, Word n, Word staged, Word sets, Word repeats)
{
    float slot[ROWS * COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS; ++i) slot[i] = 0.f;
    float *vectors = shared(), *factors = vectors + staged * WIDTH;
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k) {
        const float* from = x + k % sets * n * WIDTH;
        const float* dy_from = dy + k % sets * n * rows;
#pragma unroll 1
        for (Word first = 0; first < n; first += staged) {
            const Word here = n - first < staged ? n - first : staged;
            __syncthreads(); // until all have read the vectors before
            stage(vectors, from + first * WIDTH, here * WIDTH);
            for (Word i = thread(); i < here * BLOCK_ROWS; i += THREADS) {
                const Word v = i / BLOCK_ROWS, r = i % BLOCK_ROWS, row = blockIdx.x * BLOCK_ROWS + r;
                factors[v * STRIDE + r] = row < rows ? load(dy_from + (first + v) * rows + row) : 0.f;
            }
            __syncthreads();
#pragma unroll UNROLL
            for (Word v = 0; v < here; ++v) {
                float own[COLUMNS];
                read_vector(own, vectors + v * WIDTH);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const float factor = factors[v * STRIDE + team() * ROWS + r];
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c)
                        slot[r * COLUMNS + c] = fmaf(factor, own[c], slot[r * COLUMNS + c]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            if (first_row() + r < rows) gradient[(first_row() + r) * WIDTH + column(c)] = slot[r * COLUMNS + c];
}
