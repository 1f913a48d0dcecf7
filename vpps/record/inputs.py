"""Reads and checks the arguments of `graph.map` before recording: cells, kinds, children, and inputs of any type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import DtypeError, GraphError, IndexRangeError, ShapeError, TraceError
from vpps.ops import Shape
from vpps.ops.operand import Expression
from vpps.record.cell import Cell
from vpps.record.chunks import Lists
from vpps.record.levels import find_cycle, find_levels
from vpps.record.ranges import Ints
from vpps.record.rows import Rows
from vpps.record.rowwise import checked_floats, checked_offsets, is_ragged, list_argument
from vpps.record.vertex import CSR
from vpps.values import as_index, as_shape

if TYPE_CHECKING:
    from vpps.graph.graph import Graph

Cells = (
    Callable[..., Any]
    | Sequence[Callable[..., Any]]
    | Mapping[str, Callable[..., Any]]
    | Mapping[int, Callable[..., Any]]
)
"""A cell or function for all vertices; or one per kind, in order of the kind's number, or by number or name."""

Column = NDArray[Any] | int | Rows | Expression | Lists
"""One input of all vertices: ints, floats, values, or lists of values; all vertices share an int or expression."""


SHOWN = 8
"""Number of vertices of a cycle that an error names."""


@dataclass(slots=True)
class Children:
    """Children of n vertices.

    Attributes:
        arity: columns of `table`, or CSR.
        table: (n, arity), -1 for none; for CSR, (edges,).
        ends: for CSR, (n + 1,) the start of each vertex's children, and the end.
        lengths: for CSR, the number of children of each vertex.
        some_missing: False if no child is -1; `check_range` sets it.
    """

    arity: int
    table: NDArray[Any]
    ends: Ints | None = None
    lengths: Ints | None = None
    some_missing: bool = True

    def __len__(self) -> int:
        return len(self.table) if self.ends is None else len(self.ends) - 1

    def edges(self) -> tuple[Ints, Ints]:
        """Return the parent and child of every edge, sorted by parent."""
        if self.lengths is None:
            parents = np.arange(len(self.table)).repeat(self.arity)
        else:
            parents = np.arange(len(self.lengths)).repeat(self.lengths)
        children = self.table.reshape(-1).astype(np.int64)
        present = children >= 0
        return (parents, children) if present.all() else (parents[present], children[present])


def cells_of(cells: Any) -> tuple[Cell[Any], ...]:
    """Return a map's cells; each function is turned into a cell only once."""
    if type(cells) is Cell:
        return (cells,)
    given = list(cells) if isinstance(cells, list | tuple) else [cells]
    if not given:
        raise GraphError("graph.map([]): expected a cell, a sequence of them, or a dict of them by kind")
    return tuple(c if isinstance(c, Cell) else _as_cell(c) for c in given)


def cells_by_kind(cells: Mapping[Any, Any], names: Any) -> tuple[Any, ...]:
    """Return a map's cells in the order of their kinds, from a dict keyed by the kind's name or number.

    Args:
        names: names of all kinds, by number; None if unknown.
    """
    known = None if names is None else list(names) if isinstance(names, Iterable) else [names]
    if isinstance(names, str) or not all(isinstance(name, str) for name in known or ()):
        raise DtypeError(f"graph.map: kinds={names!r}: expected the name of each kind, by number")
    there = "numbered from 0" if known is None else f"the kinds are {', '.join(known)}"
    found: dict[int, Any] = {}
    for key, cell in cells.items():
        if isinstance(key, str) and known is None:
            raise GraphError(
                f"graph.map: a cell for kind {key!r} and no kinds=: pass the names of all kinds in kinds=, as "
                "**batch.structure of a GraphSet does, or use kind numbers as keys"
            )
        number = known.index(key) if known and key in known else as_index(key)
        if number is None or number < 0 or (known is not None and number >= len(known)):
            raise GraphError(f"graph.map: a cell for kind {key!r}, but there is no such kind: {there}")
        if number in found:
            raise GraphError(f"graph.map: two cells for kind {key!r}, by name and by number: leave one out")
        found[number] = cell
    n = max(found, default=0) + 1 if known is None else len(known)
    missing = next(k for k in range(n + 1) if k not in found)  # stops early: every smaller number has a cell
    if missing < n:
        raise GraphError(
            f"graph.map: no cell for kind {missing if known is None else repr(known[missing])}: every kind needs one, "
            f"{there}"
        )
    return tuple(found[k] for k in range(n))


