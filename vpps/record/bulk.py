"""`graph.map`: records n vertices with a few NumPy calls. The planner treats them like n single calls.

If compiled code is available, it records maps of the usual form (`vpps.record.packed`). This module records all other
maps and reports every error. On small graphs, every NumPy call matters: it costs up to a microsecond. So this code
prefers `take` to brackets and `astype` to `dtype=`, and does not recheck arrays that are known to be valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
from vpps.interop import refuse_masked
from vpps.ops.operand import Expression, Recent
from vpps.record.cell import kind_of
from vpps.record.chunks import NO_DATA, Chunk, Lists
from vpps.record.distinct import ONE_IN, Cut, find_distinct
from vpps.record.examples import ExampleNumbers, example_numbers
from vpps.record.inputs import (
    Children,
    Column,
    cells_by_kind,
    cells_of,
    check_children,
    check_inputs,
    count_vertices,
    declared_state,
    read_children,
    read_input,
    read_kinds,
    trusted_levels,
)
from vpps.record.levels import raise_levels
from vpps.record.map_cells import trace_cells
from vpps.record.packed import record_packed
from vpps.record.ranges import Ints, ragged, running_sum
from vpps.record.rows import Rows
from vpps.record.rowwise import (
    check_lengths,
    examples_of,
    highest_of_lists,
    int_table,
    new_values,
    record_floats,
    record_vertices,
)
from vpps.record.trace import TracedCell
from vpps.record.vertex import Child, Input, Kinds, Source, Vertex

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
    distinct: bool,
    examples: Any,
    kinds: Any,
) -> Any:
    """Record a map; see `Graph.map`."""
    if type(cells) is not list and isinstance(cells, Mapping):  # this isinstance is slow
        cells = cells_by_kind(cells, kinds)
    given = inputs if type(inputs) is dict or isinstance(inputs, Mapping) else {}
    for name, value in (("kind", kind), ("children", children), ("levels", levels), *given.items()):
        if value is not None and type(value) is not np.ndarray:
            refuse_masked(value, f"graph.map: {name}")
    trusted = levels is not None
    if trusted:
        found = record_packed(graph, cells, kind, children, inputs, state, levels, distinct, examples)
        if found is not None:
            return found
    made = cells_of(cells)
    rows, n = read_kinds(kind, len(made))
    structure = read_children(children)
    inputs = check_inputs(inputs)
    n = count_vertices(n, structure, inputs)
    signature: list[Any] = []
    columns: dict[str, Column] = {}
    for name, value in inputs.items():
        what, columns[name] = read_input(graph, name, value, n)
        signature.append((name, what))
    arity = 0 if structure is None else structure.arity
    declared = None if state is None else declared_state(state)
    maps = made[0].maps
    key = (tuple(map(ref, made)), arity, tuple(signature), declared)
    traced: Kinds | None = maps.get(key)
    if traced is None:
        traced = trace_cells(made, {name: kind_of(what) for name, what in signature}, arity, declared)
        known = list(maps)
        for old in [k for k in known if any(cell() is None for cell in k[0])] or known[: 1 - Recent.MOST]:
            maps.pop(old, None)
        maps[key] = traced
    if trusted:
        heights = trusted_levels(levels, structure, n)
    elif structure is not None:
        heights = check_children(structure, n)
    else:
        heights = np.zeros(n, np.int64)
    if examples is None:
        examples = examples_of(x for x in inputs.values() if type(x) is Rows)
    else:
        examples = example_numbers(examples, n, "graph.map")
    parts = []
    for vertex, own in zip(traced.vertices, rows, strict=True):
        part = _Part(vertex, own, n if own is None else len(own))
        if part.n:
            parts.append(part)
            if structure is not None:
                part.take_children(structure)
            part.take_data(columns)
            if distinct:
                part.cut = part.vertex.cut
    if len(parts) > 1:  # order the kinds by first vertex, as single calls would
        parts.sort(key=lambda part: part.number(0))
    apart = distinct and structure is not None and structure.ends is None and traced.multiplies_leaves
    return _record(graph, traced, parts, structure, columns, heights, examples, n, apart)


@dataclass(slots=True)
class _Part:
    """The vertices of one kind.

    Attributes:
        rows: the map's vertices of this kind, in ascending order; None for all.
        children: (n, used) the children that the cell gathers; for CSR, all children end to end.
        ends: for CSR, (n + 1,) the start of each vertex's children, and the end.
        after: by `start`: offsets and element indices of the lists without their first `start` children.
        reads_zeros: True if a gathered child is missing.
        ints: the int arguments, one row per vertex.
        cut: the cell's split, if vertices with equal ints share results.
        once: with `cut`: for each vertex, the value id of the first result computed from its ints.
        products: for each child result multiplied separately: distinct children, and each vertex's index among them.
        multiplied: for each product, the value id that each vertex reads.
    """

    vertex: Vertex
    rows: Ints | None
    n: int
    children: NDArray[Any] | None = None
    ends: Ints | None = None
    after: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    reads_zeros: bool = False
    ints: Ints = field(init=False)
    cut: Cut | None = None
    once: Ints = field(init=False)
    products: list[tuple[Ints, Ints]] = field(default_factory=list)
    multiplied: list[Ints] = field(default_factory=list)

    @property
    def program(self) -> TracedCell | None:
        """Program of the vertices; None if the whole cell is computed only once for vertices with equal ints."""
        return self.vertex.program if self.cut is None else self.cut.rest

    def of(self, array: Any) -> Any:
        """Select these vertices' entries from an array over all of the map's vertices."""
        return array if self.rows is None else array.take(self.rows, 0)

    def number(self, row: int) -> int:
        """Return the map's vertex number for a row of this part."""
        return row if self.rows is None else int(self.rows[row])

    def take_children(self, structure: Children) -> None:
        """Select these vertices' children. Raises GraphError if a vertex has more children than its cell gathers."""
        vertex = self.vertex
        if structure.ends is None:
            table = self.of(structure.table)
            beyond = table[:, vertex.used :]  # columns that the cell does not gather
            if beyond.size and int(np.maximum.reduce(beyond, axis=None)) >= 0:
                self._refuse_child(int(np.argmax((beyond >= 0).any(axis=1))))
            if vertex.gathers:
                self.children = table if vertex.used == structure.arity else table[:, : vertex.used]
        else:
            lengths = self.of(structure.lengths)
            own = Lists(structure.ends, structure.table)
            if vertex.gathers:
                own = own if self.rows is None else own.of(self.rows, lengths)
                self.ends, self.children = own.ends, own.elements
            if not vertex.gathers_lists and int(np.maximum.reduce(lengths)) > vertex.used:
                self._check_lists(own if vertex.gathers or self.rows is None else own.of(self.rows, lengths))
            if vertex.used:  # lists may be too short for the single children
                self.reads_zeros = int(np.minimum.reduce(lengths)) < vertex.used
        if structure.some_missing and self.children is not None and self.children.size:
            self.reads_zeros = self.reads_zeros or bool(np.minimum.reduce(self.children, axis=None) < 0)

    def _check_lists(self, own: Lists) -> None:
        """Raise GraphError if a list has a child after the single children that the cell gathers."""
        place = np.arange(len(own.elements)) - own.ends[:-1].repeat(np.diff(own.ends))
        beyond = (place >= self.vertex.used) & (own.elements >= 0)
        if beyond.any():
            self._refuse_child(int(np.searchsorted(own.ends, np.argmax(beyond), "right")) - 1)

    def _refuse_child(self, row: int) -> None:
        raise GraphError(
            f"graph.map: vertex {self.number(row)} has more children than its cell {self.vertex.name!r} takes, which "
            f"is {self.vertex.used or 'none'}; change the vertex's kind (kinds of a GraphSet may "
            "not fit reversed edges), or set the child to -1"
        )

    def take_data(self, columns: Mapping[str, Column]) -> None:
        """Select these vertices' ints. Raises if an int is out of range or lists mapped together differ in length."""
        vertex = self.vertex
        own = [x if isinstance(x, int) else self.of(x) for x in map(columns.__getitem__, vertex.ints)]
        self.ints = int_table(vertex.program, self.n, own, vertex.where, self.number)
        if len(vertex.lists) > 1:
            lists = [self.list_of(source, columns) for source in vertex.lists]
            check_lengths(vertex.program, lists, vertex.where, self.number)

    def record_once(self, graph: Graph, cut: Cut) -> None:
        """Record the part of the cell that is computed once per distinct combination of ints."""
        assert cut.once is not None
        ints = self.ints[:, list(cut.ints)]
        distinct, own = find_distinct(ints)
        n = len(distinct)
        levels, nothing = np.zeros(n, np.int64), np.empty((n, 0), np.int64)
        self.once = record_vertices(graph, cut.once, n, nothing, ints[distinct], [], levels)[own]
        self.ints = self.ints[:, list(cut.rest_ints)]

    def find_products(self, apart: Cut, keys: Ints) -> tuple[int, int]:
        """Find the distinct children to multiply separately. Vertices with equal `keys` count as one. Returns the
        number of products that the vertices use, and the number of distinct products."""
        assert self.children is not None
        made = 0
        for product in apart.products:
            children = self.children[:, product.child]
            found = np.where(children < 0, -1, keys.take(children)) if self.reads_zeros else keys.take(children)
            distinct, own = find_distinct(found[:, None])
            self.products.append((children.take(distinct), own))
            made += len(distinct) * len(product.program.outputs)
        return self.n * sum(len(p.program.outputs) for p in apart.products), made

    def record_products(self, graph: Graph, first: Ints, zeros: Mapping[int, int]) -> None:
        """Record the separate products; `first` are the value ids of the map's vertices."""
        assert self.cut is not None
        for product, (children, own) in zip(self.cut.products, self.products, strict=True):
            ids = first.take(children) + product.output
            if self.reads_zeros:
                ids = np.where(children < 0, zeros[product.output], ids)
            n, levels = len(ids), graph.levels_of(ids) + 1
            made = record_vertices(graph, product.program, n, ids[:, None], np.empty((n, 0), np.int64), [], levels)
            self.multiplied += [made.take(own) + k for k in range(len(product.program.outputs))]

    def list_of(self, source: Source, columns: Mapping[str, Column]) -> Lists:
        """Return each vertex's list for one list argument. Lists of children hold vertices rather than values."""
        if isinstance(source, Child):
            assert self.ends is not None
            assert self.children is not None
            return self._list(self.children, source.start)
        column = columns[source.name]
        assert isinstance(column, Lists)
        return column if self.rows is None else column.of(self.rows)

    def arguments(self, columns: Mapping[str, Column], read: Any, zeros: Mapping[int, int]) -> tuple[Ints, list[Lists]]:
        """Return the value ids of the vector arguments, one row per vertex, and the list arguments.

        Args:
            read: value ids of the children's first results.
            zeros: for each child result, the value id to read if the child is missing.
        """
        missing: Any = self.children < 0 if self.reads_zeros and self.children is not None else None
        crossing, first = 0 if self.cut is None else len(self.cut.crossing), len(self.vertex.vectors)
        args = np.empty((self.n, first + crossing + len(self.multiplied)), np.int64)
        for k in range(crossing):
            np.add(self.once, k, out=args[:, first + k])
        for k, ids in enumerate(self.multiplied, first + crossing):
            args[:, k] = ids
        for column, source in enumerate(self.vertex.vectors):
            if isinstance(source, Child):
                ids, absent = self._child(source.number, read, missing)
                if source.output:
                    np.add(ids, source.output, out=args[:, column])
                else:
                    args[:, column] = ids
                if absent is not None:
                    args[absent, column] = zeros[source.output]
            else:
                values = columns[source.name]
                args[:, column] = self.of(values.ids) if isinstance(values, Rows) else values.ref  # type: ignore[union-attr]
        lists = []
        for source in self.vertex.lists:
            if not isinstance(source, Child):
                lists.append(self.list_of(source, columns))
                continue
            values = read + source.output if source.output else read
            values = values if missing is None else np.where(missing, zeros[source.output], values)
            lists.append(self._list(values, source.start))
        return args, lists

    def _list(self, of_children: Ints, start: int) -> Lists:
        """Return per-child values as lists, without the first `start` entries of each list."""
        assert self.ends is not None
        if not start:
            return Lists(self.ends, of_children)
        found = self.after.get(start)
        if found is None:
            lengths = np.maximum(self.ends[1:] - self.ends[:-1] - start, 0)
            ends = running_sum(lengths)
            found = self.after[start] = ends, ragged(self.ends[1:] - lengths, lengths, ends)
        return Lists(found[0], of_children.take(found[1]))

    def _child(self, k: int, read: Ints, missing: Any) -> tuple[Ints, Any]:
        """Return child k's entry in `read` for every vertex, and a mask of missing children (None if all exist)."""
        if self.ends is None:
            return read[:, k], None if missing is None else missing[:, k]
        if missing is None:  # then no list is too short
            return read[self.ends[:-1] + k], None
        places = self.ends[:-1] + k
        absent = places >= self.ends[1:]
        places[absent] = 0
        if not len(read):
            return places, absent
        absent |= missing[places]
        return read[places], absent


