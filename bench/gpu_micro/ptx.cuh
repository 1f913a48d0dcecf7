// Instructions that CUDA C++ has no name for, or only in headers that take a second to compile (PTX ISA 8.7).
#pragma once

#define DEVICE __device__ __forceinline__

typedef unsigned Word;

constexpr int THREADS = 256, LANES = 32, WARPS = THREADS / LANES;
constexpr unsigned ALL_LANES = 0xffffffffu;

extern __shared__ float4 dynamic_shared[];

DEVICE float* shared() { return reinterpret_cast<float*>(dynamic_shared); }

// Data that other blocks wrote moments ago is not in this multiprocessor's L1: what is timed reads from L2, too.
DEVICE float load(const float* p) { return __ldcg(p); }
DEVICE float4 load(const float4* p) { return __ldcg(p); }
DEVICE Word load(const Word* p) { return __ldcg(p); }

/// Through the non-coherent path: only for what nobody writes during the launch, such as a script.
DEVICE uint4 load_constant(const uint4* p) { return __ldg(p); }

/// x * FACTOR + y; volatile, so that a chain of them is neither merged nor left out.
template <Word FACTOR> DEVICE Word multiply_add(Word x, Word y)
{
    Word result;
    asm volatile("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "n"(FACTOR), "r"(y));
    return result;
}

DEVICE void add(float* p, float x)
{
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory");
}

/// Add four neighbours, p aligned to 16 bytes: one instruction from sm_90 on, four before.
DEVICE void add(float4* p, float4 x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(x.x), "f"(x.y), "f"(x.z),
                 "f"(x.w)
                 : "memory");
#else
    float* q = reinterpret_cast<float*>(p);
    add(q, x.x), add(q + 1, x.y), add(q + 2, x.z), add(q + 3, x.w);
#endif
}

// ---- signals between blocks (PTX ISA, memory consistency model: release and acquire are cumulative)

DEVICE void add_release(Word* p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }

DEVICE Word fetch_add_acq_rel(Word* p)
{
    Word before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
    return before;
}

DEVICE void store_release(Word* p, Word x)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

DEVICE Word load_relaxed(const Word* p)
{
    Word x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

DEVICE Word load_acquire(const Word* p)
{
    Word x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

DEVICE void pause(Word nanoseconds) { __nanosleep(nanoseconds); }

DEVICE unsigned long long nanoseconds()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// ---- tensor cores: D += A B, shapes and fragment layouts as in the PTX ISA, "Matrix fragments for mma.m16n8k16/k8"

/// Two floats as bf16, `low` in the lower half. Volatile: else the compiler keeps both and converts where it is used.
DEVICE Word bf16_pair(float low, float high)
{
    Word pair;
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE Word tf32(float x)
{
    Word rounded;
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}

DEVICE void mma_bf16(float (&d)[4], const Word (&a)[4], Word b0, Word b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void mma_tf32(float (&d)[4], const Word (&a)[4], Word b0, Word b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
