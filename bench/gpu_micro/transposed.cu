// The transposed product from the slots of the matrix itself: every block adds what its rows contribute to all columns.
#include "slot.cuh"

/// matrix [rows][WIDTH], rows = blocks * BLOCK_ROWS; y [sets][n][rows]; x [sets][n][WIDTH], added to.
///
/// Repetition k takes set k % sets. Shared memory: [TEAMS][TILE][WIDTH] sums, then [TILE][BLOCK_ROWS] of y. FOUR: add
/// four neighbours at a time.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
transposed(const float* matrix, const float* y, float* x, Word rows, Word n, Word sets, Word repeats)
{
    float slot[ROWS * COLUMNS];
    load_slot(slot, matrix, rows);
    float *sums_of_teams = shared(), *own_y = sums_of_teams + TEAMS * TILE * WIDTH;
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k) {
        const float* from = y + k % sets * n * rows + blockIdx.x * BLOCK_ROWS;
        float* to = x + k % sets * n * WIDTH;
#pragma unroll 1
        for (Word first = 0; first < n; first += TILE) {
            // All have read y of the tile before: a barrier lies between that and here.
            for (int i = thread(); i < TILE * BLOCK_ROWS; i += THREADS) {
                const Word v = first + i / BLOCK_ROWS;
                own_y[i] = v < n ? load(from + v * rows + i % BLOCK_ROWS) : 0.f;
            }
            __syncthreads();
            float sums[COLUMNS * TILE];
#pragma unroll
            for (int i = 0; i < COLUMNS * TILE; ++i) sums[i] = 0.f;
#pragma unroll
            for (int t = 0; t < TILE; ++t)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const float factor = own_y[t * BLOCK_ROWS + team() * ROWS + r];
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c)
                        sums[t * COLUMNS + c] = fmaf(slot[r * COLUMNS + c], factor, sums[t * COLUMNS + c]);
                }
#pragma unroll
            for (int t = 0; t < TILE; ++t)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
                    sums_of_teams[(team() * TILE + t) * WIDTH + column(c)] = sums[t * COLUMNS + c];
            __syncthreads();
            const Word here = n - first < TILE ? n - first : TILE;
#if FOUR
            for (int i = thread(); i < int(here * WIDTH / 4); i += THREADS) {
                float4 sum = reinterpret_cast<const float4*>(sums_of_teams)[i];
                for (int other = 1; other < TEAMS; ++other) {
                    const float4 more = reinterpret_cast<const float4*>(sums_of_teams + other * TILE * WIDTH)[i];
                    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
                }
                add(reinterpret_cast<float4*>(to + first * WIDTH) + i, sum);
            }
#else
            for (int i = thread(); i < int(here * WIDTH); i += THREADS) {
                float sum = sums_of_teams[i];
                for (int other = 1; other < TEAMS; ++other) sum += sums_of_teams[other * TILE * WIDTH + i];
                add(to + first * WIDTH + i, sum);
            }
#endif
        }
    }
}
