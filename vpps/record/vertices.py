"""A graph's vertices as flat lists of ints, with one block per cell."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.ops.operand import Expression, interned
from vpps.record.call_cache import Argument, ArgumentKind, Record, call_recorder
from vpps.record.chunks import Chunk
from vpps.record.trace import Int, List, TracedCell
from vpps.values import Float32

if TYPE_CHECKING:
    from vpps.graph.graph import Graph

CALL, FIRST, LEVEL, ARGS = 0, 1, 2, 3  # columns of Block.rows; vector arguments follow, then ints


class Tape:
    """State shared by a graph's blocks. They must not hold the graph: in a reference cycle, it would outlive its batch.

    The compiled recorder has an equivalent class with a different list type.

    Attributes:
        n_calls: vertices recorded so far.
        levels: by value id, the longest distance of the value's vertex from a leaf.
    """

    __slots__ = ("levels", "n_calls")

    def __init__(self) -> None:
        self.n_calls = 0
        self.levels: list[int] = []

    recorder = call_recorder

    def map(self, *what: Any) -> Any:
        """Return None. The compiled version makes values and arrays for a map's vertices (`vpps.record.packed`)."""
        return None


new_tape: Callable[[], Tape] = Tape
"""Make the tape of a new graph; `vpps.record.native` replaces it."""

_NO_WORDS = array("I")
_UNBOUNDED = 2**31  # bound of an int that nothing uses: the range of a script word


def extend(ints: list[int], more: NDArray[np.int64]) -> None:
    """Append an array to a list of ints, or to the compiled recorder's list type."""
    ints.extend(more.tolist() if type(ints) is list else more)


class Block:
    """All vertices of one cell in a graph, in the user's order. The lists are flat, without an object per vertex.

    Attributes:
        cell: the program.
        pattern: the planned pattern of the program; key of the block in the graph.
        constants: words for the program's constants.
        width: number of ints per vertex in `rows`.
        rows: for each vertex: recording index (by design, independent of policy and schedule), first output's value id
            (the others follow it), level (longest distance from a leaf), value ids of vector arguments, ints.
        lengths: for each list argument, the length at each vertex.
        elements: for each list argument, the value ids of all vertices' elements, end to end.
        data: for graph inputs, each vertex's flat array.
        bulk: vertices recorded in bulk: the number of vertices in `rows` before them, and their arrays.
    """

    def __init__(self, cell: TracedCell, tape: Tape, pattern: TracedCell) -> None:
        self.cell, self.pattern = cell, pattern
        self.constants = cell.words if cell.constants else _NO_WORDS
        self.n_args, self.n_ints, self.results = cell.layout
        self.width = ARGS + self.n_args + self.n_ints
        new_ints = type(tape.levels)
        self.rows = new_ints()
        self.lengths = [new_ints() for _ in cell.lists]
        self.elements = [new_ints() for _ in cell.lists]
        self.data: list[Float32] = []
        self.bulk: list[tuple[int, Chunk]] = []
        self._tape = tape
        self._takes_empty = False
        self._record: Record | None = None

    @property
    def record(self) -> Record:
        """Function `record(graph, args)`: appends a vertex for a call like earlier ones (`vpps.record.call_cache`)."""
        if self._record is not None:
            return self._record
        # Created on first use: blocks of maps do not need it.
        limits, lists = iter(self.cell.int_limits), zip(self.cell.lists, self.lengths, self.elements, strict=True)
        arguments: list[Argument] = []
        for kind in self.cell.kinds:
            if isinstance(kind, Int):
                limit = next(limits)
                arguments.append((ArgumentKind.INT, None, _UNBOUNDED if limit is None else limit[0], ()))
                continue
            assert kind.shape is not None
            if isinstance(kind, List):
                domain, *into = next(lists)
                arguments.append((ArgumentKind.LIST, interned(kind.shape), domain - 1, into))
            else:
                arguments.append((ArgumentKind.VECTOR, interned(kind.shape), 0, ()))
        made = self._tape.recorder(self.rows, tuple(arguments), self.results, self.cell.single, self._takes_empty)
        self._record = made
        return made

    def __len__(self) -> int:
        return len(self.rows) // self.width + sum(len(chunk) for _, chunk in self.bulk)

    def before(self, n_calls: int) -> tuple[int, int]:
        """Return the numbers of single vertices and of chunks among the graph's first `n_calls` vertices."""
        rows, width = self.rows, self.width
        singles = bisect_left(range(len(rows) // width), n_calls, key=lambda v: rows[v * width])
        return singles, bisect_left(self.bulk, n_calls, key=lambda placed: int(placed[1].calls[0]))

    def append(
        self, graph: Graph, refs: list[int], ints: list[int], lists: list[list[int]], data: Float32 | None = None
    ) -> Any:
        """Append a vertex whose arguments are known to fit; return its expression, or a tuple of expressions.

        The value id is taken before anything changes. If two threads append at the same time, both take the same id,
        and the planner detects it.
        """
        tape = self._tape
        levels = tape.levels
        first = len(levels)
        if data is not None:
            self.data.append(data)
        level = -1
        for ids in (refs, *lists):
            for ref in ids:
                if levels[ref] > level:
                    level = levels[ref]
        level += 1
        for k, ids in enumerate(lists):
            self.lengths[k].extend((len(ids),))
            self.elements[k].extend(ids)
        self.rows.extend((tape.n_calls, first, level, *refs, *ints))
        tape.n_calls += 1
        if self.cell.single and not lists:  # usually a bare op
            levels.extend((level,))
            return Expression(graph, first, self.results[0])
        levels.extend([level] * len(self.results))
        if lists and not any(lists) and not self._takes_empty:
            # Empty lists do not show their elements' shapes, but this call shows that such calls belong to this block.
            self._takes_empty = True
            self._record = None
        results = tuple(Expression(graph, first + k, shape) for k, shape in enumerate(self.results))
        return results[0] if self.cell.single else results

    def append_list(self, graph: Graph, ids: NDArray[np.int64], level: int) -> Expression:
        """Append a vertex of the given level to a cell with one list argument and one result."""
        tape = self._tape
        first = len(tape.levels)
        self.lengths[0].extend((len(ids),))
        extend(self.elements[0], np.ascontiguousarray(ids))
        self.rows.extend((tape.n_calls, first, level))
        tape.n_calls += 1
        tape.levels.extend((level,))
        return Expression(graph, first, self.results[0])
