#pragma once
#include "configuration.h"
// ---- prelude, host: lets CUDA-style source compile as host C++17. A virtual processor is one OS thread.
#include <cerrno>
#include <cfenv>
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
#define VP_ROUTINE static __attribute__((noinline))  // an instruction; inlining all of them makes compiling 6x slower
#define VP_SIMD _Pragma("omp simd")
#define VP_INLINE __attribute__((always_inline))  // for lambdas: a lambda called twice, not inlined, is not vectorised
#define VP_ROLLED
#define VP_OPAQUE(x) (x)
#define VP_AGREED(x) (x)
#define VP_UNROLL _Pragma("GCC unroll 16")

typedef uint32_t Word;

// Fused multiply-add, if the processor has one. Contraction by the compiler is off (-ffp-contract=off), because it could
// fuse differently in a vector loop and in its remainder, and results must not depend on the slicing of work.
VP_DEVICE float fma_(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

VP_DEVICE float sqrt_(float x) { return __builtin_sqrtf(x); }
VP_DEVICE float reciprocal_(float x) { return 1.f / x; }
VP_DEVICE float as_float(Word w) { float f; memcpy(&f, &w, 4); return f; }
VP_DEVICE Word as_word(float f) { Word w; memcpy(&w, &f, 4); return w; }
// Bits without the sign. They are ordered like the absolute values, with infinity above all numbers and NaNs above that.
VP_DEVICE Word magnitude(float x) { return as_word(x) & 0x7fffffffu; }
VP_DEVICE int least(int a, int b) { return a < b ? a : b; }
VP_DEVICE int small_quotient(int a, int b) { return a / b; }
VP_DEVICE constexpr int most(int a, int b) { return a > b ? a : b; }

// ---- a virtual processor and its launch

// Part of an instruction's result (script.cuh).
struct Slices {
    int row_from, row_to, from, to, part, parts;
};

struct Vp;
struct Tail;
// A tail's program, in a separate library (host/tails.h).
struct TailEntry {
    Word number;
    void (*run)(const Vp&, const Tail&);
};

struct Vp {
    int id, count;         // index within the group, number in the group
    float* pool;           // all floats: weights, gradients, activations
    const Word* script;    // this launch's script
    unsigned* counters;    // this launch's counters, a 128-byte line each
    const TailEntry* tails;  // entries of all libraries; the last entry has a null `run`
    unsigned* stopped;     // if not zero: position + 1 of the instruction that stopped the launch
    int spins;             // number of polls in a wait before it lets another thread run
    float gradient_scale;  // from clipping by global norm
    Word position;         // script position of the current instruction
    Slices slices;         // this virtual processor's part of its result
    int why = 0;           // reason to stop the launch; 0: no reason
    struct Timeline* timeline = nullptr;  // its recording, if any
    struct Scratch* scratch = nullptr;    // its scratch memory, if products may round (host/pairs.h)
};

// ---- loops of a virtual processor over its slice: a host thread works sequentially, in vector registers
enum {
    STRIP = 64,    // units of a row whose sums stay in registers
    ONE_LOOP = 0,  // 0: a separate loop for each kind of operands, so that the compiler vectorises the common kinds
};

// Calls body(setup(r), u) for rows r in [r0, r1) and units u in [u0, u1). Bodies are independent of each other.
template <class Setup, class Body> VP_DEVICE void for_units(const Vp&, int r0, int r1, int u0, int u1, Setup setup, Body body)
{
    for (int r = r0; r < r1; r++) {
        const auto row = setup(r);
        VP_SIMD for (int u = u0; u < u1; u++) body(row, u);
    }
}

// Calls f(r, u, width) for strips of STRIP units, and for a shorter last strip of each row.
template <class F> VP_DEVICE void for_strips(const Vp&, int r0, int r1, int u0, int u1, F f)
{
    for (int r = r0; r < r1; r++) {
        int u = u0;
        for (; u + STRIP <= u1; u += STRIP) f(r, u, STRIP);
        if (u < u1) f(r, u, u1 - u);
    }
}

// Calls f(k) for k < n.
template <class F> VP_DEVICE void for_run(const Vp&, int n, F f)
{
    VP_SIMD for (int k = 0; k < n; k++) f(k);
}

// Calls f(r, true) for rows [r0, r1). Inside, for_lanes and the reductions below divide the units of a row.
template <class F> VP_DEVICE void for_rows(const Vp&, int r0, int r1, F f)
{
    for (int r = r0; r < r1; r++) f(r, true);
}
template <class F> VP_DEVICE void for_lanes(int n, F f)
{
    VP_SIMD for (int u = 0; u < n; u++) f(u);
}
VP_DEVICE bool first_lane() { return true; }         // true for one of the lanes that share a row

// Sum of 16 floats, as a tree of unrolled loops that add the upper half to the lower half.
VP_DEVICE float sum16(float* part)
{
    VP_SIMD for (int k = 0; k < 8; k++) part[k] += part[k + 8];
    VP_SIMD for (int k = 0; k < 4; k++) part[k] += part[k + 4];
    return (part[0] + part[2]) + (part[1] + part[3]);
}

// Sum of f(0) ... f(n - 1) in an order that depends only on n: 16 strided partial sums, then a tree.
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

template <bool NANS = true, class F> VP_DEVICE float reduce_max(int n, F f)
{
    const auto larger = [](float v, float top) VP_INLINE { return v > top || v != v ? v : top; };  // keeps a NaN
    float top = f(0), tops[32];
    int i = 0;
    if (n >= 32) {
        VP_SIMD for (int k = 0; k < 32; k++) tops[k] = f(k);
        for (i = 32; i + 32 <= n; i += 32) {
            VP_SIMD for (int k = 0; k < 32; k++) tops[k] = larger(f(i + k), tops[k]);
        }
        for (int k = 0; k < 32; k++) top = larger(tops[k], top);
    }
    for (; i < n; i++) top = larger(f(i), top);
    return top;
}

// The largest magnitude of the n floats at row(r0) ... row(r1 - 1), or 0.
template <class Row> VP_DEVICE Word largest_of_rows(int r0, int r1, int n, Row row)
{
    typedef int Lanes16 __attribute__((vector_size(64)));  // stays in registers, unlike an array
    Lanes16 top = {};
    int rest = 0;
    for (int r = r0; r < r1; r++) {
        const float* x = row(r);
        int i = 0;
        for (; i + 16 <= n; i += 16) {
            Lanes16 v;
            memcpy(&v, x + i, sizeof v);
            v &= 0x7fffffff;
            top = v > top ? v : top;
        }
        for (; i < n; i++) rest = most(rest, (int)magnitude(x[i]));
    }
    for (int k = 0; k < 16; k++) rest = most(rest, top[k]);
    return (Word)rest;
}

// The largest of f(0) ... f(n - 1), or 0.
template <class F> VP_DEVICE Word reduce_largest(int n, F f)
{
    Word top = 0;
    for (int i = 0; i < n; i++) top = f(i) > top ? f(i) : top;
    return top;
}

// The first of the largest values f(0) ... f(n - 1); a NaN wins only in the first place.
template <class F> VP_DEVICE int arg_max(int n, F f)
{
    const float top = reduce_max(n, f);
    int i = 0, best = 0;
    if (top != top) {
        for (i = 1; i < n; i++) best = f(i) > f(best) ? i : best;
        return best;
    }
    for (; i + 32 <= n; i += 32) {
        int found = 0;
        VP_SIMD for (int k = 0; k < 32; k++) found |= f(i + k) == top;
        if (found) break;
    }
    while (f(i) != top) i++;
    return i;
}

// The sum of reduce_sum, computed by all threads of a virtual processor.
template <class F> VP_DEVICE float sum_of_all(const Vp&, int n, F f) { return reduce_sum(n, f); }

// Calls put(u, sum over k < n of f(k)[u]) for units u < width <= WIDEST of one row. Terms are summed in chunks, which
// keeps the rounding error of long sums small; a strip's sums stay in registers.
enum { CHUNK = 64 };
template <int WIDEST = STRIP, class F, class Put> VP_DEVICE void sum_strip(int n, int width, F f, Put put)
{
    float total[WIDEST], part[WIDEST];
    VP_SIMD for (int u = 0; u < width; u++) total[u] = 0;
    for (int chunk = 0; chunk < n; chunk += CHUNK) {
        VP_SIMD for (int u = 0; u < width; u++) part[u] = 0;
        for (int k = chunk; k < least(chunk + CHUNK, n); k++) {
            const float* x = f(k);
            VP_SIMD for (int u = 0; u < width; u++) part[u] += x[u];
        }
        VP_SIMD for (int u = 0; u < width; u++) total[u] += part[u];
    }
    VP_SIMD for (int u = 0; u < width; u++) put(u, total[u]);
}

// sum_strip for any number of units; f(k) is the address of unit 0 in row k. Many rows are summed in bands that fit into
// the L1 cache, because strips would be fetched from memory one by one.
template <class F, class Put> VP_DEVICE void sum_columns(const Vp&, int n, int u0, int u1, F f, Put put)
{
    enum { BAND = 2048, MANY = 8 };
    const int band = n < MANY ? (int)STRIP : (int)BAND;
    for (int s = u0; s < u1; s += band) {
        const int width = least(band, u1 - s);
        const auto row = [&](int k) { return f(k) + s; };
        const auto put_at = [&](int u, float sum) { put(s + u, sum); };
        if (n < MANY) sum_strip(n, width, row, put_at);
        else sum_strip<BAND>(n, width, row, put_at);
    }
}

// True if the sums are so few and so long that all threads should compute one after the other.
VP_DEVICE bool few_long_sums(int, int, int) { return false; }
template <class F> VP_DEVICE float sum_by_block(int, F) { return 0.f; }