def _as_cell(function: Any) -> Cell[Any]:
    if not callable(function):
        raise GraphError(f"graph.map: expected a cell or a function, or a sequence of them, got {function!r}")
    instance = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", None)
    if instance is not None and plain is not None:  # a method, which each access binds again
        return _as_cell(plain).__get__(instance)
    # The function stores its cell. Any other owner of the cell would keep the function alive.
    own: dict[str, Any] | None = getattr(function, "__dict__", None)
    if not isinstance(own, dict):  # a class has a read-only view
        raise TraceError(f"graph.map: {function!r} is no Python function; wrap it in a cell")
    found: Cell[Any] | None = own.get("_vpps_cell")
    if found is None or not found.is_of(function):  # may have been copied from another function
        found = own["_vpps_cell"] = Cell(function)
    return found


def check_inputs(inputs: Any) -> Mapping[str, Any]:
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping):
        raise DtypeError(f"graph.map: inputs={inputs!r}: expected a dict of arrays and rows by name")
    return inputs


def count_vertices(n: int, structure: Children | None, inputs: Mapping[str, Any]) -> int:
    """Return the number of vertices; all arguments with a row per vertex must agree."""
    if n >= 0:
        return n
    if structure is not None:
        return len(structure)
    for value in inputs.values():
        if is_ragged(value):
            return np.size(value[0]) - 1
        if isinstance(value, Rows | list) or (not isinstance(value, Expression) and _has_rows(value)):
            return len(value)
    raise GraphError("graph.map: how many vertices are there? Give kind=, children=, or an input with a row per vertex")


def _has_rows(value: Any) -> bool:
    """Return True if the value is more than one number. Values that are not arrays are rejected later, by name."""
    try:
        return np.ndim(value) > 0
    except ValueError:
        return False


def read_input(graph: Graph, name: str, value: Any, n: int) -> tuple[Any, Column]:
    """Read one input: return its signature, which is `int`, a shape or `(list, shape)`, and its column."""
    where = f"graph.map: input {name!r}"
    if type(value) is np.ndarray and value.dtype.kind in "iu" and value.shape == (n,):  # the usual case
        return int, value
    if type(value) is Rows or type(value) is Expression:
        if value.owner is not graph:
            raise graph.foreign(where, value)
        if type(value) is Rows and len(value) != n:
            raise ShapeError(f"{where} has {len(value)} rows, but there are {n} vertices")
        return value.shape, value
    if is_ragged(value):
        lists, shape = list_argument(graph, value, n, where)
        return (list, shape), lists
    if isinstance(value, list | tuple) and any(isinstance(x, Expression) for x in value):
        return read_input(graph, name, _rows_of(graph, value, where), n)
    number = as_index(value)
    if number is not None:
        return int, number
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        value = _as_numbers(value, where)
    if not value.ndim or len(value) != n:
        raise ShapeError(f"{where} is of shape {value.shape}, but there are {n} vertices; it needs a row for each")
    if value.dtype.kind == "f":
        floats = checked_floats(value, where)
        return floats.shape[1:], floats
    if value.ndim != 1:
        raise ShapeError(
            f"{where}: ints of shape {value.shape}; expected one per vertex: give each column its own name, or convert "
            "data to float32"
        )
    return int, value


