"""Public functions that record more than one op; all other functions are derived from the op table (`derive.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast, overload

from vpps.errors import DtypeError, ShapeError, TraceError
from vpps.graph.derive import Label, One, Value, as_constant
from vpps.graph.primitives import dot, exp, log, maximum, minimum, sqrt, stop_gradient
from vpps.hints import hinted
from vpps.model.model import Parameter
from vpps.ops import size
from vpps.ops.operand import Expression, ListExpression, Operand, common_owner, in_progress, record
from vpps.record.cell import Cell, R
from vpps.record.rows import Rows
from vpps.record.rowwise import reduce_rows
from vpps.record.trace import CellTrace
from vpps.values import MAX_FLOAT32, MIN_NORMAL, as_index, as_items, as_number, check_callable

__all__ = [
    "bilinear",
    "clamp",
    "concat",
    "dropout",
    "each",
    "eq",
    "log_softmax",
    "logsumexp",
    "lookup",
    "max",
    "mean",
    "min",
    "norm",
    "reshape",
    "softmax",
    "split",
    "stack",
    "sum",
    "where",
]


@overload
def clamp(x: One, low: float | None = None, high: float | None = None) -> Expression: ...
@overload
def clamp(x: Rows, low: float | None = None, high: float | None = None) -> Rows: ...
@hinted
def clamp(x: Value, low: float | None = None, high: float | None = None) -> Any:
    """Limit x to [low, high], element by element; no gradient flows where x is limited."""
    y: Value = x
    if low is not None:
        y = record("at_least", [y], value=as_constant(low, "clamp"))
    if high is not None:
        y = record("at_most", [y], value=as_constant(high, "clamp"))
    return record("copy", [y]) if isinstance(y, Parameter) else y


@overload
def eq(a: One, b: One | float) -> Expression: ...  # type: ignore[overload-overlap]
@overload
def eq(a: Value, b: Value | float) -> Rows: ...
def eq(a: Value, b: Value | float) -> Any:
    """Return 1 where a and b are equal, else 0, element by element; `a == b` tests identity instead.

    `a > b`, `a >= b`, `a < b` and `a <= b` compare element by element, too. Comparisons with NaN give 0. No gradient
    flows through a comparison.
    """
    number = as_number(b)
    return record("equal", [a, b]) if number is None else record("equals", [a], value=number)


@overload
def where(condition: One, a: One | float, b: One | float) -> Expression: ...  # type: ignore[overload-overlap]
@overload
def where(condition: Value, a: Value | float, b: Value | float) -> Rows: ...
def where(condition: Value, a: Value | float, b: Value | float) -> Any:
    """Choose `a` where a condition is true, else `b`, element by element. Unused elements have no effect, even if NaN.

    Args:
        condition: for example `x > 0`; elements are true unless 0. No gradient flows through the condition.
        a, b: values with the condition's shape, scalars, or Python numbers. Elements not chosen get gradient 0. The
            square root of a negative number turns this 0 into NaN: `sqrt(where(x > 0, x, 1))` avoids that.
    """
    condition = stop_gradient(condition)
    parts: list[Any] = []
    for x, of_number, of_operand in ((a, "given", "keep"), (b, "unless", "drop")):
        number = as_number(x)
        if number is None:
            parts.append(record(of_operand, [condition, x]))
        elif number:
            parts.append(record(of_number, [condition], value=number))
    if not parts:
        return record("given", [condition], value=0.0)
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


@overload
def dropout(x: One, rate: float) -> Expression: ...
@overload
def dropout(x: Rows, rate: float) -> Rows: ...
@hinted
def dropout(x: Value, rate: float) -> Any:
    """In training, set each element to 0 with probability `rate`, else to x / (1 - rate); in inference, return x.

    Dropout is on in `handle.fb` and `handle.gradients(train=True)`. The dropped elements depend on the model's seed,
    the update's number, the vertex (the position of its call in the graph, or in its example: `Graph.example`), and the
    element's position. Inside `vpps.each`, every list element has a separate mask.

    Args:
        rate: a Python number in [0, 1), the same for all vertices.

    Raises:
        DtypeError: the rate is not such a number.
    """
    number = as_number(rate)
    if number is None or not 0 <= number < 1:
        where = x.owner.describe() + ": " if isinstance(x, Expression) else ""
        raise DtypeError(f"{where}dropout({x!r}, {rate!r}): expected a rate in [0, 1), a Python number")
    if number == 0 and isinstance(x, Expression | Rows):
        return x
    return record("dropout", [x], rate=number) if number else record("copy", [x])


@hinted
def max(x: Value | ListExpression | Sequence[Value]) -> Expression:
    """Return a vector's largest element, a scalar; for a list of expressions or rows, the maximum element by element.

    If several elements are equal, the first gets the gradient. An empty list argument gives zero, without a gradient.
    """
    return _extremum("max", maximum, x)


@hinted
def min(x: Value | ListExpression | Sequence[Value]) -> Expression:
    """Return a vector's smallest element, a scalar; for a list of expressions or rows, the minimum element by element.

    If several elements are equal, the first gets the gradient. An empty list argument gives zero, without a gradient.
    """
    return _extremum("min", minimum, x)


def _extremum(
    name: str, pair: Callable[[Any, Any], Expression], x: Value | Sequence[Value] | ListExpression
) -> Expression:
    if isinstance(x, Operand) and not isinstance(x, Rows):
        return record("max", [x]) if name == "max" else -record("max", [-x])
    items = _items_or_result(name, x)
    if not isinstance(items, list):
        return items
    result = record("copy", items) if len(items) == 1 else pair(items[0], items[1])
    for item in items[2:]:
        result = pair(result, item)
    return result


def _items_or_result(op: str, x: Any) -> list[Any] | Expression:
    """Return the items of a non-empty Python list, or the reduction of a list argument or of rows."""
    if isinstance(x, ListExpression):
        return record(f"list_{op}", [x])
    if isinstance(x, Rows):
        return reduce_rows(LIST_CELLS[op], x)
    return _items(op, x)


def _items(op: str, x: Any) -> list[Any]:
    """Return the items of a Python list; it must not be empty."""
    items = as_items(x, op)
    if not items:
        raise ShapeError(f"{op}([]): an empty list has no shape; use graph.zeros(n), or leave the term out")
    return items


@overload
def softmax(x: One) -> Expression: ...
@overload
def softmax(x: Rows) -> Rows: ...
@overload
def softmax(x: ListExpression) -> ListExpression: ...
@overload
def softmax(x: Sequence[Expression]) -> list[Expression]: ...
@hinted
def softmax(x: Any) -> Any:
    """Divide exp(x) by its sum; stable for large logits.

    The sum is taken over a vector's elements, or over each row's. For a list argument, or a result of `each`, it is
    taken over the list: element by element for vectors or matrices; scalars become attention weights. The result is
    again such a list, empty for an empty list. A Python list of expressions is treated as a list argument.

    Raises:
        ShapeError: x is a scalar, a matrix, or a list of expressions with different shapes.
    """

    def of_items(centred: list[Expression]) -> list[Expression]:
        terms = [exp(c) for c in centred]
        total = sum(terms)
        return [term / total for term in terms]

    return _normalised("softmax", x, of_items)


@overload
def log_softmax(x: One) -> Expression: ...
@overload
def log_softmax(x: Rows) -> Rows: ...
@overload
def log_softmax(x: ListExpression) -> ListExpression: ...
@overload
def log_softmax(x: Sequence[Expression]) -> list[Expression]: ...
@hinted
def log_softmax(x: Any) -> Any:
    """Return the log-softmax of a vector, of each row, or over a list; stable for large logits."""

    def of_items(centred: list[Expression]) -> list[Expression]:
        total = log(sum([exp(c) for c in centred]))
        return [c - total for c in centred]

    return _normalised("log_softmax", x, of_items)


def _normalised(op: str, x: Any, of_items: Callable[[list[Expression]], list[Expression]]) -> Any:
    """Record a softmax. `of_items` gets a Python list's items minus the largest, so exponentials cannot overflow."""
    if isinstance(x, Operand):
        return record(op, [x])
    if isinstance(x, ListExpression):
        y = record(f"list_{op}", [x])
        return ListExpression(y.owner, y.ref, y.shape)
    items = as_items(x, op)
    if any(not isinstance(x, Expression | Parameter) or x.shape != items[0].shape for x in items):
        raise ShapeError(f"{op}({items!r}): expects a vector, a list argument, or a list of expressions of one shape")
    if not items:
        return []
    top = stop_gradient(max(items))
    return of_items([x - top for x in items])


