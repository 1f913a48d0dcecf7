#pragma once
#include "../elementwise.cuh"
#include "../math.cuh"
// ---- row-wise instructions: a virtual processor owns whole rows
// A power of two p with x p in [1, 2), or the nearest available one. Products with it keep all digits.
VP_DEVICE float power_over(float x)
{
    const int exponent = (int)(magnitude(x) >> 23);
    return as_float((Word)(254 - least(most(exponent, 1), 253)) << 23);
}
struct Row {
    float* y;            // result
    const float* x[4];   // operands; in a gradient: the forward pass's operands, its result, its gradient
    int width;           // width of the operands
    int label;           // label of the vertex; 0 if the op has none (its list is at position 0, the script itself)
    float value;         // a Python constant of the op
    bool accumulate;
    bool mine;           // false: another warp writes the row, and this warp only executes the same code

    // put: stores one unit's result. fill: stores all units' results. sum: sums f over units. give: stores a row result.
    VP_DEVICE void put(int u, float v) const { y[u] = accumulate ? y[u] + v : v; }
    template <class F> VP_DEVICE void fill(F f) const
    {
        if (!mine) return;
        // Separate loops over local copies that no store can change, because a CPU compiler vectorises only these.
        float* const to = y;
        const bool add = accumulate;
        if (ONE_LOOP) for_lanes(width, [=](int u) VP_INLINE {
            const float v = f(u);
            to[u] = VP_OPAQUE(add) ? to[u] + v : v;
        });
        else if (add) for_lanes(width, [=](int u) VP_INLINE { to[u] += f(u); });
        else for_lanes(width, [=](int u) VP_INLINE { to[u] = f(u); });
    }
    template <class F> VP_DEVICE float sum(F f) const { return reduce_sum(width, f); }
    // The mean over units of f(u, power), whose terms f multiplies by the power of two, as the plain sum may overflow.
    template <class F> VP_DEVICE float mean(F f) const
    {
        const float n = (float)width, down = 0.5f * power_over(n);
        return sum([&](int u) { return f(u, down); }) / (n * down);
    }
    VP_DEVICE void give(float v) const
    {
        if (mine && first_lane()) put(0, v);
    }
};

template <auto F, class Args, int N>
VP_DEVICE void each_row(const Vp& vp, const Args& i, const Operand (&source)[N])
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        for_rows(vp, r0, r1, [&](int r, bool mine) {
            Row row = {i.dst.row(r), {nullptr, nullptr, nullptr, nullptr}, (int)i.row_width, i.labels == vp.script ? 0 : (int)i.labels[r],
                       i.value, (i.head.flags & ACCUMULATE) != 0, mine};
            VP_UNROLL for (int k = 0; k < N; k++) row.x[k] = source[k].row(r);
            F(row);
        });
    });
}

