#pragma once
#include "matrix.cuh"
// ---- products of computed matrices, CUDA: a thread per element; matrices are row-major
VP_ROUTINE void matmul(const Vp& vp, const Matmul& i)
{
    const int inner = (int)i.inner, rows = (int)i.a_width / inner, columns = (int)i.b_width / inner;
    const int a_row = i.a_transposed ? 1 : inner, a_step = i.a_transposed ? rows : 1;
    const int b_step = i.b_transposed ? 1 : columns, b_column = i.b_transposed ? inner : 1;
    const bool accumulate = i.head.flags & ACCUMULATE;
    struct MatmulRows { float* y; const float *a, *b; };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, [&](int r) { return MatmulRows{i.dst.row(r), i.a.row(r), i.b.row(r)}; },
                  [&](const MatmulRows& f, int u) {
            const float *a = f.a + u / columns * a_row, *b = f.b + u % columns * b_column;
            float sum = 0.f;
            for (int k = 0; k < inner; k++) sum = fma_(a[k * a_step], b[k * b_step], sum);
            f.y[u] = accumulate ? f.y[u] + sum : sum;
        });
    });
}

// dst[r] = W M[r]; M may consist of several segments, stacked vertically.
VP_ROUTINE void packed_matmul(const Vp& vp, const PackedMatmul& i)
{
    const int columns = (int)i.columns;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const Rounding rounded(i.head);
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        VP_TIMELINE(const int rows = (u1 - 1) / columns - u0 / columns + 1;)  // rows of W
        VP_TIMELINE(count_floats(vp, (size_t)(r1 - r0) * rows * i.inner);)
        for_units(vp, r0, r1, u0, u1, [](int r) { return r; }, [&](int r, int u) {
            const float* w = vp.pool + i.weights + (size_t)(u / columns) * i.inner;
            float sum = 0.f;
            VP_ROLLED for (int s = 0; s < i.x.count; s++) {
                int width;
                const float* m = segment(vp, i.x, s, &width).row(r) + u % columns;
                for (int k = 0; k < width; k += columns) sum = fma_(rounded(*w++), rounded(m[k]), sum);
            }
            float* y = i.dst.row(r);
            y[u] = accumulate ? y[u] + sum : sum;
        });
    });
}

// G = (or +=) sum over r of dY[r] M[r]^T, tile by tile: a thread per element.
VP_ROUTINE void packed_matmul_gradient(const Vp& vp, const PackedMatmulGradient& i)
{
    const int columns = (int)i.columns, inner = (int)i.inner;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const Rounding rounded(i.head);
    for_tiles(vp, i.head.width, inner, [&](int row, int from, int to, int) {
        VP_TIMELINE(count_floats(vp, (size_t)(to - from) * (accumulate ? 2 : 1));)
        VP_ROLLED for (int c = from + thread(); c < to; c += THREADS) {
            int s = 0, first = 0, width;
            Operand x = segment(vp, i.x, 0, &width);
            while (c >= first + width / columns) {
                first += width / columns;
                x = segment(vp, i.x, ++s, &width);
            }
            float total = 0.f;
            for (int r = 0; r < i.head.n; r++) {
                const float *dy = i.dy.row(r) + row * columns, *m = x.row(r) + (c - first) * columns;
                float sum = 0.f;
                for (int k = 0; k < columns; k++) sum = fma_(rounded(dy[k]), rounded(m[k]), sum);
                total += sum;
            }
            float* g = vp.pool + i.gradient + (size_t)row * inner + c;
            *g = accumulate ? *g + total : total;
        }
    });
}

// dst[r] = (or +=) the transpose of a[r].
VP_ROUTINE void transpose(const Vp& vp, const Transpose& i)
{
    const int columns = (int)i.columns, rows = i.head.width / columns;
    const bool accumulate = i.head.flags & ACCUMULATE;
    struct Matrices { float* y; const float* x; };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, [&](int r) { return Matrices{i.dst.row(r), i.a.row(r)}; }, [&](const Matrices& m, int u) {
            const float v = m.x[u % rows * columns + u / rows];
            m.y[u] = accumulate ? m.y[u] + v : v;
        });
    });
}
