// ---- the CUDA C++ vocabulary of the kernel, for a host compiler. It is force-included (-include) before the kernel's
// source, which NVRTC compiles unchanged. Every CUDA thread is a fiber of the emulator (emulator.cpp).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define VP_SIMT
#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// There is no __shared__: shared_memory() returns a block's shared memory.

typedef uint32_t Word;

// Values of the running thread. `const` lets a compiler keep them in registers, which is valid because a call stays on one thread.
extern "C" {
unsigned simt_thread() __attribute__((const));
unsigned simt_block() __attribute__((const));
unsigned simt_threads() __attribute__((const));
unsigned simt_blocks() __attribute__((const));
float* simt_shared_memory() __attribute__((const));

// Source lines identify barriers; call addresses do not, because a compiler may duplicate a call.
void simt_block_barrier(unsigned line);
void simt_warp_barrier(unsigned mask, unsigned line);
uint64_t simt_shuffle(unsigned mask, uint64_t value, int source, unsigned line);
unsigned simt_ballot(unsigned mask, bool predicate, unsigned line);
void simt_mma_bf16(float* c, unsigned* a, unsigned* b, unsigned line);
void simt_mma_tf32(float* c, unsigned* a, unsigned* b, unsigned line);
unsigned simt_movmatrix(unsigned a, unsigned line);

void simt_copy(void* to, const void* from, size_t bytes);
void simt_fill(void* to, int value, size_t bytes);
}

// A compiler that reports accesses treats builtins of small constant sizes as loads and stores, but expands others without
// a report. The macros are statements without a value.
#define SIMT_IS_WORD(bytes) (__builtin_constant_p(bytes) && ((bytes) == 4 || (bytes) == 8))
#define memcpy(to, from, bytes) \
    (SIMT_IS_WORD(bytes) ? (void)__builtin_memcpy(to, from, bytes) : simt_copy(to, from, bytes))
#define memmove(to, from, bytes) memcpy(to, from, bytes)
#define memset(to, value, bytes) simt_fill(to, value, bytes)

namespace simt {

struct Index {
    unsigned x;
};

template <class T> inline T shuffle(unsigned line, unsigned mask, T value, int source)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves values of 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = simt_shuffle(mask, bits, source, line);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// Lanes form segments of `width`. A source outside a lane's segment returns the lane's own value.
template <class T> inline T shuffle_from(unsigned line, unsigned mask, T value, int lane, int width = 32)
{
    const int mine = (int)(simt_thread() % 32);
    return shuffle(line, mask, value, (mine & -width) + (lane & (width - 1)));
}
template <class T> inline T shuffle_xor(unsigned line, unsigned mask, T value, int lanes, int width = 32)
{
    const int mine = (int)(simt_thread() % 32), from = mine ^ lanes;
    return shuffle(line, mask, value, from < (mine & -width) + width ? from : mine);
}

inline void mma_bf16(unsigned line, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
    simt_mma_bf16(c, a, b, line);
}
inline void mma_tf32(unsigned line, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
    simt_mma_tf32(c, a, b, line);
}

inline void warp_barrier(unsigned line, unsigned mask = 0xffffffffu) { simt_warp_barrier(mask, line); }

}  // namespace simt

#define threadIdx (simt::Index{simt_thread()})
#define blockIdx (simt::Index{simt_block()})
#define blockDim (simt::Index{simt_threads()})
#define gridDim (simt::Index{simt_blocks()})
#define __syncthreads() simt_block_barrier(__LINE__)
#define __syncwarp(...) simt::warp_barrier(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) simt::shuffle_from(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) simt::shuffle_xor(__LINE__, __VA_ARGS__)
#define __any_sync(mask, predicate) (simt_ballot(mask, (predicate) != 0, __LINE__) != 0)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline unsigned __float_as_uint(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }

// ---- functions that are inline PTX on a GPU
// Tensor cores: the whole warp multiplies (simt/fragments.h).
#define mma_bf16(...) simt::mma_bf16(__LINE__, __VA_ARGS__)
#define mma_tf32(...) simt::mma_tf32(__LINE__, __VA_ARGS__)
#define transposed_halves(word) simt_movmatrix(word, __LINE__)

// Rounds to nearest, ties to even. All NaN bit patterns remain NaN.
inline unsigned bf16_of(float x)
{
    const unsigned bits = __float_as_uint(x);
    return (x != x ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned bf16_pair(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
// Rounds to nearest, ties away from zero. The last 13 bits are undefined and must not matter; here they come from x.
inline unsigned tf32_of(float x)
{
    const unsigned bits = __float_as_uint(x), infinite = 0x7f800000;
    return (bits & infinite) == infinite ? bits | (x != x ? 0x400000 : 0) : bits + 0x1000;
}

inline float* shared_memory() { return simt_shared_memory(); }

unsigned load_relaxed(const unsigned* p);
unsigned load_acquire(const unsigned* p);
void store_relaxed(unsigned* p, unsigned value);
void add_relaxed(unsigned* p, unsigned value);
void add_release(unsigned* p, unsigned value);
unsigned compare_and_swap(unsigned* p, unsigned expected, unsigned desired);  // relaxed; returns what was there
void add_float(float* p, float value);

Word load_script(const Word* p);  // uses the non-coherent path, only for words that no launch writes

// The copy is executed at the wait, the latest time that hardware allows.
void copy_async4(float* shared, const float* global);
void copy_async16(float* shared, const float* global);
inline void copy_async16_if(bool when, float* shared, const float* global)
{
    if (when) copy_async16(shared, global);
}
void copy_async_wait();
void copy_async_commit();
void simt_copy_wait(unsigned newest);
template <int N> inline void copy_async_wait() { simt_copy_wait(N); }

void nap(unsigned nanoseconds);      // pauses a loop that waits for another thread
unsigned long long nanoseconds();    // reads a virtual clock: see vpps/runtime/emulator.py
void at(unsigned position);          // sets this thread's script position, for findings
