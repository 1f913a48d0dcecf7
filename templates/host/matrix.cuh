#pragma once
#include "../optimizers.cuh"
#include "products.cuh"
// ---- gradients and steps of packed matrices, host (layout: products.cuh)
enum { OUTER_ROWS = 128 };  // vectors per pass, so that they stay in the L1 cache

// Streams of consecutive floats to prefetch: one cache line per summed row. Later prefetches repeat a resident line.
struct Prefetch {
    enum { MOST = 5, ROWS = MOST * VP_VECTORS * VP_PANEL / LINE };  // with fewer rows, partial prefetches are slower
    const float* streams[MOST];
    int count = 0;
    VP_DEVICE void add(const float* p) { if (p) streams[count++] = p; }
};

// NC columns of one panel: to = from + dy x^T over up to OUTER_ROWS vectors (a null `from` means zeros). Also prefetches
// a line at each later[k] + offset.
template <int NC, class E, class L>
static void outer_columns(float* to, const float* from, const E* const* x, size_t column, const E (*dy)[VP_PANEL],
                          int n, const L* const* later, size_t offset, const Prefetch& ahead)
{
    Lanes sum[NC][REGISTERS];
    VP_UNROLL for (int c = 0; c < NC; c++) {
        VP_UNROLL for (int q = 0; q < REGISTERS; q++) sum[c][q] = Lanes{};
    }
    for (int k = 0, stream = 0; k < n; stream++) {
        const bool any = stream < ahead.count;
        const float* line = any ? ahead.streams[stream] : to;
        const int step = any ? LINE : 0, end = any ? least(n, k + NC * VP_PANEL / LINE) : n;
        for (; k < end; k++, line += step) {
            __builtin_prefetch(line);
            __builtin_prefetch(later[k] + offset, 0, 2);
            const E* v = x[k] + column;
            decltype(kept_lanes_at(v)) d[REGISTERS];
            VP_UNROLL for (int q = 0; q < REGISTERS; q++) d[q] = kept_lanes_at(dy[k] + q * VP_LANES);
            VP_UNROLL for (int c = 0; c < NC; c++) {
                asm("" : "+r"(v));  // prevents a load with shuffles, which are slower than broadcasts from memory
                const auto e = all_lanes(v[c]);
                VP_UNROLL for (int q = 0; q < REGISTERS; q++) sum[c][q] = fma_lanes(d[q], e, sum[c][q]);
            }
        }
    }
    VP_UNROLL for (int c = 0; c < NC; c++) {
        VP_UNROLL for (int q = 0; q < REGISTERS; q++) {
            const int at = c * VP_PANEL + q * VP_LANES;
            put_lanes(to + at, from ? lanes_at(from + at) + sum[c][q] : sum[c][q]);
        }
    }
}

// Up to R rows (from `row`) of a panel with few rows, by FEW_COLUMNS columns. Lanes hold columns, so that none is idle.
enum { FEW_COLUMNS = 4 * VP_LANES, FEW_ROWS = most(1, VP_VECTORS * REGISTERS / 5) };
template <int R, class E>
static void outer_rows(float* to, const float* from, const E* const* x, size_t column, const E (*dy)[VP_PANEL],
                       int row, int rows, int n)
{
    if constexpr (R > 1) {
        if (rows < R) return outer_rows<R - 1>(to, from, x, column, dy, row, rows, n);
    }
    Lanes sum[R][4] = {};
    for (int k = 0; k < n; k++) {
        decltype(kept_lanes_at(x[k])) e[4];
        VP_UNROLL for (int l = 0; l < 4; l++) e[l] = kept_lanes_at(x[k] + column + l * VP_LANES);
        VP_UNROLL for (int r = 0; r < R; r++) {
            const auto d = all_lanes(dy[k][row + r]);
            VP_UNROLL for (int l = 0; l < 4; l++) sum[r][l] = fma_lanes(d, e[l], sum[r][l]);
        }
    }
    VP_UNROLL for (int r = 0; r < R; r++)
        for (int c = 0; c < FEW_COLUMNS; c++) {
            const int at = c * VP_PANEL + row + r;
            const float found = sum[r][c / VP_LANES][c % VP_LANES];
            to[at] = from ? from[at] + found : found;
        }
}

