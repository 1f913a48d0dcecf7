"""What a cell of a `graph.map` gets and gives: its arguments by name and place, or Cavs's gather, pull, scatter, push.

A vertex function becomes an ordinary program whose arguments are what it gathers and pulls and whose results are what
it scatters and pushes, so nothing below the graph knows of maps.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vpps.errors import GraphError, ShapeError, TraceError, VppsError
from vpps.model.model import Parameter
from vpps.ops import OPS, Shape
from vpps.ops.operand import Expression, recorded, result_shape, running
from vpps.record.cell import LISTS, Cell
from vpps.record.distinct import Cut, cut
from vpps.record.trace import (
    LONG,
    UNKNOWN,
    ArgKind,
    CellTrace,
    ElementShapeFound,
    Int,
    List,
    TracedCell,
    Vector,
    endless,
)
from vpps.values import as_index

CSR = -1
"""In place of an arity: every vertex has a list of children."""

MOST_STATES = 4
"""As many results of children as are tried where nothing but the cell itself tells how many there are."""


@dataclass(frozen=True, slots=True)
class Child:
    """An argument that is a result of a child, or the list of those of all children (`number` is CSR) from child
    `start` on."""

    number: int
    output: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """An argument that is an input of the map."""

    name: str


Source = Child | Input


@dataclass(frozen=True)
class Vertex:
    """The program of one kind of vertices.

    Attributes:
        name: of the cell.
        program: an ordinary one; where the cell is called with its arguments alone, the very one of such calls.
        sources: what each of its arguments is.
        state: the shapes of what parents gather: its first outputs.
        pushed: the outputs that the map returns.
        single: it returns one rather than a tuple.
    """

    name: str
    program: TracedCell
    sources: tuple[Source, ...]
    state: tuple[Shape, ...]
    pushed: tuple[int, ...]
    single: bool

    @cached_property
    def results(self) -> tuple[Shape, ...]:
        """The shapes of what the map returns."""
        return tuple(self.program.nodes[self.program.outputs[o]].shape for o in self.pushed)

    @cached_property
    def vectors(self) -> tuple[Source, ...]:
        """What its vector arguments are."""
        return self._sources_of(Vector)

    @cached_property
    def ints(self) -> tuple[str, ...]:
        """The inputs that its int arguments are."""
        return tuple(s.name for s in self._sources_of(Int) if isinstance(s, Input))

    @cached_property
    def lists(self) -> tuple[Source, ...]:
        """What its list arguments are."""
        return self._sources_of(List)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The inputs that are values."""
        return tuple(s.name for s in self.vectors if isinstance(s, Input))

    @cached_property
    def where(self) -> str:
        """In the user's words."""
        return f"graph.map, cell {self.name!r}"

    @cached_property
    def reads_outside(self) -> bool:
        """Whether any of its inputs is a value, or a list of them."""
        return any(isinstance(s, Input) for s in (*self.vectors, *self.lists))

    @cached_property
    def gathers(self) -> bool:
        """Whether it reads children."""
        return any(isinstance(s, Child) for s in self.sources)

    @cached_property
    def gathers_lists(self) -> bool:
        """Whether it reads lists of children, of which there may be any number."""
        return any(isinstance(s, Child) for s in self.lists)

    @cached_property
    def used(self) -> int:
        """How many children it reads one by one: the first ones."""
        return 1 + max((s.number for s in self.sources if isinstance(s, Child)), default=-1)

    @cached_property
    def cut(self) -> Cut | None:
        """What of it follows from ints alone, and the rest."""
        return cut(self.program)

    def _sources_of(self, kind: type) -> tuple[Source, ...]:
        return tuple(s for k, s in zip(self.program.kinds, self.sources, strict=True) if isinstance(k, kind))


