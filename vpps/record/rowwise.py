"""Applies ops and cells to rows: one vertex per row, recorded with a few NumPy calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from vpps.errors import DtypeError, IndexRangeError, ShapeError
from vpps.interop import refuse_masked
from vpps.model.model import Lookup, Parameter
from vpps.ops import OPS, Shape, size
from vpps.ops.operand import Expression, shown
from vpps.record.chunks import NO_DATA, Chunk, Lists
from vpps.record.examples import ExampleNumbers
from vpps.record.ranges import Ints
from vpps.record.rows import Rows
from vpps.record.trace import PRODUCTS, List, TracedCell, check_operand
from vpps.values import Float32, as_array, as_float32, as_index

if TYPE_CHECKING:
    from vpps.graph.graph import Graph
    from vpps.record.cell import Cell


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
    """Append n vertices of one program; return the value id of each vertex's first output."""
    first = new_values(graph, n, len(program.outputs), levels)
    if n:
        calls = np.arange(graph.n_calls, graph.n_calls + n)
        graph.record_chunk(program, Chunk(calls, first, levels, args, ints, lists, data))
    return first


def new_values(graph: Graph, n: int, outputs: int, levels: Ints) -> Ints:
    """Make value ids for n vertices with `outputs` each; return each vertex's first id."""
    if outputs > 1:
        of_values = np.empty(n * outputs, np.int64)
        for k in range(outputs):  # takes half the time of `repeat`
            of_values[k::outputs] = levels
        base = graph.record_values(of_values)
    else:
        base = graph.record_values(levels)
    return np.arange(base, base + n * outputs, outputs)


def record_rowwise(
    graph: Graph,
    program: TracedCell,
    n: int,
    vectors: Sequence[Rows | Expression],
    ints: Sequence[Any],
    lists: Sequence[Lists],
    where: str,
    examples: ExampleNumbers | None,
) -> Any:
    """Record n vertices of a program, given its arguments of each kind in order; return its outputs as rows.

    Args:
        vectors: n rows, or an expression that all vertices share.
        ints: n ints, or one int for all vertices.
    """
    table = int_table(program, n, ints, where)
    if len(lists) > 1:
        check_lengths(program, lists, where)
    only = vectors[0] if len(vectors) == 1 else None
    alone = type(only) is Rows
    args = only.ids[:, None] if type(only) is Rows else np.empty((n, len(vectors)), np.int64)
    shared = -1
    highest: Ints | None = None
    for k, x in enumerate(vectors):
        if type(x) is Rows:
            if not alone:
                args[:, k] = x.ids
            highest = x.levels if highest is None else np.maximum(highest, x.levels)
        else:
            args[:, k] = x.ref  # type: ignore[union-attr]
            shared = max(shared, graph.level_of(x.ref))  # type: ignore[union-attr]
    for xs in lists:
        of_lists = highest_of_lists(graph, xs)
        highest = of_lists if highest is None else np.maximum(highest, of_lists)
    if highest is None:
        levels = np.full(n, shared + 1)
    else:
        levels = (highest if shared < 0 else np.maximum(highest, shared)) + 1
    first = record_vertices(graph, program, n, args, table, lists, levels)
    if examples is not None:
        graph.note_examples(n, examples)
    results = program.layout[2]
    if program.single:
        return Rows(graph, first, results[0], levels, examples=examples)
    return tuple(Rows(graph, first + k, shape, levels, examples=examples) for k, shape in enumerate(results))


def highest_of_lists(graph: Graph, xs: Lists) -> Ints:
    """Return the highest level among each list's elements; -1 for an empty list."""
    highest = np.full(len(xs.ends) - 1, -1)
    if len(xs.elements):
        np.maximum.at(highest, np.arange(len(highest)).repeat(np.diff(xs.ends)), graph.levels_of(xs.elements))
    return highest


_UNSIGNED = {np.dtype(np.int32): np.uint32, np.dtype(np.int64): np.uint64}


def int_range(limit: tuple[int, str] | None) -> tuple[int, int]:
    """Return the lowest value of an int argument, and its exclusive upper bound."""
    return (-(2**31), 2**31) if limit is None else (0, limit[0])


def int_table(
    program: TracedCell, n: int, columns: Sequence[Any], where: str, number: Callable[[int], int] = int
) -> Ints:
    """Return the int arguments of n vertices, one row each, from columns of n ints or one int for all vertices.

    Args:
        number: maps a row to the number by which the user knows it.

    Raises:
        IndexRangeError: an int is outside the program's range for it.
    """
    table = np.empty((n, len(columns)), np.int64)
    if not n:
        return table
    for k, (column, limit) in enumerate(zip(columns, program.int_limits, strict=True)):
        low, high = int_range(limit)
        if isinstance(column, int):
            fits = low <= column < high
        elif limit is not None and column.dtype in _UNSIGNED:  # as unsigned ints, negative numbers exceed all limits
            fits = bool(np.maximum.reduce(column.view(_UNSIGNED[column.dtype])) < high)
        else:
            fits = bool(np.maximum.reduce(column) < high) and bool(np.minimum.reduce(column) >= low)
        if not fits:
            row = 0 if isinstance(column, int) else int(np.argmax((column < low) | (column >= high)))
            value = column if isinstance(column, int) else int(column[row])
            range_ = f"is out of range; {limit[1]}: {high}, so 0 to {high - 1}" if limit else "is no 32-bit int"
            raise IndexRangeError(f"{where}, row {number(row)}: index {value} {range_}")
        table[:, k] = column
    return table


