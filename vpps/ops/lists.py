"""Ops that look at all elements of a list argument together: element by element of the rows, list by list.

The sums are in `structure.py`: they need no instruction of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from vpps.ops.structure import list_sum
from vpps.ops.table import Array, Attrs, Cost, Form, Op, Shape, register, size


def _element_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return shapes[0]


def _cost(flops: int) -> Callable[[Sequence[Shape], Shape], Cost]:
    """Of one element."""
    return lambda shapes, out: Cost(flops * size(out), 2 * size(out))


def _lists(x: Array, offsets: Array) -> Iterator[tuple[int, Array]]:
    """(number, rows of x) of every list that has elements."""
    for i, (start, stop) in enumerate(pairwise(offsets)):
        if stop > start:
            yield i, x[start:stop]


def _to_elements(x: Array, offsets: Array) -> Array:
    """A row per list, repeated for each of its elements."""
    return np.repeat(x, np.diff(offsets), axis=0)


def _extremum(largest: bool) -> Callable[[Attrs, Array, Array], Array]:
    def run(attrs: Attrs, x: Array, offsets: Array) -> Array:
        out = np.zeros((len(offsets) - 1, *x.shape[1:]))
        for i, rows in _lists(x, offsets):
            out[i] = rows.max(axis=0) if largest else rows.min(axis=0)
        return out

    return run


def _extremum_back(largest: bool) -> Callable[[Attrs, Sequence[Array], Array, Array], tuple[Array, None]]:
    def run(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
        x, offsets = xs
        d = np.zeros_like(x)
        for i, rows in _lists(x, offsets):
            best = (rows.argmax(axis=0) if largest else rows.argmin(axis=0))[None]
            np.put_along_axis(d[offsets[i] : offsets[i + 1]], best, dy[i][None], axis=0)
        return d, None

    return run


def _softmax(attrs: Attrs, x: Array, offsets: Array) -> Array:
    return np.exp(_log_softmax(attrs, x, offsets))


def _softmax_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    d = dy.copy()  # less that of the largest y, which keeps the digits where one y is nearly 1
    for i, rows in _lists(y, xs[1]):
        mine = d[xs[1][i] : xs[1][i + 1]]
        mine -= np.take_along_axis(mine, rows.argmax(axis=0)[None], axis=0)
    return y * (d - _to_elements(list_sum({}, y * d, xs[1]), xs[1])), None


def _log_softmax(attrs: Attrs, x: Array, offsets: Array) -> Array:
    centred = x - _to_elements(_extremum(True)({}, x, offsets), offsets)
    y: Array = centred - np.log(_to_elements(list_sum({}, np.exp(centred), offsets), offsets))
    return y


def _log_softmax_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    return dy - np.exp(y) * _to_elements(list_sum({}, dy, xs[1]), xs[1]), None


register(
    Op(
        "list_max",
        Form.LIST_REDUCE,
        1,
        _element_shape,
        _extremum(True),
        _extremum_back(True),
        _cost(1),
        "ListMax",
        doc="largest over a list argument; the first of equal ones gets the gradient, an empty list gives zeros",
    )
)
register(
    Op(
        "list_min",
        Form.LIST_REDUCE,
        1,
        _element_shape,
        _extremum(False),
        _extremum_back(False),
        _cost(1),
        "ListMin",
        doc="smallest over a list argument; the first of equal ones gets the gradient, an empty list gives zeros",
    )
)
register(
    Op(
        "list_softmax",
        Form.LIST_MAP,
        1,
        _element_shape,
        _softmax,
        _softmax_back,
        _cost(12),
        "ListSoftmax",
        doc="exp(x) over its sum over a list argument, stable for large elements",
    )
)
register(
    Op(
        "list_log_softmax",
        Form.LIST_MAP,
        1,
        _element_shape,
        _log_softmax,
        _log_softmax_back,
        _cost(12),
        "ListLogSoftmax",
        doc="logarithm of the softmax over a list argument, stable for large elements",
    )
)
