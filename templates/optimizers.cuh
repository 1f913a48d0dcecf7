#pragma once
#include "guard.cuh"
#include "timeline.h"
// ---- optimizers: steps for single weights. The members of Hyper are HYPER in vpps/model/optim.py.
struct Sgd {
    enum { MOMENTS = 0 };
    VP_DEVICE static void step(float& w, float g, float&, float&, const Hyper& h) { w -= h.lr * fma_(h.weight_decay, w, g); }
};
struct HeavyBall {
    enum { MOMENTS = 1 };
    VP_DEVICE static void step(float& w, float g, float& m, float&, const Hyper& h)
    {
        m = fma_(h.beta1, m, fma_(h.weight_decay, w, g));
        w -= h.lr * m;
    }
};
struct Adam {
    enum { MOMENTS = 2 };
    VP_DEVICE static void step(float& w, float g, float& m, float& v, const Hyper& h)
    {
        const float d = fma_(h.weight_decay, w, g);
        m = fma_(h.beta1, m, h.complement1 * d);
        v = fma_(h.beta2, v, h.complement2 * (d * d));
        w -= h.step_size * m / fma_(sqrt_(v), h.inv_sqrt_correction, h.eps);
    }
};

struct NesterovMomentum {
    enum { MOMENTS = 1 };
    VP_DEVICE static void step(float& w, float g, float& m, float&, const Hyper& h)
    {
        const float d = fma_(h.weight_decay, w, g);
        m = fma_(h.beta1, m, d);
        w -= h.lr * fma_(h.beta1, m, d);
    }
};
struct AdamDecoupled {
    enum { MOMENTS = 2 };
    VP_DEVICE static void step(float& w, float g, float& m, float& v, const Hyper& h)
    {
        m = fma_(h.beta1, m, h.complement1 * g);
        v = fma_(h.beta2, v, h.complement2 * (g * g));
        w -= fma_(h.lr * h.weight_decay, w, h.step_size * m / fma_(sqrt_(v), h.inv_sqrt_correction, h.eps));
    }
};
struct Adagrad {
    enum { MOMENTS = 1 };
    VP_DEVICE static void step(float& w, float g, float& v, float&, const Hyper& h)
    {
        const float d = fma_(h.weight_decay, w, g);
        v = fma_(d, d, v);
        w -= h.lr * d / (sqrt_(v) + h.eps);
    }
};
struct RmsProp {
    enum { MOMENTS = 1 };
    VP_DEVICE static void step(float& w, float g, float& v, float&, const Hyper& h)
    {
        const float d = fma_(h.weight_decay, w, g);
        v = fma_(h.beta2, v, h.complement2 * (d * d));
        w -= h.lr * d / (sqrt_(v) + h.eps);
    }
};

VP_DEVICE Hyper hyper_of(const Vp& vp, Word position)
{
    Hyper h;
    VP_UNROLL for (int k = 0; k < (int)(sizeof h / sizeof(float)); k++) (&h.lr)[k] = as_float(vp.script[position + k]);
    return h;
}

// Addresses of weights and of their gradients, moments and averages, which share one layout. If `g` is null, the gradient is
// zero; if `average` is null, there is none.
struct Weights {
    float* w;
    const float* g;
    float *m, *v, *average;

    VP_DEVICE Weights from(size_t k) const { return {w + k, g ? g + k : nullptr, m + k, v + k, average ? average + k : nullptr}; }
};
template <class Args> VP_DEVICE Weights weights_of(const Vp& vp, const Args& i)
{
    return {vp.pool + i.weights, i.head.flags & NO_GRADIENT ? nullptr : vp.pool + i.gradient, vp.pool + i.moment0,
            vp.pool + i.moment1, i.average ? vp.pool + i.average : nullptr};
}

// Steps the k-th weight with a gradient; returns the new weight. All reads precede all writes, because the compiler must
// assume that the arrays alias, and would otherwise order every access.
template <class Rule> VP_DEVICE float step(const Weights& at, int k, float gradient, const Hyper& h)
{
    float w = at.w[k], m = 0.f, v = 0.f;
    if constexpr (Rule::MOMENTS > 0) m = at.m[k];
    if constexpr (Rule::MOMENTS > 1) v = at.v[k];
    Rule::step(w, gradient, m, v, h);
    at.w[k] = w;
    if constexpr (Rule::MOMENTS > 0) at.m[k] = m;
    if constexpr (Rule::MOMENTS > 1) at.v[k] = v;
    return w;
}