def _record(
    graph: Graph,
    kinds: Kinds,
    parts: Sequence[_Part],
    structure: Children | None,
    columns: dict[str, Column],
    heights: Ints,
    examples: ExampleNumbers | None,
    n: int,
    apart: bool,
) -> Any:
    """Record a checked map. Products of children become separate vertices if `apart` is set and it pays off."""
    vertices = kinds.vertices
    lacking = {s.output for part in parts if part.reads_zeros for s in part.vertex.sources if isinstance(s, Child)}
    # Indexed by child result. Zeros are recorded first, because compiled code can make them only then.
    zeros = {output: graph.zeros_of(vertices[0].state[output]).ref for output in sorted(lacking)}
    for part in parts:
        if part.cut is not None:
            part.record_once(graph, part.cut)
    apart = apart and _find_products(graph, parts, n)
    _record_leaves(graph, parts, columns, n)
    levels = _levels(graph, parts, structure, columns, heights, 2 if apart else 1)
    width = 0 if any(part.program is None for part in parts) else kinds.width
    first = new_values(graph, n, width, levels) if width else _uneven_values(graph, parts, levels, n)
    for part in parts:
        if part.products:
            part.record_products(graph, first, zeros)
    base, number = int(first[0]) if n else 0, _numbers(graph, parts, n)
    for part in parts:
        program = part.program
        if program is None:
            continue
        read: Any = None
        if part.children is not None:
            if width:  # arithmetic is faster than indexing
                read = part.children.astype(np.int64)
                if width > 1:
                    read *= width
                read += base
            else:
                read = first[part.children]
        args, lists = part.arguments(columns, read, zeros)
        made = Chunk(part.of(number), part.of(first), part.of(levels), args, part.ints, lists, NO_DATA)
        graph.record_chunk(program, made)
    if examples is not None and width:
        graph.note_examples(n, examples)
    elif examples is not None:
        own = np.sort(np.concatenate([part.rows for part in parts if part.program is not None] or [np.zeros(0, int)]))
        graph.note_examples(len(own), examples.of(own, len(own)))
    found = []
    for place, shape in enumerate(vertices[0].results):
        if kinds.pushed is not None:
            ids = first + kinds.pushed[place] if kinds.pushed[place] else first
        else:
            ids = first.copy()
            for part in parts:
                ids[part.rows] += part.vertex.pushed[place]
        found.append(Rows(graph, ids, shape, levels, examples=examples))
    return found[0] if vertices[0].single else tuple(found)


