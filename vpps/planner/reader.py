"""Reads a plan instruction by instruction, each with its cell, stage, phase and barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vpps.planner.plan import Plan
from vpps.planner.sections import Section
from vpps.script.disassemble import Decoded, decode, entry_points

# Instruction forms.
BARRIERS = ("Signal", "Wait")
PRODUCTS = ("Matvec", "MatvecTransposed", "PackedMatmul")
STEPS = ("UpdateMatrix", "UpdateVector", "UpdateRows", "OuterUpdate", "StepTiles")
"""Instructions of the optimizer."""


class Placed(NamedTuple):
    """An instruction of a plan, with its section.

    Attributes:
        position: position of the instruction's first word in the script.
        section: section that contains it.
        offset: offset of the first word in the section.
    """

    position: int
    section: Section
    offset: int

    @property
    def phase(self) -> str:
        """Phase of the launch: "forward", "backward", "gradients" or "update"."""
        return self.section.during

    @property
    def cell(self) -> str:
        """Name of the cell that the instruction belongs to; "" if it belongs to none."""
        return "" if self.section.block is None else self.section.block.arrays.cell.name

    @property
    def stage(self) -> int:
        """Stage in the graph; -1 if the instruction belongs to no cell, or is a weight gradient (of all stages)."""
        block = self.section.block
        if block is None or self.section.phase not in ("forward", "backward"):
            return -1
        _, row = self.section.made_at(self.offset)
        return int(block.step_stage[int(np.searchsorted(block.first[:, 0], row, side="right")) - 1])


class Execution(NamedTuple):
    """An instruction stream, and the virtual processors that execute it.

    Attributes:
        entry: position in the script where the stream begins.
        vps: numbers of the virtual processors.
    """

    entry: int
    vps: tuple[int, ...]


def executions(plan: Plan) -> Iterator[Execution]:
    """Yield the first launch's streams, in order of position."""
    entries = entry_points(plan.script)
    for entry in sorted(set(entries)):
        yield Execution(entry, tuple(vp for vp, e in enumerate(entries) if e == entry))


def walk(
    plan: Plan, entry: int, wanted: Callable[[Section], bool] = lambda section: True
) -> Iterator[tuple[Decoded, Placed]]:
    """Yield the instructions of a stream, including `end`.

    Args:
        entry: position in the script where the stream begins.
        wanted: predicate that selects sections.
    """
    stream = next(stream for start, stream in plan.streams if start == entry)
    for section in filter(wanted, stream.sections):
        position = start = entry + section.start
        while position == start or position < start + section.words:  # outside cells, a section is one instruction
            d = decode(plan.script, position)
            yield d, Placed(position, section, position - start)
            position += d.words


def places(plan: Plan, positions: Sequence[int]) -> list[Placed]:
    """Return the instructions at the given positions in the script, with their sections."""
    sections = [(start + s.start, s) for start, stream in plan.streams for s in stream.sections]
    numbers = np.searchsorted([start for start, _ in sections], positions, side="right") - 1
    found = [sections[number] for number in numbers.tolist()]
    return [Placed(at, section, at - start) for at, (start, section) in zip(positions, found, strict=True)]
