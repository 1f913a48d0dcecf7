// ---- optimizers: one weight's step. The members of Hyper are HYPER in vpps/optim.py.
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
    memcpy(&h, vp.script + position, sizeof h);
    return h;
}

// A run of weights with their gradients, moments and average, all contiguous. `g` null: the gradient is zero.
template <class Rule>
VP_DEVICE void update_run(float* w, const float* g, float* m, float* v, int n, float scale, const Hyper& h, float* average,
                          float complement)
{
    VP_SIMD for (int k = 0; k < n; k++) {
        float unused = 0;
        float gradient = g ? g[k] * scale : 0.f;
        if constexpr (Rule::MOMENTS == 0) Rule::step(w[k], gradient, unused, unused, h);
        if constexpr (Rule::MOMENTS == 1) Rule::step(w[k], gradient, m[k], unused, h);
        if constexpr (Rule::MOMENTS == 2) Rule::step(w[k], gradient, m[k], v[k], h);
    }
    // In this form weights that stand still are an average that stands still, to the last bit.
    if (average) {
        VP_SIMD for (int k = 0; k < n; k++) average[k] = fma_(complement, w[k] - average[k], average[k]);
    }
}

VP_DEVICE float* average_at(const Vp& vp, Word average, size_t at) { return average ? vp.pool + average + at : nullptr; }

template <class Rule> VP_ROUTINE void update_vector(const Vp& vp, const UpdateVector& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    const bool none = i.head.flags & NO_GRADIENT;
    for_slices(vp, i.head, [&](int, int, int u0, int u1) {
        VP_TIMELINE(count_floats(vp, (size_t)(u1 - u0) * updated_floats<Rule>(!none));)
        update_run<Rule>(vp.pool + i.weights + u0, none ? nullptr : vp.pool + i.gradient + u0, vp.pool + i.moment0 + u0,
                         vp.pool + i.moment1 + u0, u1 - u0, vp.gradient_scale, h, average_at(vp, i.average, u0),
                         i.complement);
    });
}

// Rows of a table, only those that the batch used (lazy update): table_rows[r] is the row whose gradient is row r. The
// weights of a row that updates passed by stood still, so its average came nearer to them by decay^updates: idle[r].
template <class Rule> VP_ROUTINE void update_rows(const Vp& vp, const UpdateRows& i)
{
    const Hyper h = hyper_of(vp, i.hyper);
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        VP_TIMELINE(count_floats(vp, (size_t)(r1 - r0) * (u1 - u0) * updated_floats<Rule>(true));)
        for (int r = r0; r < r1; r++) {
            const size_t at = (size_t)i.table_rows[r] * i.head.width + u0;
            float *w = vp.pool + i.weights + at, *average = average_at(vp, i.average, at);
            const float idle = average ? as_float(i.idle[r]) : 1.f;
            if (idle != 1.f) {
                VP_SIMD for (int k = 0; k < u1 - u0; k++) average[k] = fma_(idle, average[k] - w[k], w[k]);
            }
            update_run<Rule>(w, vp.pool + i.gradient + (size_t)r * i.head.width + u0, vp.pool + i.moment0 + at,
                             vp.pool + i.moment1 + at, u1 - u0, vp.gradient_scale, h, average, i.complement);
        }
    });
}

// Sum of squares of each row of a gradient, one partial sum per row.
VP_ROUTINE void squares_rows(const Vp& vp, const SquaresRows& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int, int) {
        for (int r = r0; r < r1; r++) {
            const float* g = vp.pool + i.gradient + (size_t)r * i.head.width;
            vp.pool[i.partials + r] = reduce_sum(i.head.width, [&](int u) { return g[u] * g[u]; });
        }
    });
}

// Every virtual processor sums the partial sums in the same order and so gets the same scale.
VP_ROUTINE void clip(Vp& vp, const Clip& i)
{
    const float* partials = vp.pool + i.partials;
    const float norm = sqrt_(reduce_sum(i.head.n, [&](int k) { return partials[k]; }));
    vp.gradient_scale = norm > i.max_norm ? i.max_norm / norm : 1.f;
}
