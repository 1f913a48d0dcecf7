"""Planned blocks: the row and step of each of a cell's vertices, and the addresses of its slabs."""

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
    """A cell's vertices in the user's order.

    Attributes:
        block: the recorded vertices.
        cell: the planned program before passes; if the cell is split into parts, the program of one part.
        calls: recording index of each vertex.
        values: for each output, the value id at each vertex. Values that cross between parts have ids above the
            graph's.
    """

    block: Block
    cell: TracedCell
    calls: Ints
    values: Sequence[Ints]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBlock:
    """Rows of one cell: first the vertices that run backward; then sorted by group, stage and recording order.

    Attributes:
        order: the vertex (row of `arrays`) in each row.
        n_needed, n_needed_steps: number of rows, and of steps, that run backward; they come first.
        step_stage: stage of each step; the steps cover the rows in order.
        step_group: group of virtual processors that runs each step.
        first, count: `(steps, 1 + domains)`, first row and number of rows of each step in each domain.
        pause: 0, unless steps of the block may run while virtual processors wait at a barrier. Then it is the number
            of stages after which all virtual processors have run such a step.
        late: True for the part of the loss chain that runs alongside backward (planner/native/loss_chain.h).
        bases: `(steps, slabs)`. Row r of a slab starts at base + r * width. If a slab's steps are not contiguous, each
            has a separate base, which may be negative.
        lists: position of each of the cell's lists in the script.
        operands: `(steps, operands, 2)`, the two words of each operand whose row addressing the plan chooses.
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
        """Return the number of rows in a domain."""
        return int(self.count[:, domain].sum())

    def operand_words(self, operand: RowOperand) -> tuple[Ints, Ints]:
        """Return the two words of an operand in each step."""
        address, mode = self.operands[:, list(self.cell.operands).index(operand)].T
        return address, mode


def stages_in_order(
    blocks: Sequence[PlannedBlock], backward: bool, late: bool = False
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return (stage, its steps as (block number, step)) in order of execution, without empty stages.

    Args:
        late: True for the blocks of the loss chain that run alongside backward, False for all others.
    """
    members: dict[int, list[tuple[int, int]]] = {}
    for number, block in enumerate(blocks):
        runs = block.cell.backward if backward else block.cell.forward
        if runs and block.late == late:
            n_steps = block.n_needed_steps if backward else len(block.step_stage)
            for step, stage in enumerate(block.step_stage[:n_steps].tolist()):
                members.setdefault(stage, []).append((number, step))
    return sorted(members.items(), reverse=backward)
