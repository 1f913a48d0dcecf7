#pragma once
#include "matrix.cuh"
// ---- products of computed matrices, host. Matrices are row-major. Every element is a sum over the inner dimension, in an
// order that depends only on the shapes: a chain of fused multiply-adds or, if only a few rows multiply a transposed
// matrix, 16 strided sums (reduce_sum), which need no transposed copy.
enum {
    MATMUL_DEPTH = 128,   // depth of a packed block of B, which stays in the L1 cache together with its panel's columns
    MATMUL_PACK = 12,     // minimum number of rows for which packing pays off
    MATMUL_BLOCK = 4096,  // floats of unpacked B that stay in the L1 cache
    MATMUL_DOTS = 8,      // with fewer rows, products with a transposed B are dot products
};

// op(A)[r][k] = a[r / panel * panel_step + r % panel * a_row + k * a_step], because packed weights form panels of rows.
// B is (inner, columns), or stored as (columns, inner).
struct Factors {
    const float *a, *b;
    int panel;
    size_t panel_step, a_row, a_step;
    int inner, columns;
    bool b_transposed;
    const float* row(int r) const { return a + r / panel * panel_step + r % panel * a_row; }
};
enum { NO_PANELS = 1 << 30 };

// MR rows by NL registers of y: y = (or +=) sum over `count` matrices A of A B, with `depth` terms for each A. A's rows
// start at a[v] + from; the rows of B that belong to consecutive matrices A follow each other.
template <int NL, int MR, class E>
static void product_block(float* y, size_t y_row, const E* const* a, int count, size_t from, const Factors& f,
                          const E* b, size_t b_row, int depth, bool add)
{
    Lanes sum[MR][NL] = {};
    VP_UNROLL for (int r = 0; r < MR; r++)
        VP_UNROLL for (int l = 0; l < NL * VP_LANES; l += LINE) __builtin_prefetch(y + r * y_row + l, 1);
    if (add) {
        VP_UNROLL for (int r = 0; r < MR; r++)
            VP_UNROLL for (int l = 0; l < NL; l++) sum[r][l] = lanes_at(y + r * y_row + l * VP_LANES);
    }
    for (int v = 0; v < count; v++) {
        const E* row[MR];
        VP_UNROLL for (int r = 0; r < MR; r++) row[r] = a[v] + from + r * f.a_row;
        for (size_t k = 0, end = depth * f.a_step; k < end; k += f.a_step, b += b_row) {
            decltype(kept_lanes_at(b)) column[NL];
            VP_UNROLL for (int l = 0; l < NL; l++) column[l] = kept_lanes_at(b + l * VP_LANES);
            VP_UNROLL for (int r = 0; r < MR; r++) {
                const auto e = all_lanes(row[r][k]);
                VP_UNROLL for (int l = 0; l < NL; l++) sum[r][l] = fma_lanes(column[l], e, sum[r][l]);
            }
        }
    }
    asm("" : "+r"(y), "+r"(y_row));  // otherwise row addresses would occupy registers during the loop
    VP_UNROLL for (int r = 0; r < MR; r++)
        VP_UNROLL for (int l = 0; l < NL; l++) put_lanes(y + r * y_row + l * VP_LANES, sum[r][l]);
}

// Multiplies a block of n <= MR rows.
template <int NL, int MR, class... Args> VP_DEVICE void product_pass(int n, Args... args)
{
    if (n == MR) return product_block<NL, MR>(args...);
    if constexpr (MR > 1) product_pass<NL, MR - 1>(n, args...);
}

// to[c][r] = from[r][c] for `rows` by `columns` floats.
VP_ROUTINE void transpose_block(float* to, size_t to_row, const float* from, size_t from_row, int rows, int columns)
{
    const int whole = columns / VP_LANES * VP_LANES;
    for (int r = 0; r < rows; r += VP_LANES) {
        const int high = least(VP_LANES, rows - r), squares = high == VP_LANES ? whole : 0;
        for (int c = 0; c < squares; c += VP_LANES)
            transpose_square(to + c * to_row + r, to_row, from + r * from_row + c, from_row);
        for (int c = squares; c < columns; c++)
            for (int k = r; k < r + high; k++) to[c * to_row + k] = from[k * from_row + c];
    }
}

