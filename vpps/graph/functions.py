"""The public functions: `vpps.tanh(x)` and its like. They work on expressions of a graph and inside cells alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, overload

from vpps.errors import ShapeError, TraceError
from vpps.graph.operand import Expression, Index, ListExpression, Operand, common_owner, record
from vpps.graph.trace import Cell, Trace
from vpps.model import Lookup, Parameter
from vpps.values import as_index

Value = Expression | Parameter


def tanh(x: Value) -> Expression:
    """Hyperbolic tangent, element by element."""
    return record("tanh", [x])


def sigmoid(x: Value) -> Expression:
    """Logistic function 1 / (1 + exp(-x)), element by element."""
    return record("sigmoid", [x])


def relu(x: Value) -> Expression:
    """max(x, 0), element by element; the slope at 0 is 0."""
    return record("relu", [x])


def exp(x: Value) -> Expression:
    """e to the power of x, element by element."""
    return record("exp", [x])


def log(x: Value) -> Expression:
    """Natural logarithm, element by element."""
    return record("log", [x])


def square(x: Value) -> Expression:
    """x times x, element by element."""
    return record("square", [x])


def dot(a: Value, b: Value) -> Expression:
    """Inner product of two operands of one shape; a scalar."""
    return record("dot", [a, b])


def mse(a: Value, b: Value) -> Expression:
    """Mean of the squared differences of two operands of one shape; a scalar."""
    return record("mse", [a, b])


def softmax(x: Value) -> Expression:
    """exp(x) over its sum, for a vector; stable for large logits."""
    return record("softmax", [x])


def log_softmax(x: Value) -> Expression:
    """Logarithm of the softmax of a vector; stable for large logits."""
    return record("log_softmax", [x])


def cross_entropy(logits: Value, label: int | Index) -> Expression:
    """Minus the log-softmax of the labelled class; a scalar.

    Args:
        logits: vector, one element per class.
        label: the class, an int in [0, classes), or an int argument of the cell.

    Raises:
        IndexRangeError: the label is negative or not below the number of classes.
    """
    return record("cross_entropy", [logits, label])


def lookup(table: Lookup, row: int | Index) -> Expression:
    """Row of a table, inside a cell; in a graph, `graph.lookup(table, row)`. Raises IndexRangeError."""
    return record("lookup", [table, row])


def concat(parts: Sequence[Value]) -> Expression:
    """Vectors and scalars joined end to end."""
    return record("concat", list(parts))


def split(x: Value, n: int) -> tuple[Expression, ...]:
    """A vector cut into n equal slices (views, no copies). Raises ShapeError if n does not divide the length."""
    parts = as_index(n)
    if not isinstance(x, Operand) or len(x.shape) != 1 or parts is None or parts < 1 or x.shape[0] % parts:
        raise ShapeError(f"split({x!r}, {n!r}): expects a vector whose length is a multiple of the number of parts")
    width = x.shape[0] // parts
    return tuple(record("slice", [x], start=i * width, stop=(i + 1) * width, scalar=False) for i in range(parts))


def sum(x: Value | ListExpression | Sequence[Value]) -> Expression:
    """Sum of a list of expressions, element by element; of a single expression, the scalar sum of all its elements."""
    return _reduce("sum", x)


def mean(x: Value | ListExpression | Sequence[Value]) -> Expression:
    """Mean of a list of expressions, element by element; of a single expression, the scalar mean of all its elements.

    The mean of an empty list argument is zero.
    """
    return _reduce("mean", x)


def _reduce(op: str, x: Value | ListExpression | Sequence[Value]) -> Expression:
    if isinstance(x, ListExpression):
        return record(f"list_{op}", [x])
    if isinstance(x, Operand):
        return record(op, [x])
    items = list(x)
    if not items:
        raise ShapeError(f"{op}([]): an empty list has no shape; use graph.zeros(n), or leave the term out")
    owner = common_owner(items, op)
    if not isinstance(owner, Trace):
        terms = [owner.apply("copy", [x], {}) if isinstance(x, Parameter) else x for x in items]
        return cast(Expression, LIST_CELLS[op](terms))
    if len(items) == 1:
        return record("copy", items)
    total = items[0] + items[1]
    for item in items[2:]:
        total = total + item
    return total if op == "sum" else total * (1.0 / len(items))


LIST_CELLS: dict[str, Cell[Any]] = {"sum": Cell(lambda xs: sum(xs)), "mean": Cell(lambda xs: mean(xs))}
for _name, _cell in LIST_CELLS.items():
    _cell.name = _name


@overload
def each(f: Callable[..., Any], *lists: ListExpression) -> Any: ...
@overload
def each(f: Callable[..., Any], *lists: Sequence[Expression]) -> list[Any]: ...
def each(f: Callable[..., Any], *lists: Any) -> Any:
    """`f` applied to every element of a list argument, or to those of several lists of equal length side by side.

    Args:
        f: a function of one expression per list; it may also use other expressions of the cell. Inside a cell it runs
            once, on symbolic elements.
        lists: list arguments of the cell; outside a cell, Python lists of expressions.

    Returns:
        A list expression, to be reduced by `sum` or `mean` or mapped again (a tuple of them if f returns a tuple).

    Raises:
        TraceError: f's result does not depend on the elements, f returns no expression, or f maps the same list again.
    """
    if not lists:
        raise TraceError("each(f): expected one or more lists")
    if not any(isinstance(xs, ListExpression) for xs in lists):
        columns = [list(xs) for xs in lists]
        if any(len(column) != len(columns[0]) for column in columns):
            raise ShapeError(f"each: the lists have different lengths: {', '.join(str(len(c)) for c in columns)}")
        return [f(*items) for items in zip(*columns, strict=True)]
    if not all(isinstance(xs, ListExpression) for xs in lists):
        raise TraceError("each: a list argument of the cell cannot be mapped together with a Python list")
    owner = common_owner(lists, "each")
    assert isinstance(owner, Trace)
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
