#pragma once
#include "ptx.cuh"
// ---- prelude, CUDA: a virtual processor is a thread block; its threads divide its part of each instruction
#define VP_DEVICE __device__ __forceinline__
// Routines are inlined, because a call would spill the weights in registers. Some are unused in a kernel.
#define VP_ROUTINE [[maybe_unused]] static __device__ __forceinline__
#define VP_GLOBAL extern "C" __global__
#define VP_SIMD
#define VP_INLINE
#define VP_OPAQUE(x) opaque(x)
// A condition on which all threads of a warp agree. The compiler does not know that they agree: if threads could leave a loop
// at different times, it emits every shuffle in the loop twice, for a converged and for a diverged warp. A vote has one outcome
// for the warp, so the interpreter's loop ends with a vote and the compiler emits each of its shuffles once.
#define VP_AGREED(x) __any_sync(~0u, x)
#ifdef VP_SIMT
#define VP_UNROLL _Pragma("GCC unroll 64")
#define VP_ROLLED _Pragma("GCC unroll 1")
#define VP_TWICE _Pragma("GCC unroll 2")
#else
#define VP_UNROLL _Pragma("unroll")
#define VP_TWICE _Pragma("unroll 2")   // partly unrolled, to keep code small
#define VP_ROLLED _Pragma("unroll 1")  // not unrolled: all instructions share the instruction cache
#endif

typedef unsigned Word;
enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

VP_DEVICE int thread() { return (int)threadIdx.x; }
VP_DEVICE int lane() { return thread() % WARP; }
VP_DEVICE int warp() { return thread() / WARP; }
VP_DEVICE int rank() { return (int)blockIdx.x; }  // index of the virtual processor among all groups

VP_DEVICE float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
VP_DEVICE float sqrt_(float x) { return __fsqrt_rn(x); }
VP_DEVICE float as_float(Word w) { return __uint_as_float(w); }
VP_DEVICE Word as_word(float f) { return __float_as_uint(f); }
// 1 / x for x between 2^-126 and 2^126, with the bits of a division. This is the compiler's code for a division (MUFU.RCP and
// one Newton step), without its case distinction. It is correct for what MUFU.RCP returns, not for all within its bound.
VP_DEVICE float reciprocal_(float x)
{
#ifdef VP_SIMT
    return 1.f / x;
#else
    const float about = reciprocal_about(x);
    return fma_(about, fma_(-x, about, 1.f), about);
#endif
}
// Without the sign, floats are ordered like their bits: infinities above all numbers, NaNs above infinities.
VP_DEVICE Word magnitude(float x) { return as_word(x) & 0x7fffffffu; }
VP_DEVICE int least(int a, int b) { return a < b ? a : b; }
VP_DEVICE int most(int a, int b) { return a > b ? a : b; }

// ---- a launch and its virtual processors
struct Launch {
    float* pool;                  // all floats: weights, gradients, activations
    const Word* script;
    unsigned* counters;           // this launch's counters, one 128-byte line each
    unsigned* cleared;            // the next launch's counters
    unsigned* report;             // [0] position + 1 of the instruction that stopped the launch, [1] why, [2 + VP] VP's position
    unsigned long long patience;  // limit of a wait in nanoseconds; 0: none
    unsigned* stopped;            // not 0: this launch or an earlier launch was stopped
    float* losses;                // copy of the first floats of the pool. It and the report are in host memory; the host reads
                                  // both after the end of the launch, which makes all stores visible in any order
    VP_TIMELINE(struct Track* recording;)  // a track for each virtual processor, then all stamps (cuda/timeline.h)
    VP_TIMELINE(unsigned room;)          // maximum number of stamps of a virtual processor
};

// Part of an instruction's result (script.cuh).
struct Slices {
    int row_from, row_to, from, to, part, parts;
};

