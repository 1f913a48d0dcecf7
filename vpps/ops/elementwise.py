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
    **samples: Any,
) -> Op:
    """Register y = forward(x) with dy/dx = derivative(x, y)."""
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
            doc=doc,
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
) -> Op:
    """Register y = forward(a, b) with (da, db) = gradients(a, b, dy); either operand may be a scalar."""

    def run(attrs: Attrs, a: Array, b: Array) -> Array:
        return forward(batch_dims(a, b), batch_dims(b, a))

    def back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
        a, b = xs
        da, db = gradients(batch_dims(a, b), batch_dims(b, a), dy)
        return unbroadcast(da, a), unbroadcast(db, b)

    return register(Op(name, Form.MAP, 2, _same_shape, run, back, _cost(1), device, passes=passes, doc=doc))


def constant(
    name: str,
    device: str,
    forward: Callable[[Array, float], Array],
    derivative: Callable[[float], float],
    doc: str,
    passes: tuple[int, ...] = (),
) -> Op:
    """Register y = forward(x, value), `value` a Python constant, whose derivative depends on the constant only."""
    return register(
        Op(
            name=name,
            form=Form.MAP,
            arity=1,
            shape=_same_shape,
            forward=lambda attrs, x: forward(x, attrs["value"]),
            backward=lambda attrs, xs, y, dy: (dy * derivative(attrs["value"]),),
            cost=_cost(1),
            device=device,
            attrs=("value",),
            passes=passes,
            doc=doc,
            samples={"value": 0.75},
        )
    )


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


unary("tanh", "Tanh", np.tanh, lambda x, y: 1 - y * y, 10, "hyperbolic tangent")
unary("sigmoid", "Sigmoid", _sigmoid, lambda x, y: y * (1 - y), 10, "logistic function 1 / (1 + exp(-x))")
unary("relu", "Relu", lambda x: np.maximum(x, 0), lambda x, y: (x > 0) * 1.0, 1, "max(x, 0); its slope at 0 is 0")
unary("exp", "Exp", np.exp, lambda x, y: y, 8, "e to the power of x")
unary("log", "Log", np.log, lambda x, y: 1 / x, 10, "natural logarithm", low=0.2, high=3.0)
unary("square", "Square", np.square, lambda x, y: 2 * x, 1, "x times x")
unary("neg", "Neg", np.negative, lambda x, y: np.full_like(x, -1.0), 1, "minus x")
unary("copy", "Copy", lambda x: x.copy(), lambda x, y: np.ones_like(x), 0, "x itself, in memory of its own", (0,))

binary("add", "Add", np.add, lambda a, b, dy: (dy, dy), "a plus b", (0, 1))
binary("sub", "Sub", np.subtract, lambda a, b, dy: (dy, -dy), "a minus b", (0,))
binary("mul", "Mul", np.multiply, lambda a, b, dy: (dy * b, dy * a), "a times b, element by element")

constant("scale", "Scale", lambda x, c: x * c, lambda c: c, "x times a Python constant")
constant("shift", "Shift", lambda x, c: x + c, lambda c: 1.0, "x plus a Python constant", (0,))
