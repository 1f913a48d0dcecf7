// ---- products of computed matrices, host. Matrices lie row after row. Every element's sum runs over the inner dimension
// in an order that depends on the shapes alone: by one chain of fused multiply-adds, or where few rows meet a transposed
// matrix, by 16 strided sums (reduce_sum), which need no transposed copy of it.
enum {
    MATMUL_DEPTH = 128,  // of a packed block of B: with its panel's columns it stays in the first-level cache
    MATMUL_PACK = 12,    // rows from which packing pays
    MATMUL_DOTS = 8,     // rows below which products with a transposed B are dot products
};

// op(A)[r][k] = a[r * a_row + k * a_step]; B is (inner, columns), or stored as (columns, inner).
struct Factors {
    const float *a, *b;
    size_t a_row, a_step;
    int inner, columns;
    bool b_transposed;
};

// MR rows by NP panels of y: y = (or +=) A B over `depth` terms, of which `valid` columns are kept.
template <int NP, int MR>
static void product_block(float* y, size_t y_row, const float* a, const Factors& f, const float* b, size_t b_row, int depth,
                          bool add, int valid)
{
    enum { WIDTH = NP * VP_PANEL };
    float sum[MR][NP][VP_PANEL];
    VP_UNROLL for (int r = 0; r < MR; r++)
        VP_UNROLL for (int q = 0; q < NP; q++) {
            const float* from = y + r * y_row + q * VP_PANEL;
            if (!add) {
                VP_SIMD for (int p = 0; p < VP_PANEL; p++) sum[r][q][p] = 0.f;
            } else if (valid == WIDTH) {
                VP_SIMD for (int p = 0; p < VP_PANEL; p++) sum[r][q][p] = from[p];
            } else {
                for (int p = 0; p < VP_PANEL; p++) sum[r][q][p] = q * VP_PANEL + p < valid ? from[p] : 0.f;
            }
        }
    for (int k = 0; k < depth; k++) {
        const float* row = b + k * b_row;
        VP_UNROLL for (int r = 0; r < MR; r++) {
            const float e = a[r * f.a_row + k * f.a_step];
            VP_UNROLL for (int q = 0; q < NP; q++) {
                VP_SIMD for (int p = 0; p < VP_PANEL; p++) sum[r][q][p] = fma_(row[q * VP_PANEL + p], e, sum[r][q][p]);
            }
        }
    }
    for (int r = 0; r < MR; r++) memcpy(y + r * y_row, sum[r], valid * sizeof(float));
}

typedef float Four __attribute__((vector_size(16)));
#if defined(__clang__)
#define VP_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int FourInts __attribute__((vector_size(16)));
#define VP_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (FourInts){i, j, k, l})
#endif

// y = transpose of the 4 x 4 matrix x. No compiler finds these shuffles, which make it four times as fast as single moves.
VP_DEVICE void transpose_4x4(float* y, size_t y_row, const float* x, size_t x_row)
{
    Four r[4];
    VP_UNROLL for (int k = 0; k < 4; k++) memcpy(&r[k], x + k * x_row, sizeof r[k]);
    const Four a = VP_SHUFFLE(r[0], r[1], 0, 4, 1, 5), b = VP_SHUFFLE(r[2], r[3], 0, 4, 1, 5);
    const Four c = VP_SHUFFLE(r[0], r[1], 2, 6, 3, 7), d = VP_SHUFFLE(r[2], r[3], 2, 6, 3, 7);
    const Four t[4] = {VP_SHUFFLE(a, b, 0, 1, 4, 5), VP_SHUFFLE(a, b, 2, 3, 6, 7), VP_SHUFFLE(c, d, 0, 1, 4, 5),
                       VP_SHUFFLE(c, d, 2, 3, 6, 7)};
    VP_UNROLL for (int k = 0; k < 4; k++) memcpy(y + k * y_row, &t[k], sizeof t[k]);
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
    const int whole = depth & ~3;
    int p = 0;
    for (; p + 4 <= valid; p += 4) {
        const float* columns = f.b + (size_t)(j + p) * f.inner + k0;
        for (int k = 0; k < whole; k += 4) transpose_4x4(packed[k] + p, VP_PANEL, columns + k, f.inner);
        for (int k = whole; k < depth; k++)
            for (int q = 0; q < 4; q++) packed[k][p + q] = columns[(size_t)q * f.inner + k];
    }
    for (; p < VP_PANEL; p++) {
        const float* column = f.b + (size_t)(j + p) * f.inner + k0;
        for (int k = 0; k < depth; k++) packed[k][p] = p < valid ? column[k] : 0.f;
    }
}

