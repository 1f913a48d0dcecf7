// Matrix-vector products from a register slot, n vectors, `repeats` times; the vectors come from L2.
//
// The last vectors of a tile may lie beyond n: their products are computed and dropped.
#include "slot.cuh"

/// matrix [rows][WIDTH]; x [sets][n][WIDTH]; y [sets][n][rows]. Repetition k takes set k % sets.
///
/// `staged`, a multiple of TILE, is how many vectors shared memory holds besides the partial sums.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
matvec(const float* matrix, const float* x, float* y, Word rows, Word n, Word staged, Word sets, Word repeats)
{
    float slot[ROWS * COLUMNS];
    load_slot(slot, matrix, rows);
    float *partials = shared(), *vectors = partials + 2 * PARTIALS;
    Word tiles = 0;
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k) {
        const float* from = x + k % sets * n * WIDTH;
        float* to = y + k % sets * n * rows;
#pragma unroll 1
        for (Word first = 0; first < n; first += staged) {
            const Word here = n - first < staged ? n - first : staged;
            if (WARPS_PER_ROW == 1) __syncthreads(); // until all have read the vectors before; else `multiply` waits
            stage(vectors, from + first * WIDTH, here * WIDTH);
            __syncthreads();
#pragma unroll 1
            for (Word v = 0; v < here; v += TILE)
                multiply(slot, vectors + v * WIDTH, partials, tiles++, [&](int r, int t, float sum) {
                    const Word row = blockIdx.x * BLOCK_ROWS + r;
                    if (v + t < here && row < rows) to[(first + v + t) * rows + row] = sum;
                });
        }
    }
}
