"""A block of vertices as arrays: the one place that knows how `vpps.record.vertices` stores them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vpps.record.chunks import NO_DATA, Chunk, Ints, Lists, merged
from vpps.record.trace import List, TracedCell, Vector
from vpps.record.vertices import ARGS, CALL, FIRST, LEVEL, Block

__all__ = ["BlockArrays", "Ints", "Lists"]


def _array(ints: list[int]) -> Ints:
    """A copy of a list, or of what the compiled recorder has in place of one."""
    # For a list fromiter is quicker than array; the other kind is copied as the array that it is.
    return np.fromiter(ints, np.int64, len(ints)) if type(ints) is list else np.array(ints, np.int64)


def _lists(lengths: list[int], elements: list[int]) -> Lists:
    """A list argument of vertices recorded one by one."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(_array(lengths), out=ends[1:])
    return Lists(ends, _array(elements))


def _one_by_one(block: Block) -> Chunk:
    """The vertices of a block that were recorded one by one."""
    rows = _array(block.rows).reshape(-1, block.width)  # its columns are copied so that each lies in one piece
    return Chunk(
        rows[:, CALL].copy(),
        rows[:, FIRST].copy(),
        rows[:, LEVEL].copy(),
        rows[:, ARGS : ARGS + block.n_args].copy(),
        rows[:, ARGS + block.n_args :].copy(),
        [_lists(n, e) for n, e in zip(block.lengths, block.elements, strict=True)],
        np.concatenate(block.data).reshape(len(rows), -1) if block.data else NO_DATA,
    )


class BlockArrays:
    """The vertices of one cell as arrays (user's order).

    Attributes:
        calls: recording index of each vertex (design: policy, layout and schedule do not change it).
        values: per output, the value id of each vertex's.
        levels: longest distance of each vertex from a leaf.
        args: value ids of the vector arguments, a row per vertex.
        ints: the int arguments, a row per vertex.
        lists: the list arguments.
        data: the floats of graph inputs, a row per vertex.
    """

    __slots__ = ("args", "block", "calls", "cell", "data", "ints", "levels", "lists", "values")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.cell: TracedCell = block.cell
        if len(block.bulk) == 1 and not len(block.rows):
            vertices = block.bulk[0][1]
        else:
            vertices = _one_by_one(block)
            if block.bulk:
                vertices = merged(vertices, block.bulk)
        first = vertices.first
        self.calls = vertices.calls
        self.values: list[Ints] = [first + k if k else first for k in range(len(block.cell.outputs))]
        self.levels = vertices.levels
        self.args = vertices.args
        self.ints = vertices.ints
        self.lists = vertices.lists
        self.data = vertices.data

    def keep(self, n: int) -> None:
        """Drop all vertices but the first n."""
        self.calls, self.levels, self.args, self.ints = self.calls[:n], self.levels[:n], self.args[:n], self.ints[:n]
        self.values = [ids[:n] for ids in self.values]
        self.lists = [Lists(xs.ends[: n + 1], xs.elements[: xs.ends[n]]) for xs in self.lists]
        self.data = self.data[:n]

    @property
    def positions(self) -> list[int]:
        """Position among the arguments of the cell of each operand, in the order of `operands`."""
        kinds = list(enumerate(self.cell.kinds))
        return [p for kind in (Vector, List) for p, k in kinds if isinstance(k, kind)]

    def operands(self) -> Iterable[tuple[Ints, Ints]]:
        """(vertex row, value id) of everything the vertices read, argument by argument."""
        rows = np.arange(len(self.calls))
        for k in range(self.args.shape[1]):
            yield rows, self.args[:, k]
        for xs in self.lists:
            yield np.repeat(rows, np.diff(xs.ends)), xs.elements
