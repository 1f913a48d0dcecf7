"""Ops that look at the whole row of a vertex: reductions, softmax and losses. Form ROWWISE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vpps.ops.table import Array, Attrs, Cost, Form, Op, Shape, register, size


def _vector(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(shapes[0]) != 1:
        raise ValueError("a vector")
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
    name: str,
    arity: int,
    shape: Callable[[Sequence[Shape], Attrs], Shape],
    forward: Callable[..., Array],
    backward: Callable[[Attrs, Sequence[Array], Array, Array], tuple[Array | None, ...]],
    flops: int,
    device: str,
    **rest: Any,
) -> Op:
    """Register a row of this form; `flops` are those of an element of the first operand, all else is as in `Op`."""

    def cost(shapes: Sequence[Shape], out: Shape) -> Cost:
        return Cost(flops * size(shapes[0]), sum(map(size, shapes)) + size(out))

    return register(Op(name, Form.ROWWISE, arity, shape, forward, backward, cost, device, **rest))


def _flat(x: Array) -> Array:
    return x.reshape(len(x), size(x.shape[1:]))


def _column(dy: Array, x: Array) -> Array:
    """The gradients `(n,)` of scalar results, shaped to broadcast over operands `(n, ...)`."""
    return dy.reshape((len(x),) + (1,) * (x.ndim - 1))


def _logsumexp(x: Array) -> Array:
    top = x.max(axis=1, keepdims=True)
    total: Array = top + np.log(np.exp(x - top).sum(axis=1, keepdims=True))
    return total


def _softmax(x: Array) -> Array:
    p: Array = np.exp(x - _logsumexp(x))
    return p


def _softmax_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array]:
    d = dy - np.take_along_axis(dy, y.argmax(axis=1, keepdims=True), axis=1)  # keeps the digits where one y is nearly 1
    return (y * (d - (y * d).sum(axis=1, keepdims=True)),)


def _cross_entropy(attrs: Attrs, x: Array, label: Array) -> Array:
    return _logsumexp(x)[:, 0] - x[np.arange(len(x)), label]


def _cross_entropy_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    x, label = xs
    d = _softmax(x)
    d[np.arange(len(x)), label] -= 1
    return d * dy[:, None], None


rowwise(
    "sum",
    1,
    _any_to_scalar,
    lambda attrs, x: _flat(x).sum(axis=1),
    lambda attrs, xs, y, dy: (_column(dy, xs[0]) * np.ones_like(xs[0]),),
    1,
    "Sum",
    doc="sum of all elements",
)
rowwise(
    "mean",
    1,
    _any_to_scalar,
    lambda attrs, x: _flat(x).mean(axis=1),
    lambda attrs, xs, y, dy: (_column(dy, xs[0]) * np.full_like(xs[0], 1 / size(xs[0].shape[1:])),),
    1,
    "Mean",
    doc="mean of all elements",
)
rowwise(
    "dot",
    2,
    _pair_to_scalar,
    lambda attrs, a, b: _flat(a * b).sum(axis=1),
    lambda attrs, xs, y, dy: (_column(dy, xs[0]) * xs[1], _column(dy, xs[0]) * xs[0]),
    2,
    "Dot",
    doc="inner product of two operands of one shape; a scalar",
    signature="a, b",
)
rowwise(
    "mse",
    2,
    _pair_to_scalar,
    lambda attrs, a, b: _flat((a - b) ** 2).mean(axis=1),
    lambda attrs, xs, y, dy: (
        _column(dy, xs[0]) * 2 * (xs[0] - xs[1]) / size(xs[0].shape[1:]),
        _column(dy, xs[0]) * 2 * (xs[1] - xs[0]) / size(xs[0].shape[1:]),
    ),
    3,
    "MeanSquaredError",
    doc="mean of the squared differences of two operands of one shape; a scalar",
    signature="a, b",
)
rowwise(
    "softmax",
    1,
    _vector,
    lambda attrs, x: _softmax(x),
    _softmax_back,
    12,
    "Softmax",
    doc="exp(x) over its sum, stable for large logits",
)
rowwise(
    "log_softmax",
    1,
    _vector,
    lambda attrs, x: x - _logsumexp(x),
    lambda attrs, xs, y, dy: (dy - np.exp(y) * dy.sum(axis=1, keepdims=True),),
    12,
    "LogSoftmax",
    doc="logarithm of the softmax, stable for large logits",
)
rowwise(
    "cross_entropy",
    1,
    _vector_to_scalar,
    _cross_entropy,
    _cross_entropy_back,
    12,
    "CrossEntropy",
    indices=1,
    doc="minus the log-softmax of the labelled class, stable for large logits; a scalar",
    signature="logits, label",
)


def _squared_distance_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    d = _column(dy, xs[0]) * 2 * (xs[0] - xs[1])
    return d, -d


def _norms(a: Array, b: Array) -> tuple[Array, Array]:
    return np.sqrt(_flat(a * a).sum(axis=1)), np.sqrt(_flat(b * b).sum(axis=1))


def _cosine(attrs: Attrs, a: Array, b: Array) -> Array:
    na, nb = _norms(a, b)
    cosine: Array = _flat(a * b).sum(axis=1) / np.maximum(na * nb, COSINE_EPS)
    return cosine


def _cosine_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    a, b = xs
    na, nb = _norms(a, b)
    scale = _column(dy / np.maximum(na * nb, COSINE_EPS), a)
    free = na * nb > COSINE_EPS  # else the denominator is a constant
    along_a = _column(dy * np.where(free, y / np.maximum(na, 1e-150) ** 2, 0), a)
    along_b = _column(dy * np.where(free, y / np.maximum(nb, 1e-150) ** 2, 0), a)
    return scale * b - along_a * a, scale * a - along_b * b


COSINE_EPS = 1e-8  # least product of norms, as in other libraries


def _max_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array]:
    d = np.zeros_like(xs[0])
    d[np.arange(len(d)), xs[0].argmax(axis=1)] = dy
    return (d,)


def _pick_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    d = np.zeros_like(xs[0])
    d[np.arange(len(d)), xs[1]] = dy
    return d, None


def _hinge_margins(attrs: Attrs, x: Array, label: Array) -> Array:
    margins: Array = x - x[np.arange(len(x)), label][:, None] + attrs["value"]
    margins[np.arange(len(x)), label] = 0
    return margins


def _hinge_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    d = (_hinge_margins(attrs, *xs) > 0) * dy[:, None]
    d[np.arange(len(d)), xs[1]] = -d.sum(axis=1)
    return d, None


def _bce(attrs: Attrs, x: Array, t: Array) -> Array:
    loss: Array = _flat(np.maximum(x, 0) - x * t + np.log1p(np.exp(-np.abs(x)))).mean(axis=1)
    return loss


def _bce_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    x, t = xs
    scale = _column(dy, x) / size(x.shape[1:])
    sigmoid = np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x)))
    return scale * (sigmoid - t), -scale * x


def _layer_norm(attrs: Attrs, x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    normed: Array = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + attrs["value"])
    return normed


def _layer_norm_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array]:
    x = xs[0]
    deviation = np.sqrt(((x - x.mean(axis=1, keepdims=True)) ** 2).mean(axis=1, keepdims=True) + attrs["value"])
    mean, along = dy.mean(axis=1, keepdims=True), (dy * y).mean(axis=1, keepdims=True)
    return ((dy - mean - y * along) / deviation,)


rowwise(
    "squared_distance",
    2,
    _pair_to_scalar,
    lambda attrs, a, b: _flat((a - b) ** 2).sum(axis=1),
    _squared_distance_back,
    3,
    "SquaredDistance",
    doc="sum of the squared differences of two operands of one shape; a scalar",
    signature="a, b",
)
rowwise(
    "cosine",
    2,
    _pair_to_scalar,
    _cosine,
    _cosine_back,
    6,
    "Cosine",
    doc="cosine of the angle between two operands of one shape; a scalar, 0 where one of them vanishes",
    signature="a, b",
)
rowwise(
    "logsumexp",
    1,
    _vector_to_scalar,
    lambda attrs, x: _logsumexp(x)[:, 0],
    lambda attrs, xs, y, dy: (_softmax(xs[0]) * dy[:, None],),
    12,
    "LogSumExp",
    doc="logarithm of the sum of exponentials of a vector; a scalar, stable for large elements",
    signature="x",
)
rowwise(
    "max",
    1,
    _vector_to_scalar,
    lambda attrs, x: x.max(axis=1),
    _max_back,
    1,
    "Max",
    doc="largest element; the first of equal ones gets the gradient",
)
rowwise(
    "pick",
    1,
    _vector_to_scalar,
    lambda attrs, x, label: x[np.arange(len(x)), label],
    _pick_back,
    1,
    "Pick",
    indices=1,
    doc="element of a vector at a per-vertex position; `x[i]` is the one at a fixed position",
    signature="x, i",
)
rowwise(
    "hinge",
    1,
    _vector_to_scalar,
    lambda attrs, x, label: np.maximum(_hinge_margins(attrs, x, label), 0).sum(axis=1),
    _hinge_back,
    3,
    "Hinge",
    indices=1,
    attrs=("value",),
    samples={"value": 0.8},
    doc="sum over the other classes of max(0, margin + logits[class] - logits[label])",
    signature="logits, label, margin=1.0",
)
rowwise(
    "binary_cross_entropy_with_logits",
    2,
    _pair_to_scalar,
    _bce,
    _bce_back,
    25,
    "BinaryCrossEntropy",
    doc="mean binary cross entropy of logits against targets in [0, 1]; a scalar, stable for large logits",
    signature="logits, targets",
)
rowwise(
    "layer_norm",
    1,
    _vector,
    _layer_norm,
    _layer_norm_back,
    8,
    "LayerNorm",
    attrs=("value",),
    samples={"value": 1e-5},
    doc="(x - mean) / sqrt(variance + eps) of a vector (Ba et al. 2016); multiply and add parameters as you need",
    signature="x, eps=1e-5",
)


def _kl_div(attrs: Attrs, log_q: Array, p: Array) -> Array:
    divergence: Array = _flat(np.where(p > 0, p * (np.log(np.where(p > 0, p, 1)) - log_q), 0)).sum(axis=1)
    return divergence


def _kl_div_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    log_q, p = xs
    d_p = np.where(p > 0, np.log(np.where(p > 0, p, 1)) + 1 - log_q, 0)
    return -_column(dy, p) * p, _column(dy, p) * d_p


rowwise(
    "kl_div",
    2,
    _pair_to_scalar,
    _kl_div,
    _kl_div_back,
    14,
    "KlDivergence",
    doc="divergence sum(p (log p - log_q)) of the distribution p from the one whose logarithm is `log_q`; a scalar",
    signature="log_q, p",
    samples={"low": 0.1, "high": 1.0},
)
rowwise(
    "argmax",
    1,
    _vector_to_scalar,
    lambda attrs, x: x.argmax(axis=1).astype(np.float64),
    lambda attrs, xs, y, dy: (None,),
    1,
    "ArgMax",
    differentiable=False,
    doc="position of the largest element (the first of equal ones) as a scalar float; it has no gradient",
    signature="x",
)
