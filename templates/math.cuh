#pragma once
#include "prelude.h"
// ---- elementary functions: branch-free polynomials that vectorise and give the same bits in vector and scalar loops.
// They handle NaN, infinities, zeros and denormals; tests/kernel/test_math.py asserts error bounds.

// e^t = mantissa * 2^n: Cody-Waite reduction to |r| <= ln(2)/2, degree-7 polynomial. The low bits of `shifted` hold n.
struct Exponential {
    float mantissa, shifted;
    VP_DEVICE explicit Exponential(float t)
    {
        shifted = fma_(t, 1.44269504088896341f, 12582912.f);  // 1.5 * 2^23: rounds to the nearest integer
        const float n = shifted - 12582912.f;
        float r = fma_(n, -0.693145751953125f, t);
        r = fma_(n, -1.42860682030941723e-6f, r);
        float p = 1.984126984e-4f;
        p = fma_(p, r, 1.388888889e-3f);
        p = fma_(p, r, 8.333333333e-3f);
        p = fma_(p, r, 4.166666667e-2f);
        p = fma_(p, r, 1.666666667e-1f);
        p = fma_(p, r, 0.5f);
        p = fma_(p, r, 1.f);
        mantissa = fma_(p, r, 1.f);
    }
};

// Clamps x to [low, high], with low < 0 < high; a NaN becomes one of the bounds. It compares ints, because float comparisons
// that keep NaNs need twice the instructions.
VP_DEVICE float bounded(float x, float low, float high)
{
    const Word word = as_word(x) < as_word(low) ? as_word(x) : as_word(low);  // lower negative numbers have larger words
    return as_float((int)word < (int)as_word(high) ? word : as_word(high));
}

// e^x, scaled in two steps so that denormal results are correct.
VP_DEVICE float exp_(float x)
{
    const Exponential e(bounded(x, -104.f, 89.f));  // beyond these bounds: 0, infinity
    const int exponent = (int)(as_word(e.shifted) & 0x7fffffu) - 0x400000;
    const int half = exponent >> 1;
    const float scale1 = as_float((Word)(half + 127) << 23);
    const float scale2 = as_float((Word)(exponent - half + 127) << 23);
    return x != x ? x : e.mantissa * scale1 * scale2;
}

// 2^32 / (1 + e^x). If e^x is large, the power of two keeps it finite, so that scaling and quotient need no special cases.
// If e^x is small, 1 + e^x is 1.
VP_DEVICE float logistic_(float x)
{
    const Exponential e(bounded(x, -40.f, 104.f));  // 1 / e^x is 0 above the upper bound
    const float scale = as_float((as_word(e.shifted) << 23) + ((127u - 32u) << 23));
    return x != x ? x : reciprocal_(fma_(e.mantissa, scale, 2.3283064365386963e-10f));
}

VP_DEVICE float sigmoid_(float x) { return logistic_(-x) * 2.3283064365386963e-10f; }

// tanh: an odd polynomial near 0, because 1 - 2 / (e^2|x| + 1) would cancel there. It uses |x|, because for negative x
// 2 / (e^2x + 1) would be near 2 and lose two bits of a result near -1, and backward's 1 - y^2 needs these bits.
VP_DEVICE float tanh_(float x)
{
    const Word sign = as_word(x) & 0x80000000u;
    const float size = as_float(as_word(x) ^ sign);
    const float far = fma_(logistic_(2.f * size), -4.6566128730773926e-10f, 1.f);  // 1 - 2 / (1 + e^2|x|)
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = fma_(p, z, 2.06390887954e-2f);
    p = fma_(p, z, -5.37397155531e-2f);
    p = fma_(p, z, 1.33314422036e-1f);
    p = fma_(p, z, -3.33332819422e-1f);
    const float near = fma_(p * z, x, x);
    return size < 0.625f ? near : as_float(as_word(far) | sign);
}

// Natural logarithm: x = (1 + f) * 2^k with 1 + f in [sqrt(1/2), sqrt(2)); with s = f / (2 + f),
// log(1 + f) = f - f^2/2 + s (f^2/2 + R), R an even series in s. The small terms are summed before f is added.
VP_DEVICE float log_(float x)
{
    const bool denormal = x < 1.17549435e-38f;
    const float scaled = denormal ? x * 8388608.f : x;
    const Word bits = as_word(scaled);
    const Word shifted = bits - 0x3f3504f3u;  // sqrt(1/2), which makes the mantissa's range symmetric about 1
    const int exponent = (int)shifted >> 23;
    const float f = as_float(bits - ((Word)exponent << 23)) - 1.f;
    const float k = (float)(denormal ? exponent - 23 : exponent);
    const float s = f * reciprocal_(2.f + f);
    const float z = s * s;
    float series = 0.222222222f;
    series = fma_(series, z, 0.285714286f);
    series = fma_(series, z, 0.4f);
    series = fma_(series, z, 0.666666667f);
    const float half = 0.5f * f * f;
    const float small = fma_(s, fma_(series, z, half), k * 1.42860682030941723e-6f);
    const float y = fma_(k, 0.693145751953125f, f - (half - small));
    const float infinity = as_float(0x7f800000u), nan = as_float(0x7fc00000u);
    return x != x ? x : x < 0.f ? nan : x == 0.f ? -infinity : x == infinity ? x : y;
}