def _as_numbers(value: Any, where: str) -> NDArray[Any]:
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError):
            if isinstance(value, tuple) and len(value) == 2:
                raise DtypeError(
                    f"{where}: a list per vertex is (offsets, Rows): bring floats into the graph, (offsets, "
                    "graph.rows(floats)), and look ints up in a table, (offsets, graph.lookup(table, ints))"
                ) from None
            value = checked_floats(value, where)  # an array from another library, or a ragged array: the error says so
    if value.dtype.kind not in "iuf":
        raise DtypeError(
            f"{where} is of dtype {value.dtype}; expected ints, floats, Rows, or (offsets, Rows) for a list per vertex"
        )
    found: NDArray[Any] = value
    return found


def _rows_of(graph: Graph, items: Sequence[Any], where: str) -> Rows:
    for x in items:
        if type(x) is not Expression or x.shape != items[0].shape:
            raise ShapeError(f"{where}: a list of expressions of one shape, one per vertex; it holds {x!r}")
        if x.owner is not graph:
            raise graph.foreign(where, x)
    return Rows(graph, np.array([x.ref for x in items], np.int64), items[0].shape)


def declared_state(state: Any) -> tuple[Shape, ...]:
    """Return the shapes that the user declares, given as vector lengths or as shapes."""
    given = state if isinstance(state, list | tuple) else [state]
    if not given:
        raise ShapeError(f"graph.map: state={state!r} declares no result of a child; one scalar is state=[()]")
    found = []
    for x in given:
        shape = as_shape(x if isinstance(x, list | tuple) else (x,))
        if shape is None or len(shape) > 2:
            raise ShapeError(
                f"graph.map: state={state!r}: expected a length or shape per result of a child, such as (64, 64) for "
                "two vectors"
            )
        found.append(shape)
    return tuple(found)


def read_children(given: Any) -> Children | None:
    """Return the children as the user gave them. Raises DtypeError, ShapeError."""
    if given is None:
        return None
    if isinstance(given, tuple):
        if len(given) != 2:
            raise ShapeError(
                f"graph.map: children is a tuple of {len(given)}; expected (offsets, indices), or an array of shape "
                "(n, arity)"
            )
        offsets, indices = map(np.asarray, given)
        indices = _of_ints(indices, "the indices of children are ints, -1 for none")
        if indices.ndim != 1 or offsets.ndim != 1 or not len(offsets):
            raise ShapeError(
                f"graph.map: children=(offsets, indices) are of shapes (n + 1,) and (edges,), not {offsets.shape} "
                f"and {indices.shape}"
            )
        ends, lengths = checked_offsets(offsets, len(offsets) - 1, len(indices), "graph.map: children")
        return Children(CSR, indices, ends, lengths)
    table = _of_ints(np.asarray(given), "children are ints, -1 for none")
    if table.ndim not in (1, 2) or (table.ndim == 2 and not table.shape[1]):
        raise ShapeError(
            f"graph.map: children of shape {table.shape}; expected (n, arity), or (offsets, indices) if the "
            "number of children varies; leave children= out if no vertex has any"
        )
    if table.ndim == 1:
        table = table[:, None]
    return Children(table.shape[1], table)


