"""`graph.map`: n vertices recorded in a few calls of NumPy, to be planned as if they had been called one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
from vpps.graph.chunks import NO_DATA, Chunk, Ints, Lists
from vpps.graph.inputs import (
    Column,
    argument_kind,
    cells_of,
    check_inputs,
    count_vertices,
    declared_state,
    read_input,
)
from vpps.graph.levels import raise_levels
from vpps.graph.operand import Expression
from vpps.graph.rows import Rows
from vpps.graph.rowwise import check_lengths, check_limits, highest_of_lists, new_values, record_floats
from vpps.graph.structure import Children, check_children, read_children, read_kinds
from vpps.graph.trace import Int, List, Vector
from vpps.graph.vertex import Child, Input, Vertex, trace_cells

if TYPE_CHECKING:
    from vpps.graph.graph import Graph


def record_map(
    graph: Graph,
    cells: Any,
    kind: Any,
    children: Any,
    inputs: Mapping[str, Any] | None,
    state: Any,
    levels: Any,
) -> Any:
    """See `Graph.map`."""
    made = cells_of(cells)
    kinds, n = read_kinds(kind, len(made))
    structure = read_children(children, trusted=levels is not None)
    inputs = check_inputs(inputs)
    n = count_vertices(n, structure, inputs)
    signature: list[tuple[str, Any]] = []
    columns: dict[str, Column] = {}
    for name, value in inputs.items():
        what, columns[name] = read_input(graph, name, value, n)
        signature.append((name, what))
    arity = 0 if structure is None else structure.arity
    declared = None if state is None else declared_state(state)
    key = (made, arity, tuple(signature), declared)
    vertices: tuple[Vertex, ...] | None = made[0].maps.get(key)
    if vertices is None:
        vertices = trace_cells(made, {name: argument_kind(what) for name, what in signature}, arity, declared)
        made[0].maps[key] = vertices
    if levels is not None:
        heights = np.asarray(levels)
    elif structure is not None:
        heights = check_children(structure, n)
    else:
        heights = np.zeros(n, np.int64)
    parts = _parts(vertices, kinds, n)
    for part in parts:
        if structure is not None:
            part.take_children(structure, trusted=levels is not None)
        part.check(columns)
    return _record(graph, vertices, parts, structure, columns, heights, n)


class _Part:
    """The vertices of one kind.

    Attributes:
        rows: which of the map's vertices they are, ascending; None for all.
        children: of each, as far as its cell uses them; CSR: of all, end to end.
        ends: of CSR, where those of each vertex begin, and the end.
        reads_zeros: whether a child is missing.
    """

    def __init__(self, vertex: Vertex, rows: Ints | None, n: int) -> None:
        self.vertex = vertex
        self.rows = rows
        self.n = n
        self.children: NDArray[Any] | None = None
        self.ends: Ints | None = None
        self.reads_zeros = False

    def of(self, array: Any) -> Any:
        """What of an array over all vertices is theirs."""
        return array if self.rows is None else array[self.rows]

    def number(self, row: int) -> int:
        """Which of the map's vertices their row is."""
        return row if self.rows is None else int(self.rows[row])

    def take_children(self, structure: Children, trusted: bool) -> None:
        """Find what of the children is theirs. Raises GraphError where they have more than their cell gathers."""
        used = 1 + max((s.number for s in self.vertex.sources if isinstance(s, Child)), default=-1)
        gathers = any(isinstance(s, Child) for s in self.vertex.sources)
        if structure.ends is not None:
            own = Lists(structure.ends, structure.table)
            if self.rows is not None:
                own = own.of(self.rows)
            if gathers:
                self.ends, self.children = own.ends, own.elements
            elif not trusted and own.elements.size and int(own.elements.max()) >= 0:
                place = int(np.argmax(own.elements >= 0))
                self._refuse_child(int(np.searchsorted(own.ends, place, "right")) - 1, "none")
        else:
            if not trusted and used < structure.arity:
                beyond = self.of(structure.table)[:, used:]
                if int(beyond.max()) >= 0:
                    self._refuse_child(int(np.argmax((beyond >= 0).any(axis=1))), str(used) if used else "none")
            if gathers:
                self.children = self.of(structure.table)
        if self.children is not None and self.children.size:
            self.reads_zeros = int(self.children.min()) < 0

    def _refuse_child(self, row: int, takes: str) -> None:
        raise GraphError(
            f"graph.map: vertex {self.number(row)} has more children than its cell {self.vertex.name!r} takes, which "
            f"is {takes}; make the vertex of another kind, or the child -1"
        )

    def check(self, columns: Mapping[str, Column]) -> None:
        """Raise unless ints are in range, and lists that are mapped together equally long."""
        where = f"graph.map, cell {self.vertex.name!r}"
        program = self.vertex.program
        ints, lists = [], []
        for kind, source in zip(program.kinds, self.vertex.sources, strict=True):
            if isinstance(kind, Int):
                assert isinstance(source, Input)
                column = columns[source.name]
                ints.append(np.array([column]) if isinstance(column, int) else self.of(column))
            elif isinstance(kind, List):
                lists.append(self.list_of(source, columns))
        if ints:
            check_limits(program, ints, where, self.number)
        if len(lists) > 1:
            check_lengths(program, lists, where, self.number)

    def list_of(self, source: Child | Input, columns: Mapping[str, Column]) -> Lists:
        """A list of each vertex; of children, vertices rather than values."""
        if isinstance(source, Child):
            assert self.ends is not None
            assert self.children is not None
            return Lists(self.ends, self.children)
        column = columns[source.name]
        assert isinstance(column, Lists)
        return column if self.rows is None else column.of(self.rows)


