#pragma once
#include "instructions.h"
#include "pairs.h"
#include "sync.h"
#include "timeline.h"
// ---- products with packed matrices, host. Layout of a matrix (rows, columns): [panel][column][VP_PANEL], with panels of
// VP_PANEL rows; zero rows pad the last panel. A panel's rows fill the lanes of vector registers. Every row is summed over
// the columns in order, in every tile, so results do not depend on slicing. The transpose is packed the same way, so that
// both products stream panels and no VP adds into another VP's rows.

// Vectors of a product: floats in segments, or pairs of bf16 made from them.
struct Floats : Segments {
    static int columns(const Matvec& i) { return (int)i.columns; }
    static const float* weights(const Vp& vp, const Matvec& i) { return vp.pool + i.weights; }
    VP_DEVICE Operand segment_rows(const Vp& vp, int s, int* width) const { return segment(vp, *this, s, width); }
};
#if VP_ROUNDS
struct Rounded {
    const Pair* words;
    int first, pairs, count = 1;  // first: index of the first vector; pairs: number per vector
    static int columns(const Matvec& i) { return ((int)i.columns + 1) / 2; }
    static const Pair* weights(const Vp& vp, const Matvec& i) { return (const Pair*)(vp.pool + i.weights); }
    VP_DEVICE const Rounded& segment_rows(const Vp&, int, int* width) const { return *width = pairs, *this; }
    VP_DEVICE const Pair* row(int r) const { return words + (size_t)(r - first) * pairs; }
};

// Rounds vectors [r0, r1), with their segments concatenated.
VP_ROUTINE Rounded rounded(const Vp& vp, const Matvec& i, int r0, int r1)
{
    const int columns = (int)i.columns, pairs = (columns + 1) / 2;
    Pair* words = vp.scratch->take((size_t)(r1 - r0) * pairs);
    if (!words) return {};
    for (int s = 0, first = 0, width; s < i.x.count; s++, first += width) {
        const Operand x = segment(vp, i.x, s, &width);
        for (int r = r0; r < r1; r++) round_row((uint16_t*)(words + (size_t)(r - r0) * pairs) + first, x.row(r), width);
    }
    for (int r = r0; r < r1 && columns % 2; r++) words[(size_t)(r - r0 + 1) * pairs - 1] &= 0xffff;
    return {words, r0, pairs};
}
#endif

// NV vectors times NP panels, or times the first NR registers of a panel's rows, in one pass over the columns.
template <int NP, int NV, int NR = REGISTERS, class X>
static void panel_product(const Vp& vp, const Matvec& i, const X& x, int panel, int row)
{
    Lanes sum[NP][NV][NR] = {};
    const int columns = x.columns(i), first = panel * VP_PANEL, valid = least(NP * VP_PANEL, i.head.width - first);
    const auto* w = x.weights(vp, i) + (size_t)panel * columns * VP_PANEL;
    float* y[NV];
    VP_UNROLL for (int k = 0; k < NV; k++) {  // prefetch the destination, because stores would wait for its cache lines
        y[k] = i.dst.row(row + k) + first;
        VP_UNROLL for (int l = 0; l < NP * NR * VP_LANES; l += LINE) __builtin_prefetch(y[k] + l, 1);
    }
    for (int s = 0; s < x.count; s++) {
        int width;
        const auto segment_rows = x.segment_rows(vp, s, &width);
        decltype(w) v[NV];
        for (int k = 0; k < NV; k++) v[k] = segment_rows.row(row + k);
        for (int c = 0; c < width; c++) {
            decltype(kept_lanes_at(w)) column[NP][NR];
            VP_UNROLL for (int q = 0; q < NP; q++) {
                VP_UNROLL for (int l = 0; l < NR; l++)
                    column[q][l] = kept_lanes_at(w + ((size_t)q * columns + c) * VP_PANEL + l * VP_LANES);
            }
            VP_UNROLL for (int k = 0; k < NV; k++) {
                const auto e = all_lanes(v[k][c]);
                VP_UNROLL for (int q = 0; q < NP; q++) {
                    VP_UNROLL for (int l = 0; l < NR; l++) sum[q][k][l] = fma_lanes(column[q][l], e, sum[q][k][l]);
                }
            }
        }
        w += (size_t)width * VP_PANEL;
    }
    // Local copies, because the compiler must assume that every store may change the instruction.
    const Operand biases = i.bias;
    const float* const none = vp.pool;  // the constant zero at the start of the pool
    const bool accumulate = i.head.flags & ACCUMULATE;
    const bool unbiased = biases.scalar && !biases.indexed && !biases.address && !biases.step;
    const auto whole_panel = [&](int k, int q) VP_INLINE {
        const float* bias = biases.row(row + k) + first;
        VP_UNROLL for (int l = 0; l < NR; l++) {
            const int at = q * VP_PANEL + l * VP_LANES;
            Lanes result = sum[q][k][l];
            if (!unbiased) result = result + lanes_at(bias + at);
            if (accumulate) result = result + lanes_at(y[k] + at);
            put_lanes(y[k] + at, result);
        }
    };
    const int whole = !biases.scalar || unbiased ? valid / VP_PANEL : 0;
    if (whole == NP) {
        VP_UNROLL for (int k = 0; k < NV; k++)
            VP_UNROLL for (int q = 0; q < NP; q++) whole_panel(k, q);
        return;
    }
    VP_UNROLL for (int k = 0; k < NV; k++) {
        const float* bias = biases.row(row + k) + (biases.scalar ? 0 : first);
        VP_UNROLL for (int q = 0; q < NP; q++) {
            if (q < whole) {
                whole_panel(k, q);
                continue;
            }
            float result[VP_PANEL];
            VP_UNROLL for (int l = 0; l < NR; l++) put_lanes(result + l * VP_LANES, sum[q][k][l]);
            float* to = y[k] + q * VP_PANEL;
            for (int p = 0; p < least(VP_PANEL, valid - q * VP_PANEL); p++) {
                const float v = bias == none ? result[p] : result[p] + bias[biases.scalar ? 0 : q * VP_PANEL + p];
                to[p] = accumulate ? v + to[p] : v;
            }
        }
    }
}