// Copies B[k0 + k][j + p] to packed[k][p], with zeros from column `valid` on.
VP_DEVICE void pack_panel(float (*packed)[VP_PANEL], const Factors& f, int k0, int depth, int j, int valid)
{
    if (!f.b_transposed) {
        for (int k = 0; k < depth; k++) {
            const float* row = f.b + (size_t)(k0 + k) * f.columns + j;
            if (valid == VP_PANEL) memcpy(packed[k], row, sizeof packed[k]);
            else
                for (int p = 0; p < VP_PANEL; p++) packed[k][p] = p < valid ? row[p] : 0.f;
        }
        return;
    }
    transpose_block(packed[0], VP_PANEL, f.b + (size_t)j * f.inner + k0, f.inner, valid, depth);
    for (int k = 0; k < depth; k++)
        for (int p = valid; p < VP_PANEL; p++) packed[k][p] = 0.f;
}

// Prefetches the next data piece by piece: `lines` cache lines per row, for `rows` rows in each of `count` matrices.
struct RowPrefetch {
    const float* const* at;
    int count;
    size_t row;
    int rows, lines;
    VP_DEVICE void issue(int piece, int pieces) const
    {
        for (int r = share(rows, piece, pieces); r < share(rows, piece + 1, pieces); r++)
            for (int v = 0; v < count; v++)
                for (int l = 0; l < lines; l++) __builtin_prefetch(at[v] + r * row + l * LINE, 0, 2);
    }
};

// Multiplies any number of rows in one panel of `count` matrices op(A) by up to a panel of columns. B fills whole registers.
template <class E>
static void product_rows(float* y, size_t y_row, const E* const* a, int count, int rows, const Factors& f, const E* b,
                         size_t b_row, int depth, bool add, int valid, const RowPrefetch& ahead)
{
    const int passes = (rows + VP_VECTORS - 1) / VP_VECTORS;
    const bool whole = valid == VP_LANES || valid == VP_PANEL;  // stored registers have no padding
    float part[VP_VECTORS][VP_PANEL];
    for (int k = 0; k < passes; k++) {
        const int r = share(rows, k, passes), n = share(rows, k + 1, passes) - r;
        float *const at = y + r * y_row, *to = whole ? at : part[0];
        const size_t to_row = whole ? y_row : VP_PANEL;
        for (int p = 0; p < n && !whole && add; p++) memcpy(part[p], at + p * y_row, valid * sizeof(float));
        const size_t from = r * f.a_row;
        ahead.issue(k, passes);
        if (valid <= VP_LANES) product_pass<1, VP_VECTORS>(n, to, to_row, a, count, from, f, b, b_row, depth, add);
        else product_pass<REGISTERS, VP_VECTORS>(n, to, to_row, a, count, from, f, b, b_row, depth, add);
        for (int p = 0; p < n && !whole; p++) memcpy(at + p * y_row, part[p], valid * sizeof(float));
    }
}