class Kinds:
    """The kinds of vertices of a map, and what they have in common.

    Attributes:
        vertices: one per cell.
        width: outputs of a vertex, where all kinds have so many, else 0.
        pushed: the outputs that the map returns, where they are the same ones for all kinds, else None.
        forms: of the map (`vpps.record.packed`), None until that was needed; of one with `distinct=True` the second.
    """

    __slots__ = ("forms", "pushed", "vertices", "width")

    def __init__(self, vertices: tuple[Vertex, ...]) -> None:
        self.vertices = vertices
        widths = {len(v.program.outputs) for v in vertices}
        self.width = widths.pop() if len(widths) == 1 else 0
        pushed = {v.pushed for v in vertices}
        self.pushed = pushed.pop() if len(pushed) == 1 else None
        self.forms: list[array[int] | None] = [None, None]


class StateNeeded(Exception):
    """A cell gathers, and it is not known yet what."""


class VertexTrace(CellTrace):
    """Trace of a vertex function; its arguments come into being as it asks for them.

    Args:
        inputs: kinds of the inputs, by name.
        arity: children of a vertex, or CSR.
        state: shapes of what children give, None where not known; None where not even the number is known.
    """

    def __init__(
        self, name: str, inputs: Mapping[str, ArgKind], arity: int, state: Sequence[Shape | None] | None
    ) -> None:
        super().__init__(name, ())
        self._inputs = inputs
        self._arity = arity
        self._state = state
        self._symbols: dict[Source, Any] = {}
        self._stands_for: dict[int, int] = {}  # result of a child whose shape is unknown -> the first such argument
        self.kinds: list[ArgKind] = []
        self.sources: list[Source] = []
        self.uses_calls = False
        self.scattered: list[Expression] = []
        self.pushed: list[Expression] = []

    def _symbol(self, source: Source, kind: ArgKind) -> Any:
        if source not in self._symbols:
            position = len(self.kinds)
            self.kinds.append(kind)
            self.sources.append(source)
            symbol = self.argument(position, kind)
            if isinstance(source, Child) and symbol.shape == UNKNOWN:
                # Where the shape shows at one child, it shows for all.
                self._unknown[symbol.ref] = self._stands_for.setdefault(source.output, position)
            self._symbols[source] = symbol
        return self._symbols[source]

    def input(self, name: str) -> Any:
        """An input of the map."""
        return self._symbol(Input(name), self._inputs[name])

    def child(self, number: int, output: int, start: int = 0) -> Any:
        """A result of a child; of all children from `start` on where `number` is CSR."""
        assert self._state is not None
        shape = self._state[output]
        if number == CSR:
            return self._symbol(Child(CSR, output, start), List(shape))
        return self._symbol(Child(number, output), Vector(UNKNOWN if shape is None else shape))

    def _untold(self, position: int, op: str, nodes: list[int], attrs: dict[str, Any]) -> Expression:
        """Goes on with a long vector: where the cell's results have a shape all the same, it is traced with that."""
        if OPS[op].indices:
            return super()._untold(position, op, nodes, attrs)
        shape = result_shape(op, [self.cell.nodes[n].shape for n in nodes], attrs, self.describe())
        return self._result(op, nodes, shape, None, attrs)

    def _untellable(self, position: int, what: str) -> TraceError:
        return TraceError(f"{self.describe()}: {what} the shape of what children give")

    # ---- Cavs's calls

    def gather(self, k: int | None, start: int) -> Any:
        """See `vpps.gather`."""
        self.uses_calls = True
        begins = as_index(start) == 0
        asked = f"gather({k!r})" if k is not None else "gather()" if begins else f"gather(start={start!r})"
        if not self._arity:
            raise GraphError(f"{self.describe()}: {asked}: the map has no children; give graph.map children=")
        if k is not None and not begins:
            raise GraphError(f"{self.describe()}: gather({k!r}, start={start!r}): one child or a list, not both")
        csr = self._arity == CSR
        number = as_index(start if k is None else k)
        most = sys.maxsize if csr else self._arity - (k is not None)
        if number is None or not 0 <= number <= most:
            there = "are counted from 0" if csr else f"has {self._arity} columns, 0 to {self._arity - 1}"
            raise GraphError(f"{self.describe()}: {asked}: children {there}")
        if k is not None:
            return self._results_of(number)
        if csr:
            return self._results_of(CSR, number)
        return [self._results_of(i) for i in range(number, self._arity)]

    def _results_of(self, number: int, start: int = 0) -> Any:
        if self._state is None:
            raise StateNeeded
        if not self._state:
            raise GraphError(f"{self.describe()} gathers, but no cell of the map scatters anything")
        results = tuple(self.child(number, o, start) for o in range(len(self._state)))
        return results[0] if len(results) == 1 else results

    def pull(self, name: str | None) -> Any:
        """See `vpps.pull`."""
        self.uses_calls = True
        if name is None and len(self._inputs) == 1:
            (name,) = self._inputs
        if not isinstance(name, str) or name not in self._inputs:
            known = ", ".join(map(repr, self._inputs)) or "none"
            asked = "pull()" if name is None else f"pull({name!r})"
            raise GraphError(f"{self.describe()}: {asked}: the inputs of the map are {known}")
        return self.input(name)

    def give(self, what: str, values: Sequence[Any], to: list[Expression]) -> None:
        """See `vpps.scatter` and `vpps.push`."""
        self.uses_calls = True
        for value in values:
            if isinstance(value, Parameter):
                value = Expression(self, self.node_of(value, what), value.shape)
            if not isinstance(value, Expression) or value.owner is not self:
                raise TraceError(f"{self.describe()}: {what}({value!r}): expected an expression computed by the cell")
            if self.domain(value.ref):
                raise TraceError(
                    f"{self.describe()}: {what}({value!r}): one value per child; reduce it with vpps.sum or its like"
                )
            to.append(value)

    def finish(self, result: Any) -> TracedCell:
        """Close the trace; results are what was scattered, then what was pushed besides, or what was returned."""
        if self.scattered or self.pushed:
            if result is not None:
                raise TraceError(
                    f"{self.describe()} returns {result!r} besides calling scatter or push; what they are given is all "
                    "that leaves it"
                )
            outputs = {value.ref: value for value in self.pushed if value.ref not in {s.ref for s in self.scattered}}
            result = (*self.scattered, *outputs.values())
        self.cell.kinds = tuple(self.kinds)
        return super().finish(result)