def check_lengths(program: TracedCell, lists: Sequence[Lists], where: str, number: Callable[[int], int] = int) -> None:
    """Raise ShapeError if lists that the program maps together differ in length."""
    first: dict[int, Lists] = {}
    for xs, domain in zip(lists, program.lists, strict=True):
        other = first.setdefault(domain, xs)
        if other.ends is not xs.ends and not np.array_equal(other.ends, xs.ends):
            lengths = np.diff(other.ends), np.diff(xs.ends)
            row = int(np.argmax(lengths[0] != lengths[1]))
            raise ShapeError(
                f"{where}, row {number(row)}: lists that the cell maps together have lengths {lengths[0][row]} and "
                f"{lengths[1][row]}"
            )


def common_length(n: int, x: Any, where: str) -> int:
    """Return the number of rows, given the earlier operands' number (-1 for none) and an operand with len(x) rows."""
    if n >= 0 and len(x) != n:
        raise ShapeError(f"{where}: operands of {n} and of {len(x)} rows")
    return len(x)


def index_column(x: Any, n: int, where: str) -> Any:
    """Return ints, one per row or one for all rows. Raises DtypeError for anything else."""
    if type(x) is not np.ndarray:
        value = as_index(x)
        if value is not None:
            return value
        if isinstance(x, list | tuple | range):
            x = list(x) or np.empty(0, np.int64)  # NumPy would make an empty list float
        elif not hasattr(x, "__array__"):
            raise DtypeError(f"{where}: expected an int or an array of {n} ints, one per row, got {x!r}")
        x = as_array(x, where)
    if x.dtype.kind not in "iu":
        raise DtypeError(f"{where}: expected ints, one per row, got an array of dtype {x.dtype}")
    if x.shape != (n,):
        raise ShapeError(f"{where}: expected {n} ints, one per row, got an array of shape {x.shape}")
    return x


def apply_to_rows(graph: Graph, op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Record a bare op for every row. Operands are rows, or expressions, parameters and ints that all rows share."""
    where = f"{shown(op)} of rows"
    n_floats = len(operands) - OPS[op].indices
    floats = operands[:n_floats]
    key: list[Any] = [op]
    model: Any = None
    vectors: list[Rows | Expression] = []
    n = -1
    for i, x in enumerate(floats):
        if type(x) is Rows or type(x) is Expression:
            if type(x) is Rows:
                n = common_length(n, x, where)
            key.append(x.shape)
            vectors.append(x)
        else:
            if i or op not in PRODUCTS or not isinstance(x, Parameter) or isinstance(x, Lookup):
                check_operand(x, op, where)
            key.append(x)
            model = x.model
    ints = [index_column(x, n, where) for x in operands[n_floats:]]
    # Shape errors name expressions: to a program, a row is an expression.
    one = [Expression(graph, -1, x.shape) if type(x) is Rows else x for x in floats]
    program = graph.bare_program(tuple(key), model, op, one, attrs)
    return record_rowwise(graph, program, n, vectors, ints, [], where, examples_of(floats))


def lookup_rows(graph: Graph, table: Parameter, rows: Any) -> Any:
    """Look up a table's rows by an array or list of ints."""
    where = f"lookup in {table.name!r}"
    if getattr(rows, "ndim", 1) != 1:
        raise ShapeError(f"{where}: expected an int or a one-dimensional array of ints, got shape {rows.shape}")
    program = graph.bare_program(("lookup", table), table.model, "lookup", [table], {})
    return record_rowwise(graph, program, len(rows), [], [index_column(rows, len(rows), where)], [], where, None)


def has_rows(args: Sequence[Any]) -> bool:
    """Return True if a call's arguments contain rows; such a call is made once per row."""
    return any(type(x) is Rows or (type(x) in (list, tuple) and any(type(e) is Rows for e in x)) for x in args)


def call_on_rows(graph: Graph, cell: Cell[Any], args: Sequence[Any], statics: dict[str, Any]) -> Any:
    """Record a call of a cell for every row; arguments are like `graph.map`'s inputs, or lists of rows."""
    where = f"cell {cell.name!r} on rows"
    n = _n_vertices(args, where)
    signature: list[Any] = []
    vectors: list[Rows | Expression] = []
    ints: list[Any] = []
    lists: list[Lists] = []
    for x in args:
        if type(x) is Rows or type(x) is Expression:
            signature.append(x.shape)
            vectors.append(x)
        elif isinstance(x, list | tuple):
            xs, shape = list_argument(graph, x, n, where)
            signature.append((list, shape))
            lists.append(xs)
        elif isinstance(x, np.ndarray) and x.dtype.kind == "f":
            raise DtypeError(f"{where}: an array of floats; bring data into the graph with graph.rows(array)")
        else:
            signature.append(int)
            ints.append(index_column(x, n, where))
    program = cell.program(tuple(signature), statics)
    return record_rowwise(graph, program, n, vectors, ints, lists, where, examples_of(args))


def examples_of(arguments: Iterable[Any]) -> ExampleNumbers | None:
    """Return the examples for vertices with these arguments: those of the first rows (also in lists) that have any."""
    for x in arguments:
        found = None
        if type(x) is Rows:
            found = x.examples
        elif isinstance(x, list | tuple) and not is_ragged(x):
            found = examples_of(x)
        if found is not None:
            return found
    return None


def _n_vertices(args: Sequence[Any], where: str) -> int:
    """Return the number of vertices for a call; at least one argument is rows, or a list that contains rows."""
    lists = [x for x in args if isinstance(x, list | tuple)]
    rows = [x for x in args if type(x) is Rows]
    if not rows and any(map(is_ragged, lists)):
        return len(next(filter(is_ragged, lists))[0]) - 1
    n = -1
    for x in rows or [element for xs in lists for element in xs if type(element) is Rows]:
        n = common_length(n, x, where)
    return n


def is_ragged(x: Any) -> bool:
    """Return True for `(offsets, Rows)`, a separate list for every vertex."""
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], Rows) and not isinstance(x[0], Rows | Expression)