// Computes rows [i0, i1) by columns [j0, j1) of the result, whose row 0 is at y.
static void product_rectangle(const Factors& f, float* y, int i0, int i1, int j0, int j1, bool accumulate)
{
    float packed[MATMUL_DEPTH][VP_PANEL];
    for (int j = j0; j < j1;) {
        const bool wide = i1 - i0 <= 2 && !f.b_transposed && j1 - j >= 4 * VP_PANEL;  // keeps many sums in flight
        const int valid = wide ? 4 * VP_PANEL : least(VP_PANEL, j1 - j);
        for (int k = 0; k < f.inner; k += MATMUL_DEPTH) {
            const int depth = least(MATMUL_DEPTH, f.inner - k);
            const bool add = accumulate || k > 0;
            const float* b = packed[0];
            size_t b_row = VP_PANEL;
            const bool few_rows = i1 - i0 < MATMUL_PACK;  // prefetches of B would be about as many as its reads
            if (wide || (!f.b_transposed && valid == VP_PANEL && (few_rows || depth * f.columns <= MATMUL_BLOCK))) {
                b = f.b + (size_t)k * f.columns + j;
                b_row = f.columns;
            } else {
                pack_panel(packed, f, k, depth, j, valid);
            }
            const int next = j + valid, columns = most(0, least(VP_PANEL, j1 - next));
            const float* at = f.b_transposed ? f.b + (size_t)next * f.inner + k : f.b + (size_t)k * f.columns + next;
            RowPrefetch ahead = {&at, 1, (size_t)f.columns, columns && !few_rows ? depth : 0, VP_PANEL / LINE};
            if (f.b_transposed && !few_rows) ahead = {&at, 1, (size_t)f.inner, columns, depth / LINE};
            for (int i = i0, rows; i < i1; i += rows) {
                const float* a = f.row(i) + k * f.a_step;
                float* to = y + (size_t)i * f.columns + j;
                rows = wide ? 1 : least(i1 - i, f.panel - i % f.panel);
                if (wide) product_block<4 * REGISTERS, 1>(to, f.columns, &a, 1, 0, f, b, b_row, depth, add);
                else product_rows(to, f.columns, &a, 1, rows, f, b, b_row, depth, add, valid, ahead);
            }
        }
        j += valid;
    }
}

// y[j] = (or +=) a . b_j for N rows of a transposed B.
template <int N> VP_DEVICE void dots(float* y, const float* a, const float* b, int inner, bool accumulate)
{
    float part[N][16] = {};
    int k = 0;
    for (; k + 16 <= inner; k += 16)
        VP_UNROLL for (int j = 0; j < N; j++) {
            VP_SIMD for (int p = 0; p < 16; p++) part[j][p] = fma_(a[k + p], b[(size_t)j * inner + k + p], part[j][p]);
        }
    for (int j = 0; j < N; j++) {
        float rest = 0.f;
        for (int p = k; p < inner; p++) rest = fma_(a[p], b[(size_t)j * inner + p], rest);
        const float v = sum16(part[j]) + rest;
        y[j] = accumulate ? y[j] + v : v;
    }
}

static void dots_rectangle(const Factors& f, float* y, int i0, int i1, int j0, int j1, bool accumulate)
{
    for (int i = i0; i < i1; i++) {
        const float* a = f.row(i);
        float* to = y + (size_t)i * f.columns;
        int j = j0;
        for (; j + 4 <= j1; j += 4) dots<4>(to + j, a, f.b + (size_t)j * f.inner, f.inner, accumulate);
        for (; j < j1; j++) dots<1>(to + j, a, f.b + (size_t)j * f.inner, f.inner, accumulate);
    }
}

// Calls f(i0, i1, j0, j1) for rectangles that cover elements [u0, u1) of a matrix: part of a row, rows, part of a row.
template <class F> VP_DEVICE void for_rectangles(int u0, int u1, int columns, F f)
{
    while (u0 < u1) {
        const int i = u0 / columns, j = u0 % columns, rows = j ? 0 : (u1 - u0) / columns;
        const int to = rows ? columns : least(columns, j + u1 - u0);
        f(i, i + most(1, rows), j, to);
        u0 += rows ? rows * columns : to - j;
    }
}

VP_ROUTINE void matmul(const Vp& vp, const Matmul& i)
{
    const int inner = (int)i.inner, rows = (int)i.a_width / inner, columns = (int)i.b_width / inner;
    const bool accumulate = i.head.flags & ACCUMULATE, contiguous = !i.a_transposed;
    Factors f = {nullptr, nullptr, NO_PANELS, 0, contiguous ? (size_t)inner : 1, contiguous ? 1 : (size_t)rows, inner, columns,
                 i.b_transposed != 0};
    const bool by_dots = f.b_transposed && contiguous && rows < MATMUL_DOTS;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            f.a = i.a.row(r);
            f.b = i.b.row(r);
            for_rectangles(u0, u1, columns, [&](int i0, int i1, int j0, int j1) {
                if (by_dots) dots_rectangle(f, y, i0, i1, j0, j1, accumulate);
                else product_rectangle(f, y, i0, i1, j0, j1, accumulate);
            });
        }
    });
}

