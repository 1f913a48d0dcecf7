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
    VP_DEVICE static void forward(const Row& r)
    {
        r.put(0, reduce_sum(r.width, [&](int u) { return r.x[0][u]; }));
    }
    VP_DEVICE static void backward(const Row& r)
    {
        for (int u = 0; u < r.width; u++) r.put(u, r.x[2][0]);
    }
};
struct Mean {
    VP_DEVICE static void forward(const Row& r)
    {
        r.put(0, reduce_sum(r.width, [&](int u) { return r.x[0][u]; }) / (float)r.width);
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float d = r.x[2][0] / (float)r.width;
        for (int u = 0; u < r.width; u++) r.put(u, d);
    }
};
struct Dot {
    VP_DEVICE static void forward(const Row& r)
    {
        r.put(0, reduce_sum(r.width, [&](int u) { return r.x[0][u] * r.x[1][u]; }));
    }
    VP_DEVICE static void backward0(const Row& r)
    {
        for (int u = 0; u < r.width; u++) r.put(u, r.x[3][0] * r.x[1][u]);
    }
    VP_DEVICE static void backward1(const Row& r)
    {
        for (int u = 0; u < r.width; u++) r.put(u, r.x[3][0] * r.x[0][u]);
    }
};
struct MeanSquaredError {
    VP_DEVICE static void forward(const Row& r)
    {
        const float total = reduce_sum(r.width, [&](int u) {
            const float d = r.x[0][u] - r.x[1][u];
            return d * d;
        });
        r.put(0, total / (float)r.width);
    }
    VP_DEVICE static void gradient(const Row& r, const float* mine, const float* other)
    {
        const float scale = 2.f * r.x[3][0] / (float)r.width;
        for (int u = 0; u < r.width; u++) r.put(u, scale * (mine[u] - other[u]));
    }
    VP_DEVICE static void backward0(const Row& r) { gradient(r, r.x[0], r.x[1]); }
    VP_DEVICE static void backward1(const Row& r) { gradient(r, r.x[1], r.x[0]); }
};
struct Softmax {
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float scale = 1.f / e.sum;
        for (int u = 0; u < r.width; u++) r.put(u, exp_(r.x[0][u] - e.top) * scale);
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2];
        const float mean = reduce_sum(r.width, [&](int u) { return y[u] * dy[u]; });
        for (int u = 0; u < r.width; u++) r.put(u, y[u] * (dy[u] - mean));
    }
};
struct LogSoftmax {
    VP_DEVICE static void forward(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        const float log_sum = log_(e.sum);
        for (int u = 0; u < r.width; u++) r.put(u, (r.x[0][u] - e.top) - log_sum);
    }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *y = r.x[1], *dy = r.x[2];
        const float total = reduce_sum(r.width, [&](int u) { return dy[u]; });
        for (int u = 0; u < r.width; u++) r.put(u, dy[u] - exp_(y[u]) * total);
    }
};
struct CrossEntropy {
    // From x - x[label], so that the loss of a confident right answer keeps its digits.
    VP_DEVICE static float loss(const Row& r)
    {
        const Exponentials e = Exponentials::of(r.x[0], r.width);
        return (e.top - r.x[0][r.label]) + log_(e.sum);
    }
    VP_DEVICE static void forward(const Row& r) { r.put(0, loss(r)); }
    VP_DEVICE static void backward(const Row& r)
    {
        const float *x = r.x[0], mine = x[r.label], y = r.x[1][0], dy = r.x[2][0];
        for (int u = 0; u < r.width; u++) r.put(u, dy * (exp_((x[u] - mine) - y) - (u == r.label ? 1.f : 0.f)));
    }
};
