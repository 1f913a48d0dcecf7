#pragma once
#include "instructions.h"
#include "timeline.h"
// ---- elementwise instructions, and instructions that copy or sum rows
template <int N> struct Rows {
    float* y;
    const float* x[N];
};
template <auto F> VP_DEVICE float apply(const Rows<1>& r, const int (&u)[1], float value) { return F(r.x[0][u[0]], value); }
template <auto F> VP_DEVICE float apply(const Rows<2>& r, const int (&u)[2], float value)
{
    return F(r.x[0][u[0]], r.x[1][u[1]], value);
}
template <auto F> VP_DEVICE float apply(const Rows<3>& r, const int (&u)[3], float value)
{
    return F(r.x[0][u[0]], r.x[1][u[1]], r.x[2][u[2]], value);
}
template <auto F> VP_DEVICE float apply(const Rows<4>& r, const int (&u)[4], float value)
{
    return F(r.x[0][u[0]], r.x[1][u[1]], r.x[2][u[2]], r.x[3][u[3]], value);
}

template <int N> struct Sources { Operand of[N]; };
VP_DEVICE Sources<1> sources(const Map1& i) { return {i.a}; }
VP_DEVICE Sources<2> sources(const Map2& i) { return {i.a, i.b}; }
VP_DEVICE Sources<3> sources(const Map3& i) { return {i.a, i.b, i.c}; }
VP_DEVICE Sources<4> sources(const Map4& i) { return {i.a, i.b, i.c, i.d}; }

// dst[r][u] = f(the sources' rows, units in these).
template <int N, class Args, class F> VP_DEVICE void map_rows(const Vp& vp, const Args& i, const Sources<N>& source, F f)
{
    bool any_scalar = false;
    VP_UNROLL for (int k = 0; k < N; k++) any_scalar |= source.of[k].scalar;
    const bool accumulate = i.head.flags & ACCUMULATE;
    const auto rows = [&](int r) {
        Rows<N> row;
        row.y = i.dst.row(r);
        VP_UNROLL for (int k = 0; k < N; k++) row.x[k] = source.of[k].row(r);
        return row;
    };
    const auto at = [&](const Rows<N>& row, int u) VP_INLINE {
        int units[N];
        VP_UNROLL for (int k = 0; k < N; k++) units[k] = u;
        return f(row, units);
    };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        if (ONE_LOOP || any_scalar) {
            for_units(vp, r0, r1, u0, u1, rows, [&](const Rows<N>& row, int u) {
                int units[N];
                VP_UNROLL for (int k = 0; k < N; k++) units[k] = source.of[k].scalar ? 0 : u;
                const float v = f(row, units);
                row.y[u] = VP_OPAQUE(accumulate) ? row.y[u] + v : v;
            });
        } else if (accumulate) {
            for_units(vp, r0, r1, u0, u1, rows, [&](const Rows<N>& row, int u) { row.y[u] += at(row, u); });
        } else {
            for_units(vp, r0, r1, u0, u1, rows, [&](const Rows<N>& row, int u) { row.y[u] = at(row, u); });
        }
    });
}

// F is a device function of templates/ops.
template <auto F, int N, class Args> VP_ROUTINE void map(const Vp& vp, const Args& i)
{
    map_rows(vp, i, sources(i), [&](const auto& row, const auto& units) VP_INLINE { return apply<F>(row, units, i.value); });
}

VP_ROUTINE void zero(const Vp& vp, const Fill& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, [&](int r) { return i.dst.row(r); }, [](float* y, int u) { y[u] = 0.f; });
    });
}

VP_ROUTINE void input(const Vp& vp, const Input& i)
{
    const auto rows = [&](int r) {
        struct { float* y; const Word* x; } row = {i.dst.row(r), vp.script + i.data + (size_t)r * i.head.width};
        return row;
    };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, rows, [](const auto& row, int u) { row.y[u] = as_float(row.x[u]); });
    });
}

