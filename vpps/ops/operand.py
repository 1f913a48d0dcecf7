"""Operands of ops (expressions and parameters), and the operators and functions that record ops on them.

A *recorder* is a `Graph` (one vertex per call) or a `CellTrace` (one node per op). The expressions among the operands
determine the recorder; inside a cell, operands without expressions use the running trace.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from vpps.errors import DivisionError, DtypeError, GraphError, ShapeError, TraceError, VppsError
from vpps.hints import Hinting, read_only
from vpps.interop import refuse_masked
from vpps.ops import OPS, Shape, size
from vpps.text import dir_without
from vpps.values import as_index, as_number, single_factors

if TYPE_CHECKING:
    from vpps.model.model import Parameter
    from vpps.record.rows import Rows

R = TypeVar("R")
IntArray = NDArray[np.integer[Any]]


class OfOne(Protocol):
    """Type, for type checkers, of an operator on an expression or parameter; on rows, it gives rows."""

    @overload
    def __call__(self, other: Rows, /) -> Rows: ...
    @overload
    def __call__(self, other: Expression | Parameter | float | np.number[Any], /) -> Expression: ...


class Operator(Protocol):
    """Type of an operator with two operands."""

    @overload
    def __get__(self, x: Rows, kind: Any) -> Callable[[Any], Rows]: ...
    @overload
    def __get__(self, x: Expression | Parameter, kind: Any) -> OfOne: ...
    @overload
    def __get__(self, x: Any, kind: Any) -> Callable[..., Any]: ...


def _operator(function: Callable[[Any, Any], Expression]) -> Operator:
    return function


class Recorder(Protocol):
    """Records ops: a Graph or a CellTrace.

    Attributes:
        recorders: functions that record a call like a cell's latest call; empty for a CellTrace, which inlines cells.
    """

    recorders: dict[Any, Any]

    def apply(self, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Expression:
        """Record `op` and return its result; operands are Expressions, Parameters and indices."""

    def apply_again(self, op: str, operands: Sequence[Any]) -> Expression:
        """Run `apply` without attributes, fast if a similar op was recorded before; check the operands' owner."""

    def describe(self) -> str:
        """Describe this recorder for error messages."""

    def foreign(self, what: str, x: Any) -> VppsError:
        """Return the error for `what`, which uses another recorder's `x`."""


def _with_number(op: str, of_number: str, sign: int = 1, swapped: bool = False) -> Operator:
    """Return an operator; for a number, it records an op with a constant.

    Args:
        swapped: the op takes its operands in reverse order.
    """

    @_operator
    def operator(self: Operand, other: Any) -> Expression:
        number = None if isinstance(other, Operand) else as_number(other)
        if number is not None:
            return record(of_number, [self], value=sign * number)
        return record(op, [other, self] if swapped else [self, other])

    return operator


def _times(x: Operand, factors: Iterable[float]) -> Expression:
    for factor in factors:
        x = record("scale", [x], value=factor)
    return x  # type: ignore[return-value]


def _refused(hint: str) -> Callable[..., Any]:
    """Return a Python operator that raises an error with a remedy."""

    def operator(self: Operand, *unused: Any) -> Any:
        raise TraceError(f"{self!r}: {hint}")

    return operator


