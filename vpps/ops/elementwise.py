"""Elementwise ops: form MAP. Operands have one shape, or are scalars, which broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vpps.ops.table import Array, Attrs, Cost, Form, Op, Shape, batch_dims, register, size, unbroadcast


def _same_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    wide = [s for s in shapes if s != ()]
    if any(s != wide[0] for s in wide):
        raise ValueError("operands of one shape (only scalars broadcast)")
    return wide[0] if wide else ()


def _cost(flops: int) -> Callable[[Sequence[Shape], Shape], Cost]:
    return lambda shapes, out: Cost(flops * size(out), sum(map(size, shapes)) + size(out))


def unary(
    name: str,
    device: str,
    forward: Callable[[Array], Array],
    derivative: Callable[[Array, Array], Array],
    flops: int,
    doc: str,
    passes: tuple[int, ...] = (),
    reads: str = "ay",
    gradient_flops: int | None = None,
    signature: str = "x",
    **samples: Any,
) -> Op:
    """Register y = forward(x) with dy/dx = derivative(x, y); `reads` and all that follows as in `Op`."""
    return register(
        Op(
            name=name,
            form=Form.MAP,
            arity=1,
            shape=_same_shape,
            forward=lambda attrs, x: forward(x),
            backward=lambda attrs, xs, y, dy: (dy * derivative(xs[0], y),),
            cost=_cost(flops),
            device=device,
            passes=passes,
            reads=(reads,),
            gradient_flops=gradient_flops,
            doc=doc,
            signature=signature,
            samples=samples,
        )
    )


def binary(
    name: str,
    device: str,
    forward: Callable[[Array, Array], Array],
    gradients: Callable[[Array, Array, Array], tuple[Array, Array]],
    doc: str,
    passes: tuple[int, ...] = (),
    reads: tuple[str, str] = ("aby", "aby"),
    signature: str = "a, b",
) -> Op:
    """Register y = forward(a, b) with (da, db) = gradients(a, b, dy); either may be a scalar; the rest as in `Op`."""

    def run(attrs: Attrs, a: Array, b: Array) -> Array:
        return forward(batch_dims(a, b), batch_dims(b, a))

    def back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
        a, b = xs
        da, db = gradients(batch_dims(a, b), batch_dims(b, a), dy)
        return unbroadcast(da, a), unbroadcast(db, b)

    return register(
        Op(
            name,
            Form.MAP,
            2,
            _same_shape,
            run,
            back,
            _cost(1),
            device,
            passes=passes,
            reads=reads,
            doc=doc,
            signature=signature,
        )
    )


def constant(
    name: str,
    device: str,
    forward: Callable[[Array, float], Array],
    derivative: Callable[[Array, Array, float], Array],
    doc: str,
    passes: tuple[int, ...] = (),
    sample: float = 0.75,
    reads: str = "ay",
    signature: str = "",
) -> Op:
    """Register y = forward(x, value), `value` a Python constant, with dy/dx = derivative(x, y, value)."""
    return register(
        Op(
            name=name,
            form=Form.MAP,
            arity=1,
            shape=_same_shape,
            forward=lambda attrs, x: forward(x, attrs["value"]),
            backward=lambda attrs, xs, y, dy: (dy * derivative(xs[0], y, attrs["value"]),),
            cost=_cost(1),
            device=device,
            attrs=("value",),
            passes=passes,
            reads=(reads,),
            doc=doc,
            signature=signature,
            samples={"value": sample},
        )
    )


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


_GELU = 2 * np.sqrt(2 / np.pi)


def _gelu_argument(x: Array) -> Array:
    """(1 + tanh(z)) / 2 is the sigmoid of 2 z."""
    argument: Array = _GELU * (x + 0.044715 * x**3)
    return argument


unary("tanh", "Tanh", np.tanh, lambda x, y: 1 - y * y, 10, "hyperbolic tangent", reads="y", gradient_flops=3)
unary(
    "sigmoid",
    "Sigmoid",
    _sigmoid,
    lambda x, y: y * (1 - y),
    10,
    "logistic function 1 / (1 + exp(-x))",
    reads="y",
    gradient_flops=3,
)
unary(
    "relu",
    "Relu",
    lambda x: np.maximum(x, 0),
    lambda x, y: (x > 0) * 1.0,
    1,
    "max(x, 0); the slope at 0 is 0",
    reads="a",
)
unary("exp", "Exp", np.exp, lambda x, y: y, 8, "e to the power of x", reads="y", gradient_flops=1)
unary("log", "Log", np.log, lambda x, y: 1 / x, 10, "natural logarithm", low=0.2, high=3.0, reads="a", gradient_flops=1)
unary("square", "Square", np.square, lambda x, y: 2 * x, 1, "x times x", reads="a", gradient_flops=2)
unary("neg", "Neg", np.negative, lambda x, y: np.full_like(x, -1.0), 1, "minus x", reads="", signature="")
unary(
    "copy",
    "Copy",
    lambda x: x.copy(),
    lambda x, y: np.ones_like(x),
    0,
    "x itself, in memory of its own",
    (0,),
    reads="",
    signature="",
)

binary("add", "Add", np.add, lambda a, b, dy: (dy, dy), "a plus b", (0, 1), reads=("", ""), signature="")
binary("sub", "Sub", np.subtract, lambda a, b, dy: (dy, -dy), "a minus b", (0,), reads=("", ""), signature="")
binary(
    "mul",
    "Mul",
    np.multiply,
    lambda a, b, dy: (dy * b, dy * a),
    "a times b, element by element",
    reads=("b", "a"),
    signature="",
)

constant(
    "scale", "Scale", lambda x, c: x * c, lambda x, y, c: np.full_like(x, c), "x times a Python constant", reads=""
)
constant(
    "shift", "Shift", lambda x, c: x + c, lambda x, y, c: np.ones_like(x), "x plus a Python constant", (0,), reads=""
)
constant(
    "at_least",
    "AtLeast",
    np.maximum,
    lambda x, y, c: (x > c) * 1.0,
    "the larger of x and a Python constant; its slope at the constant is 0",
    reads="a",
)
constant(
    "at_most",
    "AtMost",
    np.minimum,
    lambda x, y, c: (x < c) * 1.0,
    "the smaller of x and a Python constant; its slope at the constant is 0",
    reads="a",
)
constant(
    "leaky_relu",
    "LeakyRelu",
    lambda x, c: np.where(x > 0, x, c * x),
    lambda x, y, c: np.where(x > 0, 1.0, c),
    "x where positive, else slope x",
    sample=0.1,
    reads="a",
    signature="x, slope=0.01",
)
constant(
    "elu",
    "Elu",
    lambda x, c: np.where(x > 0, x, c * np.expm1(np.minimum(x, 0))),
    lambda x, y, c: np.where(x > 0, 1.0, c * np.exp(np.minimum(x, 0))),
    "x where positive, else alpha (exp(x) - 1)",
    sample=1.3,
    reads="ay",
    signature="x, alpha=1.0",
)

unary("sqrt", "Sqrt", np.sqrt, lambda x, y: 0.5 / y, 8, "square root", low=0.2, high=3.0, reads="y", gradient_flops=2)
unary(
    "reciprocal",
    "Reciprocal",
    np.reciprocal,
    lambda x, y: -y * y,
    8,
    "1 divided by x",
    signature="",
    low=0.4,
    high=3.0,
    reads="y",
    gradient_flops=2,
)
unary("abs", "Abs", np.abs, lambda x, y: np.sign(x), 1, "absolute value; the slope at 0 is 0", reads="a")
unary(
    "softplus",
    "Softplus",
    lambda x: np.logaddexp(x, 0),
    lambda x, y: _sigmoid(x),
    20,
    "log(1 + exp(x)); stable for large x of either sign",
    reads="a",
    gradient_flops=11,
)
unary(
    "gelu",
    "Gelu",
    lambda x: x * _sigmoid(_gelu_argument(x)),
    lambda x, y: (
        _sigmoid(_gelu_argument(x))
        + x * _sigmoid(_gelu_argument(x)) * (1 - _sigmoid(_gelu_argument(x))) * _GELU * (1 + 3 * 0.044715 * x * x)
    ),
    25,
    "Gaussian error linear unit, the tanh form (Hendrycks & Gimpel 2016)",
    reads="a",
)

binary(
    "div",
    "Div",
    np.divide,
    lambda a, b, dy: (dy / b, -dy * a / (b * b)),
    "a divided by b, element by element",
    reads=("b", "by"),
    signature="",
)
binary(
    "maximum",
    "Maximum",
    np.maximum,
    lambda a, b, dy: (dy * (a >= b), dy * (a < b)),
    "the larger of a and b; where they are equal, a gets the gradient",
    reads=("ab", "ab"),
)
binary(
    "minimum",
    "Minimum",
    np.minimum,
    lambda a, b, dy: (dy * (a <= b), dy * (a > b)),
    "the smaller of a and b; where they are equal, a gets the gradient",
    reads=("ab", "ab"),
)

register(
    Op(
        name="stop_gradient",
        form=Form.MAP,
        arity=1,
        shape=_same_shape,
        forward=lambda attrs, x: x.copy(),
        backward=lambda attrs, xs, y, dy: (None,),
        cost=_cost(0),
        device="Copy",
        differentiable=False,
        doc="x itself, through which no gradient flows",
        signature="x",
    )
)