#if VP_ROUNDS
// Columns [from, end) of rows [r, r + n) of x, as pairs of rows with a stride of VP_TILE_COLUMNS words.
VP_ROUTINE void pair_columns(const Vp& vp, const Segments& x, Pair* to, int r, int n, int from, int end)
{
    for (int s = 0, first = 0, width; s < x.count && first < end; s++, first += width) {
        const Operand found = segment(vp, x, s, &width);
        const int c = most(from, first), count = least(end, first + width) - c;
        for (int k = 0; k < n && count > 0; k += 2) {
            const float* second = k + 1 < n ? found.row(r + k + 1) + c - first : nullptr;
            pair_rows(to + k / 2 * VP_TILE_COLUMNS + c - from, found.row(r + k) + c - first, second, count);
        }
    }
}
#endif

// G = (or +=) sum over n rows of dy x^T, packed like W, for the tiles of this VP. Every element sums the rows of a pass in
// order, and then the passes, because one long chain of single-precision sums would lose digits. With FINISH, finished tiles
// go to finish(panel, column_from, column_to, g) and not to memory; add_prefetches(panel, column, ahead) adds the streams
// that `finish` reads.
template <bool FINISH, class Args, class F, class S>
VP_DEVICE void outer_tiles(const Vp& vp, const Args& i, F finish, S add_prefetches)
{
    const int rows = i.head.width, columns = (int)i.columns, n_rows = i.head.n;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const float *x[OUTER_ROWS], *next[OUTER_ROWS], *beside[OUTER_ROWS];
    const int last_panel = OwnTiles(vp, rows, columns).last_panel();
    float dy[OUTER_ROWS][VP_PANEL], finished[FINISH ? VP_TILE_COLUMNS * VP_PANEL : 1];
    const int passes = most(1, (n_rows + OUTER_ROWS - 1) / OUTER_ROWS);  // without rows, one pass writes a zero gradient
    for (int pass = 0; pass < passes; pass++) {
        const int r = pass * OUTER_ROWS, n = least(OUTER_ROWS, n_rows - r);
        const bool fresh = pass == 0 && !accumulate, last = FINISH && pass == passes - 1;
        int first = 0, width = 0, loaded_panel = -1;  // x is the segment with columns [first, first + width)
        for_tiles(vp, rows, columns, [&](int panel, int from, int to, int) {
            count_floats(vp, (size_t)(to - from) * VP_PANEL * ((fresh ? 0 : 1) + (last ? 0 : 1)));
            const int valid = least(VP_PANEL, rows - panel * VP_PANEL);
            if (panel != loaded_panel) {  // copied, because rows at power-of-two strides would share few cache sets
                if (valid < VP_PANEL) memset(dy, 0, n * sizeof dy[0]);
                for (int k = 0; k < n; k++) {  // must not read past the last row
                    const float* from = i.dy.row(r + k) + panel * VP_PANEL;
                    beside[k] = from + VP_PANEL;
                    if (valid == VP_PANEL) memcpy(dy[k], from, sizeof dy[k]);
                    else for (int p = 0; p < valid; p++) dy[k][p] = from[p];
                }
                loaded_panel = panel;
            }
            for (int c = from; c < to;) {
                if (c < first || c >= first + width) {  // find the segment that holds column c
                    int s = first = 0;
                    for (; segment(vp, i.x, s, &width), c >= first + width; s++) first += width;
                    const Operand found = segment(vp, i.x, s, &width);
                    for (int k = 0; k < n; k++) x[k] = found.row(r + k), next[k] = found.row(least(r + OUTER_ROWS + k, n_rows - 1));
                }
                const int stop = least(to, first + width);
                float* g = vp.pool + i.gradient + ((size_t)panel * columns + c) * VP_PANEL;
                const float* before = fresh ? nullptr : g;
                // Prefetch the next pass's vectors in the last panel, and the next panel's rows of dy in other panels.
                const bool at_last_panel = panel == last_panel, rows_beside = !at_last_panel && c < 2 * VP_VECTORS;
                const float* const* later = at_last_panel ? next : rows_beside ? beside : x;
                const size_t offset = !rows_beside ? c - first : c < VP_VECTORS ? 0 : LINE;
                Prefetch ahead;
                ahead.add(before);
                if (last) g = finished + (c - from) * VP_PANEL;
                if (last && n >= Prefetch::ROWS) add_prefetches(panel, c, ahead);
                const bool few = valid <= VP_PANEL / 2 && n >= 3 * valid && c + FEW_COLUMNS <= stop;  // else it is slower
                const int step = few ? FEW_COLUMNS : c + VP_VECTORS <= stop ? VP_VECTORS : c + 4 <= stop ? 4 : 1;
                if (few) {
                    if (!before || last) memset(g, 0, FEW_COLUMNS * VP_PANEL * sizeof(float));  // the panel's padding rows
                    for (int k = 0; k < valid; k += FEW_ROWS)
                        outer_rows<FEW_ROWS>(g, before, x, c - first, dy, k, least(FEW_ROWS, valid - k), n);
                } else if (step == VP_VECTORS) outer_columns<VP_VECTORS>(g, before, x, c - first, dy, n, later, offset, ahead);
                else if (step == 4) outer_columns<4>(g, before, x, c - first, dy, n, later, offset, ahead);
                else outer_columns<1>(g, before, x, c - first, dy, n, later, offset, ahead);
                c += step;
            }
            if (last) finish(panel, from, to, finished);
        });
    }
}

