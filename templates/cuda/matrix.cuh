#pragma once
#include "../optimizers.cuh"
// ---- row-major matrices in memory, for which there is no room on the chip
enum {
    MEMORY_VECTORS = 4,  // vectors that a warp multiplies by a row from memory
    FEW_COLUMNS = 16,    // below this a whole warp per result is wasteful: one thread computes it
};

// Rounds a product's operands as the flags BF16 and TF32 in its instruction say.
struct Rounding {
#if VP_ROUNDS
    enum { IS_THERE = 1 };
    int flags;
    VP_DEVICE explicit Rounding(const Head& h) : flags(h.flags) {}
    VP_DEVICE bool any() const { return flags & (BF16 | TF32); }
    VP_DEVICE float operator()(float x) const
    {
        const float bf16 = as_float(bf16_pair(0.f, x) & 0xffff0000u), tf32 = as_float(tf32_of(x) & ~0x1fffu);
        return flags & BF16 ? bf16 : flags & TF32 ? tf32 : x;
    }
    // Rounds several values: tests the flags once, and converts to bf16 two at a time.
    template <int N> VP_DEVICE void all(float (&x)[N]) const
    {
        if (VP_OPAQUE(flags) & BF16) {
            VP_UNROLL for (int k = 0; k < N; k += 2) {
                const Word pair = bf16_pair(x[k], x[least(k + 1, N - 1)]);
                x[k] = as_float(pair << 16);
                if (k + 1 < N) x[k + 1] = as_float(pair & 0xffff0000u);
            }
        } else if (VP_OPAQUE(flags) & TF32) {
            VP_UNROLL for (int k = 0; k < N; k++) x[k] = as_float(tf32_of(x[k]) & ~0x1fffu);
        }
    }
#else
    enum { IS_THERE = 0 };
    VP_DEVICE explicit Rounding(const Head&) {}
    VP_DEVICE bool any() const { return false; }
    VP_DEVICE float operator()(float x) const { return x; }
    template <int N> VP_DEVICE void all(float (&)[N]) const {}
#endif
};

// Product with a W that has few columns: one thread per result.
VP_DEVICE void product_of_few_columns(const Vp& vp, const Matvec& i, int r0, int r1, int u0, int u1)
{
    const bool accumulate = i.head.flags & ACCUMULATE;
    const Rounding rounded(i.head);
    VP_TIMELINE(count_floats(vp, (size_t)(u1 - u0) * (r1 - r0) * i.columns);)
    for_units(vp, r0, r1, u0, u1, [](int r) { return r; }, [&](int r, int u) {
        const float* w = vp.pool + i.weights + (size_t)u * i.columns;
        float sum = 0.f;
        VP_ROLLED for (int s = 0; s < i.x.count; s++) {
            int width;
            const float* from = segment(vp, i.x, s, &width).row(r);
            VP_TWICE for (int c = 0; c < width; c++) sum = fma_(rounded(*w++), rounded(from[c]), sum);
        }
        sum += i.bias.row(r)[VP_OPAQUE(i.bias.scalar) ? 0 : u];  // rounds like a separate addition
        float* y = i.dst.row(r) + u;
        *y = VP_OPAQUE(accumulate) ? sum + *y : sum;
    });
}

// Multiplies rows [u0, u1) of W, in memory, by vectors [r0, r1): a warp per row and MEMORY_VECTORS vectors.
VP_DEVICE void product_from_memory(const Vp& vp, const Matvec& i, int r0, int r1, int u0, int u1)
{
    if (i.columns < FEW_COLUMNS) return product_of_few_columns(vp, i, r0, r1, u0, u1);
    const bool accumulate = i.head.flags & ACCUMULATE;
    const Rounding rounded(i.head);
    const int units = u1 - u0, tiles = (r1 - r0 + MEMORY_VECTORS - 1) / MEMORY_VECTORS;
    VP_TIMELINE(count_floats(vp, (size_t)units * tiles * i.columns);)
    for_warps(units * tiles, [&](int item, bool mine) {
        const int u = u0 + item % units, r = r0 + item / units * MEMORY_VECTORS, n = least(MEMORY_VECTORS, r1 - r);
        const float* w = vp.pool + i.weights + (size_t)u * i.columns;
        float sum[MEMORY_VECTORS] = {};
        VP_ROLLED for (int s = 0; s < i.x.count; s++) {
            int width;
            const Operand x = segment(vp, i.x, s, &width);
            const float* from[MEMORY_VECTORS];
            VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) from[v] = x.row(r + least(v, n - 1));
            VP_TWICE for (int c = lane(); c < width; c += WARP) {
                float e[MEMORY_VECTORS + 1] = {w[c]};
                VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) e[v + 1] = from[v][c];
                rounded.all(e);
                VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) sum[v] = fma_(e[0], e[v + 1], sum[v]);
            }
            w += width;
        }
        float result = 0.f;
        VP_UNROLL for (int v = 0; v < MEMORY_VECTORS; v++) {
            const float total = sum_of_warp(sum[v]);
            result = lane() == v ? total : result;
        }
        if (mine && lane() < n) {
            const int v = r + lane();
            float* y = i.dst.row(v) + u;
            result += i.bias.row(v)[VP_OPAQUE(i.bias.scalar) ? 0 : u];
            *y = VP_OPAQUE(accumulate) ? result + *y : result;
        }
    });
}

// dst = W x + bias for n vectors; x may consist of several segments (a concatenation that is never materialised).
VP_ROUTINE void matvec(const Vp& vp, const Matvec& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) { product_from_memory(vp, i, r0, r1, u0, u1); });
}

// Updates a weight and its copy in the transpose.
template <class Rule, class Args>
VP_DEVICE void step_of_matrix(const Vp& vp, const Args& i, const Hyper& h, float g, int row, int column)
{
    const Weights at = weights_of(vp, i);
    const int k = row * (int)i.columns + column;
    vp.pool[i.transposed + (size_t)column * i.head.width + row] = step<Rule>(at, k, g * vp.gradient_scale, h);
    if (VP_OPAQUE(at.average)) average(at, k, i.complement);
}

template <class Rule> VP_ROUTINE void update_matrix(const Vp& vp, const UpdateMatrix& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const bool none = i.head.flags & NO_GRADIENT;
    VP_TIMELINE(count_tiles(vp, i, updated_floats<Rule>(!none) + 1);)  // the transpose
    const float* gradient = vp.pool + i.gradient;
    for_tiles(vp, i.head.width, (int)i.columns, [&](int row, int from, int to, int) {
        VP_ROLLED for (int c = from + thread(); c < to; c += THREADS) {
            const float g = VP_OPAQUE(none) ? 0.f : gradient[(size_t)row * i.columns + c];
            step_of_matrix<Rule>(vp, i, h, g, row, c);
        }
    });
}

// Partial sums of squares, one per row and tile of columns.
VP_ROUTINE void squares_matrix(const Vp& vp, const SquaresMatrix& i)
{
    const int columns = (int)i.columns;
    const OwnTiles own(vp, i.head.width, columns);
    for_warps(own.last - own.first, [&](int t, bool mine) {
        const int row = (own.first + t) / own.across, from = (own.first + t) % own.across * VP_TILE_COLUMNS;
        const float* g = vp.pool + i.gradient + (size_t)row * columns + from;
        const float sum = reduce_sum(least(VP_TILE_COLUMNS, columns - from), [&](int c) { return g[c] * g[c]; });
        if (mine && first_lane()) vp.pool[i.partials + own.first + t] = sum;
    });
}
