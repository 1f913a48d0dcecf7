// ---- products with packed matrices, host. Layout of a matrix (rows, columns): panels of VP_PANEL rows, the last one
// padded with zero rows; within a panel column after column, so [panel][column][VP_PANEL]. A panel's rows fill the lanes of
// vector registers; every row's sum runs over the columns in order, whatever the tile: results do not depend on slicing.
// The transpose is packed the same way, so that both products stream panels and no VP adds into another's rows.

// What a product reads: floats in segments, or pairs that were made of them.
struct Floats : Segments {
    static int columns(const Matvec& i) { return (int)i.columns; }
    static const float* weights(const Vp& vp, const Matvec& i) { return vp.pool + i.weights; }
    VP_DEVICE Operand segment_rows(const Vp& vp, int s, int* width) const { return segment(vp, *this, s, width); }
};
#if VP_ROUNDS
struct Rounded {
    const Pair* words;
    int first, pairs, count = 1;  // first: the vector that lies first; pairs: of each
    static int columns(const Matvec& i) { return ((int)i.columns + 1) / 2; }
    static const Pair* weights(const Vp& vp, const Matvec& i) { return (const Pair*)(vp.pool + i.weights); }
    VP_DEVICE const Rounded& segment_rows(const Vp&, int, int* width) const { return *width = pairs, *this; }
    VP_DEVICE const Pair* row(int r) const { return words + (size_t)(r - first) * pairs; }
};

// Vectors [r0, r1), their segments one after the other.
VP_ROUTINE Rounded rounded(const Vp& vp, const Matvec& i, int r0, int r1)
{
    const int columns = (int)i.columns, pairs = (columns + 1) / 2;
    Pair* words = vp.scratch->take((size_t)(r1 - r0) * pairs);
    for (int s = 0, first = 0, width; s < i.x.count; s++, first += width) {
        const Operand x = segment(vp, i.x, s, &width);
        for (int r = r0; r < r1; r++) round_row((uint16_t*)(words + (size_t)(r - r0) * pairs) + first, x.row(r), width);
    }
    for (int r = r0; r < r1 && columns % 2; r++) words[(size_t)(r - r0 + 1) * pairs - 1] &= 0xffff;
    return {words, r0, pairs};
}
#endif

// NV vectors times NP panels, or times the first NR registers of a panel's rows, one pass over the columns.
template <int NP, int NV, int NR = REGISTERS, class X>
static void panel_product(const Vp& vp, const Matvec& i, const X& x, int panel, int row)
{
    Lanes sum[NP][NV][NR] = {};
    const int columns = x.columns(i), first = panel * VP_PANEL, valid = least(NP * VP_PANEL, i.head.width - first);
    const auto* w = x.weights(vp, i) + (size_t)panel * columns * VP_PANEL;
    float* y[NV];
    VP_UNROLL for (int k = 0; k < NV; k++) {  // stores would wait for what they overwrite to come from memory
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
    // Copies: for all that the compiler knows every store might change the instruction.
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

// One panel; of one with few rows only the registers that they fill.
template <int NV, class X> VP_DEVICE void one_panel(const Vp& vp, const Matvec& i, const X& x, int panel, int row)
{
    if (i.head.width - panel * VP_PANEL > VP_LANES) return panel_product<1, NV>(vp, i, x, panel, row);
    panel_product<1, NV, 1>(vp, i, x, panel, row);
}

// Vectors [r0, r1) times panels [p0, p1), NP panels at a time; fewer vectors than a pass takes.
template <int NP, int NV, class X>
VP_DEVICE void few_vectors(const Vp& vp, const Matvec& i, const X& x, int r0, int p0, int p1)
{
    int p = p0;
    for (; p + NP <= p1; p += NP) panel_product<NP, NV>(vp, i, x, p, r0);
    for (; p < p1; p++) one_panel<NV>(vp, i, x, p, r0);
}

// Panels that go together with NV vectors: so many that their sums take 16 registers at most, and with a column of each
// and a broadcast no more than there are.
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

// n vectors, at least two and at most NV, times one panel.
template <int NV, class X> VP_DEVICE void one_pass(const Vp& vp, const Matvec& i, const X& x, int panel, int row, int n)
{
    if (n == NV) return one_panel<NV>(vp, i, x, panel, row);
    if constexpr (NV > 2) one_pass<NV - 1>(vp, i, x, panel, row, n);
}

enum { BLOCK_FLOATS = 1 << 16 };  // of vectors that one block has at most: 256 KiB

// Panel by panel, all vectors: a panel is read once and stays in the cache while the vectors pass. With few vectors
// several panels go together, to keep as many sums in flight.
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
    const int passes = (r1 - r0 + VP_VECTORS - 1) / VP_VECTORS;  // of nearly equal size: a short one would waste lanes
    for (int p = p0; p < p1; p++) {
        for (int k = 0; k < passes; k++) {
            const int r = r0 + share(r1 - r0, k, passes), n = r0 + share(r1 - r0, k + 1, passes) - r;
            one_pass<VP_VECTORS>(vp, i, x, p, r, n);
        }
    }
}

// dst = W x + bias for n vectors; x may lie in several segments (a concatenation that is never materialised). Of many
// vectors, blocks that stay in the second-level cache while all panels pass, of nearly equal size.
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
                if (blocks > 1 || !x.words) x = rounded(vp, i, from, to);  // the same for all parts
                const Flushing flushing;
                panels_product(vp, i, x, from, to, p0, p1);
                continue;
            }
