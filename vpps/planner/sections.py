"""Origins of a script's words: its instruction streams, and the source of each section of a stream."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from vpps.ops.operand import shown
from vpps.record.ranges import Ints

if TYPE_CHECKING:
    from vpps.compiler.encoded_cell import Group
    from vpps.compiler.instr import Instr
    from vpps.planner.blocks import PlannedBlock


class Section(NamedTuple):
    """A contiguous run of words: a cell's instruction group for one step, or a single instruction.

    Attributes:
        start: position of the section's first word in the stream.
        block, group: the cell's rows and instruction group, if the section belongs to a cell.
        first: first row of the step, or one row for each repetition of the group; for a barrier, its number.
        phase: purpose, in words.
        during: phase of the launch: "forward", "backward", "gradients" (of the weights) or "update".
    """

    start: int
    block: PlannedBlock | None
    group: Group | None
    first: int | Ints
    phase: str
    during: str

    @property
    def words(self) -> int:
        """Number of words, for a section of a cell; else 0."""
        repetitions = 1 if isinstance(self.first, int) else len(self.first)
        return 0 if self.group is None else repetitions * len(self.group.template)

    @property
    def barrier(self) -> int:
        """Number of the barrier that the section belongs to; 0 if none."""
        return self.first if self.block is None and isinstance(self.first, int) else 0

    def made_at(self, offset: int) -> tuple[Instr, int]:
        """Return the cell's instruction at an offset, and its first row."""
        assert self.group is not None
        repetition, offset = divmod(offset, len(self.group.template))
        row = self.first if isinstance(self.first, int) else int(self.first[repetition])
        return next(instr for first, instr in reversed(self.group.starts) if first <= offset), row

    def origin(self, offset: int) -> str:
        """Describe the instruction at an offset in the user's terms."""
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
    """Instructions executed by one virtual processor, or by each virtual processor in a group.

    Attributes:
        words: number of words.
        sections: sections of the stream, in order.
    """

    words: int
    sections: list[Section]

    def section_at(self, position: int) -> Section:
        """Return the section that contains a position of the stream."""
        return self.sections[bisect_right(self.sections, position, key=lambda s: s.start) - 1]

    def whereabouts(self, position: int) -> str:
        """Describe a virtual processor's position in the user's terms; at a barrier, also what it has just executed."""
        section = self.section_at(position)
        words = section.origin(position - section.start)
        before = [s for s in self.sections if s.group is not None and s.start < section.start]
        if section.block is not None or not section.first or not before:
            return words
        return f"{words}, after {before[-1].origin(before[-1].words - 1)}"
