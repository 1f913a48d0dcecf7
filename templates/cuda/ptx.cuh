// ---- what CUDA C++ has no word for: memory order, copies to shared memory that do not wait, clocks (PTX ISA 8.x)
#ifndef VP_SIMT  // the emulator has its own (simt/words.h)
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
// Only for what nothing writes during a launch.
__device__ __forceinline__ unsigned load_script(const unsigned* p)
{
    unsigned v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
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
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
__device__ __forceinline__ void copy_async4(float* to, const float* from) { *to = *from; }
__device__ __forceinline__ void copy_async16(float* to, const float* from) { *(float4*)to = *(const float4*)from; }
__device__ __forceinline__ void copy_async_wait() {}
#endif
__device__ __forceinline__ void at(unsigned) {}  // the emulator wants to know which instruction is executed
#endif
