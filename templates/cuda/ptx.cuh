// Calls f for the numbers below N, which are known when compiling: registers have no addresses.
template <int K> struct Number { enum { VALUE = K }; };
template <int N, int K = 0, class F> __device__ __forceinline__ void for_numbers(F f)
{
    if constexpr (K < N) {
        f(Number<K>());
        for_numbers<N, K + 1>(f);
    }
}

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
// 1 / x but for its last place, 0 for x beyond 2^126.
__device__ __forceinline__ float reciprocal_about(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
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
// Where `when` says so; without a branch.
__device__ __forceinline__ void copy_async16_if(bool when, float* to, const float* from)
{
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
                 ::"r"(shared_address(to)), "l"(from), "r"((unsigned)when) : "memory");
}
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
__device__ __forceinline__ void copy_async4(float* to, const float* from) { *to = *from; }
__device__ __forceinline__ void copy_async16(float* to, const float* from) { *(float4*)to = *(const float4*)from; }
__device__ __forceinline__ void copy_async16_if(bool when, float* to, const float* from)
{
    if (when) copy_async16(to, from);
}
__device__ __forceinline__ void copy_async_wait() {}
#endif

// The registers that hold weights from one instruction to the next are declared here and known to ptxas alone. As members
// of a struct they would pass through every branch and loop of the interpreter, and compiling takes twice as long.
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

// They begin with zeros: what is not defined on every way to where it is read may share a register with what is defined
// under another condition (seen of NVRTC 13.0 and 13.5: the load of one matrix overwrote another one).
__device__ __forceinline__ void declare_registers(Store& store)
{
    asm volatile(".reg .f32 cached<%0>;" ::"n"(VP_CACHED + 1));
    for_numbers<VP_CACHED>([&](auto k) { write_register<k.VALUE>(store, 0.f); });
}

// A value that the compiler does not know to be the same in every turn of a loop: else it makes a copy of the loop for
// each outcome of a branch that all turns take alike, and copies of those for the next branch.
__device__ __forceinline__ int opaque(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}
// Of global memory, which the compiler must go on knowing.
template <class T> __device__ __forceinline__ T* opaque(T* p)
{
    size_t address = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(address));
    return (T*)__cvta_global_to_generic(address);
}
__device__ __forceinline__ void at(unsigned) {}  // the emulator wants to know which instruction is executed
#else
template <class T> T opaque(T v) { return v; }
struct Store { float cached[VP_CACHED + 1]; };
inline void declare_registers(Store&) {}
template <int K> float read_register(const Store& store) { return store.cached[K]; }
template <int K> void write_register(Store& store, float v) { store.cached[K] = v; }
#endif
