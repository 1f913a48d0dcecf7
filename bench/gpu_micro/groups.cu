// A recurrent model level by level: groups of blocks, each with all weights and its share of every level's vertices.
#include "slot.cuh"

constexpr Word LINE = 32;           // words of 128 bytes: the counters of two groups share no line
constexpr Word TIMEOUT = 1u << 23; // polls, some seconds

/// Until all `width` blocks of the group have come here `times` times.
DEVICE void barrier(Word* counter, Word all)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(counter);
        for (Word polls = 0; load_relaxed(counter) < all; ++polls) {
            if (polls > 2) pause(20);
            if (polls > TIMEOUT) stop();
        }
        load_acquire(counter);
    }
    __syncthreads();
}

/// h[l + 1] = f(matrix @ h[l]) with f(x) = x / (1 + |x|), for the first sizes[l] vertices of every group; all of it
/// `repeats` times.
///
/// matrix [WIDTH][WIDTH]; h [n_levels + 1][groups][most][WIDTH]; sizes: per group, not increasing, at most `most`;
/// counters: a LINE per group, all zero. `width` blocks per group. `staged`, a multiple of TILE, is how many vectors
/// shared memory holds besides the partial sums.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
levels(const float* matrix, float* h, Word* counters, const Word* sizes, Word n_levels, Word most, Word groups,
       Word width, Word staged, Word repeats)
{
    const Word group = blockIdx.x / width, member = blockIdx.x % width;
    float slot[ROWS * COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const Word row = member * BLOCK_ROWS + team() * ROWS + r;
            slot[r * COLUMNS + c] = row < WIDTH ? load(matrix + row * WIDTH + column(c)) : 0.f;
        }
    float *partials = shared(), *vectors = partials + 2 * PARTIALS;
    Word tiles = 0, barriers = 0;
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k)
#pragma unroll 1
        for (Word level = 0; level < n_levels; ++level) {
            const Word size = sizes[level];
            const float* from = h + (level * groups + group) * most * WIDTH;
            float* to = h + ((level + 1) * groups + group) * most * WIDTH;
#pragma unroll 1
            for (Word first = 0; first < size; first += staged) {
                const Word here = size - first < staged ? size - first : staged;
                // All have read the vectors before: `multiply` waits, as a row has several warps.
                static_assert(WARPS_PER_ROW > 1, "else a block barrier is needed here");
                stage(vectors, from + first * WIDTH, here * WIDTH);
                __syncthreads();
#pragma unroll 1
                for (Word v = 0; v < here; v += TILE)
                    multiply(slot, vectors + v * WIDTH, partials, tiles++, [&](int r, int t, float sum) {
                        const Word row = member * BLOCK_ROWS + r;
                        if (v + t < here && row < WIDTH) to[(first + v + t) * WIDTH + row] = sum / (1.f + fabsf(sum));
                    });
            }
            barrier(counters + group * LINE, width * ++barriers);
        }
}