struct Vp {
    int id, count;         // index and number among those that divide the current instruction: a group, or all
    int first;             // rank of the group's first virtual processor
    float* pool;
    const Word* script;
    unsigned *counters, *report, *stopped;
    float* losses;
    unsigned long long patience;
    Word position;         // script position of the current instruction
    Word fetched;          // script position of the first word in the buffer
    Slices slices;         // this virtual processor's part of its result
    unsigned why;          // reason to stop the launch; 0: none
    float gradient_scale;  // from clipping by global norm
    Store store;           // the thread's weights (cuda/ptx.cuh)
};

// ---- shared memory: words of the script, then scratch space for block sums, then product buffers
enum { SCRIPT_WORDS = VP_SCRIPT_WORDS, SCRATCH = 512 };
VP_DEVICE Word* script_buffer() { return (Word*)shared_memory(); }
VP_DEVICE float* scratch() { return shared_memory() + SCRIPT_WORDS; }
VP_DEVICE Word* verdict() { return (Word*)scratch() + SCRATCH; }  // outcome of a wait: 0 if the launch continues
VP_DEVICE Word& last_word() { return verdict()[3]; }          // last word of the script; it would occupy a register all the time
VP_DEVICE float* block_memory() { return shared_memory() + SCRIPT_WORDS + SCRATCH + 4; }

// ---- a block's loops over a slice
enum {
    STRIP = 1,     // units of a row per thread in sums
    ONE_LOOP = 1,  // one loop for all kinds of operands: uniform branches are cheaper than more code
    CHUNK = 16,    // terms per thread in a sum
};

// a / b for 0 <= a < 2^21, 0 < b, without the twenty instructions of a division. The reciprocal's error is at most one unit in
// the last place, the product's half a unit; their sum is below the margin of 0.5 / b.
VP_DEVICE int small_quotient(int a, int b)
{
#ifdef VP_SIMT
    return a / b;
#else
    return (int)(((float)a + 0.5f) * reciprocal_about((float)b));
#endif
}

// Calls f(row, column) for every element of a rectangle, row by row: two divisions in all, and none for a single row.
template <class F> VP_DEVICE void for_places(int rows, int columns, F f)
{
    if (columns <= 0) return;
    int row = 0, column = thread(), down = 0, across = THREADS;
    if (rows > 1) {
        row = small_quotient(thread(), columns), column -= row * columns;
        down = small_quotient(THREADS, columns), across -= down * columns;
    } else if (column >= columns) {
        return;
    }
    VP_ROLLED while (row < rows) {
        f(row, column);
        row += down;
        column += across;
        if (column >= columns) column -= columns, row++;
    }
}

// Calls body(setup(r), u) for rows r in [r0, r1) and units u in [u0, u1). The calls are independent of each other.
template <class Setup, class Body> VP_DEVICE void for_units(const Vp&, int r0, int r1, int u0, int u1, Setup setup, Body body)
{
    for_places(r1 - r0, u1 - u0, [&](int r, int u) { body(setup(r0 + r), u0 + u); });
}

template <class F> VP_DEVICE void for_strips(const Vp&, int r0, int r1, int u0, int u1, F f)
{
    for_places(r1 - r0, u1 - u0, [&](int r, int u) { f(r0 + r, u0 + u, 1); });
}

template <class F> VP_DEVICE void for_run(const Vp&, int n, F f)
{
    VP_ROLLED for (int k = thread(); k < n; k += THREADS) f(k);
}

// Calls f(k, mine) for k < n, each in one warp. Warps that have no k repeat the last k, with `mine` false, so that all warps
// run the same code. The compiler does not know that the threads of a warp agree on k: after a branch or loop that may split a
// warp, it emits all code with shuffles twice.
template <class F> VP_DEVICE void for_warps(int n, F f)
{
    VP_ROLLED for (int first = 0; first < n; first += WARPS) f(least(first + warp(), n - 1), first + warp() < n);
}

