"""The public functions on computed matrices that do more than record one op."""

from __future__ import annotations

from vpps.errors import DtypeError, ShapeError
from vpps.graph.derive import Value
from vpps.graph.primitives import dot
from vpps.ops import size
from vpps.ops.operand import Expression, Operand, record
from vpps.values import as_index

__all__ = ["bilinear", "reshape"]


def reshape(x: Value, shape: int | tuple[int, ...]) -> Expression:
    """The same elements in another shape, row after row; inside a cell it costs nothing.

    Args:
        shape: of rank 0, 1 or 2; a length of -1 is what the others leave.

    Raises:
        ShapeError: the shape has another number of elements.
    """
    given = shape if isinstance(shape, tuple | list) else (shape,)
    lengths = [as_index(n) for n in given]
    if len(lengths) > 2 or any(n is None or (n < 1 and n != -1) for n in lengths) or lengths.count(-1) > 1:
        raise ShapeError(f"reshape({x!r}, {shape!r}): expects up to two positive ints, one of which may be -1")
    known = size(tuple(n for n in lengths if n is not None and n != -1))
    total = size(x.shape) if isinstance(x, Operand) else known
    return record("reshape", [x], shape=tuple(total // known if n == -1 else n for n in lengths if n is not None))


def bilinear(x: Value, W: Value, y: Value, outputs: int | None = None) -> Expression:
    """x^T W y: a scalar, for W of shape (n, m), x of shape (n,) and y of shape (m,).

    Args:
        W: a parameter or a computed matrix.
        outputs: number k of such forms, whose matrices W of shape (k n, m) stacks; the result is a vector of k. This is
            the tensor of neural tensor networks (Socher et al. 2013).

    Raises:
        ShapeError: the shapes do not fit.
    """
    what = f"bilinear({x!r}, {W!r}, {y!r}, outputs={outputs!r})"
    k = 1 if outputs is None else as_index(outputs)
    if k is None or k < 1:
        raise ShapeError(f"{what}: outputs is a positive int, or None for a scalar")
    if not all(isinstance(operand, Operand) for operand in (x, W, y)):
        raise DtypeError(f"{what}: takes expressions and parameters; bring data into the graph with graph.input(array)")
    if len(x.shape) != 1 or len(y.shape) != 1 or W.shape != (k * x.shape[0], y.shape[0]):
        raise ShapeError(f"{what}: expects vectors x of n and y of m elements, and W of shape (outputs * n, m)")
    return dot(x, W @ y) if outputs is None else reshape(W @ y, (k, x.shape[0])) @ x