def list_argument(graph: Graph, x: Any, n: int, where: str) -> tuple[Lists, Shape | None]:
    """Return one list per vertex, given `(offsets, Rows)` or a list of rows and expressions, one per element."""
    if is_ragged(x):
        offsets, rows = x
        if rows.owner is not graph:
            raise graph.foreign(where, rows)
        return Lists(checked_offsets(offsets, n, len(rows), where)[0], rows.ids), rows.shape
    for e in x:
        if type(e) is not Rows and type(e) is not Expression:
            raise DtypeError(f"{where}: a list argument holds {e!r}; it may hold rows and expressions only")
        if e.shape != x[0].shape:
            raise ShapeError(f"{where}: the elements of a list argument have shapes {x[0].shape} and {e.shape}")
    elements = np.empty((n, len(x)), np.int64)
    for k, e in enumerate(x):
        if type(e) is Rows:
            common_length(n, e, where)
        elements[:, k] = e.ids if type(e) is Rows else e.ref
    ends = np.arange(n + 1) * len(x)
    return Lists(ends, elements.reshape(-1)), x[0].shape if x else None


def checked_offsets(offsets: ArrayLike, n: int, total: int, where: str) -> tuple[Ints, Ints]:
    """Check the offsets of a CSR structure with n lists and `total` elements; return offsets and lengths."""
    refuse_masked(offsets, f"{where}: offsets")
    found = np.asarray(offsets)
    if found.dtype.kind not in "iu":
        raise DtypeError(f"{where}: offsets are ints, not of dtype {found.dtype}")
    if found.shape != (n + 1,):
        raise ShapeError(
            f"{where}: {n} vertices have {n + 1} offsets, where each list begins and the end; got shape {found.shape}"
        )
    ends = found.astype(np.int64)
    lengths = ends[1:] - ends[:-1]
    if ends[0] != 0 or ends[-1] != total or (n and np.minimum.reduce(lengths) < 0):
        raise ShapeError(
            f"{where}: offsets begin with 0, do not fall, and end with the number of elements, {total}; these go from "
            f"{ends[0]} to {ends[-1]}"
        )
    return ends, lengths


def checked_floats(array: ArrayLike, where: str) -> Float32:
    """Return a float32 copy of an array of rows. Raises DtypeError, ShapeError."""
    data = as_float32(array, where)
    if not 1 <= data.ndim <= 3 or (len(data) and not data[0].size):
        raise ShapeError(
            f"{where}: expected (n,), (n, width) or (n, rows, columns): a scalar, vector or matrix per row; "
            f"got shape {data.shape}"
        )
    return data


def record_floats(graph: Graph, data: Float32, grad: bool) -> Rows:
    """Make graph inputs from checked rows."""
    n, shape = len(data), data.shape[1:]
    program = graph.input_program(shape, grad)
    levels = np.zeros(n, np.int64)
    nothing = np.zeros((n, 0), np.int64)
    first = record_vertices(graph, program, n, nothing, nothing, [], levels, data.reshape(n, size(shape)))
    return Rows(graph, first, shape, levels)


def reduce_rows(cell: Cell[Any], rows: Rows) -> Expression:
    """Reduce all rows, as the list of one vertex. Without rows, the result is zeros, as for an empty list argument."""
    graph = rows.owner
    if not len(rows):
        return graph.zeros_of(rows.shape)
    program = cell.program(((list, rows.shape),), {})
    assert isinstance(program.kinds[0], List)
    return graph.block_of(program).append_list(graph, rows.ids, rows.highest_level() + 1)