// Updates the average. In this form, an average that equals constant weights stays exactly constant.
VP_DEVICE void average(const Weights& at, int k, float complement)
{
    at.average[k] = fma_(complement, at.w[k] - at.average[k], at.average[k]);
}

// Steps n weights. Separate loops let the compiler vectorise the common cases.
template <class Rule, class Args> VP_DEVICE void step_run(const Vp& vp, const Args& i, const Weights& at, int n, const Hyper& h)
{
    if (ONE_LOOP) {
        const bool none = !at.g;
        for_run(vp, n, [&](int k) {
            step<Rule>(at, k, VP_OPAQUE(none) ? 0.f : at.g[k] * vp.gradient_scale, h);
            if (VP_OPAQUE(at.average)) average(at, k, i.complement);
        });
        return;
    }
    if (at.g) for_run(vp, n, [&](int k) { step<Rule>(at, k, at.g[k] * vp.gradient_scale, h); });
    else for_run(vp, n, [&](int k) { step<Rule>(at, k, 0.f, h); });
    if (at.average) for_run(vp, n, [&](int k) { average(at, k, i.complement); });
}

// Number of floats that a weight's step reads or writes: weight and moments twice, gradient once.
template <class Rule> VP_DEVICE constexpr int updated_floats(bool has_gradient) { return 2 + has_gradient + 2 * Rule::MOMENTS; }

template <class Rule> VP_ROUTINE void update_vector(const Vp& vp, const UpdateVector& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    for_slices(vp, i.head, [&](int, int, int u0, int u1) {
        VP_TIMELINE(count_floats(vp, (size_t)(u1 - u0) * updated_floats<Rule>(!(i.head.flags & NO_GRADIENT)));)
        step_run<Rule>(vp, i, weights_of(vp, i).from(u0), u1 - u0, h);
    });
}

// Steps only the table rows that the batch used (lazy update): table_rows[r] is the row whose gradient is row r. A row's
// weights are constant during updates that skip it, so its average approaches them by the factor idle[r] = decay^updates.
template <class Rule> VP_ROUTINE void update_rows(const Vp& vp, const UpdateRows& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    struct UsedRow { Weights at; float idle; };
    const auto rows = [&](int r) {
        UsedRow row = {weights_of(vp, i).from((size_t)i.table_rows[r] * i.head.width), 1.f};
        row.at.g = vp.pool + i.gradient + (size_t)r * i.head.width;
        if (row.at.average) row.idle = as_float(i.idle[r]);
        return row;
    };
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        VP_TIMELINE(count_floats(vp, (size_t)(r1 - r0) * (u1 - u0) * updated_floats<Rule>(true));)
        if (!ONE_LOOP && !i.average) {
            for_units(vp, r0, r1, u0, u1, rows, [&](const UsedRow& row, int u) {
                step<Rule>(row.at, u, row.at.g[u] * vp.gradient_scale, h);
            });
            return;
        }
        for_units(vp, r0, r1, u0, u1, rows, [&](const UsedRow& row, int u) {
            const Weights& at = row.at;
            const bool averages = at.average;
            if (VP_OPAQUE(averages) && row.idle != 1.f) at.average[u] = fma_(row.idle, at.average[u] - at.w[u], at.w[u]);
            step<Rule>(at, u, at.g[u] * vp.gradient_scale, h);
            if (VP_OPAQUE(averages)) average(at, u, i.complement);
        });
    });
}

// Sums of squares of a gradient's rows: one partial sum per row.
VP_ROUTINE void squares_rows(const Vp& vp, const SquaresRows& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        for_rows(vp, r0, r1, [&](int r, bool mine) {
            const float* g = vp.pool + i.gradient + (size_t)r * i.head.width;
            const float sum = reduce_sum(i.head.width, [&](int u) { return g[u] * g[u]; });
            if (mine && first_lane()) vp.pool[i.partials + r] = sum;
        });
    });
}

// Every virtual processor sums the partial sums in the same order, and gets the same scale. Returns false if the norm is not
// finite (see guard); the gradients may then have been accumulated already.
VP_ROUTINE bool clip(Vp& vp, const Clip& i)
{
    const float* partials = vp.pool + i.partials;
    const float norm = sqrt_(sum_of_all(vp, i.head.n, [&](int k) { return partials[k]; }));
    vp.gradient_scale = norm > i.max_norm ? i.max_norm / norm : 1.f;
    return goes_on(vp, i.left_out, magnitude(norm) < 0x7f800000u, 0x7f800000u);
}
