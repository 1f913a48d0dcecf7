// ---- elementwise instructions, and those that move rows

// dst[r][u] = F(source0[r][u], ..., value); F is a device function of templates/ops.
template <auto F, int N, int... I, class Args>
VP_DEVICE void map_rows(const Vp& vp, const Args& i, const Operand (&source)[N], std::integer_sequence<int, I...>)
{
    bool any_scalar = false;
    for (const Operand& s : source) any_scalar |= s.scalar;
    const bool accumulate = i.head.flags & ACCUMULATE;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            const float* x[N];
            for (int k = 0; k < N; k++) x[k] = source[k].row(r);
            if (any_scalar) {
                for (int u = u0; u < u1; u++) {
                    const float v = F(x[I][source[I].scalar ? 0 : u]..., i.value);
                    y[u] = accumulate ? y[u] + v : v;
                }
            } else if (accumulate) {
                VP_SIMD for (int u = u0; u < u1; u++) y[u] += F(x[I][u]..., i.value);
            } else {
                VP_SIMD for (int u = u0; u < u1; u++) y[u] = F(x[I][u]..., i.value);
            }
        }
    });
}

template <auto F, int N> VP_ROUTINE void map(const Vp& vp, const Map1& i)
{
    map_rows<F>(vp, i, {i.a}, std::make_integer_sequence<int, 1>());
}
template <auto F, int N> VP_ROUTINE void map(const Vp& vp, const Map2& i)
{
    map_rows<F>(vp, i, {i.a, i.b}, std::make_integer_sequence<int, 2>());
}
template <auto F, int N> VP_ROUTINE void map(const Vp& vp, const Map3& i)
{
    map_rows<F>(vp, i, {i.a, i.b, i.c}, std::make_integer_sequence<int, 3>());
}
template <auto F, int N> VP_ROUTINE void map(const Vp& vp, const Map4& i)
{
    map_rows<F>(vp, i, {i.a, i.b, i.c, i.d}, std::make_integer_sequence<int, 4>());
}

VP_ROUTINE void zero(const Vp& vp, const Fill& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) memset(i.dst.row(r) + u0, 0, (u1 - u0) * sizeof(float));
    });
}

VP_ROUTINE void input(const Vp& vp, const Input& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++)
            memcpy(i.dst.row(r) + u0, vp.script + i.data + (size_t)r * i.head.width + u0, (u1 - u0) * sizeof(float));
    });
}

// Sums run in chunks of rows and strips of units: chunks keep the rounding error of long sums in single precision small,
// a strip's sums stay in registers.
enum { CHUNK = 64, STRIP = 64 };

// total[u] = sum over k of row(k)[u], u < width, for `n` rows.
template <class F> VP_DEVICE void sum_rows(float* total, int n, int width, F row)
{
    float part[STRIP];
    VP_SIMD for (int u = 0; u < width; u++) total[u] = 0;
    for (int chunk = 0; chunk < n; chunk += CHUNK) {
        VP_SIMD for (int u = 0; u < width; u++) part[u] = 0;
        for (int k = chunk; k < least(chunk + CHUNK, n); k++) {
            const float* x = row(k);
            VP_SIMD for (int u = 0; u < width; u++) part[u] += x[u];
        }
        VP_SIMD for (int u = 0; u < width; u++) total[u] += part[u];
    }
}

// Calls f(from, width) for the strips of units [u0, u1), all but the last one of constant width.
template <class F> VP_DEVICE void for_strips(int u0, int u1, F f)
{
    int s = u0;
    for (; s + STRIP <= u1; s += STRIP) f(s, STRIP);
    if (s < u1) f(s, u1 - s);
}

// dst[r] = sum (or mean) of the rows script[offsets[r]] .. script[offsets[r + 1] - 1], each `shift` floats in.
VP_ROUTINE void gather_sum(const Vp& vp, const GatherSum& i)
{
    const bool accumulate = i.head.flags & ACCUMULATE, mean = i.head.flags & MEAN;
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            const Word *entries = vp.script + i.offsets[r], n = i.offsets[r + 1] - i.offsets[r];
            const float scale = mean && n ? 1.f / (float)n : 1.f;
            for_strips(u0, u1, [&](int s, int width) {
                float total[STRIP];
                sum_rows(total, (int)n, width, [&](int k) { return vp.pool + entries[k] + i.shift + s; });
                if (accumulate) {
                    VP_SIMD for (int u = 0; u < width; u++) y[s + u] += total[u] * scale;
                } else {
                    VP_SIMD for (int u = 0; u < width; u++) y[s + u] = total[u] * scale;
                }
            });
        }
    });
}

// dst[r] = src[r] / length of list r: the gradient that the mean of a list gives to each of its elements.
VP_ROUTINE void divide_by_count(const Vp& vp, const DivideByCount& i)
{
    for_slices(vp, i.head, [&](int r0, int r1, int u0, int u1) {
        for (int r = r0; r < r1; r++) {
            float* y = i.dst.row(r);
            const float* x = i.src.row(r);
            const float scale = 1.f / (float)most(1, (int)(i.offsets[r + 1] - i.offsets[r]));
            VP_SIMD for (int u = u0; u < u1; u++) y[u] = x[u] * scale;
        }
    });
}

// vector[u] = sum over rows of src[r][u]: the gradient of a bias or of any parameter vector.
VP_ROUTINE void column_sum(const Vp& vp, const ColumnSum& i)
{
    const bool accumulate = i.head.flags & ACCUMULATE;
    for_slices(vp, i.head, [&](int, int, int u0, int u1) {
        float* y = vp.pool + i.vector;
        for_strips(u0, u1, [&](int s, int width) {
            float total[STRIP];
            sum_rows(total, i.head.n, width, [&](int r) { return i.src.row(r) + s; });
            if (accumulate) {
                VP_SIMD for (int u = 0; u < width; u++) y[s + u] += total[u];
            } else {
                VP_SIMD for (int u = 0; u < width; u++) y[s + u] = total[u];
            }
        });
    });
}

// VP 0 keeps the loss of this launch where the next launch does not overwrite it.
VP_ROUTINE void report_loss(const Vp& vp, const Loss& i)
{
    if (vp.id == 0) vp.pool[i.slot] = vp.pool[i.source];
}