// Rows [i0, i1) by columns [j0, j1) of the result y, whose row 0 is at y.
static void product_rectangle(const Factors& f, float* y, int i0, int i1, int j0, int j1, bool accumulate)
{
    float packed[MATMUL_DEPTH][VP_PANEL];
    for (int j = j0; j < j1;) {
        const bool wide = i1 - i0 <= 2 && !f.b_transposed && j1 - j >= 4 * VP_PANEL;  // many sums in flight
        const int valid = wide ? 4 * VP_PANEL : least(VP_PANEL, j1 - j);
        for (int k = 0; k < f.inner; k += MATMUL_DEPTH) {
            const int depth = least(MATMUL_DEPTH, f.inner - k);
            const bool add = accumulate || k > 0;
            const float* b = packed[0];
            size_t b_row = VP_PANEL;
            if (wide || (!f.b_transposed && valid == VP_PANEL && i1 - i0 < MATMUL_PACK)) {
                b = f.b + (size_t)k * f.columns + j;
                b_row = f.columns;
            } else {
                pack_panel(packed, f, k, depth, j, valid);
            }
            for (int i = i0; i < i1;) {
                const float* a = f.a + i * f.a_row + k * f.a_step;
                float* to = y + (size_t)i * f.columns + j;
                const int left = i1 - i;
                if (wide) {
                    product_block<4, 1>(to, f.columns, a, f, b, b_row, depth, add, valid);
                    i += 1;
                } else if (left >= VP_VECTORS) {
                    product_block<1, VP_VECTORS>(to, f.columns, a, f, b, b_row, depth, add, valid);
                    i += VP_VECTORS;
                } else if (left >= 3) {
                    product_block<1, 3>(to, f.columns, a, f, b, b_row, depth, add, valid);
                    i += 3;
                } else {
                    product_block<1, 1>(to, f.columns, a, f, b, b_row, depth, add, valid);
                    i += 1;
                }
            }
        }
        j += valid;
    }
}

// y[j] = (or +=) a . b_j for N rows of a transposed B.
template <int N> VP_DEVICE void dots(float* y, const float* a, const float* b, int inner, bool accumulate)
{
    float part[N][16] = {{0}};
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
        const float* a = f.a + i * f.a_row;
        float* to = y + (size_t)i * f.columns;
        int j = j0;
        for (; j + 4 <= j1; j += 4) dots<4>(to + j, a, f.b + (size_t)j * f.inner, f.inner, accumulate);
        for (; j < j1; j++) dots<1>(to + j, a, f.b + (size_t)j * f.inner, f.inner, accumulate);
    }
}

// Calls f(i0, i1, j0, j1) for rectangles that make up the elements [u0, u1) of a matrix: part of a row, rows, part of a row.
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
    Factors f = {nullptr, nullptr, contiguous ? (size_t)inner : 1, contiguous ? 1 : (size_t)rows, inner, columns,
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

// dst[j][i] = (or +=) a[i][j], column block by column block so that whole cache lines of the source are used.
VP_ROUTINE void transpose(const Vp& vp, const Transpose& i)
{
    enum { LINE = 16 };
    const int columns = (int)i.columns, rows = i.head.width / columns;
    const bool accumulate = i.head.flags & ACCUMULATE;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            const float* x = i.a.row(r);
            for_rectangles(u0, u1, rows, [&](int i0, int i1, int j0, int j1) {
                for (int line = i0; line < i1; line += LINE)
                    for (int j = j0; j < j1; j += 4)
                        for (int c = line; c < least(line + LINE, i1); c += 4) {
                            float* to = y + (size_t)c * rows + j;
                            const float* from = x + (size_t)j * columns + c;
                            const int high = least(4, i1 - c), wide = least(4, j1 - j);
                            if (!accumulate && high == 4 && wide == 4) transpose_4x4(to, rows, from, columns);
                            else
                                for (int p = 0; p < high; p++)
                                    for (int q = 0; q < wide; q++) {
                                        const float v = from[(size_t)q * columns + p];
                                        to[(size_t)p * rows + q] = accumulate ? to[(size_t)p * rows + q] + v : v;
                                    }
                        }
            });
        }
    });
}
