"""Vertex functions of a `graph.map`: arguments by name and position, or Cavs's gather, pull, scatter, push.

A vertex function becomes an ordinary program. Its arguments are what the function gathers and pulls; its results are
what it scatters and pushes. So no code below the graph knows about maps.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from vpps.errors import GraphError, TraceError
from vpps.model.model import Parameter
from vpps.ops import OPS, Shape
from vpps.ops.operand import Expression, result_shape, running
from vpps.record.distinct import Cut, cut, cut_products
from vpps.record.trace import UNKNOWN, ArgKind, CellTrace, Int, List, TracedCell, Vector
from vpps.values import as_index

CSR = -1
"""Used in place of an arity: every vertex has a list of children."""


@dataclass(frozen=True, slots=True)
class Child:
    """An argument that is a child's result; if `number` is CSR, the list of all results from child `start` on."""

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
    """The program of one kind of vertex.

    Attributes:
        name: name of the cell.
        program: an ordinary program; without gather, pull, scatter or push, the program of the cell's ordinary calls.
        sources: source of each argument.
        state: shapes of the results that parents gather, which are the first outputs.
        pushed: the outputs that the map returns.
        single: True if the map returns one result rather than a tuple.
    """

    name: str
    program: TracedCell
    sources: tuple[Source, ...]
    state: tuple[Shape, ...]
    pushed: tuple[int, ...]
    single: bool

    @cached_property
    def results(self) -> tuple[Shape, ...]:
        """Shapes of the results that the map returns."""
        return tuple(self.program.nodes[self.program.outputs[o]].shape for o in self.pushed)

    @cached_property
    def vectors(self) -> tuple[Source, ...]:
        """Sources of its vector arguments."""
        return self._sources_of(Vector)

    @cached_property
    def ints(self) -> tuple[str, ...]:
        """Names of the inputs that are its int arguments."""
        return tuple(s.name for s in self._sources_of(Int) if isinstance(s, Input))

    @cached_property
    def lists(self) -> tuple[Source, ...]:
        """Sources of its list arguments."""
        return self._sources_of(List)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Names of the inputs that are its vector arguments."""
        return tuple(s.name for s in self.vectors if isinstance(s, Input))

    @cached_property
    def where(self) -> str:
        """Description for error messages."""
        return f"graph.map, cell {self.name!r}"

    @cached_property
    def reads_outside(self) -> bool:
        """True if an input is a value, or a list of values."""
        return any(isinstance(s, Input) for s in (*self.vectors, *self.lists))

    @cached_property
    def gathers(self) -> bool:
        """True if it reads children."""
        return any(isinstance(s, Child) for s in self.sources)

    @cached_property
    def gathers_lists(self) -> bool:
        """True if it reads lists of children, of any length."""
        return any(isinstance(s, Child) for s in self.lists)

    @cached_property
    def used(self) -> int:
        """Number of children that it reads one by one, starting with the first."""
        return 1 + max((s.number for s in self.sources if isinstance(s, Child)), default=-1)

    @cached_property
    def cut(self) -> Cut | None:
        """The program split into the part that depends only on ints, and the rest."""
        return cut(self.program)

    @cached_property
    def apart(self) -> Cut | None:
        """Like `cut`, with products of children split off, too."""
        children = {p: (s.number, s.output) for p, s in enumerate(self.sources) if isinstance(s, Child)}
        return cut_products(self.program, self.cut, children)

    def _sources_of(self, kind: type) -> tuple[Source, ...]:
        return tuple(s for k, s in zip(self.program.kinds, self.sources, strict=True) if isinstance(k, kind))


class Kinds:
    """A map's kinds of vertices, and their common properties.

    Attributes:
        vertices: one per cell.
        width: number of a vertex's outputs; 0 if kinds differ.
        pushed: the outputs that the map returns; None if kinds differ.
        forms: the map's encodings (`vpps.record.packed`), without and with `distinct=True`; None until first needed.
    """

    def __init__(self, vertices: tuple[Vertex, ...]) -> None:
        first = vertices[0]
        self.vertices = vertices
        self.width = len(first.program.outputs)
        if any(len(v.program.outputs) != self.width for v in vertices):
            self.width = 0
        self.pushed = first.pushed if all(v.pushed == first.pushed for v in vertices) else None
        self.forms: list[array[int] | None] = [None, None]

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Distinct shapes of the results that parents gather."""
        return tuple(dict.fromkeys(self.vertices[0].state))

    @cached_property
    def multiplies_leaves(self) -> bool:
        """True if parents multiply children that can be shared because they depend only on ints."""
        return any(v.cut is not None and v.cut.rest is None for v in self.vertices) and any(
            v.apart is not None for v in self.vertices
        )


class StateNeeded(Exception):
    """Raised if a cell gathers before the shapes of the children's results are known."""


