// ---- prelude, CUDA: a virtual processor is a thread block, its threads divide what the script gives it
#define VP_DEVICE __device__ __forceinline__
// Inlined: a call would spill the weights that registers hold. A kernel does not use all of them.
#define VP_ROUTINE [[maybe_unused]] static __device__ __forceinline__
#define VP_GLOBAL extern "C" __global__
#define VP_SIMD
#define VP_INLINE
#define VP_OPAQUE(x) opaque(x)
// What all threads of a warp say alike. The compiler does not know that they do: where some might leave a loop before the
// others it writes every shuffle in the loop twice, for a warp that is together and for one that is not. A vote's outcome is
// one for all, so the interpreter's loop ends by one and a shuffle anywhere in it is written once.
#define VP_AGREED(x) __any_sync(~0u, x)
#ifdef VP_SIMT
#define VP_UNROLL _Pragma("GCC unroll 64")
#define VP_ROLLED _Pragma("GCC unroll 1")
#define VP_TWICE _Pragma("GCC unroll 2")
#else
#define VP_UNROLL _Pragma("unroll")
#define VP_TWICE _Pragma("unroll 2")   // likewise, where a turn has many
#define VP_ROLLED _Pragma("unroll 1")  // where code is to stay small: all instructions share the instruction cache
#endif

typedef unsigned Word;
enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

VP_DEVICE int thread() { return (int)threadIdx.x; }
VP_DEVICE int lane() { return thread() % WARP; }
VP_DEVICE int warp() { return thread() / WARP; }
VP_DEVICE int rank() { return (int)blockIdx.x; }  // of the virtual processor among those of all groups

VP_DEVICE float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
VP_DEVICE float sqrt_(float x) { return __fsqrt_rn(x); }
VP_DEVICE float as_float(Word w) { return __uint_as_float(w); }
VP_DEVICE Word as_word(float f) { return __float_as_uint(f); }
// 1 / x for x between 2^-126 and 2^126, as rounded as a division is: what the compiler makes of that, but for the case
// distinction (MUFU.RCP and one step of Newton's; that it is right depends on what MUFU.RCP gives, not on its bound alone).
VP_DEVICE float reciprocal_(float x)
{
#ifdef VP_SIMT
    return 1.f / x;
#else
    const float about = reciprocal_about(x);
    return fma_(about, fma_(-x, about, 1.f), about);
#endif
}
// Sign aside, floats are ordered as their bits are: infinities above all numbers, NaNs above those.
VP_DEVICE Word magnitude(float x) { return as_word(x) & 0x7fffffffu; }
VP_DEVICE int least(int a, int b) { return a < b ? a : b; }
VP_DEVICE int most(int a, int b) { return a > b ? a : b; }

// ---- the launch, and the virtual processor that takes part in it
struct Launch {
    float* pool;                  // all floats: weights, gradients, activations
    const Word* script;
    unsigned* counters;           // this launch's, a 128-byte line each
    unsigned* cleared;            // the next launch's
    unsigned* report;             // [0] position + 1 of the instruction that stopped the launch, [1] why, [2 + VP] where each was
    unsigned long long patience;  // nanoseconds that a wait may take; 0: any
    unsigned* stopped;            // not 0: this launch, or one before it, was stopped
    float* losses;                // as the first floats of the pool; like the report in memory of the host, who reads both
                                  // when the launch has ended: that makes visible what was stored, in whatever order
    VP_TIMELINE(struct Track* recording;)  // one for each virtual processor, then their stamps (cuda/timeline.cuh)
    VP_TIMELINE(unsigned room;)          // stamps of each that there is room for
};

// Part of an instruction's result (script.cuh).
struct Slices {
    int row_from, row_to, from, to, part, parts;
};

struct Vp {
    int id, count;         // index and number of those who divide the present instruction: a group, or all
    int first;             // rank of the first one of the group
    float* pool;
    const Word* script;
    unsigned *counters, *report, *stopped;
    float* losses;
    unsigned long long patience;
    Word position;         // in the script, of the instruction that is executed
    Word fetched;          // the first word in the buffer
    Slices slices;         // of its result: what is this one's
    unsigned why;          // the launch is to be stopped; 0: it is not
    float gradient_scale;  // from clipping by global norm
    Store store;           // what the thread holds of weights (cuda/ptx.cuh)
};

// ---- shared memory: the script's words, then space for sums or results of the block, then what products need
enum { SCRIPT_WORDS = VP_SCRIPT_WORDS, SCRATCH = 512 };
VP_DEVICE Word* script_buffer() { return (Word*)shared_memory(); }
VP_DEVICE float* scratch() { return shared_memory() + SCRIPT_WORDS; }
VP_DEVICE Word* verdict() { return (Word*)scratch() + SCRATCH; }  // of a wait: 0 to go on
VP_DEVICE Word& last_word() { return verdict()[3]; }          // of the script; a register would be taken all the time
VP_DEVICE float* block_memory() { return shared_memory() + SCRIPT_WORDS + SCRATCH + 4; }

