#pragma once
#include "lanes.h"
// ---- pairs of bf16, host: a word holds two consecutive terms of a product's sum, the first in its lower half. They are
// multiplied by AVX512_BF16's vdpbf16ps, or elsewhere by code with the same bits: the product of the upper halves is added
// first, each addition rounds once, and denormals are zero, also among results. Two exceptions: aarch64 also zeroes sums
// that only rounding makes normal, and processors without a mode for this keep denormals.
typedef Word __attribute__((may_alias)) Pair;
typedef Word Pairs __attribute__((vector_size(VP_LANES * 4)));
const Word UPPER = 0xffff0000u;

#if defined(__AVX512BF16__) && VP_LANES == 16
#define VP_DOTS 1
#else
#define VP_DOTS 0
#endif

// Scope guard: while it lives, denormals are zero for this thread, as for vdpbf16ps.
class Flushing {
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    static void set(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
    enum : unsigned { ZEROS = 0x8040 };  // FTZ and DAZ
#elif defined(__aarch64__)
    uint64_t before = get();
    static uint64_t get() { uint64_t mode; asm volatile("mrs %0, fpcr" : "=r"(mode)); return mode; }
    static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
    enum : uint64_t { ZEROS = 1 << 24 };  // FZ
#else
    int before = 0;
    static void set(int) {}
    enum { ZEROS = 0 };
#endif
    static void ordered() { asm volatile("" : : : "memory"); }  // keeps loads and stores inside the scope

public:
    VP_DEVICE Flushing() { ordered(), set(before | ZEROS), ordered(); }
    VP_DEVICE ~Flushing() { ordered(), set(before), ordered(); }
    Flushing(const Flushing&) = delete;
};

VP_DEVICE Pairs all_lanes(Word x) { return x - Pairs{}; }
VP_DEVICE Pairs pairs_at(const Pair* p)
{
    Pairs x;
    memcpy(&x, p, sizeof x);
    return x;
}
VP_DEVICE void put_pairs(Pair* p, Pairs x) { memcpy(p, &x, sizeof x); }
VP_DEVICE Pairs kept_lanes_at(const Pair* p)
{
    Pairs x = pairs_at(p);
#if defined(__x86_64__)
    asm("" : "+v"(x));
#endif
    return x;
}

// sum + the products of both halves of a and b.
VP_DEVICE Lanes fma_lanes(Pairs a, Pairs b, Lanes sum)
{
#if VP_DOTS
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    sum = fma_lanes((Lanes)(a & UPPER), (Lanes)(b & UPPER), sum);
    return fma_lanes((Lanes)(a << 16), (Lanes)(b << 16), sum);
#else
    const Lanes upper[2] = {(Lanes)(a & UPPER), (Lanes)(b & UPPER)}, lower[2] = {(Lanes)(a << 16), (Lanes)(b << 16)};
    for (int l = 0; l < VP_LANES; l++) {  // products are exact in double precision, so that sums do not round twice
        sum[l] = (float)((double)upper[0][l] * upper[1][l] + sum[l]);
        sum[l] = (float)((double)lower[0][l] * lower[1][l] + sum[l]);
    }
    return sum;
#endif
}

// Rounds to nearest, ties to even. NaN stays NaN, and denormals become zero. The result is in the lower half.
VP_DEVICE Word bf16_of(float x)
{
    const Word bits = as_word(x), size = bits & 0x7fffffff;
    const Word nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return size > 0x7f800000 ? bits >> 16 | 0x40 : size < 0x00800000 ? (bits & 0x80000000) >> 16 : nearest;
}
VP_DEVICE Word pair_of(float first, float second) { return bf16_of(first) | bf16_of(second) << 16; }

#if VP_DOTS
typedef unsigned short Halves __attribute__((vector_size(64)));

// Returns the rounded lanes of `first`, then those of `second`.
VP_DEVICE Halves halves_of(Lanes first, Lanes second)
{
    Halves x;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(x) : "v"(first), "v"(second));
    return x;
}
template <size_t... LANE> VP_DEVICE Halves side_by_side(Halves x, std::index_sequence<LANE...>)
{
#if defined(__clang__)
    return __builtin_shufflevector(x, x, (LANE / 2 + LANE % 2 * VP_LANES)...);
#else
    return __builtin_shuffle(x, Halves{(unsigned short)(LANE / 2 + LANE % 2 * VP_LANES)...});
#endif
}
#endif

// to[k] = the pair of a[k] and b[k], or of a[k] and zero if b is null.
VP_DEVICE void pair_rows(Pair* to, const float* a, const float* b, int n)
{
    int k = 0;
#if VP_DOTS
    for (; k + VP_LANES <= n; k += VP_LANES) {
        const Halves x = halves_of(lanes_at(a + k), b ? lanes_at(b + k) : Lanes{});
        put_pairs(to + k, (Pairs)side_by_side(x, std::make_index_sequence<2 * VP_LANES>()));
    }
#endif
    if (b) {
        VP_SIMD for (int p = k; p < n; p++) to[p] = pair_of(a[p], b[p]);
    } else {
        VP_SIMD for (int p = k; p < n; p++) to[p] = bf16_of(a[p]);
    }
}

// Halves to[k] = x[k], consecutively.
VP_DEVICE void round_row(uint16_t* to, const float* x, int n)
{
    int k = 0;
#if VP_DOTS
    for (; k + 2 * VP_LANES <= n; k += 2 * VP_LANES) {
        const Halves both = halves_of(lanes_at(x + k), lanes_at(x + k + VP_LANES));
        memcpy(to + k, &both, sizeof both);
    }
#endif
    VP_SIMD for (int p = k; p < n; p++) to[p] = (uint16_t)bf16_of(x[p]);
}

// A virtual processor's scratch memory for operands that an instruction rounds once and reads in several passes. If the
// system is out of memory, `take` returns null, and the launch is stopped.
enum { NO_MEMORY = 3 };  // another reason for stopping, like UNKNOWN_INSTRUCTION
struct Scratch {
    Pair* words;
    size_t count;
    Pair* take(size_t n)
    {
        if (n > count) {
            free(words);
            count = (n + 1023) / 1024 * 1024;
            words = (Pair*)aligned_alloc(4096, count * sizeof(Pair));
        }
        return words;
    }
};
