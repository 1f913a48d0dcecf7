"""Statistics on a plan's index lists: bytes that are gathered, and arguments that need no list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vpps.ops.element import FLOAT32
from vpps.planner.blocks import PlannedBlock
from vpps.planner.plan import Plan
from vpps.planner.reader import walk
from vpps.planner.sections import Section
from vpps.script.access import Reach, touches, word
from vpps.script.disassemble import Decoded, Words
from vpps.script.instructions import INDEXED
from vpps.text import counted, in_bytes


class Gathering(NamedTuple):
    """Bytes read or written through index lists. Each byte counts once, however many virtual processors read it.

    Attributes:
        bytes: bytes per phase of the launch. Forward and backward include the rows that steps find through lists;
            backward also includes the sums of the readers' gradients. Weight gradients include all rows of a cell once.
        arguments: number of operands (of steps, or of whole cells) whose row addressing the plan chooses.
        contiguous: number of these operands that need no list, because their rows have a constant stride.
    """

    bytes: Counter[str]
    arguments: int
    contiguous: int

    def describe(self, training: bool) -> str:
        """Return a clause such as "520 B forward, 10 KiB backward; 15 of 19 arguments in a row"."""
        forward = self.bytes["forward"]
        backward = f", {in_bytes(self.bytes.total() - forward)} backward" if training else ""
        even = f"{self.contiguous:,} of {counted(self.arguments, 'argument')} in a row"
        return f"{in_bytes(forward)} forward{backward}; {even}"


def gathering(plan: Plan) -> Gathering:
    """Return statistics on a plan's index lists."""
    found: Counter[str] = Counter()
    seen: set[tuple[int, int, int]] = set()

    def once(s: Section) -> bool:
        """Return True if a cell made the section and it has not been counted before."""
        if s.block is None or s.group is None:
            return False
        if isinstance(s.first, int) or s.group.starts[0][1].alone:
            return True
        key = id(s.block), id(s.group), id(s.first)
        is_new = key not in seen  # schedule "paper": each owner of matrix rows executes the product for its rows
        seen.add(key)
        return is_new

    for entry, _ in plan.streams:
        for d, place in walk(plan, entry, once):
            found[place.phase] += _gathered(plan.script, d)
    arguments = contiguous = 0
    for block in plan.blocks:
        for n, even in _arguments(block, training=plan.loss_slot >= 0):
            arguments, contiguous = arguments + n, contiguous + even
    return Gathering(found, arguments, contiguous)


def _gathered(script: Words, d: Decoded) -> int:
    """Return the bytes that an instruction reads or writes through lists."""
    floats = 0
    for touch in touches(d):
        rows = 0
        if touch.reach is Reach.LISTED:
            rows = _entries(script, touch.at.address, d.n)
        elif touch.at.indexed:
            rows = _entries(script, word(d, "elements"), d.n) if touch.reach is Reach.ELEMENTS else d.n
        floats += rows * (d.width if touch.width is None else touch.width)
    return FLOAT32.bytes * floats


def _entries(script: Words, offsets: int, n: int) -> int:
    """Return the number of entries that n rows have in a list with CSR offsets."""
    return int(script[offsets + n]) - int(script[offsets])


def _arguments(block: PlannedBlock, training: bool) -> Iterator[tuple[int, int]]:
    """Yield the numbers of steps with rows and with a row stride, for each operand whose addressing is chosen."""
    for key, operands in block.cell.row_lists(training):
        domain = block.cell.domain_of(key)
        for operand in operands:
            _, mode = block.operand_words(operand)
            has_rows = block.count[:, domain] > 0
            if operand.whole:  # the same words in every step
                has_rows = has_rows & (np.cumsum(has_rows) == 1)
            yield int(has_rows.sum()), int((has_rows & (mode & INDEXED == 0)).sum())
