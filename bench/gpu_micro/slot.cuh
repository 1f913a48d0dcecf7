// A register slot (ROWS, COLUMNS, WARPS_PER_ROW): what one block keeps of a matrix, and its product with vectors.
//
// WARPS_PER_ROW warps share a row, 8 / WARPS_PER_ROW teams have ROWS rows each, and a lane holds COLUMNS elements of
// every row of its team: ROWS * COLUMNS registers. WARPS_PER_ROW = 1 is the form of the VPPS paper, a row per warp.
// Vectors go through shared memory; TILE of them are multiplied at a time.
#pragma once

#include "ptx.cuh"

constexpr int TEAMS = WARPS / WARPS_PER_ROW;
constexpr int BLOCK_ROWS = TEAMS * ROWS;
constexpr int WIDTH = COLUMNS * LANES * WARPS_PER_ROW;
constexpr int VECTOR = COLUMNS % 4 == 0 ? 4 : COLUMNS % 2 == 0 ? 2 : 1; // neighbours that a lane reads in one access
constexpr int PARTIALS = WARPS * ROWS * TILE;                           // floats of shared memory, twice

DEVICE int thread() { return threadIdx.x; }
DEVICE int lane() { return threadIdx.x % LANES; }
DEVICE int team() { return threadIdx.x / LANES / WARPS_PER_ROW; }
DEVICE int part() { return threadIdx.x / LANES % WARPS_PER_ROW; } // of a row

/// Column of the lane's element c: VECTOR neighbours, then the same of the next lane.
DEVICE int column(int c)
{
    return part() * COLUMNS * LANES + c / VECTOR * LANES * VECTOR + lane() * VECTOR + c % VECTOR;
}

/// First of the ROWS rows of this thread's team; rows beyond the matrix count as zeros.
DEVICE Word first_row() { return blockIdx.x * BLOCK_ROWS + team() * ROWS; }

DEVICE void load_slot(float (&slot)[ROWS * COLUMNS], const float* matrix, Word rows)
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const Word row = first_row() + r;
            slot[r * COLUMNS + c] = row < rows ? load(matrix + row * WIDTH + column(c)) : 0.f;
        }
    }
}

/// Copy `count` floats, a multiple of 4, to shared memory by all threads; several loads are under way at a time.
DEVICE void stage(float* to, const float* from, Word count)
{
#pragma unroll 4
    for (Word i = thread(); i < count / 4; i += THREADS)
        reinterpret_cast<float4*>(to)[i] = load(reinterpret_cast<const float4*>(from) + i);
}

/// The lane's elements of one vector in shared memory.
DEVICE void read_vector(float (&x)[COLUMNS], const float* vector)
{
#pragma unroll
    for (int c = 0; c < COLUMNS; c += VECTOR) {
        if constexpr (VECTOR == 4) {
            const float4 q = *reinterpret_cast<const float4*>(vector + column(c));
            x[c] = q.x, x[c + 1] = q.y, x[c + 2] = q.z, x[c + 3] = q.w;
        } else if constexpr (VECTOR == 2) {
            const float2 q = *reinterpret_cast<const float2*>(vector + column(c));
            x[c] = q.x, x[c + 1] = q.y;
        } else
            x[c] = vector[column(c)];
    }
}

/// Halve N sums by giving a neighbour one half of them for the other; recursion, as a loop would put them in memory.
template <int N> DEVICE float fold(const float (&v)[N])
{
    if constexpr (N == 1)
        return v[0];
    else {
        const bool upper = lane() & (N / 2);
        float half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const float kept = upper ? v[i + N / 2] : v[i], given = upper ? v[i] : v[i + N / 2];
            half[i] = kept + __shfl_xor_sync(ALL_LANES, given, N / 2);
        }
        return fold<N / 2>(half);
    }
}

DEVICE constexpr int next_power_of_two(int n) { return n <= 1 ? 1 : 2 * next_power_of_two((n + 1) / 2); }

/// Sum every v[i] over the lanes of the warp; one lane calls sink(i, sum).
template <int FIRST = 0, int N, class Sink> DEVICE void warp_sums(const float (&v)[N], Sink sink)
{
    if constexpr (FIRST < N) {
        constexpr int LEFT = N - FIRST, CHUNK = LEFT >= LANES ? LANES : next_power_of_two(LEFT);
        float chunk[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) chunk[i] = i < LEFT ? v[FIRST + (i < LEFT ? i : 0)] : 0.f;
        float sum = fold<CHUNK>(chunk); // lane l: of element l % CHUNK, over CHUNK lanes
#pragma unroll
        for (int offset = CHUNK; offset < LANES; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (lane() < CHUNK && lane() < LEFT) sink(FIRST + lane(), sum);
        warp_sums<FIRST + CHUNK>(v, sink);
    }
}

/// Products of the block's rows with TILE vectors in shared memory, one after the other.
///
/// sink(row of the block, vector, value) is called once for each by some thread. `partials` alternates between two
/// areas of PARTIALS floats from call to call: a single block barrier per call is then enough. `tile` counts the calls.
template <class Sink>
DEVICE void multiply(const float (&slot)[ROWS * COLUMNS], const float* vectors, float* partials, Word tile, Sink sink)
{
    float sums[ROWS * TILE];
#pragma unroll
    for (int i = 0; i < ROWS * TILE; ++i) sums[i] = 0.f;
#pragma unroll
    for (int t = 0; t < TILE; ++t) {
        float x[COLUMNS];
        read_vector(x, vectors + t * WIDTH);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                sums[r * TILE + t] = fmaf(slot[r * COLUMNS + c], x[c], sums[r * TILE + t]);
    }
    if constexpr (WARPS_PER_ROW == 1)
        warp_sums(sums, [&](int i, float sum) { sink(team() * ROWS + i / TILE, i % TILE, sum); });
    else {
        float* own = partials + tile % 2 * PARTIALS;
        warp_sums(sums, [&](int i, float sum) { own[(part() * TEAMS + team()) * ROWS * TILE + i] = sum; });
        __syncthreads();
        for (int i = thread(); i < BLOCK_ROWS * TILE; i += THREADS) {
            float sum = 0.f;
#pragma unroll
            for (int p = 0; p < WARPS_PER_ROW; ++p) sum += own[p * BLOCK_ROWS * TILE + i];
            sink(i / TILE, i % TILE, sum);
        }
    }
}