class Operand:
    """Base class of all operands, with a shape and Python's arithmetic operators."""

    __slots__ = ()
    shape: Shape

    # NumPy arrays must not evaluate `array * expression` element by element. `__array_ufunc__` could also prevent that.
    # But without it, np.tanh(expression) calls `__array__`, whose error names the remedy.
    __array_priority__ = 1000.0

    __add__ = __radd__ = _with_number("add", "shift")
    __sub__ = _with_number("sub", "shift", sign=-1)

    @_operator
    def __rsub__(self, other: Any) -> Expression:
        difference: Expression = -self + other
        return difference

    @_operator
    def __mul__(self, other: Any) -> Expression:
        number = None if isinstance(other, Operand) else as_number(other)
        return record("mul", [self, other]) if number is None else _times(self, single_factors(number))

    __rmul__ = __mul__

    @_operator
    def __truediv__(self, other: Any) -> Expression:
        number = as_number(other)
        if number is None:
            return record("div", [self, other])
        if number == 0:
            raise DivisionError(f"{self!r} / 0")
        return _times(self, single_factors(number, -1))

    @_operator
    def __rtruediv__(self, other: Any) -> Expression:
        number = as_number(other)
        if number is None:
            refused: Expression = record("over", [self], value=1.0) * other  # the product refuses `other`
            return refused
        first, *rest = single_factors(number)
        return _times(record("over", [self], value=first), rest)

    def __neg__(self) -> Expression:
        return record("neg", [self])

    def __abs__(self) -> Expression:
        return record("abs", [self])

    @_operator
    def __matmul__(self, other: Any) -> Expression:
        return record("affine", [self, other])

    @_operator
    def __rmatmul__(self, other: Any) -> Expression:
        return record("matmul", [other, self], transposed_a=False, transposed_b=False)

    @property
    def T(self) -> Expression:
        """The transpose of a computed matrix."""
        return record("transpose", [self])

    def __pow__(self, exponent: Any) -> Expression:
        if as_number(exponent) == 2:
            return record("square", [self])
        if as_number(exponent) == 0.5:
            return record("sqrt", [self])
        raise TraceError(f"{self!r} ** {exponent!r}: only ** 2 and ** 0.5; use vpps.exp(vpps.log(x) * exponent)")

    __rpow__ = _refused("for a number a, write a ** x as vpps.exp(x * math.log(a))")
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refused(
        "for conditions, a * b is and, vpps.maximum(a, b) is or, and vpps.eq(a, 0) is not"
    )
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __round__ = __floor__ = __ceil__ = __trunc__ = (
        _refused("there is no rounding and no remainder: compute ints in Python or NumPy, and bring them in as data")
    )
    __setitem__ = __delitem__ = _refused(
        "expressions never change; vpps.concat([x[0:3], y, x[4:8]]) replaces a part, and vpps.where chooses"
    )

    def __format__(self, form: str) -> str:
        return self._no_value() if form else str(self)

    def __array__(self, *unused: Any, **also_unused: Any) -> Any:
        raise DtypeError(f"{self!r} is no array; use the functions of vpps on it, and handle.forward to evaluate it")

    def __getitem__(self, key: Any) -> Expression:
        return take(self, key)

    def __iter__(self) -> Iterator[Expression]:
        raise TraceError(f"{self!r} cannot be iterated over; use vpps.split(x, n) or slices such as x[0:8]")

    def __len__(self) -> int:
        raise TraceError(f"{self!r} has no len(); x.shape is its shape")

    def _no_value(self, *unused: Any) -> Any:
        raise TraceError(
            f"{self!r} has no value while the graph is being recorded; handle.forward(graph, [x]) computes it, and "
            "after fb handle.value(x) reads it"
        )

    __float__ = __int__ = _no_value

    def _no_truth(self, *unused: Any) -> Any:
        raise TraceError(
            f"{self!r} has no truth value while the graph is being recorded; a cell is traced once, so it cannot "
            "branch on values: vpps.where(x > y, a, b) chooses, and vpps.eq(x, y) compares as == cannot. Or branch on "
            "Python data, or make two cells"
        )

    __bool__ = _no_truth

    __gt__ = _with_number("greater", "above")
    __ge__ = _with_number("greater_equal", "not_below")
    __lt__ = _with_number("greater", "below", swapped=True)
    __le__ = _with_number("greater_equal", "not_above", swapped=True)

    def __eq__(self, other: object) -> bool:
        """Test identity, so that operands can be found in lists. Comparing with a number raises an error."""
        return self._no_truth() if as_number(other) is not None else self is other

    __hash__ = object.__hash__


class Expression(Operand, Hinting):
    """A value that a graph or a cell's trace will compute: a vector, a scalar of shape `()`, or a matrix.

    Attributes:
        owner: the Graph or CellTrace that recorded it.
        ref: the value id in the graph, or the node in the trace.
    """

    __slots__ = ("_shape", "owner", "ref")
    shape: Shape = read_only("_shape", "Shape of one vertex's value: (), (n,) or (rows, columns).")

    def __init__(self, owner: Recorder, ref: int, shape: Shape) -> None:
        self.owner = owner
        self.ref = ref
        self._shape = shape

    @_operator
    def __matmul__(self, other: Any) -> Expression:
        return record("matmul", [self, other], transposed_a=False, transposed_b=False)

    def __repr__(self) -> str:
        return f"<expression {self.ref} of shape {self.shape} in {self.owner.describe()}>"

    __dir__ = dir_without("owner ref")


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
            f"{self!r} is data of each vertex, not a Python int: only vpps.lookup, cross_entropy, hinge and pick can "
            "use it. To compute differently for some values, write a cell for each and choose with `kind` of "
            "graph.map; a value that is the same for all vertices belongs in a keyword-only argument"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __matmul__ = _refuse
    __mod__ = __floordiv__ = __pow__ = __float__ = __bool__ = _refuse
    __int__ = __index__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __truediv__ = __rtruediv__ = (
        _refuse
    )
    __hash__ = object.__hash__


