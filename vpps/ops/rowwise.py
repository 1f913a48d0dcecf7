"""Ops over a vertex's whole row: reductions, softmax and losses. Form ROWWISE.

A table row is the op's decorated reference function; name, operands and docstring come from the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vpps.ops.elementwise import logistic
from vpps.ops.table import Array, Attrs, Form, Shape, ShapeRule, register, size, struct_of

COSINE_EPS = 1e-8  # lower bound on the product of norms, as in other libraries


def _vector(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(shapes[0]) != 1:
        raise ValueError("a vector (a row of a matrix is A[k])")
    return shapes[0]


def _vector_to_scalar(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    _vector(shapes, attrs)
    return ()


def _any_to_scalar(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return ()


def _pair_to_scalar(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    if shapes[0] != shapes[1]:
        raise ValueError("two operands of one shape")
    return ()


def rowwise(
    shape: ShapeRule, backward: Callable[..., Any], signature: str = "", device: str = "", **rest: Any
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Register `function(*operands, *constants)` as the reference for an op of this form.

    Args:
        backward: `backward(*operands, y, dy, *constants)` returns the gradient of the only float operand, or a tuple of
            gradients. If results are scalars, y and dy broadcast over the operands.
        device: name of the struct, if it differs from the op's.
        rest: fields of `Op`, such as `signature`.
    """
    constants, indices = rest.get("attrs", ()), rest.get("indices", 0)

    def row(function: Callable[..., Array]) -> Callable[..., Array]:
        def forward(attrs: Attrs, *operands: Array) -> Array:
            return function(*operands, *(attrs[a] for a in constants))

        def back(attrs: Attrs, operands: Sequence[Array], y: Array, dy: Array) -> tuple[Array | None, ...]:
            if y.ndim == 1:
                y, dy = _column(y, operands[0]), _column(dy, operands[0])
            found = backward(*operands, y, dy, *(attrs[a] for a in constants))
            return found if isinstance(found, tuple) else (found,)

        name = function.__name__.strip("_")
        arity = len(inspect.signature(function).parameters) - indices - len(constants)
        doc = function.__doc__ or name  # python -OO leaves no docstrings
        struct = device or struct_of(name)
        register(name, Form.ROWWISE, arity, shape, forward, back, device=struct, doc=doc, signature=signature, **rest)
        return function

    return row


def _flat(x: Array) -> Array:
    return x.reshape(len(x), size(x.shape[1:]))


def _total(x: Array) -> Array:
    total: Array = _flat(x).sum(axis=1)
    return total


def _column(of_vertices: Array, x: Array) -> Array:
    """Reshape a number per vertex, `(n,)`, to broadcast over an operand `(n, ...)`."""
    return of_vertices.reshape((len(x),) + (1,) * (x.ndim - 1))


def _at(x: Array, positions: Array, dy: Array) -> Array:
    """Return an operand's gradient if the result is one of its elements."""
    d = np.zeros_like(x)
    d[np.arange(len(d)), positions] = dy[:, 0]
    return d


def _log_softmax(x: Array) -> Array:
    """Return the log-softmax from the sum of all but the largest exponential. The largest result keeps its digits."""
    top, best = x.max(axis=1, keepdims=True), x.argmax(axis=1)
    terms = np.exp(x - top)
    terms[np.arange(len(x)), best] -= 1
    y: Array = (x - top) - np.log1p(terms.sum(axis=1, keepdims=True))
    return y


@rowwise(_any_to_scalar, lambda x, y, dy: dy * np.ones_like(x))
def sum_(x: Array) -> Any:
    """sum of all elements"""
    return _total(x)


@rowwise(_any_to_scalar, lambda x, y, dy: dy * np.full_like(x, 1 / size(x.shape[1:])))
def mean(x: Array) -> Any:
    """mean of all elements"""
    return _flat(x).mean(axis=1)


@rowwise(_pair_to_scalar, lambda a, b, y, dy: (dy * b, dy * a), "a, b")
def dot(a: Array, b: Array) -> Any:
    """inner product of two operands of one shape; a scalar"""
    return _total(a * b)


def _mse_back(a: Array, b: Array, y: Array, dy: Array) -> tuple[Array, Array]:
    d = dy * 2 * (a - b) / size(a.shape[1:])
    return d, -d


@rowwise(_pair_to_scalar, _mse_back, "a, b", "MeanSquaredError")
def mse(a: Array, b: Array) -> Any:
    """mean of the squared differences of two operands of one shape; a scalar"""
    return mean((a - b) ** 2)


def _softmax_back(x: Array, y: Array, dy: Array) -> Any:
    d = dy - np.take_along_axis(dy, y.argmax(axis=1, keepdims=True), axis=1)  # keeps the digits if one y is nearly 1
    return y * (d - (y * d).sum(axis=1, keepdims=True))


@rowwise(_vector, _softmax_back)
def softmax(x: Array) -> Any:
    """exp(x) over its sum, stable for large logits"""
    return np.exp(_log_softmax(x))


@rowwise(_vector, lambda x, y, dy: dy - np.exp(y) * dy.sum(axis=1, keepdims=True))
def log_softmax(x: Array) -> Any:
    """logarithm of the softmax, stable for large logits"""
    return _log_softmax(x)


def _cross_entropy_back(x: Array, label: Array, y: Array, dy: Array) -> Array:
    y = _log_softmax(x)
    d = np.exp(y)
    d[np.arange(len(x)), label] = np.expm1(y[np.arange(len(x)), label])
    return d * dy