#endif
            panels_product(vp, i, Floats{i.x}, from, to, p0, p1);
        }
    });
}

enum { OUTER_ROWS = 128 };  // vectors per pass, so that they stay in the first-level cache

// Floats that are wanted soon, side by side: with every row that is summed a line of the cache is asked for. What follows
// them asks for what is there.
struct Soon {
    enum { MOST = 5, ROWS = MOST * VP_VECTORS * VP_PANEL / LINE };  // with fewer rows a part is asked for, which costs more
    const float* streams[MOST];
    int count = 0;
    VP_DEVICE void add(const float* p) { if (p) streams[count++] = p; }
};

// NC columns of one panel: to = from + dy x^T over up to OUTER_ROWS vectors (from null: zero). Meanwhile a line of each
// later[k] + offset is asked for.
template <int NC, class E, class L>
static void outer_columns(float* to, const float* from, const E* const* x, size_t column, const E (*dy)[VP_PANEL],
                          int n, const L* const* later, size_t offset, const Soon& soon)
{
    Lanes sum[NC][REGISTERS];
    VP_UNROLL for (int c = 0; c < NC; c++) {
        VP_UNROLL for (int q = 0; q < REGISTERS; q++) sum[c][q] = Lanes{};
    }
    for (int k = 0, stream = 0; k < n; stream++) {
        const bool any = stream < soon.count;
        const float* line = any ? soon.streams[stream] : to;
        const int step = any ? LINE : 0, end = any ? least(n, k + NC * VP_PANEL / LINE) : n;
        for (; k < end; k++, line += step) {
            __builtin_prefetch(line);
            __builtin_prefetch(later[k] + offset, 0, 2);
            const E* v = x[k] + column;
            decltype(kept_lanes_at(v)) d[REGISTERS];
            VP_UNROLL for (int q = 0; q < REGISTERS; q++) d[q] = kept_lanes_at(dy[k] + q * VP_LANES);
            VP_UNROLL for (int c = 0; c < NC; c++) {
                asm("" : "+r"(v));  // else these loads become one, and shuffles that take longer than broadcasts from memory
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

// Up to R rows from `row` on of a panel that few rows fill, by FEW_COLUMNS columns: lanes hold columns, so that none is idle.
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
// Columns [from, to) of rows [r, r + n) of x, as pairs of rows, which lie VP_TILE_COLUMNS words apart.
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

// G = (or +=) sum over n rows of dy x^T, packed like W, tile by tile of this VP. Every element sums the rows of a pass in
// order, then the passes: one long chain of single-precision sums would lose digits. Where `finish` is given, the
// finished tiles go to it, finish(panel, column_from, column_to, g), and not to memory; soon_wanted(panel, column, soon) adds
// what it is going to read.
template <bool FINISH, class Args, class F, class S>
VP_DEVICE void outer_tiles(const Vp& vp, const Args& i, F finish, S soon_wanted)
{
    const int rows = i.head.width, columns = (int)i.columns, n_rows = i.head.n;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const float *x[OUTER_ROWS], *next[OUTER_ROWS], *beside[OUTER_ROWS];
    const int last_panel = OwnTiles(vp, rows, columns).last_panel();
    float dy[OUTER_ROWS][VP_PANEL], finished[FINISH ? VP_TILE_COLUMNS * VP_PANEL : 1];
    const int passes = most(1, (n_rows + OUTER_ROWS - 1) / OUTER_ROWS);  // no rows at all: the gradient is zero
    for (int pass = 0; pass < passes; pass++) {
        const int r = pass * OUTER_ROWS, n = least(OUTER_ROWS, n_rows - r);
        const bool fresh = pass == 0 && !accumulate, last = FINISH && pass == passes - 1;
        int first = 0, width = 0, loaded_panel = -1;  // x has the segment whose columns begin with `first`
        for_tiles(vp, rows, columns, [&](int panel, int from, int to, int) {
            count_floats(vp, (size_t)(to - from) * VP_PANEL * ((fresh ? 0 : 1) + (last ? 0 : 1)));
            const int valid = least(VP_PANEL, rows - panel * VP_PANEL);
            if (panel != loaded_panel) {  // side by side: rows that begin at powers of two share few sets of the cache
                if (valid < VP_PANEL) memset(dy, 0, n * sizeof dy[0]);
                for (int k = 0; k < n; k++) {  // what lies behind the last row must not be read
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
                // Meanwhile: vectors of the next pass with the last panel, rows of dy beside these with others.
                const bool at_last_panel = panel == last_panel, rows_beside = !at_last_panel && c < 2 * VP_VECTORS;
                const float* const* later = at_last_panel ? next : rows_beside ? beside : x;
                const size_t offset = !rows_beside ? c - first : c < VP_VECTORS ? 0 : LINE;
                Soon soon;
                soon.add(before);
                if (last) g = finished + (c - from) * VP_PANEL;
                if (last && n >= Soon::ROWS) soon_wanted(panel, c, soon);
                const bool few = valid <= VP_PANEL / 2 && n >= 3 * valid && c + FEW_COLUMNS <= stop;  // else it does not pay
                const int step = few ? FEW_COLUMNS : c + VP_VECTORS <= stop ? VP_VECTORS : c + 4 <= stop ? 4 : 1;
                if (few) {
                    if (!before || last) memset(g, 0, FEW_COLUMNS * VP_PANEL * sizeof(float));  // rows that pad the panel
                    for (int k = 0; k < valid; k += FEW_ROWS)
                        outer_rows<FEW_ROWS>(g, before, x, c - first, dy, k, least(FEW_ROWS, valid - k), n);
                } else if (step == VP_VECTORS) outer_columns<VP_VECTORS>(g, before, x, c - first, dy, n, later, offset, soon);
                else if (step == 4) outer_columns<4>(g, before, x, c - first, dy, n, later, offset, soon);
                else outer_columns<1>(g, before, x, c - first, dy, n, later, offset, soon);
                c += step;
            }
            if (last) finish(panel, from, to, finished);
        });
    }
}

#if VP_ROUNDS
// The same of what is rounded: pairs of rows, the last one beside zeros.
template <bool FINISH, class Args, class F> VP_DEVICE void rounded_outer_tiles(const Vp& vp, const Args& i, F finish)
{
    enum { PAIRS_OF_ROWS = OUTER_ROWS / 2 };
    const int rows = i.head.width, columns = (int)i.columns, n_rows = i.head.n;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const int across = OwnTiles(vp, rows, columns).across;
    Pair dy[PAIRS_OF_ROWS][VP_PANEL], *const all_x = vp.scratch->take((size_t)across * PAIRS_OF_ROWS * VP_TILE_COLUMNS);
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
                    Soon soon;
                    soon.add(last ? before : g);
                    if (few) {
                        if (!before || last) memset(g, 0, FEW_COLUMNS * VP_PANEL * sizeof(float));
                        for (int k = 0; k < valid; k += FEW_ROWS)
                            outer_rows<FEW_ROWS>(g, before, row, c - from, dy, k, least(FEW_ROWS, valid - k), pairs);
                    } else if (step == VP_VECTORS) outer_columns<VP_VECTORS>(g, before, row, c - from, dy, pairs, row, 0, soon);
                    else if (step == 4) outer_columns<4>(g, before, row, c - from, dy, pairs, row, 0, soon);
                    else outer_columns<1>(g, before, row, c - from, dy, pairs, row, 0, soon);
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
    outer_tiles<false>(vp, i, [](int, int, int, const float*) {}, [](int, int, Soon&) {});
}

// Partial sums of squares, one per row and tile: their order does not depend on panel width or VP count.
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
// Weights of a tile as products read them: pairs of columns, and those of rows in the transpose, behind the former.
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

// A tile of a matrix, columns [from, to) of a panel: its step, and the new weights into the packed transpose as well.
// FUSED: g comes from the cache. Where a whole square of VP_LANES fits it is transposed in registers: storing float by float takes as long as the rest.
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

// The last contribution to a matrix's gradient and the matrix's step at once: the gradient never leaves the cache.
template <class Rule> VP_ROUTINE void outer_update(const Vp& vp, const OuterUpdate& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const auto update = [&](int panel, int from, int to, const float* g) { update_tile<Rule, true>(vp, i, h, g, panel, from, to); };
#if VP_ROUNDS
    if (i.head.flags & BF16) return rounded_outer_tiles<true>(vp, i, update);
#endif
    outer_tiles<true>(vp, i, update, [&](int panel, int column, Soon& soon) {
        const Weights at = weights_of(vp, i).from(((size_t)panel * i.columns + column) * VP_PANEL);
        soon.add(at.w);
        if constexpr (Rule::MOMENTS > 0) soon.add(at.m);
        if constexpr (Rule::MOMENTS > 1) soon.add(at.v);
        soon.add(vp.pool + i.transposed + ((size_t)(column / VP_PANEL) * i.head.width + panel * VP_PANEL) * VP_PANEL);
    });
}