#if VP_ROUNDS
// outer_tiles for rounded operands: pairs of rows; an odd last row is paired with zeros.
template <bool FINISH, class Args, class F> VP_DEVICE void rounded_outer_tiles(const Vp& vp, const Args& i, F finish)
{
    enum { PAIRS_OF_ROWS = OUTER_ROWS / 2 };
    const int rows = i.head.width, columns = (int)i.columns, n_rows = i.head.n;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const int across = OwnTiles(vp, rows, columns).across;
    Pair dy[PAIRS_OF_ROWS][VP_PANEL], *const all_x = vp.scratch->take((size_t)across * PAIRS_OF_ROWS * VP_TILE_COLUMNS);
    if (!all_x) return stop(vp, vp.position, NO_MEMORY);
    float finished[FINISH ? VP_TILE_COLUMNS * VP_PANEL : 1];
    const int passes = most(1, (n_rows + OUTER_ROWS - 1) / OUTER_ROWS);
    for (int pass = 0; pass < passes; pass++) {
        const int r = pass * OUTER_ROWS, n = least(OUTER_ROWS, n_rows - r), pairs = (n + 1) / 2;
        const bool fresh = pass == 0 && !accumulate, last = FINISH && pass == passes - 1;
        int loaded_panel = -1, visited = 0;
        for_tiles(vp, rows, columns, [&](int panel, int from, int to, int tile) {
            count_floats(vp, (size_t)(to - from) * VP_PANEL * ((fresh ? 0 : 1) + (last ? 0 : 1)));
            const int valid = least(VP_PANEL, rows - panel * VP_PANEL);
            if (panel != loaded_panel) {
                if (valid < VP_PANEL) memset(dy, 0, pairs * sizeof dy[0]);
                for (int k = 0; k < n; k += 2) {
                    const float* second = k + 1 < n ? i.dy.row(r + k + 1) + panel * VP_PANEL : nullptr;
                    pair_rows(dy[k / 2], i.dy.row(r + k) + panel * VP_PANEL, second, valid);
                }
                loaded_panel = panel;
            }
            Pair* const x = all_x + (size_t)tile * PAIRS_OF_ROWS * VP_TILE_COLUMNS;
            if (visited++ < across) pair_columns(vp, i.x, x, r, n, from, to);
            const Pair* row[PAIRS_OF_ROWS];
            for (int k = 0; k < pairs; k++) row[k] = x + k * VP_TILE_COLUMNS;
            float* const gradient = vp.pool + i.gradient + ((size_t)panel * columns + from) * VP_PANEL;
            {
                const Flushing flushing;
                for (int c = from, step; c < to; c += step) {
                    float* g = (last ? finished : gradient) + (c - from) * VP_PANEL;
                    const float* before = fresh ? nullptr : gradient + (c - from) * VP_PANEL;
                    const bool few = valid <= VP_PANEL / 2 && pairs >= 3 * valid && c + FEW_COLUMNS <= to;
                    step = few ? FEW_COLUMNS : c + VP_VECTORS <= to ? VP_VECTORS : c + 4 <= to ? 4 : 1;
                    Prefetch ahead;
                    ahead.add(last ? before : g);
                    if (few) {
                        if (!before || last) memset(g, 0, FEW_COLUMNS * VP_PANEL * sizeof(float));
                        for (int k = 0; k < valid; k += FEW_ROWS)
                            outer_rows<FEW_ROWS>(g, before, row, c - from, dy, k, least(FEW_ROWS, valid - k), pairs);
                    } else if (step == VP_VECTORS) outer_columns<VP_VECTORS>(g, before, row, c - from, dy, pairs, row, 0, ahead);
                    else if (step == 4) outer_columns<4>(g, before, row, c - from, dy, pairs, row, 0, ahead);
                    else outer_columns<1>(g, before, row, c - from, dy, pairs, row, 0, ahead);
                }
            }
            if (last) finish(panel, from, to, finished);
        });
    }
}
#endif