@rowwise(_vector_to_scalar, _cross_entropy_back, "logits, label", indices=1)
def cross_entropy(x: Array, label: Array) -> Any:
    """minus the log-softmax of the labelled class, stable for large logits; a scalar"""
    return -_log_softmax(x)[np.arange(len(x)), label]


@rowwise(_pair_to_scalar, lambda a, b, y, dy: (dy * 2 * (a - b), dy * 2 * (b - a)), "a, b")
def squared_distance(a: Array, b: Array) -> Any:
    """sum of the squared differences of two operands of one shape; a scalar"""
    return _total((a - b) ** 2)


def _norm(x: Array) -> Array:
    return np.sqrt(_total(x * x))


def _cosine_back(a: Array, b: Array, y: Array, dy: Array) -> tuple[Array, Array]:
    na, nb = _column(_norm(a), a), _column(_norm(b), b)
    scale = dy / np.maximum(na * nb, COSINE_EPS)
    along = np.where(na * nb > COSINE_EPS, dy * y, 0)  # else the denominator is a constant
    return scale * b - along / np.maximum(na, 1e-150) ** 2 * a, scale * a - along / np.maximum(nb, 1e-150) ** 2 * b


@rowwise(_pair_to_scalar, _cosine_back, "a, b")
def cosine(a: Array, b: Array) -> Any:
    """cosine of the angle between two operands of one shape; a scalar, 0 where one of them vanishes"""
    return _total(a * b) / np.maximum(_norm(a) * _norm(b), COSINE_EPS)


def _logsumexp_back(x: Array, y: Array, dy: Array) -> Array:
    return np.where(np.isinf(y), 0, softmax(x) * dy)


@rowwise(_vector_to_scalar, _logsumexp_back, device="LogSumExp")
def logsumexp(x: Array) -> Any:
    """logarithm of the sum of exponentials of a vector; a scalar, stable for large elements"""
    return np.logaddexp.reduce(x, axis=1)


@rowwise(_vector_to_scalar, lambda x, y, dy: _at(x, x.argmax(axis=1), dy))
def max_(x: Array) -> Any:
    """largest element; the first of equal ones gets the gradient"""
    return x.max(axis=1)


@rowwise(_vector_to_scalar, lambda x, position, y, dy: _at(x, position, dy), "x, i", indices=1)
def pick(x: Array, position: Array) -> Any:
    """element of a vector at a per-vertex position; `x[i]` is the one at a fixed position"""
    return x[np.arange(len(x)), position]


def _margins(x: Array, label: Array, margin: float) -> Array:
    margins: Array = x - x[np.arange(len(x)), label][:, None] + margin
    margins[np.arange(len(x)), label] = 0
    return margins


def _hinge_back(x: Array, label: Array, y: Array, dy: Array, margin: float) -> Array:
    d = (_margins(x, label, margin) > 0) * dy
    d[np.arange(len(d)), label] = -d.sum(axis=1)
    return d


@rowwise(
    _vector_to_scalar, _hinge_back, "logits, label, margin=1.0", indices=1, attrs=("value",), samples={"value": 0.8}
)
def hinge(x: Array, label: Array, margin: float) -> Any:
    """sum over the other classes of max(0, margin + logits[class] - logits[label])"""
    return _total(np.maximum(_margins(x, label, margin), 0))


def _bce_back(x: Array, t: Array, y: Array, dy: Array) -> tuple[Array, Array]:
    scale = dy / size(x.shape[1:])
    return scale * np.where(x > 0, (1 - t) - logistic(-x), logistic(x) - t), -scale * x


@rowwise(_pair_to_scalar, _bce_back, "logits, targets", "BinaryCrossEntropy")
def binary_cross_entropy_with_logits(x: Array, t: Array) -> Any:
    """mean binary cross entropy of logits against targets in [0, 1]; a scalar, stable for large logits"""
    weight = np.where(x > 0, 1 - t, t)  # weight of the wrong answer
    return mean(np.where(weight == 0, 0, np.abs(x) * weight) + np.log1p(np.exp(-np.abs(x))))


def _deviation(centred: Array, eps: float) -> Any:
    return np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)


def _layer_norm_back(x: Array, y: Array, dy: Array, eps: float) -> Any:
    mean, along = dy.mean(axis=1, keepdims=True), (dy * y).mean(axis=1, keepdims=True)
    return (dy - mean - y * along) / _deviation(x - x.mean(axis=1, keepdims=True), eps)


@rowwise(_vector, _layer_norm_back, "x, eps=1e-5", attrs=("value",), samples={"value": 1e-5})
def layer_norm(x: Array, eps: float) -> Any:
    """(x - mean) / sqrt(variance + eps) of a vector (Ba et al. 2016); multiply and add parameters as you need"""
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / _deviation(centred, eps)


def _kl_div_back(log_q: Array, p: Array, y: Array, dy: Array) -> tuple[Array, Array]:
    return -dy * p, dy * np.where(p > 0, np.log(np.where(p > 0, p, 1)) + 1 - log_q, 0)


@rowwise(_pair_to_scalar, _kl_div_back, "log_q, p", "KlDivergence", samples={"low": 0.1, "high": 1.0})
def kl_div(log_q: Array, p: Array) -> Any:
    """divergence sum(p (log p - log_q)) of the distribution p from the one whose logarithm is `log_q`; a scalar"""
    return _total(np.where(p > 0, p * (np.log(np.where(p > 0, p, 1)) - log_q), 0))


@rowwise(_vector_to_scalar, lambda x, y, dy: None, "x", "ArgMax", differentiable=False)
def argmax(x: Array) -> Any:
    """position of the largest element (the first of equal ones) as a scalar float; it has no gradient"""
    return x.argmax(axis=1).astype(np.float64)