def _find_products(graph: Graph, parts: Sequence[_Part], n: int) -> bool:
    """Find the products of children to compute separately. If too few would be saved, drops them and returns False."""
    keys = np.arange(n) + graph.n_values
    for part in parts:
        if part.program is None:
            keys[slice(None) if part.rows is None else part.rows] = part.once
    used = made = 0
    found = [(part, cut) for part in parts if (cut := part.vertex.apart) is not None]
    for part, cut in found:
        of_part = part.find_products(cut, keys)
        used, made = used + of_part[0], made + of_part[1]
    if not used or (used - made) * ONE_IN < used:
        for part, _ in found:
            part.products.clear()
        return False
    for part, cut in found:
        if part.cut is None:
            part.ints = part.ints[:, list(cut.rest_ints)]
        part.cut = cut
    return True


def _record_leaves(graph: Graph, parts: Sequence[_Part], columns: dict[str, Column], n: int) -> None:
    """Turn float arrays into graph inputs, for the rows that some vertex reads."""
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
    """Return first value ids if kinds differ in their number of outputs, or if some vertices were recorded earlier."""
    widths = np.zeros(n, np.int64)
    for part in parts:
        if part.program is not None:
            widths[part.rows] = len(part.program.outputs)
    first: Ints = np.cumsum(widths) - widths + graph.record_values(levels.repeat(widths))
    for part in parts:
        if part.program is None:
            first[part.rows] = part.once
    return first