def _parts(vertices: Sequence[Vertex], kinds: NDArray[Any] | None, n: int) -> list[_Part]:
    """The vertices by kind, kinds in the order of their first vertices, as calls one by one would come to them."""
    if kinds is None:
        return [_Part(vertices[0], None, n)] if n else []
    found = []
    for k, vertex in enumerate(vertices):
        rows = np.flatnonzero(kinds == k)
        if len(rows):
            found.append((int(rows[0]), _Part(vertex, rows, len(rows))))
    return [part for _, part in sorted(found, key=lambda f: f[0])]


def _record(
    graph: Graph,
    vertices: Sequence[Vertex],
    parts: Sequence[_Part],
    structure: Children | None,
    columns: dict[str, Column],
    heights: NDArray[Any],
    n: int,
) -> Any:
    """Record a map of which everything was checked."""
    _record_leaves(graph, parts, columns, n)
    zeros: dict[int, int] = {}  # by result of a child
    for part in parts:
        for source in part.vertex.sources if part.reads_zeros else ():
            if isinstance(source, Child) and source.output not in zeros:
                zeros[source.output] = graph.zeros_of(vertices[0].state[source.output]).ref
    levels = _levels(graph, parts, structure, columns, heights)
    widths = {len(v.program.outputs) for v in vertices}
    if len(widths) == 1:
        first = new_values(graph, n, widths.pop(), levels)
    else:
        first = _uneven_values(graph, parts, levels, n)
    start = graph.n_calls
    for part in parts:
        calls = np.arange(start, start + n) if part.rows is None else part.rows + start
        args, ints, lists = _operands(part, columns, first, zeros)
        made = Chunk(calls, part.of(first), part.of(levels), args, ints, lists, NO_DATA)
        graph.record_chunk(part.vertex.program, made)
    found = []
    for place, shape in enumerate(vertices[0].results):
        found.append(Rows(graph, _output(parts, first, place), shape, levels))
    return found[0] if vertices[0].single else tuple(found)


def _record_leaves(graph: Graph, parts: Sequence[_Part], columns: dict[str, Column], n: int) -> None:
    """Make graph inputs of arrays of floats, of the rows that some vertex reads."""
    for name, column in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype.kind != "f":
            continue
        readers = [part for part in parts if Input(name) in part.vertex.sources]
        if len(readers) == len(parts):
            columns[name] = record_floats(graph, column, grad=False)
            continue
        rows = np.sort(np.concatenate([part.rows for part in readers if part.rows is not None] or [np.zeros(0, int)]))
        made = record_floats(graph, column[rows], grad=False)
        values, levels = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        values[rows], levels[rows] = made.ids, made.levels
        columns[name] = Rows(graph, values, made.shape, levels)


def _uneven_values(graph: Graph, parts: Sequence[_Part], levels: Ints, n: int) -> Ints:
    """Value ids where kinds have different numbers of outputs."""
    widths = np.zeros(n, np.int64)
    for part in parts:
        widths[part.rows] = len(part.vertex.program.outputs)
    return np.cumsum(widths) - widths + graph.record_values(levels.repeat(widths))


def _output(parts: Sequence[_Part], first: Ints, place: int) -> Ints:
    """Value ids of one of the map's results."""
    numbers = {part.vertex.pushed[place] for part in parts}
    if len(numbers) <= 1:
        number = numbers.pop() if numbers else 0
        return first + number if number else first
    values = first.copy()
    for part in parts:
        values[part.rows] += part.vertex.pushed[place]
    return values


