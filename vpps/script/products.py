"""What may follow the first launch of a script: products of large matrices, then a second launch.

A gradient of strategy "gemm" (VPPS III-C2) is one product of all vectors that its matrix met: the first launch leaves
them side by side, a library multiplies them, and a second launch of the same script, with entry points of its own,
makes the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.ops.element import FLOAT32
from vpps.script.instructions import HEADER_WORDS


class PoolRows(NamedTuple):
    """A matrix in the pool, whose row r begins at `address + r * stride`."""

    address: int
    stride: int


class Product(NamedTuple):
    """G = dY^T X, or with `accumulate` G += dY^T X; with no rows at all, G = 0, or G as it is.

    Attributes:
        name: of the parameter.
        rows, columns: of G, which lies row after row.
        n: rows of dY, each `rows` wide, and of X, each `columns` wide.
        dy, x: where they are.
        gradient: address of G.
        accumulate: whether to add to what is there.
    """

    name: str
    rows: int
    columns: int
    n: int
    dy: PoolRows
    x: PoolRows
    gradient: int
    accumulate: bool

    def __str__(self) -> str:
        """As a line of a disassembled script."""
        sign = "+=" if self.accumulate else "="
        factors = ", ".join(f"{k}=[{at.address} step {at.stride}]" for k, at in (("dy", self.dy), ("x", self.x)))
        return f"[{self.gradient}] {sign} dy^T x over {self.n}, {self.rows} x {self.columns}, {factors}"


class Continuation(NamedTuple):
    """What follows the first launch of a script.

    Attributes:
        products: made when that has ended.
        entries: position in the script of the second launch's entry points, one per virtual processor; 0 if there is
            none.
    """

    products: tuple[Product, ...]
    entries: int


def entered_at(script: NDArray[np.uint32], entries: int) -> NDArray[np.uint32]:
    """A copy of a script that is entered at other points: those that lie at a position of it."""
    n_vps = int(script[1])
    words = script.copy()
    words[HEADER_WORDS : HEADER_WORDS + n_vps] = script[entries : entries + n_vps]
    return words


def multiply(pool: NDArray[np.float32], product: Product) -> None:
    """Make a product with NumPy."""
    dy = _view(pool, product.dy, product.n, product.rows)
    x = _view(pool, product.x, product.n, product.columns)
    stop = product.gradient + product.rows * product.columns
    gradient = pool[product.gradient : stop].reshape(product.rows, product.columns)
    if product.accumulate:
        gradient += dy.T @ x
    else:
        np.matmul(dy.T, x, out=gradient)


def _view(pool: NDArray[np.float32], at: PoolRows, n: int, width: int) -> NDArray[np.float32]:
    """A matrix of the pool, without a copy."""
    if not n:
        return np.zeros((0, width), np.float32)
    assert at.stride >= width
    assert at.address + (n - 1) * at.stride + width <= len(pool)
    strides = FLOAT32.bytes * at.stride, FLOAT32.bytes
    return np.lib.stride_tricks.as_strided(pool[at.address :], (n, width), strides, writeable=False)
