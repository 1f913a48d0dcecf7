"""The vertices of a graph as flat lists of ints: a block of them per cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vpps.graph.operand import Expression, interned
from vpps.graph.quick import quick_record
from vpps.graph.trace import TracedCell, Vector
from vpps.values import Float32

if TYPE_CHECKING:
    from vpps.graph.graph import Graph

CALL, FIRST, LEVEL, ARGS = 0, 1, 2, 3  # columns of Block.rows; the vector arguments follow, then the ints


class Tape:
    """What the blocks of a graph share. They must not hold the graph: in a reference cycle it would outlive its batch.

    Attributes:
        n_calls: vertices recorded so far.
        levels: by value id, the longest distance of the value's vertex from a leaf.
    """

    __slots__ = ("levels", "n_calls")

    def __init__(self) -> None:
        self.n_calls = 0
        self.levels: list[int] = []


class Block:
    """All vertices of one cell in a graph, in the user's order. Flat lists: no object per vertex.

    Attributes:
        cell: the program.
        width: ints per vertex in `rows`.
        rows: per vertex its recording index (design: policy, layout and schedule do not change it), the value id of its
            first output (the others follow it), its level (longest distance from a leaf), the value ids of its vector
            arguments, its int arguments.
        lengths: per list argument, the length at each vertex.
        elements: per list argument, the value ids of all vertices' elements, end to end.
        data: for graph inputs, the flat array of each vertex.
        record: `record(graph, args)` appends a vertex for a call like the others (`vpps.graph.quick`).
    """

    __slots__ = (
        "_takes_empty",
        "_tape",
        "cell",
        "data",
        "elements",
        "lengths",
        "n_args",
        "n_ints",
        "record",
        "results",
        "rows",
        "width",
    )

    def __init__(self, cell: TracedCell, tape: Tape) -> None:
        self.cell = cell
        self.n_args = sum(isinstance(k, Vector) for k in cell.kinds)
        self.n_ints = len(cell.int_limits)
        self.width = ARGS + self.n_args + self.n_ints
        self.rows: list[int] = []
        self.lengths: list[list[int]] = [[] for _ in cell.lists]
        self.elements: list[list[int]] = [[] for _ in cell.lists]
        self.data: list[Float32] = []
        self.results = tuple(interned(cell.nodes[o].shape) for o in cell.outputs)
        self._tape = tape
        self._takes_empty = False
        self.record: Callable[[Graph, Sequence[Any]], Any] = quick_record(self, tape, takes_empty=False)

    def __len__(self) -> int:
        return len(self.rows) // self.width

    def append(self, graph: Graph, refs: list[int], ints: list[int], lists: list[list[int]]) -> Any:
        """Append a vertex whose arguments are known to fit; returns its expression, or a tuple of them."""
        tape = self._tape
        levels = tape.levels
        level = -1
        for ids in (refs, *lists):
            for ref in ids:
                if levels[ref] > level:
                    level = levels[ref]
        level += 1
        for k, ids in enumerate(lists):
            self.lengths[k].append(len(ids))
            self.elements[k].extend(ids)
        first = len(levels)
        self.rows.extend((tape.n_calls, first, level, *refs, *ints))
        tape.n_calls += 1
        levels.extend([level] * len(self.results))
        if lists and not any(lists) and not self._takes_empty:
            # Empty lists tell nothing of their elements' shapes, but now it is known that such calls belong here.
            self._takes_empty = True
            self.record = quick_record(self, tape, takes_empty=True)
        results = tuple(Expression(graph, first + k, shape) for k, shape in enumerate(self.results))
        return results[0] if self.cell.single else results