@overload
def logsumexp(x: One | ListExpression) -> Expression: ...
@overload
def logsumexp(x: Rows) -> Rows: ...
@overload
def logsumexp(x: Sequence[Value]) -> Any: ...
@hinted
def logsumexp(x: Any) -> Any:
    """Return log(sum(exp(x))) for a vector, for each row, or over a list element by element.

    It is stable for large elements. For an empty list argument, or if all elements are minus infinity, it is minus
    infinity, without a gradient.
    """
    if isinstance(x, Operand):
        return record("logsumexp", [x])
    if isinstance(x, ListExpression):
        top = _finite(max(x))
        return _log_of_sum(top, sum(each(lambda e: exp(e - top), x)))
    items = _items("logsumexp", x)
    top = _finite(max(items))
    return _log_of_sum(top, sum([exp(item - top) for item in items]))


def _finite(top: Value) -> Any:
    """Return the largest number, to be subtracted from all numbers; infinities are clamped to finite values."""
    return clamp(stop_gradient(top), -MAX_FLOAT32, MAX_FLOAT32)


def _log_of_sum(top: Value, total: Value) -> Any:
    """Return top + log(total). No gradient flows if all terms vanish; otherwise, one term is 1."""
    return where(eq(total, 0), -math.inf, top + log(clamp(total, low=0.5)))