VP_ROUTINE void outer(const Vp& vp, const Outer& i)
{
#if VP_ROUNDS
    if (i.head.flags & BF16) return rounded_outer_tiles<false>(vp, i, [](int, int, int, const float*) {});
#endif
    outer_tiles<false>(vp, i, [](int, int, int, const float*) {}, [](int, int, Prefetch&) {});
}

// Partial sums of squares, one per row and tile, so that the order does not depend on panel width or VP count.
VP_ROUTINE void squares_matrix(const Vp& vp, const SquaresMatrix& i)
{
    const int rows = i.head.width, columns = (int)i.columns;
    const int across = (columns + VP_TILE_COLUMNS - 1) / VP_TILE_COLUMNS;
    for_tiles(vp, rows, columns, [&](int panel, int from, int to, int tile) {
        float sum[VP_PANEL] = {0};
        for (int c = from; c < to; c++) {
            const float* g = vp.pool + i.gradient + ((size_t)panel * columns + c) * VP_PANEL;
            VP_SIMD for (int p = 0; p < VP_PANEL; p++) sum[p] = fma_(g[p], g[p], sum[p]);
        }
        for (int p = 0; p < least(VP_PANEL, rows - panel * VP_PANEL); p++)
            vp.pool[i.partials + (size_t)(panel * VP_PANEL + p) * across + tile] = sum[p];
    });
}

#if VP_ROUNDS
// Stores a tile's weights in the form that products read: pairs of columns, followed by pairs of rows in the transpose.
VP_ROUTINE void store_pairs(const Vp& vp, const float* w, float* transposed, int rows, int columns, int panel, int from, int to)
{
    const int height = (rows + 1) / 2, pairs = (columns + 1) / 2, panels = (rows + VP_PANEL - 1) / VP_PANEL;
    const int valid = least(VP_PANEL, rows - panel * VP_PANEL);
    if (vp.timeline) vp.timeline->bytes += (size_t)(to - from) * (VP_PANEL + valid) * sizeof(uint16_t);
    Pair* own = (Pair*)transposed + (int64_t)(panel - panels) * pairs * VP_PANEL + from / 2 * VP_PANEL;
    for (int c = from; c < to; c += 2, own += VP_PANEL) {
        const float* column = w + (c - from) * VP_PANEL;
        pair_rows(own, column, c + 1 < to ? column + VP_PANEL : nullptr, VP_PANEL);
    }
    enum { HIGH = VP_PANEL / 2 };
    Pair tile[VP_TILE_COLUMNS][HIGH];
    round_row((uint16_t*)tile, w, (to - from) * VP_PANEL);
    if (valid % 2)
        for (int c = 0; c < to - from; c++) tile[c][valid / 2] &= 0xffff;
    for (int c = from; c < to;) {
        Pair* column = (Pair*)transposed + ((size_t)(c / VP_PANEL) * height + panel * HIGH) * VP_PANEL + c % VP_PANEL;
        const Pair* source = tile[c - from];
        if (c + VP_LANES <= to && valid == VP_PANEL && HIGH % VP_LANES == 0) {
            for (int p = 0; p < HIGH; p += VP_LANES)
                transpose_square((float*)column + (size_t)p * VP_PANEL, VP_PANEL, (const float*)source + p, HIGH);
            c += VP_LANES;
        } else {
            for (int p = 0; p < (valid + 1) / 2; p++) column[(size_t)p * VP_PANEL] = source[p];
            c++;
        }
    }
}
#endif

