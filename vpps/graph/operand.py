"""Operands: what ops take (expressions and parameters), and the operators and functions that record ops on them.

A *recorder* is either a `Graph` (one vertex per call) or the `Trace` of a cell (one node per op). Which one records is
taken from the expressions among the operands; inside a cell that has none, the trace that is running.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from vpps.errors import GraphError, ShapeError, TraceError
from vpps.ops import OPS, Shape
from vpps.values import as_index, as_number


class Recorder(Protocol):
    """Takes down ops: a Graph or a Trace."""

    def apply(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        """Record `op` and return its result; operands are Expressions, Parameters and indices."""
        ...

    def describe(self) -> str:
        """What this recorder is, for error messages."""
        ...


class Operand:
    """Base of everything that ops take: has a shape, and Python's arithmetic operators."""

    __slots__ = ()
    shape: Shape

    # NumPy arrays must not take over `array * expression` element by element.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Expression:
        number = as_number(other)
        return record("shift", [self], value=number) if number is not None else record("add", [self, other])

    __radd__ = __add__

    def __sub__(self, other: Any) -> Expression:
        number = as_number(other)
        return record("shift", [self], value=-number) if number is not None else record("sub", [self, other])

    def __rsub__(self, other: Any) -> Expression:
        difference: Expression = -self + other
        return difference

    def __mul__(self, other: Any) -> Expression:
        number = as_number(other)
        return record("scale", [self], value=number) if number is not None else record("mul", [self, other])

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        number = as_number(other)
        if number is None:
            raise TraceError(f"{self!r} / {type(other).__name__}: only division by a Python number is supported")
        if number == 0:
            raise ZeroDivisionError(f"{self!r} / 0")
        return record("scale", [self], value=1.0 / number)

    def __neg__(self) -> Expression:
        return record("neg", [self])

    def __matmul__(self, other: Any) -> Expression:
        return record("affine", [self, other])

    def __getitem__(self, key: Any) -> Expression:
        return take(self, key)

    def __iter__(self) -> Iterator[Any]:
        raise TraceError(f"{self!r} cannot be iterated over; use vpps.split(x, n) or slices such as x[0:8]")

    def __bool__(self) -> bool:
        raise TraceError(
            f"{self!r} has no truth value while the graph is being recorded; a cell is traced once, so it cannot "
            "branch on values. Branch on Python data, or make two cells"
        )

    __hash__ = object.__hash__


class Expression(Operand):
    """A value that a graph (or the trace of a cell) will compute: a vector, a scalar of shape `()`, or a matrix.

    Attributes:
        owner: the Graph or Trace that recorded it.
        ref: its value id in the graph, or its node in the trace.
        shape: the shape of one vertex's value.
    """

    __slots__ = ("owner", "ref", "shape")

    def __init__(self, owner: Recorder, ref: int, shape: Shape) -> None:
        self.owner = owner
        self.ref = ref
        self.shape = shape

    def __repr__(self) -> str:
        return f"<expression {self.ref} of shape {self.shape} in {self.owner.describe()}>"


