"""Ops and cells applied to rows: a vertex per row, recorded in a few calls of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.errors import DtypeError, IndexRangeError, ShapeError
from vpps.graph.chunks import NO_DATA, Chunk, Ints, Lists
from vpps.graph.operand import Expression, shown
from vpps.graph.rows import Rows
from vpps.graph.trace import Int, List, TracedCell, Vector, check_operand
from vpps.model import Lookup, Parameter
from vpps.ops import OPS, Shape
from vpps.values import Float32, as_float32, as_index

if TYPE_CHECKING:
    from vpps.graph.cell import Cell
    from vpps.graph.graph import Graph

Argument = Rows | Expression | Lists | NDArray[Any] | int
"""What all vertices of a bulk call have at one place: a value (or int) each, one for all, or a list each."""


def record_vertices(
    graph: Graph,
    program: TracedCell,
    n: int,
    args: Ints,
    ints: Ints,
    lists: Sequence[Lists],
    levels: Ints,
    data: Float32 = NO_DATA,
) -> Ints:
    """Append n vertices of one program; returns the value id of each one's first output."""
    first = new_values(graph, n, len(program.outputs), levels)
    if n:
        calls = np.arange(graph.n_calls, graph.n_calls + n)
        graph.record_chunk(program, Chunk(calls, first, levels, args, ints, lists, data))
    return first


def new_values(graph: Graph, n: int, outputs: int, levels: Ints) -> Ints:
    """Make value ids for n vertices that have `outputs` each; returns the first one of each vertex."""
    base = graph.record_values(levels if outputs == 1 else levels.repeat(outputs))
    return np.arange(base, base + n * outputs, outputs)


def outputs_of(graph: Graph, program: TracedCell, first: Ints, levels: Ints) -> Any:
    """The rows that a bulk call of a program returns: one or a tuple."""
    found = [
        Rows(graph, first + k if k else first, program.nodes[o].shape, levels) for k, o in enumerate(program.outputs)
    ]
    return found[0] if program.single else tuple(found)


def record_rowwise(graph: Graph, program: TracedCell, n: int, arguments: Sequence[Argument], where: str) -> Any:
    """Record n vertices from their arguments, in the order of the program's; returns the rows of its outputs."""
    vectors: list[Rows | Expression] = []
    ints: list[Any] = []
    lists: list[Lists] = []
    for kind, x in zip(program.kinds, arguments, strict=True):
        if isinstance(kind, Vector):
            assert isinstance(x, Rows | Expression)
            vectors.append(x)
        elif isinstance(kind, Int):
            ints.append(x)
        else:
            assert isinstance(x, Lists)
            lists.append(x)
    check_limits(program, ints, where)
    check_lengths(program, lists, where)
    args = np.empty((n, len(vectors)), np.int64)
    shared = -1
    level: Ints | None = None
    for k, x in enumerate(vectors):
        if isinstance(x, Rows):
            args[:, k] = x.ids
            level = x.levels if level is None else np.maximum(level, x.levels)
        else:
            args[:, k] = x.ref
            shared = max(shared, graph.level_of(x.ref))
    for xs in lists:
        of_lists = highest_of_lists(graph, xs)
        level = of_lists if level is None else np.maximum(level, of_lists)
    level = np.full(n, shared) if level is None else level if shared < 0 else np.maximum(level, shared)
    columns = np.empty((n, len(ints)), np.int64)
    for k, column in enumerate(ints):
        columns[:, k] = column
    levels = level + 1
    first = record_vertices(graph, program, n, args, columns, lists, levels)
    return outputs_of(graph, program, first, levels)


def highest_of_lists(graph: Graph, xs: Lists) -> Ints:
    """The highest level among each list's elements; -1 where it is empty."""
    highest = np.full(len(xs.ends) - 1, -1)
    if len(xs.elements):
        np.maximum.at(highest, np.arange(len(highest)).repeat(np.diff(xs.ends)), graph.levels_of(xs.elements))
    return highest


def check_limits(program: TracedCell, columns: Sequence[Any], where: str, number: Callable[[int], int] = int) -> None:
    """Raise IndexRangeError where an int of a vertex is out of the range that the program has for it."""
    for column, limit in zip(columns, program.int_limits, strict=True):
        bounds = (-(2**31), 2**31) if limit is None else (0, limit[0])
        low, high = (int(column.min()), int(column.max())) if np.size(column) else (0, 0)
        if not (bounds[0] <= low and high < bounds[1]) and np.size(column):
            wrong = (column < bounds[0]) | (column >= bounds[1])
            row = int(np.argmax(wrong))
            value, row = int(np.ravel(column)[row]), number(row)
            if limit is None:
                raise IndexRangeError(f"{where}, row {row}: {value} is no 32-bit int")
            raise IndexRangeError(
                f"{where}, row {row}: index {value} is out of range; {limit[1]}: {limit[0]}, so 0 to {limit[0] - 1}"
            )