def _running(call: str) -> VertexTrace:
    trace = running.current
    if not isinstance(trace, VertexTrace):
        where = "outside of a cell" if trace is None else f"in {trace.describe()}, called as an ordinary cell"
        raise TraceError(
            f"{call} {where}: a vertex has children, inputs and parents only where graph.map calls its cell; pass "
            "ordinary cells their arguments, and let them return their results"
        )
    return trace


def gather(k: int | None = None, *, start: int = 0) -> Any:
    """In a cell of `graph.map`: what child k scattered, or zeros where it is -1 (Xu et al. 2018, section 3.1).

        h_previous, c_previous = vpps.gather(0)  # the first child, whatever the number of them
        hs, cs = vpps.gather(start=1)            # lists of the others

    Args:
        k: which child: column of `children`, or place in the vertex's list where they are CSR: zeros where that is
            shorter. Without it, a list of what each child scattered, for CSR children a list of any length for
            `vpps.each`, `vpps.sum` and their like.
        start: that list without its first `start` children; for CSR empty where there are no more.

    Returns:
        An expression, or a tuple of them where cells scatter (or return) several.

    Raises:
        GraphError: there are no children, or not so many.
        TraceError: the cell was not called by `graph.map`.
    """
    return _running("gather").gather(k, start)


def pull(name: str | None = None) -> Any:
    """In a cell of `graph.map`: an input of the vertex, by its name in `inputs`; without one, the only input.

    Returns:
        An expression, an int as positional int arguments are, or a list.

    Raises:
        GraphError: there is no such input.
        TraceError: the cell was not called by `graph.map`.
    """
    return _running("pull").pull(name)


def scatter(*values: Expression) -> None:
    """In a cell of `graph.map`: set what parents gather from this vertex.

    Raises:
        TraceError: no expression of the cell; the cell was not called by `graph.map`.
    """
    trace = _running("scatter")
    trace.give("scatter", values, trace.scattered)


