"""Records usual maps in one call of compiled code, with all arrays of a mini-batch in one buffer.

Maps of the usual form have graphs from a `GraphSet`, whose levels are known, and inputs that are ints or rows.
`vpps.record.bulk` records any map and reports errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from vpps.kernel.shared_types import numbers
from vpps.record.cell import Cell
from vpps.record.chunks import NO_DATA, Chunk, Lists
from vpps.record.examples import ExampleNumbers
from vpps.record.native.interface import (
    APART,
    OF_INPUT,
    ONCE,
    PRODUCTS,
    REST,
    ArgumentForm,
    CutForm,
    IntForm,
    KindForm,
    MapForm,
    ProductsForm,
)  # fmt: skip
from vpps.record.rows import Rows
from vpps.record.rowwise import examples_of, int_range
from vpps.record.trace import TracedCell
from vpps.record.vertex import CSR, Child, Kinds, Vertex
from vpps.record.vertices import ARGS, CALL, FIRST, LEVEL

if TYPE_CHECKING:
    from vpps.graph.graph import Graph

WORD = 8  # bytes of an int


class PackedChunk(Chunk):
    """A chunk whose arrays are stored one after another in a buffer; NumPy views are made on demand.

    Attributes:
        memory: ints, shared with other chunks.
        at: start of the chunk's arrays in `memory`.
        address: address of the start, for compiled code.
        n: number of vertices.
        n_args, n_ints: numbers of vector and int arguments of a vertex.
        list_at: start of each list's arrays, relative to `at`: n + 1 ends, then the elements.
    """

    __slots__ = ("address", "at", "list_at", "memory", "n", "n_args", "n_ints")

    def __init__(
        self, memory: Any, address: int, at: int, n: int, n_args: int, n_ints: int, list_at: tuple[int, ...]
    ) -> None:
        self.memory = memory
        self.at = at
        self.address = address + WORD * at
        self.n = n
        self.n_args = n_args
        self.n_ints = n_ints
        self.list_at = list_at

    def __len__(self) -> int:
        return self.n

    def __getattr__(self, name: str) -> Any:
        if name not in Chunk.__slots__:
            raise AttributeError(f"a chunk has no {name!r}")
        n, n_args, n_ints = self.n, self.n_args, self.n_ints
        ints = np.frombuffer(self.memory, np.int64)[self.at :]
        columns = ints[: ARGS * n].reshape(ARGS, n)
        self.calls, self.first, self.levels = columns[CALL], columns[FIRST], columns[LEVEL]
        self.args = ints[ARGS * n : n * (ARGS + n_args)].reshape(n, n_args)
        self.ints = ints[n * (ARGS + n_args) : n * (ARGS + n_args + n_ints)].reshape(n, n_ints)
        ends = [ints[at : at + n + 1] for at in self.list_at]
        self.lists = [Lists(of, ints[at + n + 1 :][: of[n]]) for at, of in zip(self.list_at, ends, strict=True)]
        self.data = NO_DATA
        return object.__getattribute__(self, name)


def record_packed(
    graph: Graph,
    cells: Any,
    kind: Any,
    children: Any,
    inputs: Any,
    state: Any,
    levels: Any,
    distinct: bool,
    examples: Any,
) -> Any:
    """Record a map. Returns None and records nothing if the map is new or not of the usual form.

    The arguments are those of `Graph.map`.
    """
    made = (cells,) if type(cells) is Cell else tuple(cells) if type(cells) is list else cells
    if type(made) is not tuple or not made or type(inputs) is not dict:
        return None
    if children is None:
        arity = 0
    elif type(children) is np.ndarray and children.ndim == 2:
        arity = children.shape[1]
    elif type(children) is tuple:
        arity = CSR
    else:
        return None
    declared: tuple[Any, ...] | None = None
    if state is not None:
        declared = tuple((x,) if type(x) is int else x for x in (state if type(state) in (list, tuple) else (state,)))
        if not all(type(shape) is tuple and all(type(k) is int for k in shape) for shape in declared):
            return None
    for cell in made:
        if type(cell) is not Cell:
            return None
    inputs = inputs.copy()  # another thread may change it, but C++ relies on having one column per name
    signature: list[Any] = []  # as in record_map
    columns = []
    for name, value in inputs.items():
        if type(value) is not Rows:
            signature.append((name, int))
            of_table = type(value) is np.ndarray and not value.flags.contiguous and value.ndim == 1  # a table's column
            columns.append(np.ascontiguousarray(value) if of_table else value)
        elif value.owner is graph:
            signature.append((name, value.shape))
            columns.append(value.ids)
        else:
            return None
    kinds: Kinds | None = made[0].maps.get((tuple(map(ref, made)), arity, tuple(signature), declared))
    if kinds is None:
        return None
    form = kinds.forms[distinct]
    if form is None:
        form = kinds.forms[distinct] = form_of(kinds, arity, inputs, distinct)
    if not len(form):
        return None
    if examples is None:
        examples = examples_of(inputs.values())
    elif type(examples) is not ExampleNumbers or type(levels) is not np.ndarray or examples.n != len(levels):
        return None
    found = graph.make_vertices(form, kind, children, levels, tuple(columns), kinds.shapes)
    if found is None:
        return None
    memory, address, base, at_first, highest, parts = found
    n = 0
    for number, count, at, what, list_at in parts:
        vertex = kinds.vertices[number]
        program = program_of(vertex, distinct, what)
        n_args, n_ints, _ = program.layout
        graph.record_chunk(program, PackedChunk(memory, address, at, count, n_args, n_ints, list_at))
        n += count if what in (REST, APART) else 0
    width, vertex = kinds.width, kinds.vertices[0]
    if examples is not None:
        own = examples
        if at_first >= 0:  # vertices that equal ints share belong to no example
            own = ExampleNumbers(n, lambda: examples.numbers[np.frombuffer(memory, np.int64)[at_first:] >= base])
        graph.note_examples(n, own)
    rows = []
    for output, shape in zip(vertex.pushed, vertex.results, strict=True):
        if at_first < 0:
            ids = np.arange(base + output, base + n * width, width)
        else:
            ids = np.frombuffer(memory, np.int64)[at_first:] + output
        rows.append(Rows(graph, ids, shape, None, highest, examples))
    return rows[0] if vertex.single else tuple(rows)


def program_of(vertex: Vertex, distinct: bool, what: int) -> TracedCell:
    """Return the program of one of a kind's chunks; `what` is REST, ONCE, APART or PRODUCTS."""
    cut = vertex.cut if what < APART else vertex.apart
    if not distinct or cut is None:
        return vertex.program
    if what >= PRODUCTS:
        return cut.products[what - PRODUCTS].program
    program = cut.once if what == ONCE else cut.rest
    assert program is not None
    return program


