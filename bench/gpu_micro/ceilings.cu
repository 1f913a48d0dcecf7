// What the figures are held against: how fast L2 is read, how long one read takes; and kernels that do nothing.
#include "ptx.cuh"

/// Every block reads all `count` float4 of x, `repeats` times; sums [blocks * THREADS].
extern "C" __global__ void __launch_bounds__(THREADS) read_all(const float4* x, float* sums, Word count, Word repeats)
{
    float sum = 0.f;
#pragma unroll 1
    for (Word k = 0; k < repeats; ++k)
#pragma unroll 8
        for (Word i = threadIdx.x; i < count; i += THREADS) {
            const float4 q = load(x + i);
            sum += q.x + q.y + q.z + q.w;
        }
    sums[blockIdx.x * THREADS + threadIdx.x] = sum;
}

/// One thread follows a cycle of indices through L2: the time of a round trip.
extern "C" __global__ void chase(const Word* next, Word* last, Word steps)
{
    Word at = 0;
    if (threadIdx.x == 0)
        for (Word k = 0; k < steps; ++k) at = load_relaxed(next + at);
    if (threadIdx.x == 0) *last = at;
}

/// Keeps the device busy while the host enqueues what is to be timed: else its gaps would be timed too.
extern "C" __global__ void delay(Word duration)
{
    const unsigned long long start = nanoseconds();
    while (nanoseconds() - start < duration) pause(100);
}

extern "C" __global__ void __launch_bounds__(THREADS) empty(Word* nothing) {}