def push(*values: Expression) -> None:
    """In a cell of `graph.map`: hand values to the outside, as `Rows` that the map returns.

    A cell that scatters and pushes nothing hands out what it scatters.

    Raises:
        TraceError: no expression of the cell; the cell was not called by `graph.map`.
    """
    trace = _running("push")
    trace.give("push", values, trace.pushed)


# ---- from cells to programs


def trace_cells(
    cells: Sequence[Cell[Any]],
    inputs: Mapping[str, ArgKind],
    arity: int,
    declared: Sequence[Shape] | None,
) -> Kinds:
    """The programs of a map's cells, which agree in what children give and in what the map returns.

    Args:
        inputs: kinds of the inputs, by name.
        arity: children of a vertex, or CSR.
        declared: shapes of what children give, where the user says so.

    Raises:
        GraphError, ShapeError, TraceError: see `Graph.map`.
    """
    found: list[Vertex | None] = [None] * len(cells)
    state = declared
    if state is None:  # what leaves return, inner vertices gather
        for i, cell in enumerate(cells):
            try:
                found[i] = _trace_cell(cell, inputs, arity, None)
            except StateNeeded:
                continue
            state = state if state is not None else found[i].state  # type: ignore[union-attr]
    failed: dict[int, VppsError] = {}
    if state is None:  # the first cell that tells it by itself
        for i, cell in enumerate(cells):
            try:
                found[i] = vertex = _infer_state(cell, inputs, arity)
            except VppsError as error:
                failed[i] = error
            else:
                state = vertex.state
                break
        else:
            raise failed[0]
    for i, cell in enumerate(cells):
        if found[i] is None:
            try:
                found[i] = _trace_cell(cell, inputs, arity, state)
            except VppsError:
                if i in failed:
                    raise failed[i] from None
                raise
    vertices = tuple(v for v in found if v is not None)
    _check_agreement(vertices, declared)
    _check_use(vertices, inputs, arity)
    return Kinds(vertices)


