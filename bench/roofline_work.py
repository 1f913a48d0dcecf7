"""Counts a launch's work from its script: operations in products, bytes, barriers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vpps.engine.timeline import LOAD, PHASES, WAITING
from vpps.planner.plan import Plan
from vpps.planner.reader import BARRIERS, executions, walk
from vpps.script.access import Access, Content, Touch, columns_of_tiles, touches, word
from vpps.script.disassemble import Decoded
from vpps.script.footprint import Cells, Footprint
from vpps.script.instructions import Flag

FLOAT = 4


@dataclass
class Amount:
    """The work of a phase.

    Attributes:
        flops: operations of products with matrices. A multiply-add counts as two operations, in bf16 as one.
            Elementwise instructions have few operations, and are limited by their bytes.
        asked: bytes that instructions read and write outside the chip. A product reads its matrix once for all vectors.
        moved: bytes of distinct memory: a float that is read first and written later counts twice.
    """

    flops: int = 0
    asked: int = 0
    moved: int = 0


@dataclass
class Work:
    """The work of a launch.

    Attributes:
        phases: work by the phase names in timelines, without waiting.
        resident: bytes of distinct memory that the launch touches.
        barriers: number of successive barriers at which a virtual processor waits.
    """

    phases: dict[str, Amount] = field(default_factory=lambda: {name: Amount() for name in PHASES if name != WAITING})
    resident: int = 0
    barriers: int = 0


class _WholeFootprint(Footprint):
    """The footprint of whole instructions, without checks: the script is known to be valid."""

    def outside(self, cells: Cells) -> range:
        return range(0)


def work_of(plan: Plan) -> Work:
    """Count the work of a launch."""
    work, footprint = Work(), _WholeFootprint(plan.script, plan.layout, plan.origin)
    came, gone = ({name: np.zeros(plan.pool_floats, bool) for name in work.phases} for _ in range(2))
    counted: set[bytes] = set()
    for execution in executions(plan):
        waits, instructions = 0, set()
        for d, place in walk(plan, execution.entry):
            form, words = d.instruction.form, plan.script[d.position : d.position + d.words].tobytes()
            waits += form == "Wait"
            if form in (*BARRIERS, "End") or words in counted:
                continue
            instructions.add(words)
            name = LOAD if form == "Load" else place.phase
            amount = work.phases[name]
            amount.flops += _flops(d)
            rows, units = footprint.slice_of(d, 0, 1)
            for touch in touches(d):
                if _stays(d, touch) or not len(rows):
                    continue
                cells = footprint.cells(d, touch, rows, units)
                reads = touch.access is not Access.WRITE
                writes = touch.access in (Access.WRITE, Access.CHANGE, Access.ADD)
                repeated = touch.content is Content.ROWS and not touch.at.indexed and not touch.at.stride
                floats = len(cells.units) * (1 if repeated else len(cells.starts))
                amount.asked += FLOAT * floats * (reads + writes)
                if reads:
                    came[name][cells.at] |= ~gone[name][cells.at]
                if writes:
                    gone[name][cells.at] = True
        counted |= instructions  # virtual processors with separate streams divide equal instructions
        work.barriers = max(work.barriers, waits)
    for name, amount in work.phases.items():
        amount.moved = FLOAT * int(np.count_nonzero(came[name]) + np.count_nonzero(gone[name]))
    work.resident = FLOAT * int(np.count_nonzero(np.any([*came.values(), *gone.values()], axis=0)))
    return work


def _stays(d: Decoded, touch: Touch) -> bool:
    """Return True if the operand touches no memory: matrices on the chip, which count once, when they are loaded; a
    gradient that is applied immediately; the constant zero."""
    form = d.instruction.form
    if touch.content is Content.WEIGHTS:
        return bool(d.fields.get("matrix")) and form != "Load"
    if touch.content is Content.GRADIENT:
        return form == "OuterUpdate"
    return not touch.at.address and not touch.at.indexed


def _flops(d: Decoded) -> int:
    """Return the operations of a product; 0 for other instructions."""
    form = d.instruction.form
    if form in ("Matvec", "MatvecTransposed"):
        of_a_row = d.width * word(d, "columns")
    elif form in ("Matmul", "PackedMatmul"):
        of_a_row = d.width * word(d, "inner")
    elif form in ("Outer", "OuterUpdate", "PackedMatmulGradient"):
        of_a_row = d.width * columns_of_tiles(d) * (word(d, "columns") if form == "PackedMatmulGradient" else 1)
    else:
        return 0
    return (1 if d.flags & Flag.BF16 else 2) * d.n * of_a_row
