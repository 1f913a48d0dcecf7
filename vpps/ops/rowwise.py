"""Ops that look at the whole row of a vertex: reductions, softmax and losses. Form ROWWISE."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def _cost(flops: int) -> Callable[[Sequence[Shape], Shape], Cost]:
    return lambda shapes, out: Cost(flops * size(shapes[0]), sum(map(size, shapes)) + size(out))


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


def _cross_entropy(attrs: Attrs, x: Array, label: Array) -> Array:
    return _logsumexp(x)[:, 0] - x[np.arange(len(x)), label]


def _cross_entropy_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    x, label = xs
    d = _softmax(x)
    d[np.arange(len(x)), label] -= 1
    return d * dy[:, None], None


register(
    Op(
        "sum",
        Form.ROWWISE,
        1,
        _any_to_scalar,
        lambda attrs, x: _flat(x).sum(axis=1),
        lambda attrs, xs, y, dy: (_column(dy, xs[0]) * np.ones_like(xs[0]),),
        _cost(1),
        "Sum",
        doc="sum of all elements",
    )
)
register(
    Op(
        "mean",
        Form.ROWWISE,
        1,
        _any_to_scalar,
        lambda attrs, x: _flat(x).mean(axis=1),
        lambda attrs, xs, y, dy: (_column(dy, xs[0]) * np.full_like(xs[0], 1 / size(xs[0].shape[1:])),),
        _cost(1),
        "Mean",
        doc="mean of all elements",
    )
)
register(
    Op(
        "dot",
        Form.ROWWISE,
        2,
        _pair_to_scalar,
        lambda attrs, a, b: _flat(a * b).sum(axis=1),
        lambda attrs, xs, y, dy: (_column(dy, xs[0]) * xs[1], _column(dy, xs[0]) * xs[0]),
        _cost(2),
        "Dot",
        doc="inner product of two operands of one shape",
    )
)
register(
    Op(
        "mse",
        Form.ROWWISE,
        2,
        _pair_to_scalar,
        lambda attrs, a, b: _flat((a - b) ** 2).mean(axis=1),
        lambda attrs, xs, y, dy: (
            _column(dy, xs[0]) * 2 * (xs[0] - xs[1]) / size(xs[0].shape[1:]),
            _column(dy, xs[0]) * 2 * (xs[1] - xs[0]) / size(xs[0].shape[1:]),
        ),
        _cost(3),
        "MeanSquaredError",
        doc="mean of the squared differences of two operands of one shape",
    )
)
register(
    Op(
        "softmax",
        Form.ROWWISE,
        1,
        _vector,
        lambda attrs, x: _softmax(x),
        lambda attrs, xs, y, dy: (y * (dy - (y * dy).sum(axis=1, keepdims=True)),),
        _cost(12),
        "Softmax",
        doc="exp(x) over its sum, stable for large logits",
    )
)
register(
    Op(
        "log_softmax",
        Form.ROWWISE,
        1,
        _vector,
        lambda attrs, x: x - _logsumexp(x),
        lambda attrs, xs, y, dy: (dy - np.exp(y) * dy.sum(axis=1, keepdims=True),),
        _cost(12),
        "LogSoftmax",
        doc="logarithm of the softmax, stable for large logits",
    )
)
register(
    Op(
        "cross_entropy",
        Form.ROWWISE,
        1,
        _vector_to_scalar,
        _cross_entropy,
        _cross_entropy_back,
        _cost(12),
        "CrossEntropy",
        indices=1,
        doc="minus the log-softmax of the labelled class, stable for large logits",
    )
)