def _numbers(graph: Graph, parts: Sequence[_Part], n: int) -> Ints:
    """Return recording indices. Vertices that have already been recorded get no new one."""
    start = graph.n_calls
    if all(part.program is not None for part in parts):
        return np.arange(start, start + n)
    recorded = np.ones(n, np.int64)
    for part in parts:
        if part.program is None:
            recorded[part.rows] = 0
    numbers: Ints = np.cumsum(recorded) + (start - 1)
    return numbers


# ---- levels


def _levels(
    graph: Graph,
    parts: Sequence[_Part],
    structure: Children | None,
    columns: Mapping[str, Column],
    heights: Ints,
    step: int,
) -> Ints:
    """Return the graph levels of a map's vertices, given their heights, which are levels within the map. A vertex is at
    least `step` levels above its children."""
    heights = heights * step if step > 1 else heights
    floors = [_floor(graph, part, columns) for part in parts]
    numbers = [lowest for lowest in floors if isinstance(lowest, int)]
    if len(numbers) == len(floors) and len(set(numbers)) < 2:
        return heights + numbers[0] if any(numbers) else heights
    floor = np.empty(len(heights), np.int64)
    for part, lowest in zip(parts, floors, strict=True):
        floor[slice(None) if part.rows is None else part.rows] = lowest
    if structure is None:
        return floor
    of_lowest = floor[heights == 0]
    rise = int(of_lowest[0]) if len(of_lowest) else 0
    if len(of_lowest) and (of_lowest == rise).all() and (floor <= heights + rise).all():
        return heights + rise  # other operands raise all vertices by the same amount
    return raise_levels(heights, floor, *structure.edges(), step)