def trusted_levels(levels: Any, children: Children | None, n: int) -> Ints:
    """Return the given levels and check children. Raises GraphError unless children's levels are lower (no cycles)."""
    found: Ints = _of_ints(np.asarray(levels), "levels are ints").astype(np.int64)
    if found.shape != (n,):
        raise ShapeError(f"graph.map: levels of shape {found.shape}; expected ({n},), the level of each vertex")
    if n and np.maximum.reduce(found.view(np.uint64)) >= n:
        vertex = int(np.argmax((found < 0) | (found >= n)))
        raise GraphError(
            f"graph.map: vertex {vertex} has level {found[vertex]}; levels of {n} vertices are from 0 to {n - 1}: "
            "leave levels= out to have them computed"
        )
    if children is not None:
        check_range(children, n)
        each = children.arity if children.lengths is None else children.lengths
        flat = children.table.reshape(-1)
        wrong = np.append(found, -1).take(flat) >= found.repeat(each)  # -1 (no child) reads the last entry
        if wrong.any():
            edge = int(np.argmax(wrong))
            parent = int(np.arange(n).repeat(each)[edge])
            raise GraphError(
                f"graph.map: vertex {parent} of level {found[parent]} has child {flat[edge]} of level "
                f"{found[flat[edge]]}; a level is the longest distance from a vertex without children, so a child's "
                "is lower: leave levels= out to have them computed"
            )
    return found


def _of_ints(array: NDArray[Any], what: str) -> NDArray[Any]:
    if array.size == 0 and array.dtype.kind == "f":  # an empty list
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DtypeError(f"graph.map: {what}, not of dtype {array.dtype}; convert them to int32")
    return array


def check_range(children: Children, n: int) -> None:
    """Raise an error unless children are vertices of the map."""
    if len(children) != n:
        raise ShapeError(f"graph.map: children of {len(children)} vertices, but there are {n}")
    flat = children.table.reshape(-1)
    lowest = np.minimum.reduce(flat, initial=0)
    children.some_missing = bool(lowest < 0)
    if lowest < -1 or (n and np.maximum.reduce(flat, initial=0) >= n):
        wrong = int(np.argmax((flat < -1) | (flat >= n)))
        ends = children.ends
        vertex = wrong // children.arity if ends is None else int(np.searchsorted(ends, wrong, "right")) - 1
        raise IndexRangeError(
            f"graph.map: vertex {vertex} has child {int(flat[wrong])}; children are vertices of the map, "
            f"0 to {n - 1}, or -1 for none"
        )


def check_children(children: Children, n: int) -> Ints:
    """Return the levels. Raise an error unless children are vertices of the map and none is its own descendant."""
    check_range(children, n)
    parents, below = children.edges()
    levels = find_levels(n, parents, below)
    if n and int(levels.min()) < 0:
        cycle = find_cycle(levels, parents, below)
        shown = ", ".join(map(str, cycle[:SHOWN])) + (", ..." if len(cycle) > SHOWN else "")
        raise GraphError(
            f"graph.map: the children form a cycle of {len(cycle)} vertices, each the parent of the next: {shown}; "
            "take an edge out, or unroll the cycle in time"
        )
    return levels


def read_kinds(kind: Any, n_cells: int) -> tuple[list[Ints | None], int]:
    """Return the vertices of each kind (None for all) and the number of vertices (-1 if `kind` does not show it)."""
    if kind is None:
        if n_cells > 1:
            raise GraphError(f"graph.map: {n_cells} cells and no kind=: give the cell number of each vertex, (n,) ints")
        return [None], -1
    kinds = np.asarray(kind)
    if kinds.size == 0 and kinds.dtype.kind == "f":
        kinds = kinds.astype(np.int8)
    if kinds.dtype.kind not in "iu":
        raise DtypeError(f"graph.map: kind is of ints, not of dtype {kinds.dtype}; convert it to int8")
    if kinds.ndim != 1:
        raise ShapeError(f"graph.map: kind of shape {kinds.shape}; expected (n,), an int per vertex")
    rows: list[Ints | None] = [(kinds == k).nonzero()[0] for k in range(n_cells)]
    if sum(map(len, rows)) < len(kinds):  # type: ignore[arg-type]
        vertex = int(np.argmax((kinds < 0) | (kinds >= n_cells)))
        raise IndexRangeError(
            f"graph.map: vertex {vertex} is of kind {int(kinds[vertex])}, but there are {n_cells} cells, "
            f"0 to {n_cells - 1}"
        )
    return (rows if n_cells > 1 else [None]), len(kinds)
