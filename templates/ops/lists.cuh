#pragma once
#include "../elementwise.cuh"
#include "rowwise.cuh"
// ---- instructions on lists: n counts vertices, and operands are rows of the elements in the vertices' lists
// Elements [from, to) of a vertex's list, and `width` units, starting at `unit`.
struct Strip {
    int vertex, from, to, unit, width;
    VP_DEVICE float* row(const Operand& x, int r) const { return x.row(r) + unit; }

    // total[u] = sum over the elements; f(element, part) adds to part[u]. Chunks keep rounding errors of long lists small.
    template <class F> VP_DEVICE void sum(float* total, F f) const
    {
        float part[STRIP];
        for (int u = 0; u < width; u++) total[u] = 0.f;
        for (int chunk = from; chunk < to; chunk += CHUNK) {
            for (int u = 0; u < width; u++) part[u] = 0.f;
            for (int e = chunk; e < least(chunk + CHUNK, to); e++) f(e, part);
            VP_SIMD for (int u = 0; u < width; u++) total[u] += part[u];
        }
    }
};

template <auto F, class Args> VP_ROUTINE void lists(const Vp& vp, const Args& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for_strips(vp, r0, r1, u0, u1, [&](int r, int u, int width) {
            F(i, {r, (int)i.elements[r], (int)i.elements[r + 1], u, width});
        });
    });
}

// ---- device code of the ops on lists. In backward, a holds the results if the op has a result per element, else the
// elements; dy holds the gradients of the results.

// Sign is 1 for the largest, -1 for the smallest.
template <int Sign> struct ListExtremum {
    // Finds the best value of every unit, and the first element that has it. A NaN is the best value.
    VP_DEVICE static void find(const Operand& a, const Strip& s, float* best, int* where)
    {
        for (int u = 0; u < s.width; u++) where[u] = s.from;
        const float* first = s.row(a, s.from);
        VP_SIMD for (int u = 0; u < s.width; u++) best[u] = first[u];
        for (int e = s.from + 1; e < s.to; e++) {
            const float* x = s.row(a, e);
            VP_SIMD for (int u = 0; u < s.width; u++) {
                const bool better = Sign * x[u] > Sign * best[u] || (x[u] != x[u] && best[u] == best[u]);
                best[u] = better ? x[u] : best[u];
                where[u] = better ? e : where[u];
            }
        }
    }
    VP_DEVICE static void forward(const ListReduce& i, const Strip& s)
    {
        float best[STRIP] = {0};
        int where[STRIP];
        if (s.from < s.to) find(i.a, s, best, where);
        float* y = s.row(i.dst, s.vertex);
        VP_SIMD for (int u = 0; u < s.width; u++) y[u] = best[u];
    }
    VP_DEVICE static void backward(const ListReduceGrad& i, const Strip& s)
    {
        float best[STRIP];
        int where[STRIP];
        if (s.from < s.to) find(i.a, s, best, where);
        const float* dy = s.row(i.dy, s.vertex);
        const bool accumulate = i.head.flags & ACCUMULATE;
        for (int e = s.from; e < s.to; e++) {
            float* d = s.row(i.dst, e);
            VP_SIMD for (int u = 0; u < s.width; u++) {
                const float v = where[u] == e ? dy[u] : 0.f;
                d[u] = accumulate ? d[u] + v : v;
            }
        }
    }
};
using ListMax = ListExtremum<1>;
using ListMin = ListExtremum<-1>;

struct ListSoftmax {
    VP_DEVICE static void forward(const ListMap& i, const Strip& s)
    {
        if (s.from == s.to) return;
        float top[STRIP], total[STRIP];
        int where[STRIP];
        ListMax::find(i.a, s, top, where);
        s.sum(total, [&](int e, float* part) {
            const float* x = s.row(i.a, e);
            float* y = s.row(i.dst, e);
            VP_SIMD for (int u = 0; u < s.width; u++) {
                y[u] = exp_(x[u] - top[u]);
                part[u] += y[u];
            }
        });
        for (int u = 0; u < s.width; u++) total[u] = 1.f / total[u];
        for (int e = s.from; e < s.to; e++) {
            float* y = s.row(i.dst, e);
            VP_SIMD for (int u = 0; u < s.width; u++) y[u] *= total[u];
        }
    }
    // y (dy - sum of y dy). The dy of the largest y is subtracted from all dy first: if a y is nearly 1, the others matter.
    VP_DEVICE static void backward(const ListMapGrad& i, const Strip& s)
    {
        if (s.from == s.to) return;
        float mean[STRIP], top[STRIP];
        int where[STRIP];
        ListMax::find(i.a, s, top, where);
        for (int u = 0; u < s.width; u++) top[u] = s.row(i.dy, where[u])[u];
        s.sum(mean, [&](int e, float* part) {
            const float *y = s.row(i.a, e), *dy = s.row(i.dy, e);
            VP_SIMD for (int u = 0; u < s.width; u++) part[u] = fma_(y[u], dy[u] - top[u], part[u]);
        });
        const bool accumulate = i.head.flags & ACCUMULATE;
        for (int e = s.from; e < s.to; e++) {
            const float *y = s.row(i.a, e), *dy = s.row(i.dy, e);
            float* d = s.row(i.dst, e);
            VP_SIMD for (int u = 0; u < s.width; u++) {
                const float v = y[u] * ((dy[u] - top[u]) - mean[u]);
                d[u] = accumulate ? d[u] + v : v;
            }
        }
    }
};

struct ListLogSoftmax {
    VP_DEVICE static void forward(const ListMap& i, const Strip& s)
    {
        if (s.from == s.to) return;
        float top[STRIP], total[STRIP];
        int where[STRIP];
        ListMax::find(i.a, s, top, where);
        s.sum(total, [&](int e, float* part) {
            const float* x = s.row(i.a, e);
            VP_SIMD for (int u = 0; u < s.width; u++) part[u] += where[u] == e ? 0.f : exp_(x[u] - top[u]);
        });
        VP_SIMD for (int u = 0; u < s.width; u++) total[u] = log1p_(total[u]);
        for (int e = s.from; e < s.to; e++) {
            const float* x = s.row(i.a, e);
            float* y = s.row(i.dst, e);
            VP_SIMD for (int u = 0; u < s.width; u++) y[u] = (x[u] - top[u]) - total[u];
        }
    }
    // Uses the formula of LogSoftmax::backward (rowwise.cuh).
    VP_DEVICE static void backward(const ListMapGrad& i, const Strip& s)
    {
        if (s.from == s.to) return;
        float total[STRIP], of_best[STRIP], best[STRIP];
        int where[STRIP];
        ListMax::find(i.a, s, best, where);
        s.sum(total, [&](int e, float* part) {
            const float* dy = s.row(i.dy, e);
            VP_SIMD for (int u = 0; u < s.width; u++) part[u] += where[u] == e ? 0.f : dy[u];
        });
        for (int u = 0; u < s.width; u++) {
            const float dy = s.row(i.dy, where[u])[u];
            of_best[u] = LogSoftmax::best_gradient(best[u], dy, total[u]);
            total[u] += dy;
        }
        const bool accumulate = i.head.flags & ACCUMULATE;
        for (int e = s.from; e < s.to; e++) {
            const float *y = s.row(i.a, e), *dy = s.row(i.dy, e);
            float* d = s.row(i.dst, e);
            VP_SIMD for (int u = 0; u < s.width; u++) {
                const float v = where[u] == e ? of_best[u] : dy[u] - exp_(y[u]) * total[u];
                d[u] = accumulate ? d[u] + v : v;
            }
        }
    }
};