def _floor(graph: Graph, part: _Part, columns: Mapping[str, Column]) -> Ints | int:
    """Return each vertex's lowest level that operands other than children allow; an int if it is the same for all."""
    # Zeros have level 0. Vertices with other children are higher anyway.
    once = part.cut is not None and part.cut.once is not None and part.program is not None
    lowest: Ints | int = 1 if part.reads_zeros or once else 0
    if part.reads_zeros and part.products:
        lowest = 2  # above products of zeros
    if part.reads_zeros and part.ends is not None and not part.vertex.used and part.cut is None:
        lowest = np.minimum(np.diff(part.ends), 1)  # a vertex with an empty list does not read zeros
    if not part.vertex.reads_outside:
        return lowest
    found: list[Ints | int] = []
    for name in part.vertex.values:
        column = columns[name]
        if isinstance(column, Expression):
            found.append(graph.level_of(column.ref))
        else:
            assert isinstance(column, Rows)
            found.append(part.of(column.levels))
    lists = [part.list_of(source, columns) for source in part.vertex.lists if isinstance(source, Input)]
    found.extend(highest_of_lists(graph, xs) for xs in lists)
    for level in found:
        if not isinstance(level, int) and int(level.min()) == int(level.max()):
            level = int(level[0])
        both = isinstance(lowest, int) and isinstance(level, int)
        lowest = max(lowest, level + 1) if both else np.maximum(lowest, level + 1)
    return lowest