// dst[r] = sum (or mean) of the rows script[offsets[r]] .. script[offsets[r + 1] - 1], skipping `shift` floats in each.
VP_ROUTINE void gather_sum(const Vp& vp, const GatherSum& i)
{
    const bool accumulate = i.head.flags & ACCUMULATE, mean = i.head.flags & MEAN;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        const auto scale = [&](int n) { return mean && n ? 1.f / (float)n : 1.f; };
        if (few_long_sums(r1 - r0, u1 - u0, (int)(i.offsets[r1] - i.offsets[r0]))) {
            for (int r = r0; r < r1; r++) {
                float* y = i.dst.row(r);
                const Word* entries = vp.script + i.offsets[r];
                const int n = (int)(i.offsets[r + 1] - i.offsets[r]);
                VP_ROLLED for (int u = u0; u < u1; u++) {
                    const float sum = sum_by_block(n, [&](int k) { return vp.pool + entries[k] + i.shift + u; }) * scale(n);
                    for_run(vp, 1, [&](int) { y[u] = accumulate ? y[u] + sum : sum; });
                }
            }
            return;
        }
        for_strips(vp, r0, r1, u0, u1, [&](int r, int s, int width) {
            float* y = i.dst.row(r) + s;
            const Word* entries = vp.script + i.offsets[r];
            const int n = (int)(i.offsets[r + 1] - i.offsets[r]);
            const auto row = [&](int k) { return vp.pool + entries[k] + i.shift + s; };
            if (STRIP > 1 && n == 1) {  // the usual case; a separate loop pays off if one thread computes many sums
                const float* x = row(0);
                if (accumulate) {
                    VP_SIMD for (int u = 0; u < width; u++) y[u] += 0.f + x[u];
                } else {
                    VP_SIMD for (int u = 0; u < width; u++) y[u] = 0.f + x[u];
                }
                return;
            }
            const float factor = scale(n);
            if (ONE_LOOP) sum_strip(n, width, row, [&](int u, float sum) { y[u] = VP_OPAQUE(accumulate) ? y[u] + sum * factor : sum * factor; });
            else if (accumulate) sum_strip(n, width, row, [&](int u, float sum) { y[u] += sum * factor; });
            else sum_strip(n, width, row, [&](int u, float sum) { y[u] = sum * factor; });
        });
    });
}

// dst[r] = src[r] / length of list r: the gradient that the mean of a list gives to each of its elements.
VP_ROUTINE void divide_by_count(const Vp& vp, const DivideByCount& i)
{
    const auto rows = [&](int r) {
        struct { float* y; const float* x; float scale; } row = {
            i.dst.row(r), i.src.row(r), 1.f / (float)most(1, (int)(i.offsets[r + 1] - i.offsets[r]))};
        return row;
    };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, rows, [](const auto& row, int u) { row.y[u] = row.x[u] * row.scale; });
    });
}

// vector[u] = sum over rows of src[r][u]: the gradient of a bias or of any parameter vector.
VP_ROUTINE void column_sum(const Vp& vp, const ColumnSum& i)
{
    const bool accumulate = i.head.flags & ACCUMULATE;
    float* y = vp.pool + i.vector;
    for_slices(vp, i.head, [&](int, int, int u0, int u1) {
        sum_columns(vp, i.head.n, u0, u1, [&](int r) { return i.src.row(r); },
                    [&](int u, float sum) { y[u] = accumulate ? y[u] + sum : sum; });
    });
}

// dst[r] = consecutive rows of a packed matrix, from row labels[r] on, or from row 0 if there is no list.
template <class Args> VP_DEVICE int first_row(const Vp& vp, const Args& i, int r)
{
    return i.labels == vp.script ? 0 : (int)i.labels[r];
}
VP_ROUTINE void packed_rows(const Vp& vp, const PackedRows& i)
{
    const int columns = (int)i.columns;
    const auto rows = [&](int r) {
        struct { float* y; int first; } row = {i.dst.row(r), first_row(vp, i, r)};
        return row;
    };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_units(vp, r0, r1, u0, u1, rows, [&](const auto& row, int u) {
            const int at = row.first + u / columns;
            row.y[u] = vp.pool[i.weights + ((size_t)(at / VP_PANEL) * columns + u % columns) * VP_PANEL + at % VP_PANEL];
        });
    });
}

// G = (or +=) sum over r of dy[r], added to the rows that dst[r] was copied from. A tile adds them in increasing r.
VP_ROUTINE void packed_rows_gradient(const Vp& vp, const PackedRowsGradient& i)
{
    const int columns = (int)i.columns, count = (int)i.dy_width / columns;
    const OwnTiles own(vp, i.head.width, columns);
    const auto tile = [&](int panel, int from) { return vp.pool + i.gradient + ((size_t)panel * columns + from) * VP_PANEL; };
    if (own.first == own.last) return;
    if (!(i.head.flags & ACCUMULATE))
        for_tiles(vp, i.head.width, columns, [&](int panel, int from, int to, int) {
            float* g = tile(panel, from);
            for_run(vp, (to - from) * VP_PANEL, [&](int k) { g[k] = 0.f; });
        });
    VP_ROLLED for (int r = 0; r < i.head.n; r++) {
        const int first = first_row(vp, i, r);
        const int low = most(first, own.first / own.across * VP_PANEL);
        const int high = least(first + count, (own.last_panel() + 1) * VP_PANEL);
        VP_ROLLED for (int row = low; row < high; row++) {
            const int panel = row / VP_PANEL, across = panel * own.across;
            const int begin = most(own.first, across), end = least(own.last, across + own.across);
            VP_ROLLED for (int t = begin; t < end; t++) {
                const int from = (t - across) * VP_TILE_COLUMNS, to = least(from + VP_TILE_COLUMNS, columns);
                float* g = tile(panel, from) + row % VP_PANEL;
                const float* dy = i.dy.row(r) + (size_t)(row - first) * columns + from;
                for_run(vp, to - from, [&](int c) { g[c * VP_PANEL] += dy[c]; });
            }
        }
    }
}