def lookup(table: Parameter, row: Label) -> Expression:
    """Inside a cell, return a row of a table or of a rank-2 parameter; in a graph, use `graph.lookup(table, row)`.

    Raises:
        IndexRangeError: the table has no such row.
    """
    return record("lookup", [table, row])


@overload
def concat(parts: Sequence[One]) -> Expression: ...  # type: ignore[overload-overlap]
@overload
def concat(parts: Sequence[Value]) -> Rows: ...
@hinted
def concat(parts: Sequence[Value]) -> Any:
    """Join vectors and scalars end to end, or stack the rows of matrices with equal numbers of columns."""
    return record("concat", _items("concat", parts))


@overload
def stack(rows: Sequence[One]) -> Expression: ...  # type: ignore[overload-overlap]
@overload
def stack(rows: Sequence[Value]) -> Rows: ...
@hinted
def stack(rows: Sequence[Value]) -> Any:
    """Turn vectors of equal length into the rows of a matrix, or scalars into a vector.

    Raises:
        ShapeError: there are no rows, the rows have different shapes, or they are matrices (use `concat`).
    """
    items = as_items(rows, "stack")
    shapes = {x.shape for x in items if isinstance(x, Operand)}
    if len(shapes) > 1 or not items or any(len(shape) > 1 for shape in shapes):
        raise ShapeError(
            f"stack({items!r}): expects one or more vectors of one length, or scalars; concat joins vectors of any "
            "length, and matrices row after row"
        )
    joined = concat(items)
    width = size(items[0].shape)
    return reshape(joined, (len(items), width)) if items[0].shape else joined


