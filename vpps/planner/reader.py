"""Reads a plan: its instructions one after the other, each with what it is for - cell, stage, phase, barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vpps.planner.plan import Plan
from vpps.planner.sections import Section
from vpps.script.disassemble import Decoded, decode, entry_points

# Forms of instructions.
BARRIERS = ("Signal", "Wait")
PRODUCTS = ("Matvec", "MatvecTransposed", "PackedMatmul")
STEPS = ("UpdateMatrix", "UpdateVector", "UpdateRows", "OuterUpdate", "StepTiles")
"""Of the optimizer."""


class Placed(NamedTuple):
    """Where an instruction of a plan comes from.

    Attributes:
        position: of its first word in the script.
        section: that it is in.
        offset: of its first word there.
    """

    position: int
    section: Section
    offset: int

    @property
    def phase(self) -> str:
        """Of the launch: "forward", "backward", "gradients" or "update"."""
        return self.section.during.value

    @property
    def cell(self) -> str:
        """Name of the cell that made it; "" where none did."""
        return "" if self.section.block is None else self.section.block.arrays.cell.name

    @property
    def stage(self) -> int:
        """Of the graph; -1 where no cell made it, and for weight gradients, which belong to all stages."""
        block = self.section.block
        if block is None or self.section.phase not in ("forward", "backward"):
            return -1
        _, row = self.section.made_at(self.offset)
        return int(block.step_stage[int(np.searchsorted(block.first[:, 0], row, side="right")) - 1])


class Execution(NamedTuple):
    """A stream of instructions, and who executes it.

    Attributes:
        entry: word of the script where it begins.
        vps: virtual processors.
    """

    entry: int
    vps: tuple[int, ...]


def executions(plan: Plan) -> Iterator[Execution]:
    """Every stream of the launch, of the first where there are divisions, by its position."""
    entries = entry_points(plan.script)
    for entry in sorted(set(entries)):
        yield Execution(entry, tuple(vp for vp, e in enumerate(entries) if e == entry))


def walk(
    plan: Plan, entry: int, wanted: Callable[[Section], bool] = lambda section: True
) -> Iterator[tuple[Decoded, Placed]]:
    """The instructions of a stream, `end` included.

    Args:
        entry: word of the script where it begins.
        wanted: whether those of a section are.
    """
    stream = next(stream for start, stream in plan.streams if start == entry)
    for section in filter(wanted, stream.sections):
        position = start = entry + section.start
        while position == start or position < start + section.words:  # what no cell made is one instruction
            d = decode(plan.script, position)
            yield d, Placed(position, section, position - start)
            position += d.words


def places(plan: Plan, positions: Sequence[int]) -> list[Placed]:
    """Where the instructions at some positions of the script come from."""
    sections = [(start + s.start, s) for start, stream in plan.streams for s in stream.sections]
    numbers = np.searchsorted([start for start, _ in sections], positions, side="right") - 1
    found = [sections[number] for number in numbers.tolist()]
    return [Placed(at, section, at - start) for at, (start, section) in zip(positions, found, strict=True)]
