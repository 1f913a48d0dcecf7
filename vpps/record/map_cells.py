"""Programs of a `graph.map`'s cells: binds each cell's arguments and infers the shapes of the children's results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from vpps.errors import GraphError, ShapeError, TraceError, VppsError
from vpps.ops import Shape
from vpps.ops.operand import recorded
from vpps.record.cell import LISTS, Cell, signature_of
from vpps.record.trace import LONG, ArgKind, ElementShapeFound, Int, TracedCell, endless, shared
from vpps.record.vertex import CSR, Child, Input, Kinds, StateNeeded, Vertex, VertexTrace

MOST_STATES = 4
"""Largest number of children's results that is tried if only the cell itself shows how many there are."""


def trace_cells(
    cells: Sequence[Cell[Any]], inputs: Mapping[str, ArgKind], arity: int, declared: Sequence[Shape] | None
) -> Kinds:
    """Trace a map's cells. They must agree on the results that parents gather and that the map returns.

    Args:
        inputs: kinds of the inputs, by name.
        arity: children of a vertex, or CSR.
        declared: shapes of the children's results, if the user declares them.

    Raises:
        GraphError, ShapeError, TraceError: see `Graph.map`.
    """
    found: list[Vertex | None] = [None] * len(cells)
    state = declared
    if state is None:  # inner vertices gather the results of leaves
        for i, cell in enumerate(cells):
            with suppress(StateNeeded):
                found[i] = _trace_cell(cell, inputs, arity, None)
        state = next((vertex.state for vertex in found if vertex is not None), None)
    failed: dict[int, VppsError] = {}
    if state is None:  # use the first cell that shows the shapes by itself
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
    """Trace a cell that gathers its own results, if nothing else shows their number and shapes."""
    free = len(_parameters(cell, inputs)[1])
    tries: Sequence[int]
    if not free:  # the cell calls `vpps.gather`
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
        except Exception as error:  # raised by the cell, possibly because there are not n results
            first = first or error
    if first is not None and not isinstance(first, VppsError):
        raise first
    if first is not None and len(tries) == 1:
        taken = ", ".join(_parameters(cell, inputs)[1])
        example = "64" if tries[0] == 1 else f"[{', '.join(['(64,)'] * tries[0])}]"
        raise type(first)(
            f"{_readable(first)} ({taken}: no inputs of the map, so treated as children's results; if the cell does "
            f"not show their shapes, declare them: graph.map(..., state={example}))"
        ) from first
    raise TraceError(
        f"cell {cell.name!r}: the children's results cannot be inferred from the cell"
        + (f" ({_readable(first)})" if first is not None else "")
        + "; declare them: graph.map(..., state=(64, 64)) for two vectors of 64 each"
    )