@overload
def split(x: One, n: int) -> tuple[Expression, ...]: ...
@overload
def split(x: Rows, n: int) -> tuple[Rows, ...]: ...
@hinted
def split(x: Value, n: int) -> Any:
    """Cut a vector into n equal slices, or a matrix into n equal blocks of rows (views, no copies).

    Raises:
        ShapeError: n does not divide the length, or the number of rows.
    """
    parts = as_index(n)
    if not isinstance(x, Operand) or not x.shape or parts is None or parts < 1 or x.shape[0] % parts:
        raise ShapeError(
            f"split({x!r}, {n!r}): expects a vector (or matrix) whose length (or number of rows) is a multiple of the "
            "number of parts"
        )
    width = x.shape[0] // parts
    return tuple(record("slice", [x], start=i * width, stop=(i + 1) * width, scalar=False) for i in range(parts))


@hinted
def sum(x: Value | ListExpression | Sequence[Value]) -> Expression:
    """Sum a list of expressions, or rows, element by element; for a single expression, sum all its elements."""
    return _reduce("sum", x)


@hinted
def mean(x: Value | ListExpression | Sequence[Value]) -> Expression:
    """Average a list of expressions, or rows, element by element; for a single expression, average all its elements.

    The mean is zero for an empty list argument, or if there are no rows.
    """
    return _reduce("mean", x)


def _reduce(op: str, x: Value | ListExpression | Sequence[Value]) -> Expression:
    if isinstance(x, Operand) and not isinstance(x, Rows):
        return record(op, [x])
    items = _items_or_result(op, x)
    if not isinstance(items, list):
        return items
    if type(items[0]) is Expression and not in_progress:
        recorder = items[0].owner
        if not isinstance(recorder, CellTrace):
            result: Expression | None = recorder.reduce(LIST_CELLS[op], items)  # type: ignore[attr-defined]
            if result is not None:
                return result
    owner = common_owner(items, op)
    if not isinstance(owner, CellTrace):
        terms = [owner.apply("copy", [x], {}) if isinstance(x, Parameter) else x for x in items]
        return cast(Expression, LIST_CELLS[op](terms))
    if len(items) == 1:
        return record("copy", items)
    total: Expression = items[0] + items[1]
    for item in items[2:]:
        total = total + item
    return total if op == "sum" else total * (1.0 / len(items))


LIST_CELLS: dict[str, Cell[Any]] = {
    "sum": Cell(lambda xs: sum(xs)),
    "mean": Cell(lambda xs: mean(xs)),
    "max": Cell(lambda xs: max(xs)),
    "min": Cell(lambda xs: min(xs)),
}
for _name, _cell in LIST_CELLS.items():
    _cell.name = _name


@overload
def norm(x: One) -> Expression: ...
@overload
def norm(x: Rows) -> Rows: ...
@hinted
def norm(x: Value) -> Any:
    """Return the Euclidean norm of all elements, a scalar; for rows, the norm of each row. It is exact even if float32
    cannot hold the elements' squares. Its gradient at 0 is 0, while that of `sqrt(sum(x ** 2))` is NaN."""
    x = record("copy", [x]) if isinstance(x, Parameter) else x
    of_graph = isinstance(x, Rows) or (isinstance(x, Expression) and not isinstance(x.owner, CellTrace))
    return _NORM(x) if of_graph else _norm(x)


def _norm(x: Value) -> Expression:
    size = record("abs", [x])
    if not size.shape:
        return size
    largest = clamp(stop_gradient(record("max", [reshape(size, -1)])), MIN_NORMAL, MAX_FLOAT32)
    total = record("sum", [record("square", [x / largest])])
    is_zero = eq(total, 0)  # `total > 0` would be false for NaN
    return where(is_zero, 0, largest * sqrt(where(is_zero, 1, total)))


_NORM = Cell(_norm)
_NORM.name = "norm"