#if VP_ROUNDS
// packed_matmul for rounded operands: consecutive rows of M form pairs, and one block of pairs is built at a time.
VP_ROUTINE void rounded_packed_matmul(const Vp& vp, const PackedMatmul& i, int r, int i0, int i1, int j0, int j1)
{
    const int inner = (int)i.inner, columns = (int)i.columns, pairs = (inner + 1) / 2;
    const Factors f = {nullptr, nullptr, VP_PANEL, 0, 1, VP_PANEL, 0, columns, false};
    const float* row[2 * MATMUL_DEPTH];
    Pair packed[MATMUL_DEPTH][VP_PANEL];
    for (int k = 0; k < pairs; k += MATMUL_DEPTH) {
        const int depth = least(MATMUL_DEPTH, pairs - k);
        for (int s = 0, first = 0, width; s < i.x.count; s++, first += width / columns) {
            const float* m = segment(vp, i.x, s, &width).row(r);
            for (int q = most(first, 2 * k); q < least(first + width / columns, 2 * (k + depth)); q++)
                row[q - 2 * k] = m + (size_t)(q - first) * columns;
        }
        if (2 * (k + depth) > inner) row[2 * depth - 1] = nullptr;
        for (int j = j0; j < j1; j += VP_PANEL) {
            const int valid = least(VP_PANEL, j1 - j);
            if (valid < VP_PANEL) memset(packed, 0, sizeof packed);
            for (int q = 0; q < depth; q++) {
                const float* second = row[2 * q + 1];
                pair_rows(packed[q], row[2 * q] + j, second ? second + j : nullptr, valid);
            }
            const Flushing flushing;
            for (int p = i0, rows; p < i1; p += rows) {
                rows = least(i1 - p, VP_PANEL - p % VP_PANEL);
                const Pair* a = (Pair*)(vp.pool + i.weights) + ((size_t)(p / VP_PANEL) * pairs + k) * VP_PANEL + p % VP_PANEL;
                const bool add = k > 0 || i.head.flags & ACCUMULATE;
                product_rows(i.dst.row(r) + (size_t)p * columns + j, columns, &a, 1, rows, f, packed[0], VP_PANEL, depth, add,
                             valid, {});
            }
        }
    }
}
#endif

// dst[r] = W M[r], with W in packed panels. M may consist of several segments, stacked vertically.
VP_ROUTINE void packed_matmul(const Vp& vp, const PackedMatmul& i)
{
    const int columns = (int)i.columns;
    Factors f = {nullptr, nullptr, VP_PANEL, (size_t)i.inner * VP_PANEL, 1, VP_PANEL, 0, columns, false};
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        const int panels = (u1 - 1) / columns / VP_PANEL - u0 / columns / VP_PANEL + 1;
#if VP_ROUNDS
        if (i.head.flags & BF16) {
            if (r0 < r1) count_floats(vp, (size_t)panels * ((i.inner + 1) / 2) * VP_PANEL);
            for (int r = r0; r < r1; r++)
                for_rectangles(u0, u1, columns, [&](int i0, int i1, int j0, int j1) {
                    rounded_packed_matmul(vp, i, r, i0, i1, j0, j1);
                });
            return;
        }
#endif
        if (r0 < r1) count_floats(vp, (size_t)panels * i.inner * VP_PANEL);
        for (int r = r0; r < r1; r++)
            for_rectangles(u0, u1, columns, [&](int i0, int i1, int j0, int j1) {
                f.a = vp.pool + i.weights;
                for (int s = 0; s < i.x.count; s++) {
                    int width;
                    f.b = segment(vp, i.x, s, &width).row(r);
                    f.inner = width / columns;
                    product_rectangle(f, i.dst.row(r), i0, i1, j0, j1, s > 0 || i.head.flags & ACCUMULATE);
                    f.a += f.inner * VP_PANEL;
                }
            });
    });
}