class Index(Operand):
    """A per-vertex int inside a cell: a positional int argument, usable by `lookup` and `cross_entropy`."""

    __slots__ = ("owner", "ref")
    shape: Shape = ()

    def __init__(self, owner: Recorder, ref: int) -> None:
        self.owner = owner
        self.ref = ref

    def __repr__(self) -> str:
        return f"<int argument of {self.owner.describe()}>"

    def _refuse(self, *unused: Any) -> Any:
        raise TraceError(
            f"{self!r} is data of each vertex, not a Python int: it can be used by vpps.lookup and vpps.cross_entropy "
            "only. A value that is the same for all vertices belongs in a keyword-only argument"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __matmul__ = _refuse
    __int__ = __index__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __truediv__ = _refuse
    __hash__ = object.__hash__


class ListExpression:
    """A list argument inside a cell, or what `each` made of it: a variable number of elements of one shape."""

    __slots__ = ("owner", "ref", "shape")

    def __init__(self, owner: Recorder, ref: int, shape: Shape) -> None:
        self.owner = owner
        self.ref = ref
        self.shape = shape

    def __repr__(self) -> str:
        return f"<list argument with elements of shape {self.shape} in {self.owner.describe()}>"

    def _refuse(self, *unused: Any) -> Any:
        raise TraceError(
            f"{self!r} has a different length at every vertex: use vpps.each(f, xs) and the reductions vpps.sum(xs), "
            "vpps.mean(xs)"
        )

    __iter__ = __len__ = __getitem__ = __bool__ = __add__ = __mul__ = __sub__ = _refuse


_tracing = threading.local()


def current_trace() -> Recorder | None:
    """The trace that is running on this thread, if any."""
    stack: list[Recorder] = getattr(_tracing, "stack", [])
    return stack[-1] if stack else None


@contextmanager
def tracing(trace: Recorder) -> Iterator[None]:
    """Make `trace` the current one."""
    if not hasattr(_tracing, "stack"):
        _tracing.stack = []
    _tracing.stack.append(trace)
    try:
        yield
    finally:
        _tracing.stack.pop()


def common_owner(operands: Sequence[Any], what: str) -> Recorder:
    """The one recorder that the expressions among `operands` belong to.

    Raises GraphError where expressions of two graphs meet, TraceError where a cell uses an expression from outside.
    """
    owner: Recorder | None = None
    trace = current_trace()
    for x in operands:
        if not isinstance(x, Expression | Index | ListExpression):
            continue
        if trace is not None and x.owner is not trace:
            raise TraceError(
                f"{what}: {trace.describe()} closes over {x!r}; a cell may close over parameters and Python constants "
                "only. Pass the expression to the cell as an argument"
            )
        if owner is not None and x.owner is not owner:
            raise GraphError(f"{what}: the operands belong to two graphs ({owner.describe()}, {x.owner.describe()})")
        owner = x.owner
    if owner is not None:
        return owner
    if trace is not None:
        return trace
    raise GraphError(f"{what}: no operand is an expression, so the graph is unknown; use graph.call(f, ...)")


def record(op: str, operands: Sequence[Any], **attrs: Any) -> Expression:
    """Record one op on the recorder of its operands and return the result."""
    return common_owner(operands, op).apply(op, operands, attrs)


def result_shape(op: str, shapes: Sequence[Shape], attrs: dict[str, Any], where: str) -> Shape:
    """Apply the op's shape rule; a ShapeError names `where`, the op and the operand shapes."""
    try:
        return OPS[op].shape(shapes, attrs)
    except ValueError as error:
        got = ", ".join(map(str, shapes))
        raise ShapeError(f"{where}: {op} expects {error}; got {got or 'nothing'}") from None


def take(x: Any, key: Any) -> Expression:
    """`x[i]`, a scalar, or `x[a:b]`, a vector; negative positions count from the end, steps are not supported."""
    if not isinstance(x, Operand) or len(x.shape) != 1:
        raise ShapeError(f"{x!r} cannot be indexed: only vectors have elements and slices")
    n = x.shape[0]
    if isinstance(key, slice):
        start, stop, step = key.indices(n)
        if step != 1:
            raise ShapeError(f"{x!r}[{key.start}:{key.stop}:{key.step}]: slices with a step are not supported")
        if stop <= start:
            raise ShapeError(f"{x!r}[{key.start}:{key.stop}] is empty: the vector has {n} elements")
        return record("slice", [x], start=start, stop=stop, scalar=False)
    i = as_index(key)
    if i is None:
        raise ShapeError(f"{x!r}[{key!r}]: expected an int or a slice")
    if not -n <= i < n:
        raise ShapeError(f"{x!r}[{i}]: out of range, the vector has {n} elements")
    return record("slice", [x], start=i % n, stop=i % n + 1, scalar=True)
