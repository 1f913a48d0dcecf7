"""Ops that move or select: products with parameters, concat, slices, list reductions, leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpps.ops.table import Array, Attrs, Form, Shape, first_shape, register, size


def _affine_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    w, x, *b = shapes
    if len(w) != 2:
        raise ValueError("a matrix on its left; vpps.dot(a, b) is the inner product of vectors")
    if not 1 <= len(x) <= 2 or w[1] != x[0]:
        raise ValueError(
            f"a vector of length {w[1]}, or a matrix of {w[1]} rows, on the right of a matrix of shape {w}"
        )
    if b and b[0] != (w[0],):
        raise ValueError(f"a bias of shape ({w[0]},)")
    return (w[0], *x[1:])


def _affine(attrs: Attrs, w: Array, x: Array, *b: Array) -> Array:
    return x @ w.T + (b[0] if b else 0.0)


def _affine_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array | None, ...]:
    w, x, *b = xs
    return (dy.T @ x, dy @ w, *([dy] if b else []))


def _concat_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    matrices = [s for s in shapes if len(s) == 2]
    if not matrices and shapes:
        return (sum(map(size, shapes)),)
    if len(matrices) != len(shapes) or len({s[1] for s in shapes}) != 1:
        raise ValueError(
            "one or more vectors or scalars, or matrices of equal numbers of columns (vpps.reshape(x, (1, n)) makes a "
            "row of a vector)"
        )
    return (sum(s[0] for s in shapes), shapes[0][1])


def _concat(attrs: Attrs, *xs: Array) -> Array:
    return np.concatenate([x[:, None] if x.ndim == 1 else x for x in xs], axis=1)


def _concat_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, ...]:
    cuts = np.cumsum([x.shape[1] if x.ndim > 1 else 1 for x in xs])[:-1]
    return tuple(d.reshape(x.shape) for d, x in zip(np.split(dy, cuts, axis=1), xs, strict=True))


def _slice_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    (s,) = shapes
    if not s or not 0 <= attrs["start"] < attrs["stop"] <= s[0]:
        raise ValueError(f"a vector or matrix that holds elements or rows [{attrs['start']}, {attrs['stop']})")
    return s[1:] if attrs["scalar"] else (attrs["stop"] - attrs["start"], *s[1:])


def _slice(attrs: Attrs, x: Array) -> Array:
    return x[:, attrs["start"]] if attrs["scalar"] else x[:, attrs["start"] : attrs["stop"]]


def _slice_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array]:
    d = np.zeros_like(xs[0])
    d[:, attrs["start"] : attrs["stop"]] = dy[:, None] if attrs["scalar"] else dy
    return (d,)


def list_sum(attrs: Attrs, x: Array, offsets: Array) -> Array:
    """Sum rows `offsets[i]:offsets[i + 1]` of x into row i; an empty list gives zeros."""
    out = np.zeros((len(offsets) - 1, *x.shape[1:]))
    np.add.at(out, np.repeat(np.arange(len(out)), np.diff(offsets)), x)
    return out


def _list_mean(attrs: Attrs, x: Array, offsets: Array) -> Array:
    lengths = np.maximum(np.diff(offsets), 1).reshape((-1,) + (1,) * (x.ndim - 1))
    return list_sum(attrs, x, offsets) / lengths


def _list_sum_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    return np.repeat(dy, np.diff(xs[1]), axis=0), None


def _list_mean_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    lengths = np.maximum(np.diff(xs[1]), 1).reshape((-1,) + (1,) * (dy.ndim - 1))
    return np.repeat(dy / lengths, np.diff(xs[1]), axis=0), None


def _lookup_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return shapes[0][1:]


def _lookup_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, None]:
    d = np.zeros_like(xs[0])
    np.add.at(d, xs[1], dy)
    return d, None


def _given_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs["shape"])


def _no_gradient(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array | None, ...]:
    return ()


def _source(attrs: Attrs, *xs: Array) -> Array:
    raise AssertionError("the reference executor supplies the values of sources")


register("affine", Form.MATVEC, None, _affine_shape, _affine, _affine_back, doc="W @ x, or W @ x + b fused")
register(
    "concat",
    Form.CONCAT,
    None,
    _concat_shape,
    _concat,
    _concat_back,
    doc="vectors joined end to end, or rows of matrices",
)
register(
    "slice",
    Form.SLICE,
    1,
    _slice_shape,
    _slice,
    _slice_back,
    attrs=("start", "stop", "scalar"),
    doc="elements start to stop of a vector, or such rows of a matrix; a view",
)
register("list_sum", Form.LIST_REDUCE, 1, first_shape, list_sum, _list_sum_back, doc="sum over a list argument")
register("list_mean", Form.LIST_REDUCE, 1, first_shape, _list_mean, _list_mean_back, doc="mean over a list argument")
register(
    "lookup",
    Form.LOOKUP,
    1,
    _lookup_shape,
    lambda attrs, table, row: table[row],
    _lookup_back,
    indices=1,
    doc="row of an embedding table, whose gradient is sparse, or of a parameter",
)
register("input", Form.INPUT, 0, _given_shape, _source, _no_gradient, attrs=("shape", "grad"), doc="given data")
register("zeros", Form.ZEROS, 0, _given_shape, _source, _no_gradient, attrs=("shape",), doc="a zero vector")
register("parameter", Form.PARAMETER, 1, first_shape, _source, _no_gradient, doc="a parameter as an operand")
register("argument", Form.ARGUMENT, 0, _given_shape, _source, _no_gradient, attrs=("shape",), doc="argument")
register("index", Form.INDEX, 0, lambda s, a: (), _source, _no_gradient, doc="an int of the vertex")
