#pragma once
#include "../math.cuh"
// ---- device code of the elementwise ops: y = forward(operands, value), gradients from (operands, y, dy, value)
struct Tanh {
    VP_DEVICE static float forward(float x, float) { return tanh_(x); }
    VP_DEVICE static float backward(float, float y, float dy, float) { return dy * fma_(-y, y, 1.f); }
};
struct Sigmoid {
    VP_DEVICE static float forward(float x, float) { return sigmoid_(x); }
    VP_DEVICE static float backward(float, float y, float dy, float) { return dy * (y * (1.f - y)); }
};
struct Relu {
    VP_DEVICE static float forward(float x, float) { return x > 0.f || x != x ? x : 0.f; }
    VP_DEVICE static float backward(float x, float, float dy, float) { return x > 0.f ? dy : 0.f; }
};
struct Exp {
    VP_DEVICE static float forward(float x, float) { return exp_(x); }
    VP_DEVICE static float backward(float, float y, float dy, float) { return dy * y; }
};
struct Log {
    VP_DEVICE static float forward(float x, float) { return log_(x); }
    VP_DEVICE static float backward(float x, float, float dy, float) { return dy / x; }
};
struct Square {
    VP_DEVICE static float forward(float x, float) { return x * x; }
    VP_DEVICE static float backward(float x, float, float dy, float)
    {
        const float half = dy * x;  // may be finite although 2 x is infinite
        return half + half;
    }
};
struct Neg {
    VP_DEVICE static float forward(float x, float) { return -x; }
    VP_DEVICE static float backward(float, float, float dy, float) { return -dy; }
};
struct Copy {
    VP_DEVICE static float forward(float x, float) { return x; }
};
struct Scale {
    VP_DEVICE static float forward(float x, float value) { return x * value; }
    VP_DEVICE static float backward(float, float, float dy, float value) { return dy * value; }
};
struct Shift {
    VP_DEVICE static float forward(float x, float value) { return x + value; }
};
struct AtLeast {
    VP_DEVICE static float forward(float x, float value) { return x > value || x != x ? x : value; }
    VP_DEVICE static float backward(float x, float, float dy, float value) { return x > value ? dy : 0.f; }
};
struct AtMost {
    VP_DEVICE static float forward(float x, float value) { return x < value || x != x ? x : value; }
    VP_DEVICE static float backward(float x, float, float dy, float value) { return x < value ? dy : 0.f; }
};
struct LeakyRelu {
    VP_DEVICE static float forward(float x, float slope) { return x > 0.f ? x : x * slope; }
    VP_DEVICE static float backward(float x, float, float dy, float slope) { return x > 0.f ? dy : dy * slope; }
};
struct Elu {
    VP_DEVICE static float forward(float x, float value) { return x > 0.f ? x : value * expm1_(x); }
    // value * e^x, not y + value, which loses digits as y approaches -value.
    VP_DEVICE static float backward(float x, float, float dy, float value) { return x > 0.f ? dy : dy * (value * exp_(x)); }
};
struct Sqrt {
    VP_DEVICE static float forward(float x, float) { return sqrt_(x); }
    VP_DEVICE static float backward(float, float y, float dy, float) { return dy * (0.5f / y); }
};
struct Abs {
    VP_DEVICE static float forward(float x, float) { return x < 0.f ? -x : x == 0.f ? 0.f : x; }
    VP_DEVICE static float backward(float x, float, float dy, float)
    {
        return x > 0.f ? dy : x < 0.f ? -dy : x == 0.f ? 0.f : x;
    }
};
struct Softplus {
    VP_DEVICE static float forward(float x, float)
    {
        const float far = x < 0.f ? x : -x;
        return (x > 0.f ? x : 0.f) + log1p_(exp_(far));
    }
    VP_DEVICE static float backward(float x, float, float dy, float) { return dy * sigmoid_(x); }
};
struct Gelu {
    VP_DEVICE static float gate(float x) { return sigmoid_(1.5957691216f * x * fma_(0.044715f * x, x, 1.f)); }
    // For |x| > 12, the gate is 0 or 1. Clamping avoids an infinite square in the slope, because infinity times 0 is NaN.
    VP_DEVICE static float near(float x) { return x < -12.f ? -12.f : x > 12.f ? 12.f : x; }
    VP_DEVICE static float forward(float x, float) { return (x < -12.f ? -12.f : x) * gate(near(x)); }
    VP_DEVICE static float backward(float far, float, float dy, float)
    {
        const float x = near(far), s = gate(x);
        const float slope = 1.5957691216f * fma_(0.134145f * x, x, 1.f);  // derivative of the gate's argument
        return dy * fma_(x * slope, s * (1.f - s), s);
    }
};
struct Silu {
    // For |x| > 120, the gate is 0 or 1. Clamping avoids infinity times 0, which is NaN.
    VP_DEVICE static float forward(float x, float) { return (x < -120.f ? -120.f : x) * sigmoid_(x); }
    VP_DEVICE static float backward(float far, float, float dy, float)
    {
        const float x = far < -120.f ? -120.f : far > 120.f ? 120.f : far, s = sigmoid_(x);
        return dy * fma_(x * s, 1.f - s, s);
    }
};
struct Sin {
    VP_DEVICE static float forward(float x, float) { return sin_(x); }
    VP_DEVICE static float backward(float x, float, float dy, float) { return dy * cos_(x); }
};
struct Cos {
    VP_DEVICE static float forward(float x, float) { return cos_(x); }
    VP_DEVICE static float backward(float x, float, float dy, float) { return -dy * sin_(x); }
};
// Comparisons with a Python constant, and of two operands: 1 if true, else 0. Comparisons with NaN are false.
struct Above {
    VP_DEVICE static float forward(float x, float value) { return x > value ? 1.f : 0.f; }
};
struct Below {
    VP_DEVICE static float forward(float x, float value) { return x < value ? 1.f : 0.f; }
};
struct NotBelow {
    VP_DEVICE static float forward(float x, float value) { return x >= value ? 1.f : 0.f; }
};
struct NotAbove {
    VP_DEVICE static float forward(float x, float value) { return x <= value ? 1.f : 0.f; }
};
struct Equals {
    VP_DEVICE static float forward(float x, float value) { return x == value ? 1.f : 0.f; }
};
struct Greater {
    VP_DEVICE static float forward(float a, float b, float) { return a > b ? 1.f : 0.f; }
};
struct GreaterEqual {
    VP_DEVICE static float forward(float a, float b, float) { return a >= b ? 1.f : 0.f; }
};
struct Equal {
    VP_DEVICE static float forward(float a, float b, float) { return a == b ? 1.f : 0.f; }
};
// Choices of `where`: an operand or a Python constant, or else 0. A condition is true unless it is 0.
struct Keep {
    VP_DEVICE static float forward(float c, float x, float) { return c != 0.f ? x : 0.f; }
    VP_DEVICE static float backward0(float, float, float, float, float) { return 0.f; }
    VP_DEVICE static float backward1(float c, float, float, float dy, float) { return c != 0.f ? dy : 0.f; }
};
struct Drop {
    VP_DEVICE static float forward(float c, float x, float) { return c != 0.f ? 0.f : x; }
    VP_DEVICE static float backward0(float, float, float, float, float) { return 0.f; }
    VP_DEVICE static float backward1(float c, float, float, float dy, float) { return c != 0.f ? 0.f : dy; }
};
struct KeepConstant {
    VP_DEVICE static float forward(float c, float value) { return c != 0.f ? value : 0.f; }
};
struct DropConstant {
    VP_DEVICE static float forward(float c, float value) { return c != 0.f ? 0.f : value; }
};
// a * b / c in an order that avoids an infinite or denormal product if the quotient is normal.
VP_DEVICE float product_over(float a, float b, float c)
{
    const float product = a * b;
    const bool a_is_larger = magnitude(a) > magnitude(b);
    const float larger = a_is_larger ? a : b, smaller = a_is_larger ? b : a;
    const bool over = magnitude(product) >= 0x7f800000u, under = magnitude(product) < 0x00800000u && magnitude(c) < 0x3f800000u;
    return (over ? larger : under ? smaller : product) / c * (over ? smaller : under ? larger : 1.f);
}
struct Over {
    VP_DEVICE static float forward(float x, float value) { return value / x; }
    VP_DEVICE static float backward(float x, float y, float dy, float) { return -product_over(dy, y, x); }
};
struct Div {
    VP_DEVICE static float forward(float a, float b, float) { return a / b; }
    VP_DEVICE static float backward0(float, float b, float, float dy, float) { return dy / b; }
    VP_DEVICE static float backward1(float, float b, float y, float dy, float) { return -product_over(dy, y, b); }
};
struct Maximum {
    VP_DEVICE static float forward(float a, float b, float) { return a >= b || a != a ? a : b; }
    VP_DEVICE static float backward0(float a, float b, float, float dy, float) { return a >= b ? dy : 0.f; }
    VP_DEVICE static float backward1(float a, float b, float, float dy, float) { return a < b ? dy : 0.f; }
};
struct Minimum {
    VP_DEVICE static float forward(float a, float b, float) { return a <= b || a != a ? a : b; }
    VP_DEVICE static float backward0(float a, float b, float, float dy, float) { return a <= b ? dy : 0.f; }
    VP_DEVICE static float backward1(float a, float b, float, float dy, float) { return a > b ? dy : 0.f; }
};
struct Add {
    VP_DEVICE static float forward(float a, float b, float) { return a + b; }
};
struct Sub {
    VP_DEVICE static float forward(float a, float b, float) { return a - b; }
    VP_DEVICE static float backward1(float, float, float, float dy, float) { return -dy; }
};
struct Mul {
    VP_DEVICE static float forward(float a, float b, float) { return a * b; }
    VP_DEVICE static float backward0(float, float b, float, float dy, float) { return dy * b; }
    VP_DEVICE static float backward1(float a, float, float, float dy, float) { return dy * a; }
};