class VertexTrace(CellTrace):
    """Trace of a vertex function; each argument is created when the function requests it.

    Args:
        inputs: kinds of the inputs, by name.
        arity: children of a vertex, or CSR.
        state: shapes of the children's results, None for an unknown shape; None if even their number is unknown.
    """

    def __init__(
        self, name: str, inputs: Mapping[str, ArgKind], arity: int, state: Sequence[Shape | None] | None
    ) -> None:
        super().__init__(name, ())
        self._inputs = inputs
        self._arity = arity
        self._state = state
        self._symbols: dict[Source, Any] = {}
        self._stands_for: dict[int, int] = {}  # number of a child's result of unknown shape -> first such argument
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
                # A shape shown by one child applies to all.
                self._unknown[symbol.ref] = self._stands_for.setdefault(source.output, position)
            self._symbols[source] = symbol
        return self._symbols[source]

    def input(self, name: str) -> Any:
        """Return an input of the map."""
        return self._symbol(Input(name), self._inputs[name])

    def child(self, number: int, output: int, start: int = 0) -> Any:
        """Return a child's result; if `number` is CSR, the list of this result for all children from `start` on."""
        assert self._state is not None
        shape = self._state[output]
        if number == CSR:
            return self._symbol(Child(CSR, output, start), List(shape))
        return self._symbol(Child(number, output), Vector(UNKNOWN if shape is None else shape))

    def _untold(self, position: int, op: str, nodes: list[int], attrs: dict[str, Any]) -> Expression:
        """Continue with a placeholder length. If the shape is found later, the cell is traced again with it."""
        if OPS[op].indices:
            return super()._untold(position, op, nodes, attrs)
        shape = result_shape(op, [self.cell.nodes[n].shape for n in nodes], attrs, self.describe())
        return self._result(op, nodes, shape, None, attrs)

    def _untellable(self, position: int, what: str) -> TraceError:
        return TraceError(f"{self.describe()}: {what} the shape of the children's results")

    # ---- Cavs's calls

    def gather(self, k: int | None, start: int) -> Any:
        """Gather results of children; see `vpps.gather`."""
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
        """Pull an input; see `vpps.pull`."""
        self.uses_calls = True
        if name is None and len(self._inputs) == 1:
            (name,) = self._inputs
        if not isinstance(name, str) or name not in self._inputs:
            known = ", ".join(map(repr, self._inputs)) or "none"
            asked = "pull()" if name is None else f"pull({name!r})"
            raise GraphError(f"{self.describe()}: {asked}: the inputs of the map are {known}")
        return self.input(name)

    def give(self, what: str, values: Sequence[Any], to: list[Expression]) -> None:
        """Append values to `to`; see `vpps.scatter` and `vpps.push`."""
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
        """Close the trace. The results are the scattered, then other pushed values, or else the returned values."""
        if self.scattered or self.pushed:
            if result is not None:
                raise TraceError(
                    f"{self.describe()} returns {result!r} besides calling scatter or push; only their arguments "
                    "leave it"
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
            f"{call} {where}: a vertex has children, inputs and parents only if graph.map calls its cell; pass "
            "ordinary cells their arguments, and let them return their results"
        )
    return trace


@overload
def gather(k: int) -> Expression: ...
@overload
def gather(k: None = None, *, start: int = 0) -> Any: ...
def gather(k: int | None = None, *, start: int = 0) -> Any:
    """Return what child k scattered, in a cell of `graph.map`; zeros if the child is -1 (Xu et al. 2018, section 3.1).

        h_previous, c_previous = vpps.gather(0)  # the first child, whatever the number of children
        hs, cs = vpps.gather(start=1)            # lists of the remaining results

    Args:
        k: the child: a column of `children` or, if these are CSR, a position in the vertex's list; zeros if the list is
            shorter. Without `k`, returns a list with each child's result; for CSR children, a list of any length for
            `vpps.each`, `vpps.sum` and similar functions.
        start: leave out the first `start` children in that list; it is empty if a CSR list has no more.

    Returns:
        An expression, or a tuple of expressions if cells scatter (or return) several. Type checkers treat both as an
        expression, and allow a program to unpack it.

    Raises:
        GraphError: there are no children, or too few.
        TraceError: the cell was not called by `graph.map`.
    """
    return _running("gather").gather(k, start)


def pull(name: str | None = None) -> Any:
    """In a cell of `graph.map`, return the vertex's input with this name in `inputs`; without a name, the only input.

    Returns:
        An expression, a list, or an int (like a positional int argument).

    Raises:
        GraphError: there is no such input.
        TraceError: the cell was not called by `graph.map`.
    """
    return _running("pull").pull(name)


def scatter(*values: Expression) -> None:
    """Set the results that parents gather from this vertex, in a cell of `graph.map`.

    Raises:
        TraceError: a value is not an expression of the cell; the cell was not called by `graph.map`.
    """
    trace = _running("scatter")
    trace.give("scatter", values, trace.scattered)


def push(*values: Expression) -> None:
    """Return values from the map as `Rows`, in a cell of `graph.map`.

    If a cell scatters and pushes nothing, the map returns the scattered values.

    Raises:
        TraceError: a value is not an expression of the cell; the cell was not called by `graph.map`.
    """
    trace = _running("push")
    trace.give("push", values, trace.pushed)
