"""Where the words of a script come from: its streams of instructions, and what made each section of them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from vpps.ops.operand import shown
from vpps.record.ranges import Ints

if TYPE_CHECKING:
    from vpps.compiler.encoded_cell import Group
    from vpps.compiler.instr import Instr
    from vpps.planner.blocks import PlannedBlock


class Phase(Enum):
    """What a launch does, in this order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    GRADIENTS = "gradients"  # of the weights
    UPDATE = "update"


class Section(NamedTuple):
    """A run of words: those that a group of a cell's instructions made for one step, or a single instruction.

    Attributes:
        start: position of its first word in its stream.
        block, group: the cell's rows and instructions, if a cell made it.
        first: first row of the step, or one row for each repetition of the group; of a barrier, its number.
        phase: what it is for, in words.
        during: the phase of the launch that it belongs to.
    """

    start: int
    block: PlannedBlock | None
    group: Group | None
    first: int | Ints
    phase: str
    during: Phase

    @property
    def words(self) -> int:
        """Of those that a group made."""
        repetitions = 1 if isinstance(self.first, int) else len(self.first)
        return 0 if self.group is None else repetitions * len(self.group.template)

    @property
    def barrier(self) -> int:
        """Number of the barrier that it is a part of; 0 of all else."""
        return self.first if self.block is None and isinstance(self.first, int) else 0

    def made_at(self, offset: int) -> tuple[Instr, int]:
        """The cell's instruction that a group has at an offset, and the row where that begins."""
        assert self.group is not None
        repetition, offset = divmod(offset, len(self.group.template))
        row = self.first if isinstance(self.first, int) else int(self.first[repetition])
        return next(instr for first, instr in reversed(self.group.starts) if first <= offset), row

    def origin(self, offset: int) -> str:
        """The user's words for the instruction at an offset."""
        if self.block is None or self.group is None:
            return f"barrier {self.barrier}, {self.phase}" if self.barrier else self.phase
        instr, row = self.made_at(offset)
        cell = self.block.arrays.cell
        call = int(self.block.arrays.calls[self.block.order[row]])
        node = cell.nodes[instr.node] if instr.node < len(cell.nodes) else None
        op = "output" if node is None else shown(node.op.name)
        of = f" of {node.parameter.name!r}" if node is not None and node.parameter is not None else ""
        return f"{self.phase} of cell {cell.name!r}, op {op!r}{of}, from call {call}"


@dataclass(eq=False, slots=True)
class Stream:
    """Instructions that one virtual processor executes, or that all of a group do.

    Attributes:
        words: their number.
        sections: where they came from, in order.
    """

    words: int
    sections: list[Section]

    def section_at(self, position: int) -> Section:
        """The section that holds a position of the stream."""
        return self.sections[bisect_right(self.sections, position, key=lambda s: s.start) - 1]

    def whereabouts(self, position: int) -> str:
        """The user's words for where a virtual processor is; at a barrier, also what it has just executed."""
        section = self.section_at(position)
        words = section.origin(position - section.start)
        before = [s for s in self.sections if s.group is not None and s.start < section.start]
        if section.block is not None or not section.first or not before:
            return words
        return f"{words}, after {before[-1].origin(before[-1].words - 1)}"
