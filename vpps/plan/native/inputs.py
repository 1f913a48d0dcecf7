"""A graph as the compiled planner takes it: where each column of its blocks begins."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from vpps.graph.arrays import BlockArrays
from vpps.graph.chunks import Chunk
from vpps.graph.graph import Graph
from vpps.graph.trace import TracedCell
from vpps.graph.vertices import ARGS, CALL, FIRST, LEVEL, Block

WORD = 8  # bytes of an int


class Batch:
    """The blocks of a graph. It must not outlive the planning: while it is there the graph cannot grow.

    Args:
        number: gives the compiled planner's number of a cell.

    Attributes:
        cells: of the blocks.
        at: address of their description, see planner.cpp, enum OfBlock: for each block its cell, its vertices, and for
            every column where it begins and how many ints lie between the numbers of two vertices.
    """

    def __init__(self, graph: Graph, number: Callable[[TracedCell], int]) -> None:
        self.cells = tuple(graph.blocks)
        self.n_blocks = len(self.cells)
        self.n_values = graph.n_values
        self._alive: list[Any] = []
        found: list[int] = []
        for cell, block in graph.blocks.items():
            found += (number(cell), len(block))
            if not block.bulk:
                self._one_by_one(block, found)
            elif len(block.bulk) == 1 and not len(block.rows):
                self._chunk(block.bulk[0][1], found)
            else:
                b = BlockArrays(block)
                self._chunk(Chunk(b.calls, b.values[0], b.levels, b.args, b.ints, b.lists, b.data), found)
        self._description = array("q", found)
        self.at = self._description.buffer_info()[0]

    def _one_by_one(self, block: Block, found: list[int]) -> None:
        rows, width = self._of_ints(block.rows), block.width
        args = rows + WORD * ARGS
        ints = args + WORD * block.n_args
        found += (rows + WORD * CALL, width, rows + WORD * FIRST, width, rows + WORD * LEVEL, width)
        found += (args, width, ints, width)
        found.append(self._address(np.concatenate(block.data)) if block.data else 0)
        for lengths, elements in zip(block.lengths, block.elements, strict=True):
            found += (0, self._of_ints(lengths), self._of_ints(elements))

    def _chunk(self, v: Chunk, found: list[int]) -> None:
        for column in (v.calls, v.first, v.levels):
            found += (self._address(column), column.strides[0] // WORD)
        for table in (v.args, v.ints):
            beside = table if table.strides[1] == WORD else np.ascontiguousarray(table)
            found += (self._address(beside), beside.strides[0] // WORD)
        found.append(self._address(np.ascontiguousarray(v.data)))
        for xs in v.lists:
            found += (self._address(np.ascontiguousarray(xs.ends)), 0)
            found.append(self._address(np.ascontiguousarray(xs.elements)))

    def _of_ints(self, ints: Any) -> int:
        """Address of the numbers of a list, which are copied, or of what the compiled recorder has in place of one."""
        if type(ints) is not list:
            return self._address(np.frombuffer(ints, np.int64))
        numbers = array("q", ints)
        self._alive.append(numbers)
        return numbers.buffer_info()[0]

    def _address(self, numbers: Any) -> int:
        self._alive.append(numbers)
        address: int = numbers.__array_interface__["data"][0]
        return address
