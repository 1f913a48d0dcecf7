"""Passes a graph to the compiled planner, as addresses of its blocks' columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpps.graph.graph import Graph
from vpps.planner.native.interface import BlockInput, ListInput
from vpps.record import arrays
from vpps.record.arrays import BlockArrays
from vpps.record.chunks import Chunk
from vpps.record.packed import PackedChunk
from vpps.record.topology import Topology
from vpps.record.trace import TracedCell
from vpps.record.vertices import ARGS, CALL, FIRST, LEVEL, Block
from vpps.values import Float32

WORD = 8  # bytes of an int

# The fields in the order written below: writing by position saves time for every batch.
BLOCK = "cell constants n calls calls_step first first_step levels levels_step args args_step ints ints_step data"
LIST = "ends lengths elements"
for given, written in (BlockInput, BLOCK), (ListInput, LIST):
    assert written.split() == [name for name, *_ in given._fields_], f"{given} has other fields"


class BatchInputs:
    """The blocks of a graph. Release this object after planning: until then the graph cannot grow.

    Args:
        number: callback that returns the compiled planner's number for a cell.
        since: number of vertices to leave out at the start of the graph.

    Attributes:
        cells: the blocks' cells.
        at: address of the description: for each block a BlockInput, followed by a ListInput for each of its lists.
    """

    def __init__(self, graph: Graph, number: Callable[[TracedCell], int], since: int = 0) -> None:
        self.cells: list[TracedCell] = []
        self.n_calls, self.n_values = graph.n_calls, graph.n_values
        self._alive: list[Any] = []
        found: list[int] = []
        for cell, block in graph.blocks.items():
            first, chunks = block.before(since) if since else (0, 0)
            singles, chunks = len(block.rows) // block.width - first, len(block.bulk) - chunks
            if since and not singles and not chunks:
                continue
            self.cells.append(cell)
            found += (number(cell), block.constants.buffer_info()[0])
            if not chunks:
                self._one_by_one(block, found, first)
            elif chunks == 1 and not singles:
                self._chunk(block.bulk[-1][1], found)
            else:
                self._arrays(BlockArrays(block, since=since), found)
        self._describe(found)

    @classmethod
    def of_blocks(cls, blocks: Sequence[BlockArrays], numbers: Sequence[int], topology: Topology) -> Self:
        """Return the inputs for blocks given as arrays, with the numbers of their cells."""
        made = cls.__new__(cls)
        made.cells, made._alive = [b.block.pattern for b in blocks], []
        made.n_calls, made.n_values = topology.n_calls, topology.n_values
        found: list[int] = []
        for number, b in zip(numbers, blocks, strict=True):
            found += (number, b.block.constants.buffer_info()[0])
            made._arrays(b, found)
        made._describe(found)
        return made

    def release(self) -> None:
        """Release the arrays, so that they can grow. Their addresses are no longer valid."""
        self._alive.clear()

    def _describe(self, found: list[int]) -> None:
        self.n_blocks = len(self.cells)
        self._description = array("q", found)
        self.at = self._description.buffer_info()[0]

    def _arrays(self, b: BlockArrays, found: list[int]) -> None:
        self._chunk(Chunk(b.calls, b.values[0], b.levels, b.args, b.ints, b.lists, b.data), found)

    def _one_by_one(self, block: Block, found: list[int], first: int) -> None:
        ints, width = block.rows, block.width
        at = self._of_ints(ints) + WORD * width * first
        args = at + WORD * ARGS
        n, calls, values, levels = len(ints) // width - first, at + WORD * CALL, at + WORD * FIRST, at + WORD * LEVEL
        found += (n, calls, width, values, width, levels, width, args, width, args + WORD * block.n_args, width, 0)
        if block.data:
            data = _joined(block.data[first:])
            self._alive.append(data)
            found[-1:] = self._addresses(data)
        for lengths, elements in zip(block.lengths, block.elements, strict=True):
            begin = int(np.asarray(lengths)[:first].sum()) if first else 0
            found += (0, self._of_ints(lengths) + WORD * first, self._of_ints(elements) + WORD * begin)

    def _chunk(self, v: Chunk, found: list[int]) -> None:
        if type(v) is PackedChunk:
            n, at = v.n, v.address
            length = WORD * n
            args_at = at + length * ARGS
            found += (n, at + length * CALL, 1, at + length * FIRST, 1, at + length * LEVEL, 1)
            found += (args_at, v.n_args, args_at + length * v.n_args, v.n_ints, 0)
            for list_at in v.list_at:
                found += (at + WORD * list_at, 0, at + WORD * (list_at + n + 1))
            return
        self._alive.append(v)
        calls, args, ints = v.calls, v.args, v.ints
        at, first, levels, args_at, ints_at, data = self._addresses(calls, v.first, v.levels, args, ints, v.data)
        found += (len(calls), at, 1, first, 1, levels, 1, args_at, args.shape[1], ints_at, ints.shape[1], data)
        for xs in v.lists:
            ends, elements = self._addresses(xs.ends, xs.elements)
            found += (ends, 0, elements)

    def _of_ints(self, ints: Any) -> int:
        """Return the address of a copy of a list's numbers, or of the compiled recorder's buffer."""
        if not len(ints):
            return 0
        found = c_char.from_buffer(array("q", ints) if type(ints) is list else ints)
        self._alive.append(found)
        return addressof(found)

    def _addresses(self, *found: NDArray[Any]) -> Sequence[int]:
        """Return the address of each array, or 0 if it is empty. Contiguous arrays are not copied."""
        try:
            return arrays.addresses(*found)
        except (TypeError, ValueError):
            pieces = [np.require(numbers, requirements=("C", "W")) for numbers in found]
            self._alive.append(pieces)
            return arrays.addresses(*pieces)


def _joined(data: list[Float32]) -> Float32:
    return data[0] if len(data) == 1 else np.concatenate(data)