class ListExpression:
    """A list argument inside a cell, or a result of `each`: a variable number of elements with the same shape."""

    __slots__ = ("_shape", "owner", "ref")
    shape: Shape = read_only("_shape", "Shape of one element.")

    def __init__(self, owner: Recorder, ref: int, shape: Shape) -> None:
        self.owner = owner
        self.ref = ref
        self._shape = shape

    def __repr__(self) -> str:
        return f"<list argument with elements of shape {self.shape} in {self.owner.describe()}>"

    def _refuse(self, *unused: Any) -> Any:
        raise TraceError(
            f"{self!r} has a different length at every vertex: use vpps.each(f, xs), vpps.softmax(xs) and the "
            "reductions vpps.sum(xs), vpps.mean(xs), vpps.max(xs), vpps.min(xs)"
        )

    __iter__ = __len__ = __getitem__ = __bool__ = __add__ = __mul__ = __sub__ = __matmul__ = _refuse
    __radd__ = __rmul__ = __rsub__ = __rmatmul__ = __truediv__ = __rtruediv__ = __pow__ = __neg__ = __abs__ = _refuse
    __gt__ = __ge__ = __lt__ = __le__ = _refuse
    T = property(_refuse)


RECORDED: set[type] = {Expression, Index, ListExpression}  # types with an owner; rows.py adds Rows


class _Tracing(threading.local):
    """The recorder in use on each thread."""

    current: Recorder | None = None


running = _Tracing()
# One entry for each active `recorded` on any thread. If this is empty, `running.current` is None; this test is faster.
in_progress: list[Recorder] = []


def recorded(recorder: Recorder, function: Callable[..., R], /, *args: Any, **options: Any) -> R:
    """Call a function while this recorder is in use and return its result.

    Python checks for Ctrl-C at calls and returns. So this function calls nothing outside `try` or in `finally`. It is
    not a context manager, because that would also be called: a recorder that remains in use corrupts all graphs.
    """
    global in_progress
    before, running.current = running.current, recorder
    in_progress += [recorder]
    try:
        return function(*args, **options)
    finally:
        del in_progress[-1]
        running.current = before


def common_owner(operands: Sequence[Any], what: str) -> Recorder:
    """Return the single recorder that owns the expressions among `operands` (and in lists among them).

    Raises GraphError if expressions belong to two graphs, and TraceError if a cell uses an expression from outside.
    """
    try:
        owner = _owner(running.current, operands, what)
    except RecursionError:
        raise GraphError(f"{written(what)}: a list contains itself, or lists are too deep: give a flat list") from None
    if owner is None:
        raise GraphError(
            f"{written(what)}: no operand is an expression, so the graph is unknown; {_without_graph(what, operands)}"
        )
    return owner


def _without_graph(what: str, operands: Sequence[Any]) -> str:
    """Return the remedy if no operand shows the graph."""
    items = [e for x in operands for e in (x if isinstance(x, list | tuple) else [x])]
    if what in OPS and any(isinstance(x, Operand) for x in items) and not any(hasattr(x, "dtype") for x in items):
        return (
            "parameters alone are operands only inside a cell, or in graph.call(lambda: ...); a row of a table or of "
            "any matrix is graph.lookup(table, i)"
        )
    if what in OPS or any(isinstance(x, list | tuple) or hasattr(x, "dtype") for x in operands):
        return "compute with numbers in Python or NumPy, or bring data into a graph with graph.input(array)"
    return "use graph.call(f, ...)"


_SHOWN = {
    **dict.fromkeys(("affine", "affine_columns", "affine_transposed", "matmul"), "@"),
    **dict.fromkeys(("keep", "drop", "given", "unless"), "where"),
    **dict.fromkeys(("equal", "equals"), "eq"),
    "greater": ">",
    "greater_equal": ">=",
    "above": ">",
    "below": "<",
    "not_below": ">=",
    "not_above": "<=",
}


def shown(op: str) -> str:
    """Return the name of an op as the user wrote it."""
    return _SHOWN.get(op, op)