// NV vectors times one panel. A panel with few rows uses only the registers that they fill.
template <int NV, class X> VP_DEVICE void one_panel(const Vp& vp, const Matvec& i, const X& x, int panel, int row)
{
    if (i.head.width - panel * VP_PANEL > VP_LANES) return panel_product<1, NV>(vp, i, x, panel, row);
    panel_product<1, NV, 1>(vp, i, x, panel, row);
}

// NV vectors, starting at r0 and fewer than in a full pass, times panels [p0, p1), NP panels at a time.
template <int NP, int NV, class X>
VP_DEVICE void few_vectors(const Vp& vp, const Matvec& i, const X& x, int r0, int p0, int p1)
{
    int p = p0;
    for (; p + NP <= p1; p += NP) panel_product<NP, NV>(vp, i, x, p, r0);
    for (; p < p1; p++) one_panel<NV>(vp, i, x, p, r0);
}

// Number of panels per pass with NV vectors. Their sums take at most 16 registers, and sums, columns and a broadcast
// together fit into the registers of the processor.
template <int NV> VP_DEVICE constexpr int panels_at_once()
{
#if defined(__AVX512F__) || defined(__aarch64__)
    const int registers = 32;
#else
    const int registers = 16;
#endif
    int n = 4;
    while (n > 1 && (n * NV * REGISTERS > 16 || n * (NV + 1) * REGISTERS >= registers)) n /= 2;
    return n;
}

// Two to NV vectors (n), times one panel.
template <int NV, class X> VP_DEVICE void one_pass(const Vp& vp, const Matvec& i, const X& x, int panel, int row, int n)
{
    if (n == NV) return one_panel<NV>(vp, i, x, panel, row);
    if constexpr (NV > 2) one_pass<NV - 1>(vp, i, x, panel, row, n);
}

enum { BLOCK_FLOATS = 1 << 16 };  // most floats of vectors in a block: 256 KiB

// Multiplies panel by panel: a panel is read once and stays in the cache for all vectors. With few vectors, a pass
// multiplies several panels, to keep enough sums in flight.
template <class X>
VP_ROUTINE void panels_product(const Vp& vp, const Matvec& i, const X& x, int r0, int r1, int p0, int p1)
{
    if (r0 < r1) count_floats(vp, (size_t)(p1 - p0) * x.columns(i) * VP_PANEL);
    switch (r1 - r0) {
    case 1: return few_vectors<panels_at_once<1>(), 1>(vp, i, x, r0, p0, p1);
    case 2: return few_vectors<panels_at_once<2>(), 2>(vp, i, x, r0, p0, p1);
    case 3: return few_vectors<panels_at_once<3>(), 3>(vp, i, x, r0, p0, p1);
    case 4: return few_vectors<panels_at_once<4>(), 4>(vp, i, x, r0, p0, p1);
    }
    const int passes = (r1 - r0 + VP_VECTORS - 1) / VP_VECTORS;  // nearly equal sizes, because a short pass would waste lanes
    for (int p = p0; p < p1; p++) {
        for (int k = 0; k < passes; k++) {
            const int r = r0 + share(r1 - r0, k, passes), n = r0 + share(r1 - r0, k + 1, passes) - r;
            one_pass<VP_VECTORS>(vp, i, x, p, r, n);
        }
    }
}

// dst = W x + bias for n vectors; x may consist of several segments (a concatenation that is never materialised). Many
// vectors are split into nearly equal blocks, which stay in the L2 cache while all panels are multiplied.
VP_ROUTINE void matvec(const Vp& vp, const Matvec& i)
{
#if VP_ROUNDS
    Rounded x = {};
#endif
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        const int p0 = u0 / VP_PANEL, p1 = (u1 + VP_PANEL - 1) / VP_PANEL;
        const int most_at_once = most(BLOCK_FLOATS / (int)i.columns, 4 * VP_VECTORS);
        const int blocks = most(1, (r1 - r0 + most_at_once - 1) / most_at_once);
        for (int k = 0; k < blocks; k++) {
            const int from = r0 + share(r1 - r0, k, blocks), to = r0 + share(r1 - r0, k + 1, blocks);
#if VP_ROUNDS
            if (i.head.flags & BF16) {
                if (blocks > 1 || !x.words) x = rounded(vp, i, from, to);  // a single block is rounded once for all parts
                if (!x.words && from < to) return stop(vp, vp.position, NO_MEMORY);
                const Flushing flushing;
                panels_product(vp, i, x, from, to, p0, p1);
                continue;
            }
#endif
            panels_product(vp, i, Floats{i.x}, from, to, p0, p1);
        }
    });
}
