"""Ops over all elements of a list argument, computed for each list and each position in a row separately.

The sums are in `structure.py`, because they need no separate instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from vpps.ops.structure import list_sum
from vpps.ops.table import Array, Attrs, Form, first_shape, register, struct_of


def _register(name: str, form: Form, forward: Callable[..., Array], backward: Callable[..., Any], doc: str) -> None:
    register(
        name,
        form,
        1,
        first_shape,
        forward,
        lambda attrs, xs, y, dy: (backward(*xs, y, dy), None),
        device=struct_of(name),
        doc=doc,
    )


def _lists(x: Array, offsets: Array) -> Iterator[tuple[int, Array]]:
    """Yield (number, rows of x) for every list that has elements."""
    for i, (start, stop) in enumerate(pairwise(offsets)):
        if stop > start:
            yield i, x[start:stop]


def _to_elements(x: Array, offsets: Array) -> Array:
    """Repeat each list's row for each of the list's elements."""
    return np.repeat(x, np.diff(offsets), axis=0)


def _extremum(best: Callable[..., Any]) -> Callable[[Attrs, Array, Array], Array]:
    def run(attrs: Attrs, x: Array, offsets: Array) -> Array:
        out = np.zeros((len(offsets) - 1, *x.shape[1:]))
        for i, rows in _lists(x, offsets):
            out[i] = best(rows, axis=0)
        return out

    return run


def _extremum_back(place: Callable[..., Any]) -> Callable[[Array, Array, Array, Array], Array]:
    def run(x: Array, offsets: Array, y: Array, dy: Array) -> Array:
        d = np.zeros_like(x)
        for i, rows in _lists(x, offsets):
            np.put_along_axis(d[offsets[i] : offsets[i + 1]], place(rows, axis=0)[None], dy[i][None], axis=0)
        return d

    return run


def _softmax(attrs: Attrs, x: Array, offsets: Array) -> Array:
    return np.exp(_log_softmax(attrs, x, offsets))


def _softmax_back(x: Array, offsets: Array, y: Array, dy: Array) -> Any:
    d = dy.copy()  # subtracting the largest y's gradient keeps the digits if one y is nearly 1
    for i, rows in _lists(y, offsets):
        mine = d[offsets[i] : offsets[i + 1]]
        mine -= np.take_along_axis(mine, rows.argmax(axis=0)[None], axis=0)
    return y * (d - _to_elements(list_sum({}, y * d, offsets), offsets))


def _log_softmax(attrs: Attrs, x: Array, offsets: Array) -> Array:
    centred = x - _to_elements(_extremum(np.max)({}, x, offsets), offsets)
    y: Array = centred - np.log(_to_elements(list_sum({}, np.exp(centred), offsets), offsets))
    return y


def _log_softmax_back(x: Array, offsets: Array, y: Array, dy: Array) -> Any:
    return dy - np.exp(y) * _to_elements(list_sum({}, dy, offsets), offsets)


for _name, _which, _best, _place in (
    ("list_max", "largest", np.max, np.argmax),
    ("list_min", "smallest", np.min, np.argmin),
):
    _doc = f"{_which} over a list argument; the first of equal ones gets the gradient, an empty list gives zeros"
    _register(_name, Form.LIST_REDUCE, _extremum(_best), _extremum_back(_place), _doc)

for _name, _what, _forward, _backward in (
    ("list_softmax", "exp(x) over its sum", _softmax, _softmax_back),
    ("list_log_softmax", "logarithm of the softmax", _log_softmax, _log_softmax_back),
):
    _register(_name, Form.LIST_MAP, _forward, _backward, f"{_what} over a list argument, stable for large elements")