// A finite x as an angle |r| <= pi / 4 and a whole number of quarter turns: |x| = r + quarters * pi / 2. The reduction uses
// only the bits of 1 / (2 pi) that matter, and skips whole turns (Payne & Hanek 1983), so that no x is too large.
struct Angle {
    float r;
    Word quarters;
    VP_DEVICE explicit Angle(float x)
    {
        const Word size = magnitude(x), exponent = size >> 23;
        const Word m = (size & 0x7fffffu) | 0x800000u;           // |x| = m * 2^(skipped - 24)
        const Word skipped = exponent < 126u ? 0u : exponent - 126u;
        const auto word = [=](int i) VP_INLINE {  // word i of 2^-24 / (2 pi), from bit `skipped` on
            const Word bits[] = {0x28u, 0xbe60db93u, 0x91054a7fu, 0x09d5f47du, 0x4d377036u, 0xd8a5664fu, 0x10e4107fu, 0x9458eaf7u};
            const auto at = [&](int k) VP_INLINE {
                const Word a = skipped < 32u ? bits[k] : bits[k + 1], b = skipped < 96u ? bits[k + 2] : bits[k + 3];
                return skipped < 64u ? a : skipped < 128u ? b : bits[k + 4];
            };
            return at(i) << (skipped & 31u) | at(i + 1) >> 1 >> (31u - (skipped & 31u));
        };
        // The fraction of a turn, in units of 2^-32 and 2^-64.
        const unsigned long long low = (unsigned long long)m * word(1) + ((unsigned long long)m * word(2) >> 32);
        const Word high = m * word(0) + (Word)(low >> 32);
        const Word nearest = (high + 0x20000000u) >> 30;
        const Word rest = high - (nearest << 30), more = (Word)low;
        // Its leading 24 bits, wherever they are, so that a number near a multiple of pi / 2 keeps its digits.
        const float a = (float)((int)rest >> 6) * 1.4901161193847656e-08f;                 // 2^-26
        const float b = (float)(int)((rest & 63u) << 18 | more >> 14) * 8.8817841970012523e-16f;  // 2^-50
        const float small = b + (float)(int)(more & 0x3fffu) * 5.4210108624275222e-20f;    // 2^-64
        const float turns = a + small, rounding = (a - turns) + small;
        const float far = fma_(turns, 6.28318548f, fma_(turns, -1.74845553e-07f, rounding * 6.28318548f));
        r = exponent < 126u ? as_float(size) : far;  // |x| < 1/2 needs no reduction
        quarters = exponent < 126u ? 0u : nearest;
    }
    // The sine of the angle plus `on` quarter turns.
    VP_DEVICE float sine(Word on) const
    {
        const float z = r * r;
        float s = -1.9515295891e-4f;
        s = fma_(s, z, 8.3321608736e-3f);
        s = fma_(s, z, -1.6666654611e-1f);
        float c = 2.443315711809948e-5f;
        c = fma_(c, z, -1.388731625493765e-3f);
        c = fma_(c, z, 4.166664568298827e-2f);
        const float y = (quarters + on) & 1u ? fma_(c * z, z, fma_(-0.5f, z, 1.f)) : fma_(s * z, r, r);
        return as_float(as_word(y) ^ ((quarters + on) & 2u) << 30);
    }
};
VP_DEVICE float sin_(float x)
{
    const float y = as_float(as_word(Angle(x).sine(0u)) ^ (as_word(x) & 0x80000000u));
    return magnitude(x) < 0x7f800000u ? y : as_float(0x7fc00000u);
}
VP_DEVICE float cos_(float x)
{
    const float y = Angle(x).sine(1u);
    return magnitude(x) < 0x7f800000u ? y : as_float(0x7fc00000u);
}

// e^x - 1 without cancellation near 0: e^x - 1 = tanh(x / 2) (e^x + 1).
VP_DEVICE float expm1_(float x) { return x < -20.f ? -1.f : x > 88.f ? exp_(x) : tanh_(0.5f * x) * (exp_(x) + 1.f); }

// log(1 + x) for x >= 0, without cancellation near 0: adds the rounding error of u = 1 + x, divided by u, to log(u). Near 0,
// 2 - u approximates 1 / u; from u = 2 on the error is negligible.
VP_DEVICE float log1p_(float x)
{
    const float u = 1.f + x;
    const float rounded = log_(u);
    return u < 2.f ? fma_(x - (u - 1.f), 2.f - u, rounded) : rounded;
}
