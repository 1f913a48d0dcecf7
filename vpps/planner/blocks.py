"""The rows of a cell as they are planned: which vertex is in which, in which step, and where its slabs lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.instr import RowOperand
from vpps.record.arrays import Ints
from vpps.record.trace import TracedCell
from vpps.record.vertices import Block


class Vertices(NamedTuple):
    """The vertices of a cell in the user's order.

    Attributes:
        block: as they were recorded.
        cell: the program that is planned, before passes: that of a part, where the cell is in parts.
        calls: recording index of each.
        values: per output, the value id of each vertex's; of what crosses between parts, one beyond those of the graph.
    """

    block: Block
    cell: TracedCell
    calls: Ints
    values: Sequence[Ints]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBlock:
    """Rows of one cell: vertices that run backward first, then by group and stage, then as recorded.

    Attributes:
        order: the vertex (row of `arrays`) in each row.
        n_needed, n_needed_steps: the first rows, and steps, are those that run backward.
        step_stage: stage of each step; steps cover the rows one after the other.
        step_group: group of virtual processors that runs each step.
        first, count: `(steps, 1 + domains)`, rows of each step in each domain.
        pause: of a block whose steps may run while virtual processors wait for each other: by how much the number of a
            stage grows until all are sure to have done so; else 0.
        late: it is part of the chain of the loss, and runs beside backward (planner/native/loss_chain.h).
        bases: `(steps, slabs)`. A slab has row r at base + r * width; one whose steps lie apart has a base for each,
            which may be negative.
        lists: by the number of a list of the cell, its position in the script.
        operands: `(steps, operands, 2)`, the words of those of which a plan decides how their rows are found.
    """

    arrays: Vertices
    cell: EncodedCell
    order: Ints
    n_needed: int
    n_needed_steps: int
    step_stage: Ints
    step_group: Ints
    first: Ints
    count: Ints
    pause: int
    late: bool
    bases: Ints
    lists: Ints
    operands: Ints

    def n_rows(self, domain: int) -> int:
        """Rows in a domain."""
        return int(self.count[:, domain].sum())

    def operand_words(self, operand: RowOperand) -> tuple[Ints, Ints]:
        """The two words of an operand in each step."""
        address, mode = self.operands[:, list(self.cell.operands).index(operand)].T
        return address, mode


def stages_in_order(
    blocks: Sequence[PlannedBlock], backward: bool, late: bool = False
) -> list[tuple[int, list[tuple[int, int]]]]:
    """(stage, its steps as (block number, step)), in order of execution; stages in which nothing runs are left out.

    Args:
        late: those of the chain of the loss that run beside backward; else all others.
    """
    members: dict[int, list[tuple[int, int]]] = {}
    for number, block in enumerate(blocks):
        runs = block.cell.backward if backward else block.cell.forward
        if runs and block.late == late:
            n_steps = block.n_needed_steps if backward else len(block.step_stage)
            for step, stage in enumerate(block.step_stage[:n_steps].tolist()):
                members.setdefault(stage, []).append((number, step))
    return sorted(members.items(), reverse=backward)
