"""What users give a `graph.map`: cells, and inputs as arrays, rows and lists. Read, checked, nothing recorded yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import DtypeError, GraphError, ShapeError, TraceError
from vpps.ops import Shape
from vpps.ops.operand import Expression
from vpps.record.cell import Cell
from vpps.record.chunks import Lists
from vpps.record.rows import Rows
from vpps.record.rowwise import checked_floats, checked_offsets, is_ragged
from vpps.record.structure import Children
from vpps.values import as_index, as_shape

if TYPE_CHECKING:
    from vpps.graph.graph import Graph

Column = NDArray[Any] | int | Rows | Expression | Lists
"""An input of all vertices: ints, floats, values, or lists of values; an int or expression is one for all."""


def cells_of(cells: Any) -> tuple[Cell[Any], ...]:
    """The cells of a map; functions become cells, once each."""
    if type(cells) is Cell:
        return (cells,)
    given = list(cells) if isinstance(cells, list | tuple) else [cells]
    if not given:
        raise GraphError("graph.map([]): expected a cell, or a sequence of them")
    return tuple(c if isinstance(c, Cell) else _as_cell(c) for c in given)


def _as_cell(function: Any) -> Cell[Any]:
    if not callable(function):
        raise GraphError(f"graph.map: expected a cell or a function, or a sequence of them, got {function!r}")
    instance = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", None)
    if instance is not None and plain is not None:  # a method, bound anew at every access
        return _as_cell(plain).__get__(instance)
    # The function keeps its cell: whoever else did would keep the function alive.
    own: dict[str, Any] | None = getattr(function, "__dict__", None)
    if not isinstance(own, dict):  # of a class it is a view
        raise TraceError(f"graph.map: {function!r} is no Python function; wrap it in a cell")
    if "_vpps_cell" not in own:
        own["_vpps_cell"] = Cell(function)
    found: Cell[Any] = own["_vpps_cell"]
    return found


def check_inputs(inputs: Any) -> Mapping[str, Any]:
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping):
        raise DtypeError(f"graph.map: inputs={inputs!r}: expected a dict of arrays and rows by name")
    return inputs


def count_vertices(n: int, structure: Children | None, inputs: Mapping[str, Any]) -> int:
    """How many vertices there are: all that have a row for each must agree."""
    if n >= 0:
        return n
    if structure is not None:
        return len(structure.table) if structure.ends is None else len(structure.ends) - 1
    for value in inputs.values():
        if is_ragged(value):
            return np.size(value[0]) - 1
        if isinstance(value, Rows | list) or (not isinstance(value, Expression) and _has_rows(value)):
            return len(value)
    raise GraphError("graph.map: how many vertices? Give kind=, children=, or an input that has a row for each of them")


def _has_rows(value: Any) -> bool:
    """Whether something is more than one number; what is no array at all is refused later, by name."""
    try:
        return np.ndim(value) > 0
    except ValueError:
        return False


def read_input(graph: Graph, name: str, value: Any, n: int) -> tuple[Any, Column]:
    """What an input is - `int`, a shape, `(list, shape)` - and what of it every vertex gets."""
    where = f"graph.map: input {name!r}"
    if type(value) is np.ndarray and value.dtype.kind in "iu" and value.shape == (n,):  # as most are
        return int, value
    if type(value) is Rows or type(value) is Expression:
        if value.owner is not graph:
            raise graph.foreign(where, value)
        if type(value) is Rows and len(value) != n:
            raise ShapeError(f"{where} has {len(value)} rows, but there are {n} vertices")
        return value.shape, value
    if is_ragged(value):
        if value[1].owner is not graph:
            raise graph.foreign(where, value[1])
        ends, _ = checked_offsets(value[0], n, len(value[1]), where)
        return (list, value[1].shape), Lists(ends, value[1].ids)
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
            f"{where}: ints of shape {value.shape}; expected one per vertex: give each column a name of its own, or "
            "convert data to float32"
        )
    return int, value


def _as_numbers(value: Any, where: str) -> NDArray[Any]:
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value)
        except (ValueError, TypeError, RuntimeError):
            value = checked_floats(value, where)  # of another library, or ragged: its error says so
    if value.dtype.kind not in "iuf":
        raise DtypeError(
            f"{where} is of dtype {value.dtype}; expected ints, floats, Rows, or (offsets, Rows) for a list of each "
            "vertex's own"
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
    """Shapes that the user wrote: lengths of vectors, or shapes."""
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