def _infer_state(cell: Cell[Any], inputs: Mapping[str, ArgKind], arity: int) -> Vertex:
    """Trace a cell that gathers its own results, whose number and shapes nothing else tells."""
    free = len(_parameters(cell, inputs)[1])
    tries: Sequence[int]
    if not free:  # the cell gathers by calls
        tries = range(1, MOST_STATES + 1)
    elif arity == CSR:
        tries = [free]
    else:
        tries = [free // used for used in range(arity, 0, -1) if free % used == 0]
    first: Exception | None = None
    for n in tries:
        try:
            vertex = _trace_cell(cell, inputs, arity, [None] * n)
            if len(vertex.state) == n:
                return vertex
        except VppsError as error:
            first = error if not isinstance(first, VppsError) else first
        except Exception as error:  # of the cell itself, which may only mean that there are not n results
            first = first or error
    if first is not None and not isinstance(first, VppsError):
        raise first
    if first is not None and len(tries) == 1:
        taken = ", ".join(_parameters(cell, inputs)[1])
        raise type(first)(
            f"{_readable(first)} ({taken}: no inputs of the map, so taken for what children give; if the cell does not "
            f"tell their shapes, declare them: graph.map(..., state={_example(tries[0])}))"
        ) from first
    raise TraceError(
        f"cell {cell.name!r}: what children give does not follow from the cell"
        + (f" ({_readable(first)})" if first is not None else "")
        + "; declare it: graph.map(..., state=(64, 64)) for two vectors of 64 each"
    )


def _readable(error: VppsError) -> str:
    """A message in which unknown lengths are marked as such."""
    return re.sub(r"-?\d+", lambda number: "?" if abs(int(number[0])) >= LONG // 2 else number[0], str(error))


def _example(results: int) -> str:
    """What a user could give as `state`."""
    return "64" if results == 1 else f"[{', '.join(['(64,)'] * results)}]"


def _parameters(cell: Cell[Any], inputs: Mapping[str, ArgKind]) -> tuple[list[str], list[str], bool]:
    """Names of the positional parameters to be bound, of those among them that are no inputs, and whether `*args` take
    any number of results of children."""
    bound: list[str] = []
    skipped = ""
    takes_all = False
    for p in cell.signature.parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            takes_all = True
        elif p.kind is p.KEYWORD_ONLY:
            if p.default is p.empty:
                raise TraceError(
                    f"cell {cell.name!r}: graph.map cannot give the static argument {p.name}; wrap the call in a cell "
                    f"that does, or give {p.name} a default"
                )
            if p.name in inputs:
                raise TraceError(
                    f"cell {cell.name!r}: {p.name} is keyword-only, so static, but an input of the map; make it "
                    "positional"
                )
        elif p.name in inputs or p.default is p.empty:
            if skipped:
                raise TraceError(
                    f"cell {cell.name!r}: {skipped} has a default and is no input of the map, but {p.name} after it "
                    f"is; make {skipped} keyword-only"
                )
            bound.append(p.name)
        else:
            skipped = p.name
    return bound, [name for name in bound if name not in inputs], takes_all


def _trace_cell(
    cell: Cell[Any], inputs: Mapping[str, ArgKind], arity: int, state: Sequence[Shape | None] | None
) -> Vertex:
    """Trace a cell; raises StateNeeded where it gathers and `state` is None."""
    bound, free, takes_all = _parameters(cell, inputs)
    if free and not arity:
        raise GraphError(
            f"cell {cell.name!r}: nothing gives {', '.join(free)}: no input of the map has that name"
            f"{' (they are ' + ', '.join(inputs) + ')' if inputs else ''}, and it has no children="
        )
    if state is None and (free or (takes_all and arity)):
        raise StateNeeded
    children = _children_of(cell, free, takes_all, arity, state)
    shapes = None if state is None else list(state)
    guessed = [] if shapes is None else [o for o, shape in enumerate(shapes) if shape is None]
    for name, (number, output) in zip(free, children, strict=False):
        if number == CSR and output in guessed:
            assert shapes is not None
            shapes[output] = cell.elements.get(name)
    former: Vertex | None = None  # which returned what its guesses had not been
    while True:
        trace = VertexTrace(cell.name, inputs, arity, shapes)
        given = iter(children)
        try:
            arguments = [trace.input(name) if name in inputs else trace.child(*next(given)) for name in bound]
            cell.check_lists(isinstance(x, LISTS) for x in arguments)
            arguments += [trace.child(*c) for c in given]
            result = recorded(trace, cell.bound, *arguments)
            scattered, pushed = list(trace.scattered), list(trace.pushed)
            program = trace.finish(result)
        except RecursionError:
            raise TraceError(endless(trace)) from None
        except ElementShapeFound as found:
            source = trace.sources[found.position]
            assert isinstance(source, Child)
            assert shapes is not None
            shapes[source.output] = found.shape
            continue
        except VppsError:
            if former is not None:
                return former
            raise
        known = shapes is None or None not in shapes
        vertex = _vertex(cell, trace, program, scattered, pushed, known)
        if shapes is None or len(vertex.state) != len(shapes):
            return vertex
        if not known:
            # What nothing showed the shape of is what the cell returns in its place.
            shapes = [own if known is None else known for known, own in zip(shapes, vertex.state, strict=True)]
            if any(k >= LONG // 2 for shape in shapes for k in shape or ()):
                raise TraceError(
                    f"cell {cell.name!r}: what it returns is as long as what children give, which nothing tells"
                )
            continue
        if former is not None or all(vertex.state[o] == shapes[o] for o in guessed):
            return vertex if former is None or vertex.state == tuple(shapes) else former
        # What a use shows need not be so: a scalar times a vector looks like a vector times a vector.
        former = vertex
        for o in guessed:
            shapes[o] = vertex.state[o]


def _children_of(
    cell: Cell[Any], free: Sequence[str], takes_all: bool, arity: int, state: Sequence[Shape | None] | None
) -> list[tuple[int, int]]:
    """(child, result) of the parameters that are no inputs, one after the other."""
    if state is None or not (free or takes_all):
        return []
    n = len(state)
    if arity == CSR:
        if takes_all or len(free) == n:
            return [(CSR, o) for o in range(n)]
        raise GraphError(
            f"cell {cell.name!r}: {', '.join(free)} are no inputs of the map, so they are lists of what children give, "
            f"one per result: take {n} such arguments, or child k by vpps.gather(k). For an argument per child make "
            "children a table: vpps-data convert --fixed, or lists=False of a reader"
        )
    used, rest = (arity, 0) if takes_all else divmod(len(free), n) if n else (0, 1)
    if rest or used > arity:
        raise GraphError(
            f"cell {cell.name!r}: {', '.join(free)} are no inputs of the map, so they are what children give: {n} "
            f"results of each of up to {arity} children, child after child, and not {len(free)} arguments"
        )
    return [(k, o) for k in range(used) for o in range(n)]


def _vertex(
    cell: Cell[Any],
    trace: VertexTrace,
    program: TracedCell,
    scattered: list[Expression],
    pushed: list[Expression],
    known: bool,
) -> Vertex:
    """The vertex of a trace; where shapes of arguments are not `known`, one that only tells what children give."""
    outputs = {o: k for k, o in reversed(list(enumerate(program.outputs)))}
    if scattered or pushed:
        n_state = len(scattered)
        out = [outputs[v.ref] for v in pushed or scattered]
        single = len(out) == 1
    else:
        n_state, single = len(program.outputs), program.single
        out = list(range(n_state))
        if known and not trace.uses_calls:  # the program of its ordinary calls
            program = cell.program(tuple(map(_signature_of, trace.kinds)), {})
    state = tuple(program.nodes[o].shape for o in program.outputs[:n_state])
    return Vertex(cell.name, program, tuple(trace.sources), state, tuple(out), single)


def _signature_of(kind: ArgKind) -> Any:
    if isinstance(kind, Int):
        return int
    return (list, kind.shape) if isinstance(kind, List) else kind.shape


def _check_agreement(vertices: Sequence[Vertex], declared: Sequence[Shape] | None) -> None:
    """What parents gather and what the map returns is the same for all kinds."""
    gathering = [v for v in vertices if any(isinstance(s, Child) for s in v.sources)]
    if gathering:
        expected = tuple(declared) if declared is not None else vertices[0].state
        whose = "state=" if declared is not None else f"cell {vertices[0].name!r}"
        for v in vertices:
            if v.state != expected:
                raise ShapeError(
                    f"graph.map: cell {v.name!r} gives its parents {_shapes(v.state)}, {whose} {_shapes(expected)}; "
                    "parents gather the same from children of every kind"
                )
            for source, kind in zip(v.sources, v.program.kinds, strict=True):
                if isinstance(source, Child) and not isinstance(kind, Int) and kind.shape != expected[source.output]:
                    # The cell told by what it does with them, such as a product with a parameter.
                    raise ShapeError(
                        f"graph.map: what cell {v.name!r} does with its children's results takes {kind.shape}, and "
                        f"children give {expected[source.output]}; is a parameter of another size than they call for?"
                    )
    for v in vertices[1:]:
        if v.results != vertices[0].results:
            raise ShapeError(
                f"graph.map: cell {v.name!r} returns {_shapes(v.results)}, cell {vertices[0].name!r} "
                f"{_shapes(vertices[0].results)}; all cells of a map return the same"
            )


def _shapes(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, shapes)) or "nothing"


def _check_use(vertices: Sequence[Vertex], inputs: Mapping[str, ArgKind], arity: int) -> None:
    """Somebody uses every input, and the children."""
    used = {s.name for v in vertices for s in v.sources if isinstance(s, Input)}
    for name in inputs:
        if name not in used:
            raise GraphError(
                f"graph.map: no cell has a parameter {name!r} or pulls it; leave the input out, or name it as the "
                "cell does"
            )
    if arity and not any(isinstance(s, Child) for v in vertices for s in v.sources):
        raise GraphError(
            "graph.map: no cell takes anything of its children; leave children= out, or give a cell arguments for them"
        )