def check_lengths(program: TracedCell, lists: Sequence[Lists], where: str, number: Callable[[int], int] = int) -> None:
    """Raise ShapeError where lists that the program maps together differ in length."""
    first: dict[int, Lists] = {}
    for xs, domain in zip(lists, program.lists, strict=True):
        other = first.setdefault(domain, xs)
        if other is not xs and not np.array_equal(other.ends, xs.ends):
            lengths = np.diff(other.ends), np.diff(xs.ends)
            row = int(np.argmax(lengths[0] != lengths[1]))
            raise ShapeError(
                f"{where}, row {number(row)}: lists that the cell maps together have lengths {lengths[0][row]} and "
                f"{lengths[1][row]}"
            )


def common_length(operands: Sequence[Any], where: str) -> int:
    """The n that all rows among the operands (and arrays beside them) have."""
    n = -1
    for x in operands:
        if isinstance(x, list | tuple):
            length = common_length(x, where) if any(isinstance(y, Rows) for y in x) else n
        else:
            length = len(x) if isinstance(x, Rows) or (isinstance(x, np.ndarray) and x.ndim) else n
        if length != n and n >= 0 and length >= 0:
            raise ShapeError(f"{where}: operands of {n} and of {length} rows")
        n = max(n, length)
    return n


def index_column(x: Any, n: int, where: str) -> Any:
    """Ints, one per row or one for all. Raises DtypeError for anything else."""
    value = as_index(x)
    if value is not None:
        return np.full(n, value) if -(2**63) <= value < 2**63 else np.array([value], object)
    if isinstance(x, np.ndarray | list) and not isinstance(x, Rows):
        column = np.asarray(x)
        if column.dtype.kind in "iu" and column.shape == (n,):
            return column
        if column.dtype.kind in "iu":
            raise ShapeError(f"{where}: expected {n} ints, one per row, got an array of shape {column.shape}")
        raise DtypeError(f"{where}: expected ints, one per row, got an array of dtype {column.dtype}")
    raise DtypeError(f"{where}: expected an int or an array of {n} ints, one per row, got {x!r}")


def apply_to_rows(graph: Graph, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Record a bare op for every row; operands are rows, and expressions, parameters and ints that all share."""
    where = f"{shown(op)} of rows"
    n_floats = len(operands) - OPS[op].indices
    floats = operands[:n_floats]
    n = common_length(floats, where)
    key: list[Any] = [op, *attrs.items()]
    model: Any = None
    arguments: list[Argument] = []
    for i, x in enumerate(floats):
        if type(x) is Rows or type(x) is Expression:
            key.append(x.shape)
            arguments.append(x)
        else:
            if i or op != "affine" or not isinstance(x, Parameter) or isinstance(x, Lookup):
                check_operand(x, op, where)
            key.append(x)
            model = x.model
    arguments.extend(index_column(x, n, where) for x in operands[n_floats:])
    # Errors of shapes name expressions: to a program, a row is one.
    one = [Expression(graph, -1, x.shape) if type(x) is Rows else x for x in floats]
    program = graph.bare_program(tuple(key), model, op, one, attrs)
    return record_rowwise(graph, program, n, arguments, where)


def lookup_rows(graph: Graph, table: Lookup, rows: NDArray[Any]) -> Any:
    """Rows of a table, by an array of ints."""
    where = f"lookup in {table.name!r}"
    if rows.ndim != 1:
        raise ShapeError(f"{where}: expected an int or a one-dimensional array of ints, got shape {rows.shape}")
    program = graph.bare_program(("lookup", table), table.model, "lookup", [table], {})
    return record_rowwise(graph, program, len(rows), [index_column(rows, len(rows), where)], where)


def call_on_rows(graph: Graph, cell: Cell[Any], args: Sequence[Any], statics: dict[str, Any]) -> Any:
    """Record a call of a cell for every row; arguments are as of `graph.map`'s inputs, or lists of rows."""
    where = f"cell {cell.name!r} on rows"
    n = common_length([x for x in args if not is_ragged(x)], where)
    if n < 0:
        n = next(len(x[0]) - 1 for x in args if is_ragged(x))
    signature: list[Any] = []
    arguments: list[Argument] = []
    for x in args:
        if type(x) is Rows or type(x) is Expression:
            signature.append(x.shape)
            arguments.append(x)
        elif isinstance(x, list | tuple):
            xs, shape = list_argument(graph, x, n, where)
            signature.append((list, shape))
            arguments.append(xs)
        elif isinstance(x, np.ndarray) and x.dtype.kind == "f":
            raise DtypeError(f"{where}: an array of floats; bring data into the graph with graph.rows(array)")
        else:
            signature.append(int)
            arguments.append(index_column(x, n, where))
    return record_rowwise(graph, cell.program(tuple(signature), statics), n, arguments, where)


def is_ragged(x: Any) -> bool:
    """Whether it is `(offsets, Rows)`: a list of its own for every vertex."""
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], Rows) and not isinstance(x[0], Rows | Expression)


