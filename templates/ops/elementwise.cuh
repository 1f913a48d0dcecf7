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
    VP_DEVICE static float backward(float x, float, float dy, float) { return dy * (2.f * x); }
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
