"""A graph as the compiled planner takes it: where each column of its blocks begins."""

from __future__ import annotations

import ctypes
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

from_buffer = ctypes.c_char.from_buffer
addressof = ctypes.addressof


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
            found.append(number(cell))
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
        ints, width = block.rows, block.width
        rows = self._of_ints(ints)
        args = rows + WORD * ARGS
        found += (len(ints) // width, rows + WORD * CALL, width, rows + WORD * FIRST, width, rows + WORD * LEVEL, width)
        found += (args, width, args + WORD * block.n_args, width)
        found.append(self._address(np.concatenate(block.data)) if block.data else 0)
        for lengths, elements in zip(block.lengths, block.elements, strict=True):
            found += (0, self._of_ints(lengths), self._of_ints(elements))

    def _chunk(self, v: Chunk, found: list[int]) -> None:
        calls, args, ints, data = v.calls, v.args, v.ints, v.data
        found.append(len(calls))
        for column in (calls, v.first, v.levels):
            found += (self._address(column), column.strides[0] // WORD)
        for table in (args, ints):
            beside = np.ascontiguousarray(table)
            found += (self._address(beside) if beside.size else 0, beside.strides[0] // WORD)
        found.append(self._address(np.ascontiguousarray(data)) if data.size else 0)
        for xs in v.lists:
            elements = self._address(np.ascontiguousarray(xs.elements)) if len(xs.elements) else 0
            found += (self._address(np.ascontiguousarray(xs.ends)), 0, elements)

    def _of_ints(self, ints: Any) -> int:
        """Address of the numbers of a list, which are copied, or of what the compiled recorder has in place of one."""
        if type(ints) is list:
            ints = array("q", ints)
        return self._address(ints) if len(ints) else 0

    def _address(self, numbers: Any) -> int:
        """Of the first of some numbers, which stay where they are."""
        try:
            found = from_buffer(numbers)  # a seventh of what NumPy takes to tell it
        except (TypeError, ValueError):  # it cannot be written to, or does not lie in one piece
            self._alive.append(numbers)
            address: int = np.asarray(numbers).__array_interface__["data"][0]
            return address
        self._alive.append(found)
        return addressof(found)