def form_of(kinds: Kinds, arity: int, inputs: Mapping[str, Any], distinct: bool) -> array[int]:
    """Encode a map for compiled code (native/interface.py); return an empty array if that cannot record it."""
    nothing = array("q")
    if not kinds.width or kinds.pushed is None:
        return nothing
    columns, state = list(inputs), kinds.vertices[0].state
    found = numbers(MapForm(arity, kinds.width, n_kinds=len(kinds.vertices), n_results=len(state)))
    found += map(kinds.shapes.index, state)
    for vertex in kinds.vertices:
        lists = [source for source in vertex.lists if isinstance(source, Child)]
        if len(lists) < len(vertex.lists) or len(vertex.ints) != len(vertex.program.int_limits):
            return nothing
        if len({*zip(vertex.program.lists, (xs.start for xs in lists), strict=True)}) > len({*vertex.program.lists}):
            return nothing  # lists that are mapped together may differ in length
        found += numbers(KindForm(n_arguments=len(vertex.vectors), n_lists=len(lists), n_ints=len(vertex.ints)))
        for source in vertex.vectors:
            if isinstance(source, Child):
                found += numbers(ArgumentForm(child=source.number, number=source.output))
            else:
                found += numbers(ArgumentForm(child=OF_INPUT, number=columns.index(source.name)))
        for xs in lists:
            found += numbers(ArgumentForm(child=xs.start, number=xs.output))
        for name, limit in zip(vertex.ints, vertex.program.int_limits, strict=True):
            low, high = int_range(limit)
            found += numbers(IntForm(columns.index(name), low, high))
        apart = vertex.apart if distinct and arity != CSR and kinds.multiplies_leaves else None
        cut = apart or (vertex.cut if distinct else None)
        if cut is not None and len({*cut.ints, *cut.rest_ints}) < len(vertex.ints):
            return nothing  # an int that no part takes must still be range-checked
        if cut is None:
            found += numbers(CutForm())
            found += (0, len(vertex.ints), *range(len(vertex.ints)))
        else:
            found += numbers(CutForm(len(cut.crossing), cut.rest is None, len(cut.products)))
            for p in cut.products:
                found += numbers(ProductsForm(p.child, p.output, len(p.program.outputs)))
            found += (len(cut.ints), *cut.ints, len(cut.rest_ints), *cut.rest_ints)
    return array("q", found)
