"""Memory map of a plan, and its vertices' rows, copied from the compiled planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vpps.compiler.encoded_cell import EncodedCell
from vpps.graph.graph import Graph
from vpps.planner.blocks import PlannedBlock, Vertices
from vpps.planner.native.interface import BlockResult, MemoryResult
from vpps.planner.native.memory import numbers_at
from vpps.record.arrays import Ints
from vpps.record.trace import TracedCell


class Encoded(NamedTuple):
    """A cell that the compiled planner knows.

    Attributes:
        recorded: the cell as recorded in graphs.
        program: the planned program before passes: a part of the cell, or the cell without outputs unused by inference.
        cell: the encoded program.
    """

    recorded: TracedCell
    program: TracedCell
    cell: EncodedCell


class PlannedMemory(NamedTuple):
    """Memory map of a plan.

    Attributes:
        blocks: rows and slabs of each cell.
        arrays: `(n, 5)`: start, stop, first and last period, and group (-1: all) of each array with a lifetime: a slab,
            or the slice of a slab for one step.
        stop: end of the slabs' memory.
        end: the last period.
    """

    blocks: list[PlannedBlock]
    arrays: Ints
    stop: int
    end: int


def memory_map(found: MemoryResult, graph: Graph, encoded: Sequence[Encoded]) -> PlannedMemory:
    """Return a copy of the compiled planner's memory map. `encoded` holds the cells by number."""
    blocks = (BlockResult * found.n_blocks).from_address(found.blocks)
    made = [_block(b, graph, encoded[b.cell]) for b in blocks]
    return PlannedMemory(made, numbers_at(found.arrays, found.n_arrays, 5), found.stop, found.end)


def _block(b: BlockResult, graph: Graph, of: Encoded) -> PlannedBlock:
    values = list(numbers_at(b.values, b.n_outputs, b.n_vertices))
    bases = numbers_at(b.bases, b.n_steps, b.n_bases)
    return PlannedBlock(
        arrays=Vertices(graph.blocks[of.recorded], of.program, numbers_at(b.calls, b.n_vertices), values),
        cell=of.cell,
        order=numbers_at(b.order, b.n_rows),
        n_needed=b.n_needed,
        n_needed_steps=b.n_needed_steps,
        step_stage=numbers_at(b.stage, b.n_steps),
        step_group=numbers_at(b.group, b.n_steps),
        first=numbers_at(b.first, b.n_steps, b.n_domains),
        count=numbers_at(b.count, b.n_steps, b.n_domains),
        pause=b.pause,
        late=bool(b.late),
        bases=bases[:, : len(of.cell.lowered.slabs)],
        lists=numbers_at(b.lists, b.n_lists),
        operands=bases[:, b.operands :].reshape(b.n_steps, (b.n_bases - b.operands) // 2, 2),
    )
