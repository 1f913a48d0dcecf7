// ---- row-wise instructions: a virtual processor owns whole rows
struct Row {
    float* y;            // result
    const float* x[4];   // operands; in a gradient: the forward pass's operands, its result, its gradient
    int width;           // of the operands
    int label;           // of the vertex; 0 where the op takes none (its list is at position 0, the script itself)
    float value;         // a Python constant of the op
    bool accumulate;
    bool mine;           // else another one computes it, and this one only keeps in step

    // The result of a unit; of all units; the sum of f over units; the result of a row that has a single one.
    VP_DEVICE void put(int u, float v) const { y[u] = accumulate ? y[u] + v : v; }
    template <class F> VP_DEVICE void fill(F f) const
    {
        if (!mine) return;
        // A loop each, over copies that no store can change: a CPU compiler makes vector code of these only.
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
// The largest logit, and the sum of exp(x - largest): never a rounded log-sum-exp, which would cost digits when subtracted.
struct Exponentials {
    float top, sum;
    VP_DEVICE static Exponentials of(const float* x, int n)
    {
        const float top = reduce_max(n, [&](int u) { return x[u]; });
        return {top, reduce_sum(n, [&](int u) { return exp_(x[u] - top); })};
    }
};

struct Sum {
    VP_DEVICE static void forward(const Row& r) { r.give(r.sum([&](int u) { return r.x[0][u]; })); }
    VP_DEVICE static void backward(const Row& r) { r.fill([=](int) VP_INLINE { return r.x[2][0]; }); }
};
struct Mean {
    VP_DEVICE static void forward(const Row& r) { r.give(r.sum([&](int u) { return r.x[0][u]; }) / (float)r.width); }
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
        const float total = r.sum([&](int u) {
            const float d = r.x[0][u] - r.x[1][u];
            return d * d;
        });
        r.give(MEAN ? total / (float)r.width : total);
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
        const float scale = 1.f / e.sum;
        r.fill([=](int u) VP_INLINE { return exp_(r.x[0][u] - e.top) * scale; });
    }
    // y (dy - sum of y dy), all dy less that of the largest y first: where one y is nearly 1 the rest is what counts.
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2], top = dy[ArgMax::position(y, r.width)];
        const float mean = r.sum([&](int u) { return y[u] * (dy[u] - top); });
        r.fill([=](int u) VP_INLINE { return y[u] * ((dy[u] - top) - mean); });
    }
};
struct LogSoftmax {
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float log_sum = log_(e.sum);
        r.fill([=](int u) VP_INLINE { return (r.x[0][u] - e.top) - log_sum; });
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2];
        const float total = r.sum([&](int u) { return dy[u]; });
        r.fill([=](int u) VP_INLINE { return dy[u] - exp_(y[u]) * total; });
    }
};
struct CrossEntropy {
    // From x - x[label], so that the loss of a confident right answer keeps its digits.
    VP_DEVICE static float loss(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        return (e.top - r.x[0][r.label]) + log_(e.sum);
    }
    VP_DEVICE static void forward(const Row& r) { r.give(loss(r)); }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *x = r.x[0], mine = x[r.label], y = r.x[1][0], dy = r.x[2][0];
        const int label = r.label;
        r.fill([=](int u) VP_INLINE { return dy * (exp_((x[u] - mine) - y) - (u == label ? 1.f : 0.f)); });
    }
};
struct Cosine {
    VP_DEVICE static float norm(const float* x, int n)
    {
        return sqrt_(reduce_sum(n, [&](int u) { return x[u] * x[u]; }));
    }
    VP_DEVICE static void forward(const Row& r)
    {
        const float norms = norm(r.x[0], r.width) * norm(r.x[1], r.width);
        const float product = r.sum([&](int u) { return r.x[0][u] * r.x[1][u]; });
        r.give(product / (norms > 1e-8f ? norms : 1e-8f));
    }
    VP_DEVICE static void gradient(const Row& r, const float* mine, const float* other)
    {
        const float my_norm = norm(mine, r.width), norms = my_norm * norm(other, r.width), dy = r.x[3][0];
        const bool free = norms > 1e-8f;  // else the denominator is a constant
        const float scale = dy / (free ? norms : 1e-8f), along = free ? dy * r.x[2][0] / (my_norm * my_norm) : 0.f;
        r.fill([=](int u) VP_INLINE { return scale * other[u] - along * mine[u]; });
    }
    VP_DEVICE static void backward0(const Row& r) { gradient(r, r.x[0], r.x[1]); }
    VP_DEVICE static void backward1(const Row& r) { gradient(r, r.x[1], r.x[0]); }
};
struct LogSumExp {
    VP_DEVICE static bool is_infinite(float top) { return magnitude(top) == 0x7f800000u; }
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        r.give(is_infinite(e.top) ? e.top : e.top + log_(e.sum));
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float scale = r.x[2][0] / e.sum;
        const bool nothing = is_infinite(e.top);  // all are minus infinity, or the loss is infinite
        r.fill([=](int u) VP_INLINE { return nothing ? 0.f : exp_(r.x[0][u] - e.top) * scale; });
    }
};
struct Max {
    VP_DEVICE static void forward(const Row& r) { r.give(reduce_max(r.width, [&](int u) { return r.x[0][u]; })); }
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
        const float total = r.sum([&](int u) {
            const float x = r.x[0][u], far = x < 0.f ? x : -x;
            return (x > 0.f ? x : 0.f) - x * r.x[1][u] + log1p_(exp_(far));
        });
        r.give(total / (float)r.width);
    }
    VP_DEVICE static void backward0(const Row& r)
    {
        const float scale = r.x[3][0] / (float)r.width;
        r.fill([=](int u) VP_INLINE { return scale * (sigmoid_(r.x[0][u]) - r.x[1][u]); });
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
    // The mean is rounded; what it is off by is subtracted, too: of equal elements nothing is left that 1 / sqrt(eps) magnifies.
    struct Moments {
        float mean, rest, scale;
        VP_DEVICE float centred(float x) const { return (x - mean) - rest; }
    };
    VP_DEVICE static Moments of(const Row& r)
    {
        const float *x = r.x[0], n = (float)r.width;
        Moments m{r.sum([&](int u) { return x[u]; }) / n, 0.f, 0.f};
        m.rest = r.sum([&](int u) { return x[u] - m.mean; }) / n;
        const float squares = r.sum([&](int u) { return m.centred(x[u]) * m.centred(x[u]); });
        m.scale = 1.f / sqrt_(squares / n + r.value);
        return m;
    }
    VP_DEVICE static void forward(const Row& r)
    {
        const Moments m = of(r);
        r.fill([=](int u) VP_INLINE { return m.centred(r.x[0][u]) * m.scale; });
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2];
        const float scale = of(r).scale;
        const float mean = r.sum([&](int u) { return dy[u]; }) / (float)r.width;
        const float along = r.sum([&](int u) { return dy[u] * y[u]; }) / (float)r.width;
        r.fill([=](int u) VP_INLINE { return scale * (dy[u] - mean - y[u] * along); });
    }
};
