"""Elementwise ops: form MAP. Operands share one shape, or are scalars, which broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vpps.ops.table import Array, Attrs, Form, Shape, batch_dims, register, struct_of, unbroadcast

_POSITIVE = {"low": 0.2, "high": 3.0}  # sample range for ops that are not defined everywhere
_CONSTANT: dict[str, Any] = {"value": 0.75, "signature": ""}  # for operators with a Python constant


def _same_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    widest = max(shapes, key=len)
    if any(s not in ((), widest, widest[1:]) for s in shapes):
        raise ValueError("operands of one shape (scalars broadcast, and a vector over the rows of a matrix)")
    return widest


def _register(
    name: str,
    arity: int,
    forward: Callable[..., Array],
    backward: Callable[..., Any],
    doc: str,
    **rest: Any,
) -> None:
    rest = {"device": struct_of(name)} | rest
    register(name, Form.MAP, arity, _same_shape, forward, backward, doc=doc, **rest)


def unary(
    name: str,
    forward: Callable[..., Array],
    derivative: Callable[..., Array],
    doc: str,
    reads: str = "ay",
    signature: str = "x",
    value: float | None = None,
    **rest: Any,
) -> None:
    """Register y = forward(x) with dy/dx = derivative(x, y); for `reads` and `rest` see `Op`.

    Args:
        value: sample constant for an op with a Python constant; both functions take the constant as last argument.
    """
    constants = () if value is None else ("value",)
    if constants:
        rest |= {"attrs": constants, "samples": rest.get("samples", {}) | {"value": value}}
    _register(
        name,
        1,
        lambda attrs, x: forward(x, *(attrs[a] for a in constants)),
        lambda attrs, xs, y, dy: (dy * derivative(xs[0], y, *(attrs[a] for a in constants)),),
        doc,
        reads=(reads,),
        signature=signature,
        **rest,
    )


def binary(
    name: str,
    forward: Callable[[Array, Array], Array],
    gradients: Callable[[Array, Array, Array], tuple[Array, Array]],
    doc: str,
    reads: tuple[str, str] = ("aby", "aby"),
    signature: str = "a, b",
    **rest: Any,
) -> None:
    """Register y = forward(a, b) with (da, db) = gradients(a, b, dy); a or b may be a scalar. `rest`: see `Op`."""

    def run(attrs: Attrs, a: Array, b: Array) -> Array:
        return forward(batch_dims(a, b), batch_dims(b, a))

    def back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
        a, b = xs
        da, db = gradients(batch_dims(a, b), batch_dims(b, a), dy)
        return unbroadcast(da, a), unbroadcast(db, b)

    _register(name, 2, run, back, doc, reads=reads, signature=signature, **rest)


def logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)); never overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


_GELU = 2 * np.sqrt(2 / np.pi)


def _gelu_gate(x: Array) -> Array:
    """Return (1 + tanh(z)) / 2, which is the logistic function of 2 z."""
    return logistic(_GELU * (x + 0.044715 * x**3))


def _gelu_slope(x: Array, y: Array) -> Array:
    gate = _gelu_gate(x)
    slope: Array = gate + x * gate * (1 - gate) * _GELU * (1 + 3 * 0.044715 * x * x)
    return slope


def _silu_slope(x: Array, y: Array) -> Array:
    gate = logistic(x)
    slope: Array = gate + y * (1 - gate)
    return slope


unary("tanh", np.tanh, lambda x, y: 1 - y * y, "hyperbolic tangent", "y")
unary("sigmoid", logistic, lambda x, y: y * (1 - y), "logistic function 1 / (1 + exp(-x))", "y")
unary("relu", lambda x: np.maximum(x, 0), lambda x, y: (x > 0) * 1.0, "max(x, 0); the slope at 0 is 0", "a")
unary("exp", np.exp, lambda x, y: y, "e to the power of x", "y")
unary("log", np.log, lambda x, y: 1 / x, "natural logarithm", "a", samples=_POSITIVE)
unary("square", np.square, lambda x, y: 2 * x, "x times x", "a")
unary("neg", np.negative, lambda x, y: np.full_like(x, -1.0), "minus x", "", signature="")
unary("copy", np.copy, lambda x, y: np.ones_like(x), "x itself, in memory of its own", "", signature="", passes=(0,))

binary("add", np.add, lambda a, b, dy: (dy, dy), "a plus b", ("", ""), signature="", passes=(0, 1))
binary("sub", np.subtract, lambda a, b, dy: (dy, -dy), "a minus b", ("", ""), signature="", passes=(0,))
binary("mul", np.multiply, lambda a, b, dy: (dy * b, dy * a), "a times b, element by element", ("b", "a"), signature="")

unary("scale", np.multiply, lambda x, y, c: np.full_like(x, c), "x times a Python constant", "", **_CONSTANT)
unary("shift", np.add, lambda x, y, c: np.ones_like(x), "x plus a Python constant", "", passes=(0,), **_CONSTANT)
unary(
    "at_least",
    np.maximum,
    lambda x, y, c: (x > c) * 1.0,
    "the larger of x and a Python constant; its slope at the constant is 0",
    "a",
    **_CONSTANT,
)
unary(
    "at_most",
    np.minimum,
    lambda x, y, c: (x < c) * 1.0,
    "the smaller of x and a Python constant; its slope at the constant is 0",
    "a",
    **_CONSTANT,
)
unary(
    "leaky_relu",
    lambda x, c: np.where(x > 0, x, c * x),
    lambda x, y, c: np.where(x > 0, 1.0, c),
    "x where positive, else slope x",
    "a",
    signature="x, slope=0.01",
    value=0.1,
)
unary(
    "elu",
    lambda x, c: np.where(x > 0, x, c * np.expm1(np.minimum(x, 0))),
    lambda x, y, c: np.where(x > 0, 1.0, c * np.exp(np.minimum(x, 0))),
    "x where positive, else alpha (exp(x) - 1)",
    "a",
    signature="x, alpha=1.0",
    value=1.3,
)

unary("sqrt", np.sqrt, lambda x, y: 0.5 / y, "square root", "y", samples=_POSITIVE)
unary(
    "over",
    lambda x, c: c / x,
    lambda x, y, c: -c / (x * x),
    "a Python constant divided by x",
    samples=_POSITIVE,
    **_CONSTANT,
)
unary("abs", np.abs, lambda x, y: np.sign(x), "absolute value; the slope at 0 is 0", "a")
unary(
    "softplus",
    lambda x: np.logaddexp(x, 0),
    lambda x, y: logistic(x),
    "log(1 + exp(x)); stable for large x of either sign",
    "a",
)
unary(
    "gelu",
    lambda x: x * _gelu_gate(x),
    _gelu_slope,
    "Gaussian error linear unit, the tanh form (Hendrycks & Gimpel 2016)",
    "a",
)

unary("silu", lambda x: x * logistic(x), _silu_slope, "x times the logistic function of x, also called swish", "a")
unary("sin", np.sin, lambda x, y: np.cos(x), "sine of an angle in radians, however large", "a")
unary("cos", np.cos, lambda x, y: -np.sin(x), "cosine of an angle in radians, however large", "a")

binary(
    "div",
    np.divide,
    lambda a, b, dy: (dy / b, -dy * a / (b * b)),
    "a divided by b, element by element",
    ("b", "by"),
    signature="",
)
binary(
    "maximum",
    np.maximum,
    lambda a, b, dy: (dy * (a >= b), dy * (a < b)),
    "the larger of a and b; where they are equal, a gets the gradient",
    ("ab", "ab"),
)
binary(
    "minimum",
    np.minimum,
    lambda a, b, dy: (dy * (a <= b), dy * (a > b)),
    "the smaller of a and b; where they are equal, a gets the gradient",
    ("ab", "ab"),
)

_register(
    "stop_gradient",
    1,
    lambda attrs, x: x.copy(),
    lambda attrs, xs, y, dy: (None,),
    "x itself, through which no gradient flows",
    device="Copy",
    differentiable=False,
    signature="x",
)


def _no_slope(x: Array, *unused: Any) -> Array:
    return np.zeros_like(x)


def _comparison(name: str, of_number: str, test: Callable[..., Any], sign: str) -> None:
    """Register 1 where a test is true, else 0, for two operands (if `name` is set), and an operand and a number."""

    def truth(a: Array, b: Any) -> Array:
        return test(a, b) * 1.0  # type: ignore[no-any-return]

    rest: dict[str, Any] = {"differentiable": False, "signature": ""}
    if name:
        doc = f"1 where a {sign} b, else 0; it has no gradient"
        binary(name, truth, lambda a, b, dy: (_no_slope(dy), _no_slope(dy)), doc, **rest)
    unary(
        of_number,
        truth,
        _no_slope,
        f"1 where x {sign} a Python constant, else 0; it has no gradient",
        **rest | {"value": 0.75},
    )


def _choice(name: str, of_number: str, chosen: Callable[[Array], Any], condition: str) -> None:
    """Register a part of `where`: an operand (or a number) where a condition holds, else 0."""

    def choose(c: Array, x: Any) -> Array:
        return np.where(chosen(c), x, 0.0)

    doc = f"where a condition is {condition}, else 0; no gradient flows through the condition"
    rest: dict[str, Any] = {"signature": "", "conditions": 1}
    binary(name, choose, lambda c, x, dy: (_no_slope(dy), choose(c, dy)), f"x {doc}", ("", "a"), **rest)
    constant: dict[str, Any] = {"device": f"{struct_of(name)}Constant", "differentiable": False, **_CONSTANT}
    unary(of_number, choose, _no_slope, f"a Python constant {doc}", **constant)


_comparison("greater", "above", np.greater, ">")
_comparison("greater_equal", "not_below", np.greater_equal, ">=")
_comparison("", "below", np.less, "<")
_comparison("", "not_above", np.less_equal, "<=")
_comparison("equal", "equals", np.equal, "==")
_choice("keep", "given", lambda c: c != 0, "true")
_choice("drop", "unless", lambda c: c == 0, "not true")
