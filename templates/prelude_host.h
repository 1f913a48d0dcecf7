// ---- prelude, host: CUDA-style source as host C++17. A virtual processor is one OS thread.
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <utility>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define VP_DEVICE inline __attribute__((always_inline))
#define VP_GLOBAL static
#define VP_ROUTINE static __attribute__((noinline))  // one instruction: inlining them all makes compiling 6x slower
#define VP_SIMD _Pragma("omp simd")
#define VP_UNROLL _Pragma("GCC unroll 16")

typedef uint32_t Word;

// Fused multiply-add where the processor has one. Contraction by the compiler is off (-ffp-contract=off): it could fuse
// differently in a vector loop and in its remainder, and results must not depend on how work is sliced.
VP_DEVICE float fma_(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

VP_DEVICE float as_float(Word w) { float f; memcpy(&f, &w, 4); return f; }
VP_DEVICE Word as_word(float f) { Word w; memcpy(&w, &f, 4); return w; }
VP_DEVICE int least(int a, int b) { return a < b ? a : b; }
VP_DEVICE int most(int a, int b) { return a > b ? a : b; }

// ---- a virtual processor, and the launch it takes part in
struct Vp {
    int id, count;         // index within the group, number in the group
    float* pool;           // all floats: weights, gradients, activations
    const Word* script;    // this launch's script
    unsigned* counters;    // this launch's counters, a 128-byte line each
    unsigned* stopped;     // not zero: position + 1 of the instruction that stopped the launch
    int spins;             // how often a wait looks again before it lets another thread run
    float gradient_scale;  // from clipping by global norm
    VP_TIMELINE(struct Timeline* timeline = nullptr;)  // its own
};

// Sum of 16 floats, as a tree of unrolled loops: the half that is left is added lane by lane.
VP_DEVICE float sum16(float* part)
{
    VP_SIMD for (int k = 0; k < 8; k++) part[k] += part[k + 8];
    VP_SIMD for (int k = 0; k < 4; k++) part[k] += part[k + 4];
    return (part[0] + part[2]) + (part[1] + part[3]);
}

// Sum of f(0) ... f(n - 1) in an order that depends on n alone: 16 strided partial sums, then a tree.
template <class F> VP_DEVICE float reduce_sum(int n, F f)
{
    float part[16] = {0};
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        VP_SIMD for (int k = 0; k < 16; k++) part[k] += f(i + k);
    }
    for (int k = 0; i < n; i++, k++) part[k] += f(i);
    return sum16(part);
}

template <class F> VP_DEVICE float reduce_max(int n, F f)
{
    float top = f(0);
    for (int i = 1; i < n; i++) {
        const float v = f(i);
        top = v > top || v != v ? v : top;  // a NaN stays
    }
    return top;
}