def _operands(
    part: _Part, columns: Mapping[str, Column], first: Ints, zeros: Mapping[int, int]
) -> tuple[Ints, Ints, list[Lists]]:
    """The arguments of a kind's vertices: value ids, ints, lists."""
    program = part.vertex.program
    vectors: list[Any] = []
    ints: list[Any] = []
    lists: list[Lists] = []
    read = missing = None
    if part.children is not None:
        read = first[part.children]  # -1 is the last one: overwritten below
        missing = part.children < 0 if part.reads_zeros else None

    def gathered(source: Child, values: Ints, absent: NDArray[np.bool_] | None) -> Ints:
        values = values + source.output if source.output else values
        return values if absent is None else np.where(absent, zeros[source.output], values)

    for kind, source in zip(program.kinds, part.vertex.sources, strict=True):
        if isinstance(source, Child):
            assert read is not None
            if isinstance(kind, List):
                assert part.ends is not None
                lists.append(Lists(part.ends, gathered(source, read, missing)))
            else:
                k = source.number
                vectors.append(gathered(source, read[:, k], None if missing is None else missing[:, k]))
        elif isinstance(kind, List):
            lists.append(part.list_of(source, columns))
        else:
            column = columns[source.name]
            if isinstance(column, Rows):
                vectors.append(part.of(column.ids))
            elif isinstance(column, Expression):
                vectors.append(column.ref)
            else:
                ints.append(column if isinstance(column, int) else part.of(column))
    return _table(part.n, vectors), _table(part.n, ints), lists


def _table(n: int, columns: Sequence[Any]) -> Ints:
    table = np.empty((n, len(columns)), np.int64)
    for k, column in enumerate(columns):
        table[:, k] = column
    return table


# ---- levels


def _levels(
    graph: Graph,
    parts: Sequence[_Part],
    structure: Children | None,
    columns: Mapping[str, Column],
    heights: NDArray[Any],
) -> Ints:
    """Levels of a map's vertices in the graph, given their heights: levels that count the map alone."""
    floors = [_floor(graph, part, columns) for part in parts]
    constant = _rise(parts, floors, heights)
    if constant is not None:
        return heights.astype(np.int64) + constant
    floor = np.empty(len(heights), np.int64)
    for part, lowest in zip(parts, floors, strict=True):
        floor[slice(None) if part.rows is None else part.rows] = lowest
    if structure is None:
        return floor
    return raise_levels(heights.astype(np.int64), floor, *structure.edges())


def _floor(graph: Graph, part: _Part, columns: Mapping[str, Column]) -> Ints | int:
    """The lowest levels that vertices may have for what they read besides children; one number where it is for all."""
    lowest: Ints | int = 0
    for kind, source in zip(part.vertex.program.kinds, part.vertex.sources, strict=True):
        if isinstance(source, Child):
            continue
        column = columns[source.name]
        above: Ints | int
        if isinstance(kind, Vector) and isinstance(column, Expression):
            above = graph.level_of(column.ref) + 1
        elif isinstance(kind, Vector):
            assert isinstance(column, Rows)
            above = part.of(column.levels) + 1
        elif isinstance(kind, List):
            above = highest_of_lists(graph, part.list_of(source, columns)) + 1
        else:
            continue
        if isinstance(above, np.ndarray):
            low, high = int(above.min()), int(above.max())
            above = high if low == high else above
        if isinstance(above, int) and isinstance(lowest, int):
            lowest = max(lowest, above)
        else:
            lowest = np.maximum(lowest, above)
    if part.reads_zeros and (isinstance(lowest, int) and lowest < 1):
        # Of level 0. Whoever has other children is higher anyway.
        lowest = 1
    return lowest


def _rise(parts: Sequence[_Part], floors: Sequence[Ints | int], heights: NDArray[Any]) -> int | None:
    """How much higher than its height every vertex is, where that is the same for all and easily seen."""
    rise: int | None = None
    lowest = []
    for part, floor in zip(parts, floors, strict=True):
        if not isinstance(floor, int):
            return None
        height = int(heights.min()) if part.rows is None else int(heights[part.rows].min())
        lowest.append(height)
        if height == 0:
            if rise is not None and rise != floor:
                return None
            rise = floor
    if rise is None:
        return 0 if not parts else None
    fits = all(floor <= rise + height for floor, height in zip(floors, lowest, strict=True))
    return rise if fits else None