def _readable(error: VppsError) -> str:
    """Return the message with unknown lengths replaced by `?`."""
    return re.sub(r"-?\d+", lambda number: "?" if abs(int(number[0])) >= LONG // 2 else number[0], str(error))


def _parameters(cell: Cell[Any], inputs: Mapping[str, ArgKind]) -> tuple[list[str], list[str], bool]:
    """Return the names of positional parameters to bind, the names among them that are not inputs, and True if `*args`
    takes any number of children's results."""
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
    """Trace a cell. Raises StateNeeded if it gathers and `state` is None."""
    bound, free, takes_all = _parameters(cell, inputs)
    if free and not arity:
        raise GraphError(
            f"cell {cell.name!r}: no value for {', '.join(free)}: no input of the map has that name"
            f"{' (the inputs are ' + ', '.join(inputs) + ')' if inputs else ''}, and the map has no children="
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
    former: Vertex | None = None  # a trace whose results did not match its guesses
    while True:
        trace = VertexTrace(cell.name, inputs, arity, shapes)
        given = iter(children)
        try:
            arguments = [trace.input(name) if name in inputs else trace.child(*next(given)) for name in bound]
            cell.check_lists(isinstance(x, LISTS) for x in arguments)
            arguments += [trace.child(*c) for c in given]
            result = recorded(trace, cell.bound, *arguments)
            program = shared(trace.finish(result), cell.origin)
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
        vertex = _vertex(cell, trace, program, known)
        if shapes is None or len(vertex.state) != len(shapes):
            return vertex
        if not known:
            # If no use shows a shape, take the shape of the cell's own result at that position.
            shapes = [own if known is None else known for known, own in zip(shapes, vertex.state, strict=True)]
            if any(k >= LONG // 2 for shape in shapes for k in shape or ()):
                raise TraceError(
                    f"cell {cell.name!r}: its result is as long as the children's results, whose length is unknown"
                )
            continue
        if former is not None or all(vertex.state[o] == shapes[o] for o in guessed):
            return vertex if former is None or vertex.state == tuple(shapes) else former
        # A shape shown by a use is a guess: a scalar times a vector looks like a vector times a vector.
        former = vertex
        for o in guessed:
            shapes[o] = vertex.state[o]


def _children_of(
    cell: Cell[Any], free: Sequence[str], takes_all: bool, arity: int, state: Sequence[Shape | None] | None
) -> list[tuple[int, int]]:
    """Return (child, result) for each parameter that is not an input, in order."""
    if state is None or not (free or takes_all):
        return []
    n = len(state)
    if arity == CSR:
        if takes_all or len(free) == n:
            return [(CSR, o) for o in range(n)]
        raise GraphError(
            f"cell {cell.name!r}: {', '.join(free)} are no inputs of the map, so they are lists of the children's "
            f"results, one per result: take {n} such arguments, or child k with vpps.gather(k). For one argument per "
            "child, make children a table: vpps-data convert --fixed, or lists=False of a reader"
        )
    used, rest = (arity, 0) if takes_all else divmod(len(free), n) if n else (0, 1)
    if rest or used > arity:
        raise GraphError(
            f"cell {cell.name!r}: {', '.join(free)} are no inputs of the map, so they are children's results: {n} "
            f"results of each of up to {arity} children, child by child, not {len(free)} arguments"
        )
    return [(k, o) for k in range(used) for o in range(n)]


def _vertex(cell: Cell[Any], trace: VertexTrace, program: TracedCell, known: bool) -> Vertex:
    """Return the vertex for a trace. Unless argument shapes are `known`, only its results' shapes are valid."""
    if trace.scattered or trace.pushed:
        n_state = len(trace.scattered)
        out = [program.outputs.index(v.ref) for v in trace.pushed or trace.scattered]
        single = len(out) == 1
    else:
        n_state, single = len(program.outputs), program.single
        out = list(range(n_state))
        if known and not trace.uses_calls:  # use the program of its ordinary calls
            program = cell.program(tuple(map(signature_of, trace.kinds)), {})
    state = tuple(program.nodes[o].shape for o in program.outputs[:n_state])
    return Vertex(cell.name, program, tuple(trace.sources), state, tuple(out), single)


def _check_agreement(vertices: Sequence[Vertex], declared: Sequence[Shape] | None) -> None:
    """Check that all kinds agree on the results that parents gather and that the map returns."""
    if any(v.gathers for v in vertices):
        expected = tuple(declared) if declared is not None else vertices[0].state
        whose = "state=" if declared is not None else f"cell {vertices[0].name!r}"
        for v in vertices:
            if v.state != expected:
                raise ShapeError(
                    f"graph.map: cell {v.name!r} gives its parents {_shapes(v.state)}, but {whose} gives "
                    f"{_shapes(expected)}; parents gather the same from children of every kind"
                )
            for source, kind in zip(v.sources, v.program.kinds, strict=True):
                if isinstance(source, Child) and not isinstance(kind, Int) and kind.shape != expected[source.output]:
                    # The cell's use of the results showed the shape, for example a product with a parameter.
                    raise ShapeError(
                        f"graph.map: cell {v.name!r} uses its children's results as {kind.shape}, but children give "
                        f"{expected[source.output]}; does a parameter have the wrong size?"
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
    """Check that some cell uses each input, and the children."""
    used = {s.name for v in vertices for s in v.sources if isinstance(s, Input)}
    for name in inputs:
        if name not in used:
            raise GraphError(
                f"graph.map: no cell has a parameter {name!r} or pulls it; leave the input out, or name it as the "
                "cell does"
            )
    if arity and not any(v.gathers for v in vertices):
        raise GraphError(
            "graph.map: no cell takes anything of its children; leave children= out, or give a cell arguments for them"
        )