// Each row belongs to one warp; for_lanes and the reductions divide its units among the lanes.
template <class F> VP_DEVICE void for_rows(const Vp&, int r0, int r1, F f)
{
    for_warps(r1 - r0, [&](int k, bool mine) { f(r0 + k, mine); });
}
template <class F> VP_DEVICE void for_lanes(int n, F f)
{
    VP_ROLLED for (int u = lane(); u < n; u += WARP) f(u);
}
VP_DEVICE bool first_lane() { return lane() == 0; }

VP_DEVICE float sum_of_warp(float v)
{
    VP_UNROLL for (int o = WARP / 2; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

// Sum of f(0) ... f(n - 1) in an order that depends only on n; every lane gets it.
template <class F> VP_DEVICE float reduce_sum(int n, F f)
{
    float part = 0.f;
    VP_ROLLED for (int u = lane(); u < n; u += WARP) part += f(u);
    return sum_of_warp(part);
}

// The largest of f(0) ... f(n - 1). With NANS, it is NaN if any of them is; without NANS, a NaN may be ignored, which saves
// two of three instructions.
template <bool NANS = false, class F> VP_DEVICE float reduce_max(int n, F f)
{
    const auto larger = [](float a, float b) { return !NANS ? fmaxf(a, b) : a != a || a > b ? a : b; };
    float top = f(lane() < n ? lane() : 0);
    VP_ROLLED for (int u = lane() + WARP; u < n; u += WARP) top = larger(top, f(u));
    VP_UNROLL for (int o = WARP / 2; o; o /= 2) top = larger(top, __shfl_xor_sync(~0u, top, o));
    return top;
}

// The largest of f(0) ... f(n - 1), or 0.
template <class F> VP_DEVICE Word reduce_largest(int n, F f)
{
    enum { AT_ONCE = 4 };  // loads in flight; the last load may be repeated
    int top = 0;
    VP_ROLLED for (int first = 0; first < n; first += AT_ONCE * WARP) {
        int found[AT_ONCE];
        VP_UNROLL for (int j = 0; j < AT_ONCE; j++) found[j] = (int)f(least(first + j * WARP + lane(), n - 1));
        VP_UNROLL for (int j = 0; j < AT_ONCE; j++) top = most(top, found[j]);
    }
    VP_UNROLL for (int o = WARP / 2; o; o /= 2) top = most(top, __shfl_xor_sync(~0u, top, o));
    return (Word)top;
}

// The largest magnitude in some rows. On a GPU, each row is checked by a warp instead, so this returns more than any
// number, which makes the caller check row by row.
template <class Row> VP_DEVICE Word largest_of_rows(int, int, int, Row) { return 0x7fffffffu; }

// The first of the largest values f(0) ... f(n - 1); a NaN wins only in the first place.
template <class F> VP_DEVICE int arg_max(int n, F f)
{
    int best = n;  // no result yet
    float top = 0.f;
    VP_ROLLED for (int u = lane(); u < n; u += WARP) {
        const float v = f(u);
        if (best == n ? v == v : v > top) best = u, top = v;
    }
    VP_UNROLL for (int o = WARP / 2; o; o /= 2) {
        const float v = __shfl_xor_sync(~0u, top, o);
        const int u = __shfl_xor_sync(~0u, best, o);
        if (u < n && (best == n || v > top || (v == top && u < best))) best = u, top = v;
    }
    const float first = f(0);
    return first != first || best == n ? 0 : best;
}

// Sum of f(0) ... f(n - 1), computed by the whole block; every thread gets it.
template <class F> VP_DEVICE float sum_of_all(const Vp&, int n, F f)
{
    float part = 0.f;
    VP_ROLLED for (int k = thread(); k < n; k += THREADS) part += f(k);
    part = sum_of_warp(part);
    if (first_lane()) scratch()[warp()] = part;
    __syncthreads();
    float total = 0.f;
    VP_UNROLL for (int w = 0; w < WARPS; w++) total += scratch()[w];
    __syncthreads();
    return total;
}

// Adds up the sums of chunks, CHUNK chunks at a time: the rounding error of a long sum grows with the cube root of its length.
struct Chunks {
    float total, part;
    int count;
    VP_DEVICE Chunks() : total(0.f), part(0.f), count(0) {}
    VP_DEVICE void add(float chunk)
    {
        part += chunk;
        if (++count % CHUNK == 0) total += part, part = 0.f;
    }
    VP_DEVICE float sum() const { return total + part; }
};

// Sum of f(begin) ... f(end - 1), with four loads in flight. If fewer terms are left, the last term is loaded again.
template <class F> VP_DEVICE float sum_of_chunk(int begin, int end, F f)
{
    enum { AT_ONCE = 4 };
    float part = 0.f;
    VP_ROLLED for (int k = begin; k < end; k += AT_ONCE) {
        float term[AT_ONCE];
        VP_UNROLL for (int j = 0; j < AT_ONCE; j++) term[j] = f(least(k + j, end - 1));
        VP_UNROLL for (int j = 0; j < AT_ONCE; j++) part += k + j < end ? term[j] : 0.f;
    }
    return part;
}

// Calls put(0, sum over k < n of *f(k)), computed by one thread.
template <class F, class Put> VP_DEVICE void sum_strip(int n, int, F f, Put put)
{
    Chunks chunks;
    VP_ROLLED for (int first = 0; first < n; first += CHUNK) {
        chunks.add(sum_of_chunk(first, least(first + CHUNK, n), [&](int k) { return *f(k); }));
    }
    put(0, chunks.sum());
}

// Calls put(u, sum over k < n of f(k)[u]) for units [u0, u1), computed by the whole block. Threads sum chunks, which are then
// added up in the order of sum_strip.
template <class F, class Put> VP_DEVICE void sum_columns(const Vp&, int n, int u0, int u1, F f, Put put)
{
    VP_ROLLED for (int from = u0; from < u1; from += THREADS) {
        const int width = least(THREADS, u1 - from), workers = small_quotient(THREADS, width);
        const int worker = small_quotient(thread(), width), u = thread() - worker * width;
        Chunks chunks;
        VP_ROLLED for (int first = 0; first < n; first += workers * CHUNK) {
            float part = 0.f;
            const int begin = first + worker * CHUNK;
            if (worker < workers) part = sum_of_chunk(begin, least(begin + CHUNK, n), [&](int k) { return f(k)[from + u]; });
            scratch()[thread()] = part;
            __syncthreads();
            if (worker == 0) {
                const int full = least(workers, (n - first + CHUNK - 1) / CHUNK);
                VP_TWICE for (int w = 0; w < full; w++) chunks.add(scratch()[w * width + u]);
            }
            __syncthreads();
        }
        if (worker == 0) put(from + u, chunks.sum());
    }
}

// Sum of *f(0) ... *f(n - 1) with the same bits as sum_strip, computed by the whole block: each thread sums a chunk, then some
// threads sum CHUNK chunks. It uses no shuffles, because they took registers that large models need for weights.
template <class F> VP_DEVICE float sum_by_block(int n, F f)
{
    float total = 0.f;
    VP_ROLLED for (int first = 0; first < n; first += THREADS * CHUNK) {
        const int begin = first + thread() * CHUNK;
        scratch()[thread()] = sum_of_chunk(begin, least(begin + CHUNK, n), [&](int k) { return *f(k); });
        __syncthreads();
        if (thread() < THREADS / CHUNK) {
            const float* mine = scratch() + thread() * CHUNK;
            float part = 0.f;
            VP_TWICE for (int c = 0; c < CHUNK; c++) part += mine[c];
            scratch()[THREADS + thread()] = part;
        }
        __syncthreads();
        VP_TWICE for (int p = 0; p < THREADS / CHUNK; p++) total += scratch()[THREADS + p];
    }
    return total;
}

// True if the sums are so few and so long that the whole block is faster computing one after the other.
VP_DEVICE bool few_long_sums(int rows, int units, int terms)
{
    return rows * units < THREADS / 4 && terms > CHUNK / 2 * rows * rows * units;
}