template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row1& i) { each_row<F>(vp, i, {i.a}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row2& i) { each_row<F>(vp, i, {i.a, i.b}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row3& i) { each_row<F>(vp, i, {i.a, i.b, i.c}); }
template <auto F> VP_ROUTINE void rowwise(const Vp& vp, const Row4& i) { each_row<F>(vp, i, {i.a, i.b, i.c, i.d}); }

// ---- device code of the row-wise ops. In backward, x holds the operands, then the result y, then its gradient dy.
// The largest logit, and the sum of exp(x - largest) over the others. A rounded log-sum-exp, or a sum with 1, would lose
// digits when something is subtracted from it.
struct Exponentials {
    float top, rest;
    VP_DEVICE static Exponentials of(const float* x, int n)
    {
        const int best = arg_max(n, [&](int u) { return x[u]; });
        const float top = x[best];
        const float rest = reduce_sum(n, [&](int u) { return u == best ? 0.f : exp_(x[u] - top); });
        return {top, rest + (top - top)};  // NaN if the largest is infinite
    }
    VP_DEVICE float scale() const { return reciprocal_(1.f + rest); }
    VP_DEVICE float log_sum() const { return log1p_(rest); }
};

struct Sum {
    VP_DEVICE static void forward(const Row& r) { r.give(r.sum([&](int u) { return r.x[0][u]; })); }
    VP_DEVICE static void backward(const Row& r) { r.fill([=](int) VP_INLINE { return r.x[2][0]; }); }
};
struct Mean {
    VP_DEVICE static void forward(const Row& r) { r.give(r.mean([&](int u, float down) { return r.x[0][u] * down; })); }
    VP_DEVICE static void backward(const Row& r)
    {
        const float d = r.x[2][0] / (float)r.width;
        r.fill([=](int) VP_INLINE { return d; });
    }
};
struct Dot {
    VP_DEVICE static void forward(const Row& r) { r.give(r.sum([&](int u) { return r.x[0][u] * r.x[1][u]; })); }
    VP_DEVICE static void backward0(const Row& r) { r.fill([=](int u) VP_INLINE { return r.x[3][0] * r.x[1][u]; }); }
    VP_DEVICE static void backward1(const Row& r) { r.fill([=](int u) VP_INLINE { return r.x[3][0] * r.x[0][u]; }); }
};
// The squared distance, or the mean of the squares.
template <bool MEAN> struct SquaredError {
    VP_DEVICE static void forward(const Row& r)
    {
        const auto square = [&](int u, float down) {
            const float d = r.x[0][u] - r.x[1][u];
            return d * down * d;
        };
        if (MEAN) r.give(r.mean(square));
        else r.give(r.sum([&](int u) { return square(u, 1.f); }));
    }
    VP_DEVICE static void gradient(const Row& r, const float* mine, const float* other)
    {
        const float twice = 2.f * r.x[3][0], scale = MEAN ? twice / (float)r.width : twice;
        r.fill([=](int u) VP_INLINE { return scale * (mine[u] - other[u]); });
    }
    VP_DEVICE static void backward0(const Row& r) { gradient(r, r.x[0], r.x[1]); }
    VP_DEVICE static void backward1(const Row& r) { gradient(r, r.x[1], r.x[0]); }
};
using MeanSquaredError = SquaredError<true>;
using SquaredDistance = SquaredError<false>;
struct ArgMax {
    VP_DEVICE static int position(const float* x, int n) { return arg_max(n, [&](int u) { return x[u]; }); }
    VP_DEVICE static void forward(const Row& r) { r.give((float)position(r.x[0], r.width)); }
};
struct Softmax {
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float scale = e.scale();
        r.fill([=](int u) VP_INLINE { return exp_(r.x[0][u] - e.top) * scale; });
    }
    // y (dy - sum of y dy). The dy of the largest y is subtracted from all dy first: if a y is nearly 1, the others matter.
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2], top = dy[ArgMax::position(y, r.width)];
        const float mean = r.sum([&](int u) { return y[u] * (dy[u] - top); });
        r.fill([=](int u) VP_INLINE { return y[u] * ((dy[u] - top) - mean); });
    }
};
struct LogSoftmax {
    // dy - e^y (dy + others) for the largest y, without cancellation near y = 0. Only the largest y can be near 0.
    VP_DEVICE static float best_gradient(float y, float dy, float others) { return -expm1_(y) * dy - exp_(y) * others; }
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float log_sum = e.log_sum();
        r.fill([=](int u) VP_INLINE { return (r.x[0][u] - e.top) - log_sum; });
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2];
        const int best = ArgMax::position(y, r.width);
        const float others = r.sum([&](int u) { return u == best ? 0.f : dy[u]; }), total = dy[best] + others;
        const float of_best = best_gradient(y[best], dy[best], others);
        r.fill([=](int u) VP_INLINE { return u == best ? of_best : dy[u] - exp_(y[u]) * total; });
    }
};
struct CrossEntropy {
    // At the label, softmax - 1 is -(sum of the others) / (sum of all), which loses no digits to a difference or a sum with 1.
    VP_DEVICE static Exponentials others(const Row& r)
    {
        const float *x = r.x[0], top = reduce_max(r.width, [&](int u) { return x[u]; });
        const int label = r.label;
        return {top, reduce_sum(r.width, [&](int u) { return u == label ? 0.f : exp_(x[u] - top); })};
    }
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = others(r);
        const float below = r.x[0][r.label] - e.top;
        r.give(log1p_(e.rest + (exp_(below) - 1.f)) - below);
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const Exponentials e = others(r);
        // A division, because with reciprocal_ and 184 registers of weights NVRTC 13.5 spills.
        const float *x = r.x[0], dy = r.x[2][0], scale = 1.f / (e.rest + exp_(x[r.label] - e.top)), top = e.top, rest = e.rest;
        const int label = r.label;
        r.fill([=](int u) VP_INLINE { return dy * ((u == label ? -rest : exp_(x[u] - top)) * scale); });
    }
};
struct Cosine {
    // A vector's norm after scaling by a power of two, so that squares are neither 0 nor infinite.
    struct Side {
        float power, norm;
        VP_DEVICE static Side of(const float* x, int n)
        {
            const float power = power_over(reduce_max(n, [&](int u) { return as_float(magnitude(x[u])); }));
            return {power, sqrt_(reduce_sum(n, [&](int u) { return (x[u] * power) * (x[u] * power); }))};
        }
    };
    // True if the product of the norms is above its minimum; otherwise the denominator is a constant.
    VP_DEVICE static bool is_free(const Side& a, const Side& b) { return a.norm / a.power * (b.norm / b.power) > 1e-8f; }
    VP_DEVICE static void forward(const Row& r)
    {
        const Side a = Side::of(r.x[0], r.width), b = Side::of(r.x[1], r.width);
        const float product = r.sum([&](int u) { return (r.x[0][u] * a.power) * (r.x[1][u] * b.power); });
        r.give(is_free(a, b) ? product / (a.norm * b.norm) : product / 1e-8f / a.power / b.power);
    }
    VP_DEVICE static void gradient(const Row& r, const float* mine, const float* other)
    {
        const Side m = Side::of(mine, r.width), o = Side::of(other, r.width);
        const float dy = r.x[3][0];
        const bool free = is_free(m, o);
        const float scale = free ? 1.f / (m.norm * o.norm) : 1.f / 1e-8f;
        const float power = free ? m.power : 1.f, other_power = free ? o.power : 1.f;
        const float inverse = free ? 1.f / (m.norm * m.norm) : 0.f, along = r.x[2][0] * inverse;
        const auto unit = [=](int u) VP_INLINE { return mine[u] * m.power; };
        const auto beside = [=](int u) VP_INLINE { return scale * (other[u] * other_power) - along * unit(u); };
        // Subtracted twice: if the vectors are nearly parallel, the rounding error of the parallel component would hide the rest.
        const float more = free ? r.sum([&](int u) { return beside(u) * unit(u); }) * inverse : 0.f;
        r.fill([=](int u) VP_INLINE { return dy * (beside(u) - more * unit(u)) * power; });
    }
    VP_DEVICE static void backward0(const Row& r) { gradient(r, r.x[0], r.x[1]); }
    VP_DEVICE static void backward1(const Row& r) { gradient(r, r.x[1], r.x[0]); }
};
struct LogSumExp {
    VP_DEVICE static bool is_infinite(float top) { return magnitude(top) == 0x7f800000u; }
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        r.give(is_infinite(e.top) ? e.top : e.top + e.log_sum());
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float scale = r.x[2][0] * e.scale();
        const bool nothing = is_infinite(e.top);  // all are minus infinity, or the loss is infinite
        r.fill([=](int u) VP_INLINE { return nothing ? 0.f : exp_(r.x[0][u] - e.top) * scale; });
    }
};
struct Max {
    VP_DEVICE static void forward(const Row& r) { r.give(reduce_max<true>(r.width, [&](int u) { return r.x[0][u]; })); }
    VP_DEVICE static void backward(const Row& r)
    {
        const int best = ArgMax::position(r.x[0], r.width);
        r.fill([=](int u) VP_INLINE { return u == best ? r.x[2][0] : 0.f; });
    }
};
struct Pick {
    VP_DEVICE static void forward(const Row& r) { r.give(r.x[0][r.label]); }
    VP_DEVICE static void backward(const Row& r)
    {
        r.fill([=](int u) VP_INLINE { return u == r.label ? r.x[2][0] : 0.f; });
    }
};
struct Hinge {
    VP_DEVICE static float margin(const Row& r, int u) { return r.x[0][u] - r.x[0][r.label] + r.value; }
    VP_DEVICE static void forward(const Row& r)
    {
        r.give(r.sum([&](int u) {
                  const float m = margin(r, u);
                  return u != r.label && !(m <= 0.f) ? m : 0.f;
              }));
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float violations = r.sum([&](int u) { return u != r.label && margin(r, u) > 0.f ? 1.f : 0.f; });
        r.fill([=](int u) VP_INLINE { return u == r.label ? -violations * r.x[2][0] : margin(r, u) > 0.f ? r.x[2][0] : 0.f; });
    }
};
struct BinaryCrossEntropy {
    VP_DEVICE static void forward(const Row& r)
    {
        r.give(r.mean([&](int u, float down) {
            const float x = r.x[0][u], t = r.x[1][u], far = x < 0.f ? x : -x;
            const float weight = x > 0.f ? 1.f - t : t;  // weight of the wrong answer's cost, -far; avoids max(x, 0) - x t
            return (weight == 0.f ? 0.f : -far * weight) * down + log1p_(exp_(far)) * down;
        }));
    }
    VP_DEVICE static void backward0(const Row& r)
    {
        const float scale = r.x[3][0] / (float)r.width;
        r.fill([=](int u) VP_INLINE {
            const float x = r.x[0][u], t = r.x[1][u], wrong = sigmoid_(x > 0.f ? -x : x);
            return scale * (x > 0.f ? (1.f - t) - wrong : wrong - t);
        });
    }
    VP_DEVICE static void backward1(const Row& r)
    {
        const float scale = r.x[3][0] / (float)r.width;
        r.fill([=](int u) VP_INLINE { return -scale * r.x[0][u]; });
    }
};
struct KlDivergence {
    VP_DEVICE static void forward(const Row& r)
    {
        r.give(r.sum([&](int u) {
                  const float p = r.x[1][u];
                  return p > 0.f ? p * (log_(p) - r.x[0][u]) : 0.f;
              }));
    }
    VP_DEVICE static void backward0(const Row& r) { r.fill([=](int u) VP_INLINE { return -r.x[3][0] * r.x[1][u]; }); }
    VP_DEVICE static void backward1(const Row& r)
    {
        r.fill([=](int u) VP_INLINE {
            const float p = r.x[1][u];
            return p > 0.f ? r.x[3][0] * (log_(p) + 1.f - r.x[0][u]) : 0.f;
        });
    }
};
struct LayerNorm {
    // The mean is rounded, so its error is subtracted too: equal elements leave nothing that 1 / sqrt(eps) would magnify.
    // Dividing elements by 4 keeps differences finite. Scaling by a power of two keeps squares from being infinite or 0.
    struct Moments {
        float mean, rest, top, power, eps, variance;
        VP_DEVICE float difference(float x) const { return (x * 0.25f - mean) - rest; }
        VP_DEVICE float centred(float x) const { return difference(x) * power; }
        VP_DEVICE float scale() const { return 1.f / sqrt_(variance + eps); }
    };
    VP_DEVICE static Moments of(const Row& r)
    {
        const float* x = r.x[0];
        Moments m{r.mean([&](int u, float down) { return x[u] * 0.25f * down; }), 0.f, 0.f, 0.f, 0.f, 0.f};
        m.rest = r.mean([&](int u, float down) { return (x[u] * 0.25f - m.mean) * down; });
        const float least_of_all = r.value > 0.f ? 0.25f * sqrt_(r.value) : 0.f;
        m.top = reduce_max(r.width, [&](int u) { return as_float(magnitude(m.difference(x[u]))); });
        m.power = power_over(m.top < least_of_all ? least_of_all : m.top);
        m.eps = r.value * (0.25f * m.power) * (0.25f * m.power);
        m.variance = r.sum([&](int u) { return m.centred(x[u]) * m.centred(x[u]); }) / (float)r.width;
        return m;
    }
    VP_DEVICE static void forward(const Row& r)
    {
        const Moments m = of(r);
        const float scale = m.scale();
        r.fill([=](int u) VP_INLINE { return m.centred(r.x[0][u]) * scale; });
    }
    // The gradient is dy minus its mean, minus its component along the result, except for the share due to eps. The component
    // is subtracted twice: if it is nearly all of dy, its rounding error would hide the rest.
    VP_DEVICE static void backward(const Row& r)
    {
        const Moments m = of(r);
        const float *x = r.x[0], *dy = r.x[2], scale = m.scale(), power = power_over(m.top);
        const float mean = r.mean([&](int u, float down) { return dy[u] * down; });
        const float rest = r.mean([&](int u, float down) { return (dy[u] - mean) * down; });
        const auto result = [=](int u) VP_INLINE { return m.difference(x[u]) * power; };  // up to a constant factor
        const float squares = r.sum([&](int u) { return result(u) * result(u); }), inverse = squares > 0.f ? 1.f / squares : 0.f;
        const float along = r.sum([&](int u) { return ((dy[u] - mean) - rest) * result(u); }) * inverse;
        const auto beside = [=](int u) VP_INLINE { return ((dy[u] - mean) - rest) - result(u) * along; };
        const float off = r.mean([&](int u, float down) { return beside(u) * down; });
        const float more = r.sum([&](int u) { return (beside(u) - off) * result(u); }) * inverse;
        const float left = (along + more) * (m.eps / (m.variance + m.eps)) - more;
        r.fill([=](int u) VP_INLINE { return ((beside(u) - off) + result(u) * left) * scale * (0.25f * m.power); });
    }
};