// ---- how a block runs over a slice
enum {
    STRIP = 1,     // units of a row that a thread sums
    ONE_LOOP = 1,  // one loop for all kinds of operands: branches that all threads take alike cost little, code much
    CHUNK = 16,    // terms of a sum that one thread adds up
};

// a / b for 0 <= a < 2^21, 0 < b, without the twenty instructions of a division: the reciprocal is off by one unit in its
// last place at most and the product by half a one, together less than the 0.5 / b that the quotient may be.
VP_DEVICE int small_quotient(int a, int b)
{
#ifdef VP_SIMT
    return a / b;
#else
    return (int)(((float)a + 0.5f) * reciprocal_about((float)b));
#endif
}

// Calls f(row, column) for the places of a rectangle, row after row: two divisions, however many places, and none for a row.
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

// Calls body(setup(r), u) for rows r in [r0, r1) and units u in [u0, u1). Bodies are independent of each other.
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

// Calls f(k, mine) for k < n, each in one warp; those that have nothing left to do repeat the last one, with `mine` false.
// So all run alike: the compiler does not know that the threads of a warp agree on k, and where a branch or a loop may part
// them it writes down everything twice, from there on and wherever shuffles are.
template <class F> VP_DEVICE void for_warps(int n, F f)
{
    VP_ROLLED for (int first = 0; first < n; first += WARPS) f(least(first + warp(), n - 1), first + warp() < n);
}

// A row is a warp's; for_lanes and the reductions divide its units among the lanes.
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

// Sum of f(0) ... f(n - 1) in an order that depends on n alone; every lane gets it.
template <class F> VP_DEVICE float reduce_sum(int n, F f)
{
    float part = 0.f;
    VP_ROLLED for (int u = lane(); u < n; u += WARP) part += f(u);
    return sum_of_warp(part);
}

// The largest of f(0) ... f(n - 1). It is NaN if one of them is; without NANS such a one may be passed over instead, which
// saves two of three instructions.
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
    enum { AT_ONCE = 4 };  // that are on their way; the last one may come again
    int top = 0;
    VP_ROLLED for (int first = 0; first < n; first += AT_ONCE * WARP) {
        int found[AT_ONCE];
        VP_UNROLL for (int j = 0; j < AT_ONCE; j++) found[j] = (int)f(least(first + j * WARP + lane(), n - 1));
        VP_UNROLL for (int j = 0; j < AT_ONCE; j++) top = most(top, found[j]);
    }
    VP_UNROLL for (int o = WARP / 2; o; o /= 2) top = most(top, __shfl_xor_sync(~0u, top, o));
    return (Word)top;
}

// The largest magnitude in some rows: here nobody looks at all at once, a row is a warp's. Larger than any number, so that
// rows are looked at one by one.
template <class Row> VP_DEVICE Word largest_of_rows(int, int, int, Row) { return 0x7fffffffu; }

// The first of the largest values f(0) ... f(n - 1); a NaN wins only in the first place.
template <class F> VP_DEVICE int arg_max(int n, F f)
{
    int best = n;  // none yet
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

// Sum of f(0) ... f(n - 1), made by the whole block; every thread gets it.
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

// Adds up the sums of chunks, CHUNK of them at a time: the rounding error of a long sum grows with its third root.
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

// Sum of f(begin) ... f(end - 1), four of them on their way at once; where fewer are left the last one comes again.
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

// put(0, sum over k < n of *f(k)), by one thread.
template <class F, class Put> VP_DEVICE void sum_strip(int n, int, F f, Put put)
{
    Chunks chunks;
    VP_ROLLED for (int first = 0; first < n; first += CHUNK) {
        chunks.add(sum_of_chunk(first, least(first + CHUNK, n), [&](int k) { return *f(k); }));
    }
    put(0, chunks.sum());
}

// put(u, sum over k < n of f(k)[u]) for units [u0, u1), made by the whole block: threads sum chunks, which are then added up
// in order, as sum_strip would.
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

// The sum of *f(0) ... *f(n - 1) that sum_strip makes, by the whole block: threads sum a chunk each, some then CHUNK of those.
// Without shuffles, for which the compiler took registers that large models have for weights.
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

// Whether few sums are to be made, of so many terms that it is quicker if the block makes one after the other.
VP_DEVICE bool few_long_sums(int rows, int units, int terms)
{
    return rows * units < THREADS / 4 && terms > CHUNK / 2 * rows * rows * units;
}
