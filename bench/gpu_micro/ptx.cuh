// Instructions that CUDA C++ has no name for, or only in headers that take a second to compile (PTX ISA 8.7).
#pragma once

#define DEVICE __device__ __forceinline__

typedef unsigned Word;

constexpr int THREADS = 256, LANES = 32, WARPS = THREADS / LANES;
constexpr unsigned ALL_LANES = 0xffffffffu;

#ifndef VP_SIMT

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

DEVICE void count(Word* p) { atomicAdd(p, 1u); }

/// End the launch with an error: better than a device that hangs.
DEVICE void stop() { __trap(); }

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

#else // in the emulator of target simt (templates/simt/words.h), which has the words for memory order itself

DEVICE float* shared() { return shared_memory(); }
DEVICE float load(const float* p) { return *p; }
DEVICE float4 load(const float4* p) { return *p; }
DEVICE Word load(const Word* p) { return *p; }
DEVICE uint4 load_constant(const uint4* p)
{
    const Word* words = reinterpret_cast<const Word*>(p);
    return {load_script(words), load_script(words + 1), load_script(words + 2), load_script(words + 3)};
}
template <Word FACTOR> DEVICE Word multiply_add(Word x, Word y) { return x * FACTOR + y; }
DEVICE void add(float* p, float x) { add_float(p, x); }
DEVICE void add(float4* p, float4 x)
{
    float* q = reinterpret_cast<float*>(p);
    add(q, x.x), add(q + 1, x.y), add(q + 2, x.z), add(q + 3, x.w);
}
DEVICE void add_release(Word* p) { add_release(p, 1); }
DEVICE void count(Word* p) { add_relaxed(p, 1); }
DEVICE void pause(Word nanoseconds) { nap(nanoseconds); }
DEVICE void stop() { __builtin_trap(); }
DEVICE Word bits_of(float x)
{
    Word bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
DEVICE float float_of(Word bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
DEVICE Word bf16(float x) { return (bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1)) >> 16; }
DEVICE Word bf16_pair(float low, float high) { return bf16(low) | bf16(high) << 16; }
DEVICE Word tf32(float x) { return (bits_of(x) + 0x1000) & ~0x1fffu; }

/// D += A B by the layouts of the PTX ISA: lane 4 g + t has A(g, .), B(., g) and D(g, 2 t); HALVES columns per word.
template <int HALVES> DEVICE void multiply_fragments(float (&d)[4], const Word (&a)[4], Word b0, Word b1)
{
    const int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
    for (int e = 0; e < 4; ++e)
        for (int word = 0; word < 8; ++word) {
            const Word from_a = __shfl_sync(ALL_LANES, a[e / 2 + word / 4 * 2], 4 * g + word % 4);
            const Word from_b = __shfl_sync(ALL_LANES, word < 4 ? b0 : b1, 4 * (2 * t + e % 2) + word % 4);
            if (HALVES == 1)
                d[e] += float_of(from_a) * float_of(from_b);
            else
                d[e] += float_of(from_a << 16) * float_of(from_b << 16) +
                        float_of(from_a & 0xffff0000u) * float_of(from_b & 0xffff0000u);
        }
}
DEVICE void mma_bf16(float (&d)[4], const Word (&a)[4], Word b0, Word b1) { multiply_fragments<2>(d, a, b0, b1); }
DEVICE void mma_tf32(float (&d)[4], const Word (&a)[4], Word b0, Word b1) { multiply_fragments<1>(d, a, b0, b1); }

#endif
