"""The call cache: functions that record calls similar to earlier calls, for use without the compiled recorder.

Nearly every call in a batch fits the previous call's block: its expressions belong to the graph and have the same
shapes, and its ints are in range. `Block.record(graph, args)` checks only that, appends the vertex and returns its
results. If anything differs, it appends nothing and returns None, and `Graph` takes the slow path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from vpps.ops import Shape
from vpps.ops.operand import Expression

if TYPE_CHECKING:
    from vpps.graph.graph import Graph
    from vpps.record.vertices import Tape

ArgumentKind = IntEnum("ArgumentKind", "VECTOR INT LIST", start=0)

Argument = tuple[ArgumentKind, Shape | None, int, Sequence[Any]]
"""Requirements on an argument: its kind; the shape of a vector or of a list's elements; an int's bound or a list's
domain number; and, for a list, where to append its length and the value ids of its elements."""

Record = Callable[["Graph", Sequence[Any]], Any]


def call_recorder(
    tape: Tape,
    rows: list[int],
    arguments: tuple[Argument, ...],
    results: tuple[Shape, ...],
    single: bool,
    takes_empty: bool,
) -> Record:
    """Return a function that records calls into one block of a graph.

    Args:
        rows: the block's rows.
        arguments: requirements on a call's arguments, and where to append list arguments.
        results: result shapes.
        single: return the only result without a tuple around it.
        takes_empty: True if calls whose list arguments are all empty belong to this block, too.
    """
    levels, outputs = tape.levels, list(enumerate(results))
    vectors = [(k, a[1]) for k, a in enumerate(arguments) if a[0] is ArgumentKind.VECTOR]
    bounds = [(k, a[2]) for k, a in enumerate(arguments) if a[0] is ArgumentKind.INT]
    lists = [(k, a) for k, a in enumerate(arguments) if a[0] is ArgumentKind.LIST]

    def fits(x: Any, graph: Graph, shape: Shape | None) -> bool:
        return type(x) is Expression and x.owner is graph and x._shape == shape

    def record(graph: Graph, args: Sequence[Any]) -> Any:
        if len(args) != len(arguments):
            return None
        row = [tape.n_calls, len(levels), -1]
        level = -1
        for k, shape in vectors:
            x = args[k]
            if type(x) is not Expression or x.owner is not graph or x._shape != shape:
                return None
            ref = x.ref
            row.append(ref)
            if levels[ref] > level:
                level = levels[ref]
        for k, bound in bounds:
            x = args[k]
            if type(x) is not int or not 0 <= x < bound:
                return None
            row.append(x)
        if lists:
            lengths: dict[int, int] = {}  # by domain
            for k, (_, shape, domain, _) in lists:
                xs = args[k]
                if type(xs) is not list and type(xs) is not tuple:
                    return None
                if lengths.setdefault(domain, len(xs)) != len(xs) or not all(fits(x, graph, shape) for x in xs):
                    return None
                level = max([level, *(levels[x.ref] for x in xs)])
            # Either all lists are empty or none is; other calls take the slow path.
            if not all(lengths.values()) and (any(lengths.values()) or not takes_empty):
                return None
            for k, (*_, (all_lengths, all_elements)) in lists:
                all_lengths.append(len(args[k]))
                all_elements.extend([x.ref for x in args[k]])
        row[2] = level = level + 1
        first = row[1]
        rows.extend(row)
        tape.n_calls += 1
        levels.extend([level] * len(results))
        if single:
            return Expression(graph, first, results[0])
        return tuple([Expression(graph, first + k, shape) for k, shape in outputs])

    return record
