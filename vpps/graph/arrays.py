"""A block of vertices as arrays: the one place that knows how `vpps.graph.vertices` stores them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from vpps.graph.trace import List, TracedCell, Vector
from vpps.graph.vertices import ARGS, CALL, FIRST, LEVEL, Block

Ints = NDArray[np.int64]


def _array(ints: list[int]) -> Ints:
    """A copy of a list, or of what the compiled recorder has in place of one."""
    # For a list fromiter is quicker than array; the other kind is copied as the array that it is.
    return np.fromiter(ints, np.int64, len(ints)) if type(ints) is list else np.array(ints, np.int64)


class Lists:
    """One list argument of a block: CSR over the block's vertices."""

    __slots__ = ("elements", "ends")

    def __init__(self, lengths: list[int], elements: list[int]) -> None:
        self.ends: Ints = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(_array(lengths), out=self.ends[1:])
        self.elements = _array(elements)


class BlockArrays:
    """The vertices of one cell as arrays (user's order).

    Attributes:
        calls: recording index of each vertex (design: policy, layout and schedule do not change it).
        values: per output, the value id of each vertex's.
        levels: longest distance of each vertex from a leaf.
        args: value ids of the vector arguments, a row per vertex.
        ints: the int arguments, a row per vertex.
        lists: the list arguments.
    """

    __slots__ = ("args", "block", "calls", "cell", "ints", "levels", "lists", "values")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.cell: TracedCell = block.cell
        rows = _array(block.rows).reshape(-1, block.width)  # its columns are copied so that each lies in one piece
        self.calls: Ints = rows[:, CALL].copy()
        self.values: list[Ints] = [rows[:, FIRST] + k for k in range(len(block.cell.outputs))]
        self.levels: Ints = rows[:, LEVEL].copy()
        self.args: Ints = rows[:, ARGS : ARGS + block.n_args].copy()
        self.ints: Ints = rows[:, ARGS + block.n_args :].copy()
        self.lists = [Lists(n, e) for n, e in zip(block.lengths, block.elements, strict=True)]

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