def list_argument(graph: Graph, x: Any, n: int, where: str) -> tuple[Lists, Shape | None]:
    """A list of every vertex: `(offsets, Rows)`, or a list of rows and expressions, an element of each."""
    if is_ragged(x):
        offsets, rows = x
        if rows.owner is not graph:
            raise graph.foreign(where, rows)
        return Lists(checked_offsets(offsets, n, len(rows), where), rows.ids), rows.shape
    for e in x:
        if type(e) is not Rows and type(e) is not Expression:
            raise DtypeError(f"{where}: a list argument holds {e!r}; it may hold rows and expressions only")
        if e.shape != x[0].shape:
            raise ShapeError(f"{where}: the elements of a list argument have shapes {x[0].shape} and {e.shape}")
    elements = np.empty((n, len(x)), np.int64)
    for k, e in enumerate(x):
        elements[:, k] = e.ids if type(e) is Rows else e.ref
    ends = np.arange(n + 1) * len(x)
    return Lists(ends, elements.reshape(-1)), x[0].shape if x else None


def checked_offsets(offsets: ArrayLike, n: int, total: int, where: str) -> Ints:
    """Offsets of a CSR structure of n lists with so many elements. Raises DtypeError, ShapeError."""
    found = np.asarray(offsets)
    if found.dtype.kind not in "iu":
        raise DtypeError(f"{where}: offsets are ints, not of dtype {found.dtype}")
    if found.shape != (n + 1,):
        raise ShapeError(
            f"{where}: {n} vertices have {n + 1} offsets, where each list begins and the end; got shape {found.shape}"
        )
    ends = found.astype(np.int64)
    if ends[0] != 0 or ends[-1] != total or (ends[1:] < ends[:-1]).any():
        raise ShapeError(
            f"{where}: offsets begin with 0, do not fall, and end with the number of elements, {total}; these go from "
            f"{ends[0]} to {ends[-1]}"
        )
    return ends


def record_inputs(graph: Graph, array: ArrayLike, grad: bool, where: str) -> Rows:
    """Graph inputs from the rows of an array."""
    data = checked_floats(array, where)
    return record_floats(graph, data, grad)


def checked_floats(array: ArrayLike, where: str) -> Float32:
    """A float32 copy of an array of rows. Raises DtypeError, ShapeError."""
    data = as_float32(array, where)
    if not 1 <= data.ndim <= 3 or (len(data) and not data[0].size):
        raise ShapeError(
            f"{where}: expected (n,), (n, width) or (n, rows, columns): a scalar, vector or matrix per row; "
            f"got shape {data.shape}"
        )
    return data


def record_floats(graph: Graph, data: Float32, grad: bool) -> Rows:
    """Graph inputs from rows that were checked."""
    n, shape = len(data), data.shape[1:]
    attrs = {"shape": shape, "grad": grad}
    program = graph.bare_program(("input", *attrs.items()), None, "input", [], attrs)
    levels = np.zeros(n, np.int64)
    nothing = np.zeros((n, 0), np.int64)
    first = record_vertices(graph, program, n, nothing, nothing, [], levels, data.reshape(n, -1))
    return Rows(graph, first, shape, levels)


def reduce_rows(cell: Cell[Any], rows: Rows) -> Expression:
    """A reduction of all rows: one vertex that has them as its list."""
    if not len(rows):
        raise ShapeError(f"{cell.name} of no rows: an empty list has no shape; use graph.zeros(n), or leave it out")
    graph = rows.owner
    program = cell.program(((list, rows.shape),), {})
    assert isinstance(program.kinds[0], List)
    nothing = np.zeros((1, 0), np.int64)
    levels = np.array([int(rows.levels.max()) + 1])
    lists = [Lists(np.array([0, len(rows)]), rows.ids)]
    first = record_vertices(graph, program, 1, nothing, nothing, lists, levels)
    return Expression(graph, int(first[0]), program.nodes[program.outputs[0]].shape)