// Steps a tile of a matrix, columns [from, to) of a panel, and also writes the new weights to the packed transpose.
// FUSED: g is in the cache. Whole squares of VP_LANES are transposed in registers, because storing single floats would take
// as long as the rest of the step.
template <class Rule, bool FUSED, class Args>
VP_DEVICE void update_tile(const Vp& vp, const Args& i, const Hyper& h, const float* g, int panel, int from, int to)
{
    const int rows = i.head.width, columns = (int)i.columns;
    const size_t at = ((size_t)panel * columns + from) * VP_PANEL;
    float* w = vp.pool + i.weights + at;
    count_floats(vp, (size_t)(to - from) * VP_PANEL * updated_floats<Rule>(g && !FUSED));
    Weights run = weights_of(vp, i).from(at);
    run.g = g;
    step_run<Rule>(vp, i, run, (to - from) * VP_PANEL, h);
    const int valid = least(VP_PANEL, rows - panel * VP_PANEL);
#if VP_ROUNDS
    if (i.head.flags & PAIRS) return store_pairs(vp, w, vp.pool + i.transposed, rows, columns, panel, from, to);
#endif
    count_floats(vp, (size_t)(to - from) * valid);
    for (int c = from; c < to;) {
        float* column = vp.pool + i.transposed + ((size_t)(c / VP_PANEL) * rows + panel * VP_PANEL) * VP_PANEL + c % VP_PANEL;
        const float* source = w + (size_t)(c - from) * VP_PANEL;
        if (c + VP_LANES <= to && valid == VP_PANEL) {
            for (int p = 0; p < VP_PANEL; p += VP_LANES)
                transpose_square(column + (size_t)p * VP_PANEL, VP_PANEL, source + p, VP_PANEL);
            c += VP_LANES;
        } else {
            for (int p = 0; p < valid; p++) column[(size_t)p * VP_PANEL] = source[p];
            c++;
        }
    }
}

template <class Rule> VP_ROUTINE void update_matrix(const Vp& vp, const UpdateMatrix& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const bool none = i.head.flags & NO_GRADIENT;
    for_tiles(vp, i.head.width, (int)i.columns, [&](int panel, int from, int to, int) {
        const float* g = vp.pool + i.gradient + ((size_t)panel * i.columns + from) * VP_PANEL;
        update_tile<Rule, false>(vp, i, h, none ? nullptr : g, panel, from, to);
    });
}

// Computes the last contribution to a matrix's gradient and the matrix's step together. The gradient never leaves the cache.
template <class Rule> VP_ROUTINE void outer_update(const Vp& vp, const OuterUpdate& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const auto update = [&](int panel, int from, int to, const float* g) { update_tile<Rule, true>(vp, i, h, g, panel, from, to); };
#if VP_ROUNDS
    if (i.head.flags & BF16) return rounded_outer_tiles<true>(vp, i, update);
#endif
    outer_tiles<true>(vp, i, update, [&](int panel, int column, Prefetch& ahead) {
        const Weights at = weights_of(vp, i).from(((size_t)panel * i.columns + column) * VP_PANEL);
        ahead.add(at.w);
        if constexpr (Rule::MOMENTS > 0) ahead.add(at.m);
        if constexpr (Rule::MOMENTS > 1) ahead.add(at.v);
        ahead.add(vp.pool + i.transposed + ((size_t)(column / VP_PANEL) * i.head.width + panel * VP_PANEL) * VP_PANEL);
    });
}
