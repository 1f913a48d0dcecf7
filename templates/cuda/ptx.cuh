#pragma once
#include "configuration.h"
// Calls f for the compile-time numbers [K, N): registers have no addresses. It recurses on halves, because NVRTC instantiates
// templates at most 200 deep.
template <int K> struct Number { enum { VALUE = K }; };
template <int N, int K = 0, class F> __device__ __forceinline__ void for_numbers(F f)
{
    if constexpr (N - K > 1) {
        for_numbers<(N + K) / 2, K>(f);
        for_numbers<N, (N + K) / 2>(f);
    } else if constexpr (N > K) {
        f(Number<K>());
    }
}

// ---- inline PTX: memory order, asynchronous copies to shared memory, tensor cores, clocks (PTX ISA 8.x)
#ifndef VP_SIMT  // simt/words.h defines these for the emulator
__device__ __forceinline__ float* shared_memory()
{
    extern __shared__ __align__(16) float memory_of_block[];
    return memory_of_block;
}
__device__ __forceinline__ unsigned load_relaxed(const unsigned* p)
{
    unsigned v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* p)
{
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_relaxed(unsigned* p, unsigned v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void add_release(unsigned* p, unsigned v)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ unsigned compare_and_swap(unsigned* p, unsigned expected, unsigned desired)
{
    return atomicCAS(p, expected, desired);
}
__device__ __forceinline__ void add_float(float* p, float v)
{
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
// 1 / x with an error of one unit in the last place; 0 for x beyond 2^126.
__device__ __forceinline__ float reciprocal_about(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// Tensor cores: the whole warp computes c += A B, for 16 rows of A and 8 columns of B. For the layout of fragments see PTX ISA
// ("Matrix fragments for mma.m16n8k16", "... m16n8k8"). Needs sm_80.
__device__ __forceinline__ void mma_bf16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_tf32(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Transposes an 8 x 8 matrix of 16-bit halves. Four consecutive lanes hold a row, a word each.
__device__ __forceinline__ unsigned transposed_halves(unsigned word)
{
    unsigned d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(word));
    return d;
}
__device__ __forceinline__ unsigned bf16_pair(float low, float high)  // rounds to nearest even
{
    unsigned d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
__device__ __forceinline__ unsigned tf32_of(float x)  // rounds to nearest, ties away from zero; the last 13 bits are undefined
{
    unsigned d;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(x));
    return d;
}
__device__ __forceinline__ void nap(unsigned nanoseconds) { __nanosleep(nanoseconds); }
__device__ __forceinline__ unsigned long long nanoseconds()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy_async4(float* to, const float* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async16(float* to, const float* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Copies if `when` is true, without a branch.
__device__ __forceinline__ void copy_async16_if(bool when, float* to, const float* from)
{
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
                 ::"r"(shared_address(to)), "l"(from), "r"((unsigned)when) : "memory");
}
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// The thread's copies since the last commit become a group, which may be empty.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of the thread except the N newest.
template <int N> __device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#else
__device__ __forceinline__ void copy_async4(float* to, const float* from) { *to = *from; }
__device__ __forceinline__ void copy_async16(float* to, const float* from) { *(float4*)to = *(const float4*)from; }
__device__ __forceinline__ void copy_async16_if(bool when, float* to, const float* from)
{
    if (when) copy_async16(to, from);
}
__device__ __forceinline__ void copy_async_wait() {}
__device__ __forceinline__ void copy_async_commit() {}
template <int N> __device__ __forceinline__ void copy_async_wait() {}
#endif

// The registers that keep weights between instructions are declared in PTX, so that only ptxas knows them. As members of a
// struct they would be carried through every branch and loop of the interpreter, and compilation would take twice as long.
struct Store {};
template <int K> __device__ __forceinline__ float read_register(const Store&)
{
    float v;
    asm volatile("mov.f32 %0, cached%1;" : "=f"(v) : "n"(K));
    return v;
}
template <int K> __device__ __forceinline__ void write_register(Store&, float v)
{
    asm volatile("mov.f32 cached%0, %1;" ::"n"(K), "f"(v));
}

// Initialises the registers to zero. The compiler may merge two registers if some path reads one before it is written. NVRTC
// 13.0 and 13.5 did so: the load of one matrix overwrote another.
__device__ __forceinline__ void declare_registers(Store& store)
{
    asm volatile(".reg .f32 cached<%0>;" ::"n"(VP_CACHED + 1));
    for_numbers<VP_CACHED>([&](auto k) { write_register<k.VALUE>(store, 0.f); });
}

// Hides from the compiler that a value is loop-invariant. Otherwise the compiler copies a loop for each outcome of an invariant
// branch in it, and copies those again for the next branch.
__device__ __forceinline__ int opaque(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}
// Hides a pointer's value in the same way; the compiler still knows that it points to global memory.
template <class T> __device__ __forceinline__ T* opaque(T* p)
{
    size_t address = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(address));
    return (T*)__cvta_global_to_generic(address);
}
__device__ __forceinline__ void at(unsigned) {}  // the emulator records the current instruction here
#else
template <class T> T opaque(T v) { return v; }
struct Store { float cached[VP_CACHED + 1]; };
inline void declare_registers(Store&) {}
template <int K> float read_register(const Store& store) { return store.cached[K]; }
template <int K> void write_register(Store& store, float v) { store.cached[K] = v; }
#endif