def written(op: str) -> str:
    """Return the name like `shown`, for messages without the op's number or position."""
    return {"shift": "add", "scale": "mul", "slice": "x[...]"}.get(op) or shown(op)


def _owner(owner: Recorder | None, operands: Iterable[Any], what: str) -> Recorder | None:
    for x in operands:
        kind = type(x)
        if kind in RECORDED:
            if x.owner is not owner:
                if owner is not None:
                    raise owner.foreign(what, x)
                owner = x.owner
        elif kind is list or kind is tuple:
            owner = _owner(owner, x, what)
    return owner


def record(op: str, operands: Sequence[Any], **attrs: Any) -> Expression:
    """Record one op on its operands' recorder and return the result."""
    if not attrs and (not in_progress or running.current is None):
        for x in operands:
            if type(x) is Expression:
                return x.owner.apply_again(op, operands)
    return common_owner(operands, op).apply(op, operands, attrs)


LARGEST = (1 << 29) - 1  # maximum number of floats between two rows of an operand: an instruction's bits limit it


@lru_cache(maxsize=4096)
def interned(shape: Shape) -> Shape:
    """Return the single tuple that all graphs use for a shape, so that most shape comparisons succeed by identity."""
    return shape


class Recent(weakref.WeakValueDictionary[Any, Any]):
    """Values that live as long as something else uses them; the most recent values always live."""

    MOST = 256

    def __init__(self) -> None:
        super().__init__()
        self._latest: deque[Any] = deque(maxlen=self.MOST)

    def keep(self, key: Any, value: Any) -> Any:
        """Return a key's value; store this value if there is none."""
        found = self.setdefault(key, value)  # another thread may be faster
        self._latest.append(found)
        return found

    def replace(self, key: Any, old: Any, new: Any) -> Any:
        """Store a different value for a key in place of the old value, so that no other value is evicted."""
        self[key] = new
        try:
            self._latest[self._latest.index(old)] = new
        except (ValueError, IndexError, RuntimeError):  # evicted since, or another thread is adding a value
            self._latest.append(new)
        return new


def result_shape(op: str, shapes: Sequence[Shape], attrs: dict[str, Any], where: str) -> Shape:
    """Apply the op's shape rule; a ShapeError mentions `where`, the op and the operand shapes."""
    got = ", ".join(map(str, shapes)) or "nothing"
    try:
        shape = OPS[op].shape(shapes, attrs)
    except ValueError as error:
        raise ShapeError(f"{where}: {shown(op)} expects {error}; got {got}") from None
    if size(shape) > LARGEST:
        raise ShapeError(f"{where}: {shown(op)} of {got} gives {shape}, more than {LARGEST} floats for one vertex")
    return shape


def checked_slice(x: Any, key: slice) -> slice:
    """Return the slice if its bounds are ints or missing, and its step is not 0. Raises DtypeError, ShapeError."""
    refuse_masked((key.start, key.stop, key.step), f"{x!r}[...]")
    try:
        key.indices(1)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{x!r}[{key.start!r}:{key.stop!r}:{key.step!r}]: {error}") from None
    return key


def take(x: Any, key: Any) -> Expression:
    """Return `x[i]`, a scalar, or `x[a:b]`, a vector; for a matrix, row i as a vector, or rows a to b as a matrix.

    Negative positions count from the end; steps are not supported.
    """
    if not isinstance(x, Operand) or not x.shape:
        raise ShapeError(f"{x!r} cannot be indexed: only vectors and matrices have elements and slices")
    n, what = x.shape[0], "vector" if len(x.shape) == 1 else "matrix"
    parts = "elements" if what == "vector" else "rows"
    if isinstance(key, slice):
        start, stop, step = checked_slice(x, key).indices(n)
        if step != 1:
            raise ShapeError(f"{x!r}[{key.start}:{key.stop}:{key.step}]: slices with a step are not supported")
        if stop <= start:
            raise ShapeError(f"{x!r}[{key.start}:{key.stop}] is empty: the {what} has {n} {parts}")
        return record("slice", [x], start=start, stop=stop, scalar=False)
    i = as_index(key)
    if i is None:
        remedy = "; element (i, j) of a matrix is m[i][j]" if isinstance(key, tuple) else ""
        raise ShapeError(f"{x!r}[{key!r}]: expected an int or a slice{remedy}")
    if not -n <= i < n:
        raise ShapeError(f"{x!r}[{i}]: out of range, the {what} has {n} {parts}")
    return record("slice", [x], start=i % n, stop=i % n + 1, scalar=True)
