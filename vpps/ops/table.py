"""The op table: one row per primitive, used by the shape check, the reference, the lowering, the kernel and the tests.

Shapes are for one vertex: `()` scalar, `(w,)` vector, `(r, c)` matrix. The reference functions work on batches in
float64: an operand of shape `s` is passed as an array of shape `(n, *s)`; row `i` belongs to vertex `i`.

To add an elementwise op, add one row here (see `elementwise.py`) and one device function in `templates/ops/`. The
public function and its documentation are derived from the row (`graph/derive.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray

Shape = tuple[int, ...]
Array = NDArray[Any]
Attrs = Mapping[str, Any]
ShapeRule = Callable[[Sequence[Shape], Attrs], Shape]


class Form(Enum):
    """Execution of an op on the virtual processors; the lowering has one rule per form."""

    MAP = "map"  # out[i] = f(a[i], ...): any slice of the units
    DROPOUT = "dropout"  # a map with random factors: any slice of the units
    ROWWISE = "rowwise"  # reduces one vertex's whole row: sliced by rows
    MATVEC = "matvec"  # parameter matrix times vector
    PACKED_MATMUL = "packed_matmul"  # parameter matrix times computed matrix, or transposed
    MATMUL = "matmul"  # products of computed matrices and vectors
    TRANSPOSE = "transpose"  # transpose of a computed matrix
    CONCAT = "concat"  # segments of other rows
    SLICE = "slice"  # a view: no instruction
    RESHAPE = "reshape"  # a view: no instruction
    LIST_REDUCE = "list_reduce"  # reduces the elements of a list argument
    LIST_MAP = "list_map"  # a result per element of a list argument; each depends on all elements
    LOOKUP = "lookup"  # a row of a table: a view through an index list; a row of a matrix: a copy
    INPUT = "input"  # data carried by the script
    ZEROS = "zeros"  # a row of zeros
    PARAMETER = "parameter"  # a parameter as an operand; a vector is one row for all vertices, a matrix is copied
    ARGUMENT = "argument"  # a value from another vertex
    INDEX = "index"  # an int32 argument of the vertex


@dataclass(frozen=True)
class Op:
    """One row of the op table.

    Attributes:
        name: the public name, which is also the instruction's name.
        form: the lowering rule.
        arity: number of float operands; None for any number.
        indices: number of int operands (labels, rows), which follow the float operands.
        shape: `shape(operand_shapes, attrs)` returns the result's shape, or raises ValueError with the expected shapes.
        forward: reference, `forward(attrs, *operands) -> result`, batched float64.
        backward: reference, `backward(attrs, operands, result, d_result) -> d_operands` (None for no gradient).
        device: struct in templates/ops with the device code ("" if the form has its own instruction).
        attrs: names of the static attributes.
        passes: operands whose gradient equals the result's gradient, so that backward needs no instruction for them.
        reads: for a map, the values that the device code for each operand's gradient reads besides the result's
            gradient: "a" and "b" are the operands, "y" is the result. No other values are kept for backward.
        differentiable: False for ops that stop the gradient.
        conditions: number of leading operands that are only conditions and have no gradient.
        doc: the computation in lower-case words, for the reference and the public function's docstring.
        signature: parameters of the public function: operands, then ints, then the attribute `value`, such as "logits,
            label, margin=1.0"; "" if there is no function or it is written by hand.
    """

    name: str
    form: Form
    arity: int | None
    shape: ShapeRule
    forward: Callable[..., Array]
    backward: Callable[[Attrs, Sequence[Array], Array, Array], tuple[Array | None, ...]]
    device: str = ""
    indices: int = 0
    attrs: tuple[str, ...] = ()
    passes: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()
    differentiable: bool = True
    conditions: int = 0
    doc: str = ""
    signature: str = ""
    samples: Mapping[str, Any] = field(default_factory=dict)  # hints for generated tests: value ranges, attributes


OPS: dict[str, Op] = {}


def register(
    name: str,
    form: Form,
    arity: int | None,
    shape: ShapeRule,
    forward: Callable[..., Array],
    backward: Callable[[Attrs, Sequence[Array], Array, Array], tuple[Array | None, ...]],
    **rest: Any,
) -> None:
    """Add a row with the fields of `Op`. Raises ValueError if the name is taken."""
    if name in OPS:
        raise ValueError(f"op {name!r} is already in the table")
    OPS[name] = Op(name, form, arity, shape, forward, backward, **rest)


def struct_of(name: str) -> str:
    """Return an op's default struct name in templates/ops, such as AtLeast for at_least."""
    return name.title().replace("_", "")


def first_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the first operand's shape; the shape rule for ops whose result has that shape."""
    return shapes[0]


def size(shape: Shape) -> int:
    """Return the number of elements in a shape; 1 for a scalar."""
    return math.prod(shape)


def batch_dims(x: Array, like: Array) -> Array:
    """Reshape a batch of scalars `(n,)` to broadcast against `like` of shape `(n, ...)`."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim)) if x.ndim == 1 else x


def unbroadcast(gradient: Array, like: Array) -> Array:
    """Reduce a gradient to the shape of an operand that may have been broadcast from a batch of scalars."""
    summed: Array = gradient.sum(axis=tuple(range(like.ndim, gradient.ndim)))
    return summed