#if VP_ROUNDS
// packed_matmul_gradient for rounded operands: pairs of a matrix's columns; an odd last column is paired with zeros.
VP_ROUTINE void rounded_packed_matmul_gradient(const Vp& vp, const PackedMatmulGradient& i)
{
    enum { MOST_PAIRS = MATMUL_DEPTH / 2 };
    const int rows = i.head.width, inner = (int)i.inner, columns = (int)i.columns, pass = most(1, MATMUL_DEPTH / columns);
    const bool accumulate = i.head.flags & ACCUMULATE;
    Pair packed[MATMUL_DEPTH][VP_PANEL], factors[VP_TILE_COLUMNS][MATMUL_DEPTH], of_panel[VP_PANEL][MOST_PAIRS];
    float sum[VP_TILE_COLUMNS][VP_PANEL];
    for (int r = 0; r < most(1, i.head.n); r += pass) {
        const int count = least(pass, i.head.n - r);
        for_tiles(vp, rows, inner, [&](int panel, int from, int to, int) {
            count_floats(vp, (size_t)(to - from) * VP_PANEL * (r == 0 && !accumulate ? 1 : 2));
            const int valid = least(VP_PANEL, rows - panel * VP_PANEL);
            memset(sum, 0, sizeof sum);
            for (int k = 0; k < columns; k += MATMUL_DEPTH) {
                const int depth = least(MATMUL_DEPTH, columns - k), pairs = (depth + 1) / 2;
                const auto round_rows = [&](Pair* words, const float* x) {
                    words[pairs - 1] = 0;
                    round_row((uint16_t*)words, x + k, depth);
                };
                for (int v = 0; v < count; v++) {
                    const float* dy = i.dy.row(r + v) + (size_t)panel * VP_PANEL * columns;
                    for (int p = 0; p < VP_PANEL; p++) {
                        if (p < valid) round_rows(of_panel[p], dy + (size_t)p * columns);
                        else memset(of_panel[p], 0, sizeof of_panel[p]);
                    }
                    transpose_block((float*)packed[v * pairs], VP_PANEL, (float*)of_panel[0], MOST_PAIRS, VP_PANEL, pairs);
                    for (int s = 0, first = 0, width; s < i.x.count; s++, first += width / columns) {
                        const float* x = segment(vp, i.x, s, &width).row(r + v);
                        for (int c = most(from, first); c < least(to, first + width / columns); c++)
                            round_rows(factors[c - from] + v * pairs, x + (size_t)(c - first) * columns);
                    }
                }
                const Factors f = {nullptr, nullptr, NO_PANELS, 0, MATMUL_DEPTH, 1, 0, rows, true};
                const Pair* a = factors[0];
                const Flushing flushing;
                product_rows(sum[0], VP_PANEL, &a, 1, to - from, f, packed[0], VP_PANEL, count * pairs, k > 0, VP_PANEL, {});
            }
            float* g = vp.pool + i.gradient + ((size_t)panel * inner + from) * VP_PANEL;
            const float* of = sum[0];
            const int floats = (to - from) * VP_PANEL;
            const Flushing flushing;
            if (r == 0 && !accumulate) memcpy(g, of, floats * sizeof(float));
            else VP_SIMD for (int p = 0; p < floats; p++) g[p] += of[p];
        });
    }
}
#endif

