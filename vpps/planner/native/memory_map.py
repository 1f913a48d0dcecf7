"""What lies where in a plan, and in which rows vertices are, as the compiled planner has planned it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vpps.compiler.encoded_cell import EncodedCell
from vpps.graph.graph import Graph
from vpps.planner.blocks import PlannedBlock, Vertices
from vpps.planner.native.interface import FoundBlock, FoundMemory
from vpps.record.arrays import Ints
from vpps.record.trace import TracedCell


class Encoded(NamedTuple):
    """A cell that the compiled planner has been told.

    Attributes:
        recorded: as it is in graphs.
        program: what is planned of it, before passes: a part, or without what inference leaves out.
    """

    recorded: TracedCell
    program: TracedCell
    cell: EncodedCell


class PlannedMemory(NamedTuple):
    """What lies where.

    Attributes:
        blocks: rows and slabs of each cell.
        arrays: `(n, 5)`: start, stop, first and last period, and group or -1 for all of them, of each array that gives
            way: a slab, or what one step has of it.
        stop: no slab lies beyond.
        end: the last period.
    """

    blocks: list[PlannedBlock]
    arrays: Ints
    stop: int
    end: int


def memory_map(found: FoundMemory, graph: Graph, encoded: Sequence[Encoded]) -> PlannedMemory:
    """A copy of what the compiled planner says of a plan of a graph; its cells by their numbers."""
    blocks = (FoundBlock * found.n_blocks).from_address(found.blocks)
    made = [_block(b, graph, encoded[b.cell]) for b in blocks]
    return PlannedMemory(made, _copy(found.arrays, found.n_arrays, 5), found.stop, found.end)


def _block(b: FoundBlock, graph: Graph, of: Encoded) -> PlannedBlock:
    values = list(_copy(b.values, b.n_outputs, b.n_vertices))
    bases = _copy(b.bases, b.n_steps, b.n_bases)
    return PlannedBlock(
        arrays=Vertices(graph.blocks[of.recorded], of.program, _copy(b.calls, b.n_vertices), values),
        cell=of.cell,
        order=_copy(b.order, b.n_rows),
        n_needed=b.n_needed,
        n_needed_steps=b.n_needed_steps,
        step_stage=_copy(b.stage, b.n_steps),
        step_group=_copy(b.group, b.n_steps),
        first=_copy(b.first, b.n_steps, b.n_domains),
        count=_copy(b.count, b.n_steps, b.n_domains),
        pause=b.pause,
        late=bool(b.late),
        bases=bases[:, : len(of.cell.lowered.slabs)],
        lists=_copy(b.lists, b.n_lists),
        operands=bases[:, b.operands :].reshape(b.n_steps, (b.n_bases - b.operands) // 2, 2),
    )


def _copy(address: int, *shape: int) -> Ints:
    """Numbers of the compiled planner's, which will be others soon."""
    n = int(np.prod(shape))
    return np.array((ctypes.c_int64 * n).from_address(address) if n else (), np.int64).reshape(shape)