@overload
def each(f: Callable[..., Expression], *lists: ListExpression) -> ListExpression: ...
@overload
def each(f: Callable[..., tuple[Expression, ...]], *lists: ListExpression) -> tuple[ListExpression, ...]: ...
@overload
def each(f: Callable[..., R], *lists: Sequence[Expression]) -> list[R]: ...
def each(f: Callable[..., Any], *lists: Any) -> Any:
    """Apply `f` to every element of a list argument, or to corresponding elements of several lists of equal length.

    Args:
        f: a function that takes one expression per list; it may also use other expressions in the cell. Inside a cell,
            it runs once, on symbolic elements.
        lists: the cell's list arguments; outside a cell, Python lists of expressions.

    Returns:
        A list expression (a tuple of list expressions if f returns a tuple), to reduce with `sum`, `mean`, `max` or
        `min`, to turn into weights with `softmax`, or to map again.

    Raises:
        TraceError: f's result does not depend on the elements or is not an expression, or f maps the same list again.
    """
    check_callable(f, "each")
    if not lists:
        raise TraceError("each(f): expected one or more lists")
    if not any(isinstance(xs, ListExpression) for xs in lists):
        columns = [as_items(xs, "each") for xs in lists]
        if any(len(column) != len(columns[0]) for column in columns):
            raise ShapeError(f"each: the lists have different lengths: {', '.join(str(len(c)) for c in columns)}")
        return [f(*items) for items in zip(*columns, strict=True)]
    if not all(isinstance(xs, ListExpression) for xs in lists):
        raise TraceError("each: a list argument of the cell cannot be mapped together with a Python list")
    owner = common_owner(lists, "each")
    assert isinstance(owner, CellTrace)
    domain = owner.domain(lists[0].ref)
    for xs in lists[1:]:
        domain = owner.join(domain, owner.domain(xs.ref))
    with owner.mapping(lists[0].ref):
        result = f(*(Expression(owner, xs.ref, xs.shape) for xs in lists))
    values = result if isinstance(result, tuple) else (result,)
    for v in values:
        if not isinstance(v, Expression) or owner.domain(v.ref) != domain:
            raise TraceError(
                f"{owner.describe()}: each: the function must return an expression of the element, not {v!r}"
            )
    mapped = tuple(ListExpression(owner, v.ref, v.shape) for v in values)
    return mapped if isinstance(result, tuple) else mapped[0]


@overload
def reshape(x: One, shape: int | tuple[int, ...]) -> Expression: ...
@overload
def reshape(x: Rows, shape: int | tuple[int, ...]) -> Rows: ...
def reshape(x: Value, shape: int | tuple[int, ...]) -> Any:
    """Return the same elements in a different shape, row by row; inside a cell this costs nothing.

    Args:
        shape: rank 0, 1 or 2; a length of -1 is computed from the other lengths.

    Raises:
        ShapeError: the numbers of elements differ.
    """
    given = shape if isinstance(shape, tuple | list) else (shape,)
    lengths = [as_index(n) for n in given]
    if len(lengths) > 2 or any(n is None or (n < 1 and n != -1) for n in lengths) or lengths.count(-1) > 1:
        raise ShapeError(f"reshape({x!r}, {shape!r}): expects up to two positive ints, one of which may be -1")
    known = size(tuple(n for n in lengths if n is not None and n != -1))
    total = size(x.shape) if isinstance(x, Operand) else known
    return record("reshape", [x], shape=tuple(total // known if n == -1 else n for n in lengths if n is not None))


@overload
def bilinear(x: One, W: One, y: One, outputs: int | None = None) -> Expression: ...  # type: ignore[overload-overlap]
@overload
def bilinear(x: Value, W: Value, y: Value, outputs: int | None = None) -> Rows: ...
def bilinear(x: Value, W: Value, y: Value, outputs: int | None = None) -> Any:
    """Return x^T W y, a scalar, for W of shape (n, m), x of shape (n,) and y of shape (m,).

    Args:
        W: a parameter or a computed matrix.
        outputs: number k of such forms; W of shape (k n, m) stacks their matrices, and the result is a vector of length
            k. This is the tensor in neural tensor networks (Socher et al. 2013).

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