// G = (or +=) sum over r of dY[r] M[r]^T, packed like W. As in `outer`, an element sums the columns of a few matrices in
// order, and then adds up these sums.
VP_ROUTINE void packed_matmul_gradient(const Vp& vp, const PackedMatmulGradient& i)
{
#if VP_ROUNDS
    if (i.head.flags & BF16) return rounded_packed_matmul_gradient(vp, i);
#endif
    const int rows = i.head.width, inner = (int)i.inner, columns = (int)i.columns;
    const int pass = most(1, MATMUL_DEPTH / columns);
    const bool accumulate = i.head.flags & ACCUMULATE;
    const int last_panel = OwnTiles(vp, rows, inner).last_panel();
    float packed[MATMUL_DEPTH][VP_PANEL], sum[VP_TILE_COLUMNS][VP_PANEL];
    const auto tile = [&](int panel, int from) { return vp.pool + i.gradient + ((size_t)panel * inner + from) * VP_PANEL; };
    if (i.head.n == 0 && !accumulate)  // all lists of the batch are empty, so the gradient is zero
        for_tiles(vp, rows, inner, [&](int panel, int from, int to, int) {
            count_floats(vp, (size_t)(to - from) * VP_PANEL);
            memset(tile(panel, from), 0, (size_t)(to - from) * VP_PANEL * sizeof(float));
        });
    // The tile's rows are rows of M; its columns are a panel's rows of dY.
    Factors f = {nullptr, nullptr, NO_PANELS, 0, (size_t)columns, 1, columns, rows, true};
    for (int r = 0; r < i.head.n; r += pass) {
        const int count = least(pass, i.head.n - r);
        int packed_panel = -1, packed_from = -1;
        for_tiles(vp, rows, inner, [&](int panel, int from, int to, int) {
            count_floats(vp, (size_t)(to - from) * VP_PANEL * (r == 0 && !accumulate ? 1 : 2));
            const int valid = rows - panel * VP_PANEL <= VP_LANES ? VP_LANES : VP_PANEL;
            if (valid < VP_PANEL) memset(sum, 0, sizeof sum);  // registers of the panel's padding
            for (int k = 0; k < columns; k += MATMUL_DEPTH) {
                const int depth = least(MATMUL_DEPTH, columns - k);
                if (panel != packed_panel || k != packed_from) {
                    for (int v = 0; v < count; v++) {
                        f.b = i.dy.row(r + v);
                        pack_panel(packed + v * depth, f, k, depth, panel * VP_PANEL, least(VP_PANEL, rows - panel * VP_PANEL));
                    }
                    packed_panel = panel, packed_from = k;
                }
                for (int s = 0, first = 0, width; s < i.x.count; s++, first += width / columns) {
                    const Operand x = segment(vp, i.x, s, &width);
                    const int c = most(from, first), n = least(to, first + width / columns) - c;
                    if (n <= 0) continue;
                    const float *a[MATMUL_DEPTH], *next[MATMUL_DEPTH];
                    const size_t at = (size_t)(c - first) * columns + k;
                    for (int v = 0; v < count; v++) a[v] = x.row(r + v) + at;
                    // Prefetch the next pass's matrices: M in the last panel, dY in the first tiles of earlier panels.
                    const bool is_last = panel == last_panel;
                    const int row = is_last ? 0 : share(rows, panel, last_panel), line_count = (depth + LINE - 1) / LINE;
                    const int rows_ahead = is_last ? n : c ? 0 : share(rows, panel + 1, last_panel) - row;
                    for (int v = 0; v < count; v++) {
                        const int later = least(r + pass + v, i.head.n - 1);
                        next[v] = is_last ? x.row(later) + at : i.dy.row(later) + (size_t)row * columns + k;
                    }
                    const RowPrefetch ahead = {next, count, (size_t)columns, r + pass < i.head.n ? rows_ahead : 0, line_count};
                    product_rows(sum[c - from], VP_PANEL, a, count, n, f, packed[0], VP_PANEL, depth, k > 0, valid, ahead);
                }
            }
            float *g = tile(panel, from), *of = sum[0];
            const int floats = (to - from) * VP_PANEL;
            if (r == 0 && !accumulate) memcpy(g, of, floats * sizeof(float));
            else VP_SIMD for (int p = 0; p < floats; p++) g[p] += of[p];
        });
    }
}

// dst[r] = (or +=) transpose of a[r].
VP_ROUTINE void transpose(const Vp& vp, const Transpose& i)
{
    const int columns = (int)i.columns, rows = i.head.width / columns;
    const bool accumulate = i.head.flags & ACCUMULATE;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            const float* x = i.a.row(r);
            for_rectangles(u0, u1, rows, [&](int i0, int i1, int j0, int j1) {
                if (!accumulate) {
                    transpose_block(y + (size_t)i0 * rows + j0, rows, x + (size_t)j0 * columns + i0, columns, j1 - j0, i1 - i0);
                    return;
                }
                for (int c = i0; c < i1; c++)
                    for (int k = j0; k < j1; k++) y[(size_t)c * rows + k] += x[(size_t)k * columns + c];
            });
        }
    });
}
