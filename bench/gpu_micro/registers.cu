// Weights into registers at the start of a launch and back at its end. FLOATS per thread; WIDE: 16 bytes per access.
#include "ptx.cuh"

/// weights [blocks][FLOATS / 4 or FLOATS][THREADS] of float4 or float. store: write w * scale back, else only the
/// block's sum goes to sums [blocks * THREADS], so that nothing can be left out.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
weights_in_registers(float* weights, float* sums, float scale, Word store)
{
    float w[FLOATS];
    const Word block = blockIdx.x * FLOATS * THREADS;
#pragma unroll
    for (int i = 0; i < FLOATS; i += WIDE ? 4 : 1) {
        if constexpr (WIDE) {
            const float4 q = load(reinterpret_cast<const float4*>(weights + block) + i / 4 * THREADS + threadIdx.x);
            w[i] = q.x, w[i + 1] = q.y, w[i + 2] = q.z, w[i + 3] = q.w;
        } else
            w[i] = load(weights + block + i * THREADS + threadIdx.x);
    }
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < FLOATS; ++i) sum += w[i];
    sums[blockIdx.x * THREADS + threadIdx.x] = sum;
    if (!store) return;
#pragma unroll
    for (int i = 0; i < FLOATS; i += WIDE ? 4 : 1) {
        if constexpr (WIDE)
            reinterpret_cast<float4*>(weights + block)[i / 4 * THREADS + threadIdx.x] =
                make_float4(w[i] * scale, w[i + 1] * scale, w[i + 2] * scale, w[i + 3] * scale);
        else
            weights[block + i * THREADS + threadIdx.x] = w[i] * scale;
    }
}
