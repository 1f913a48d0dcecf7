"""Ops on computed matrices. A matrix of shape (r, c) is r * c floats, row by row, so reshaping copies nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpps.ops.table import Array, Attrs, Form, Shape, register, size


def _reshape_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    shape: Shape = tuple(attrs["shape"])
    if size(shape) != size(shapes[0]):
        raise ValueError(f"an operand of {size(shape)} elements for the shape {shape}")
    return shape


def _transpose_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(shapes[0]) != 2:
        raise ValueError("a matrix; vpps.reshape(x, (1, n)) makes a row, and (n, 1) a column, of a vector")
    return shapes[0][::-1]


def _stored(shape: Shape, transposed: bool) -> Shape:
    """Return an operand's shape in the product."""
    return shape[::-1] if transposed and len(shape) == 2 else shape


def _matmul_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    a, b = shapes
    if len(a) != 2:
        raise ValueError(
            "a matrix on its left; for vectors there are vpps.dot(a, b), vpps.outer(a, b), and m.T @ x for x @ m"
        )
    a, b = _stored(a, attrs["transposed_a"]), _stored(b, attrs["transposed_b"])
    if not b or b[0] != a[1]:
        raise ValueError(
            f"a vector of length {a[1]}, or a matrix of {a[1]} rows, on the right of a matrix of shape {a}"
        )
    return (a[0], *b[1:])


def _flip(x: Array, flip: bool) -> Array:
    return x.swapaxes(-1, -2) if flip else x


def _matmul(attrs: Attrs, a: Array, b: Array) -> Array:
    column = b.ndim == 2
    product = _flip(a, attrs["transposed_a"]) @ (b[..., None] if column else _flip(b, attrs["transposed_b"]))
    return product[..., 0] if column else product


def _matmul_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    a, b = xs
    column = b.ndim == 2
    left, right = _flip(a, attrs["transposed_a"]), b[..., None] if column else _flip(b, attrs["transposed_b"])
    dy = dy[..., None] if column else dy
    d_right = left.swapaxes(-1, -2) @ dy
    d_b = d_right[..., 0] if column else _flip(d_right, attrs["transposed_b"])
    return _flip(dy @ right.swapaxes(-1, -2), attrs["transposed_a"]), d_b


def _outer_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    if any(len(s) != 1 for s in shapes):
        raise ValueError("two vectors")
    return (*shapes[0], *shapes[1])


def _columns_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    w, x = shapes
    if len(w) != 2 or len(x) != 2 or w[1] != x[0]:
        raise ValueError(f"a matrix of {w[-1]} rows on the right of a parameter of shape {w}")
    return (w[0], x[1])


def _columns_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    w, x = xs
    return np.einsum("vrn,vcn->rc", dy, x), w.T @ dy


def _transposed_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    w, x = shapes
    if len(w) != 2 or not 1 <= len(x) <= 2 or w[0] != x[0]:
        raise ValueError(
            f"a vector of length {w[0]}, or a matrix of {w[0]} rows, on the right of the transpose of a parameter of "
            f"shape {w}"
        )
    return (w[1], *x[1:])


def _transposed_back(attrs: Attrs, xs: Sequence[Array], y: Array, dy: Array) -> tuple[Array, Array]:
    w, x = xs
    summed = [0, *range(2, x.ndim)]
    return np.tensordot(x, dy, (summed, summed)), np.einsum("rc,vc...->vr...", w, dy)


register(
    "reshape",
    Form.RESHAPE,
    1,
    _reshape_shape,
    lambda attrs, x: x.reshape(len(x), *attrs["shape"]),
    lambda attrs, xs, y, dy: (dy.reshape(xs[0].shape),),
    attrs=("shape",),
    doc="the same elements in another shape; a view",
)
register(
    "transpose",
    Form.TRANSPOSE,
    1,
    _transpose_shape,
    lambda attrs, x: x.swapaxes(1, 2).copy(),
    lambda attrs, xs, y, dy: (dy.swapaxes(1, 2),),
    doc="rows of a computed matrix as columns; `m.T` is the same. Products in a cell use it without a copy",
    signature="m",
)
register(
    "matmul",
    Form.MATMUL,
    2,
    _matmul_shape,
    _matmul,
    _matmul_back,
    attrs=("transposed_a", "transposed_b"),
    samples={"transposed_a": False, "transposed_b": False},
    doc="computed matrix times computed matrix or vector",
)
register(
    "outer",
    Form.MATMUL,
    2,
    _outer_shape,
    lambda attrs, a, b: a[:, :, None] * b[:, None, :],
    lambda attrs, xs, y, dy: ((dy @ xs[1][:, :, None])[..., 0], (dy.swapaxes(1, 2) @ xs[0][:, :, None])[..., 0]),
    doc="outer product of two vectors: the matrix of shape (length of a, length of b) with elements a[i] b[j]",
    signature="a, b",
)
register(
    "affine_columns",
    Form.PACKED_MATMUL,
    None,
    _columns_shape,
    lambda attrs, w, x: w @ x,
    _columns_back,
    doc="W @ M: parameter matrix times computed matrix",
)
register(
    "affine_transposed",
    Form.PACKED_MATMUL,
    None,
    _transposed_shape,
    lambda attrs, w, x: np.einsum("rc,vr...->vc...", w, x),
    _transposed_back,
    doc="W.T @ x, or W.T @ M: parameter matrix, transposed, times vector or computed matrix",
)
