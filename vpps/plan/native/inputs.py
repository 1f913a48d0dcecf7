"""A graph as the compiled planner takes it: where each column of its blocks begins."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from vpps.graph.graph import Graph
from vpps.graph.trace import TracedCell
from vpps.graph.vertices import ARGS, CALL, FIRST, LEVEL

WORD = 8  # bytes


class Batch:
    """The blocks of a graph. It must not outlive the planning: while it is there the graph cannot grow.

    Args:
        number: gives the compiled planner's number of a cell.

    Attributes:
        cells: of the blocks.
        at: address of their description: see planner.cpp, enum OfBlock.
    """

    def __init__(self, graph: Graph, number: Callable[[TracedCell], int]) -> None:
        self.cells = tuple(graph.blocks)
        self.n_blocks = len(self.cells)
        self.n_values = graph.n_values
        self._alive: list[Any] = []
        description = array("q")
        for cell, block in graph.blocks.items():
            rows, width = self._address(block.rows), block.width
            columns = (rows + WORD * k for k in (CALL, FIRST, LEVEL, ARGS, ARGS + block.n_args))
            description.extend((number(cell), len(block)))
            for column in columns:
                description.extend((column, width))
            data = 0
            if block.data:
                together = block.data[0] if len(block.data) == 1 else np.concatenate(block.data)
                self._alive.append(together)
                data = together.ctypes.data
            description.append(data)
            for lengths, elements in zip(block.lengths, block.elements, strict=True):
                description.extend((0, self._address(lengths), self._address(elements)))
        self._description = description
        self.at = description.buffer_info()[0]

    def _address(self, ints: list[int]) -> int:
        """Of the numbers of a list, which are copied, or of what the compiled recorder has in place of one."""
        numbers: Any = array("q", ints) if type(ints) is list else np.frombuffer(ints, np.int64)  # type: ignore[call-overload]
        self._alive.append(numbers)
        address: int = numbers.buffer_info()[0] if type(ints) is list else numbers.ctypes.data
        return address
