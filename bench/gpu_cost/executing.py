"""Executes a launch's thread blocks, and splits the time among the script's instructions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_cost.calibration import calibration
from gpu_cost.cases import Case, memory_of
from gpu_cost.machine import Machine
from gpu_cost.machine_code import Code
from gpu_cost.timing import Clock, Constants, Spent
from vpps.planner.plan import Plan
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.instructions import Flag
from vpps.script.slices import share

UNITS = 256  # units per layer
INTERPRETER = "fetch"  # function of the templates; its first block barrier marks the start of a script instruction


@dataclass(frozen=True)
class Executed:
    """An instruction of the script that one block executed.

    Attributes:
        phase: "load", "forward", ...
        kind: "product", "tail", ...
        decoded: the instruction; None for the time before the first instruction.
        block: the block that executed it.
        spent: its machine instructions and cycles.
        raw: microseconds in the model.
        form: form of the instruction; "" if the time is spent outside the script.
    """

    phase: str
    kind: str
    decoded: Decoded | None
    block: int
    spent: Spent
    raw: float
    form: str

    @property
    def us(self) -> float:
        """Microseconds, calibrated."""
        return calibration().us(self.form, self.raw)


def blocks_of(case: Case, asked: Sequence[int] | None) -> list[int]:
    """Blocks of the first group to execute: the first, the last (with the fewest rows), and one with the most units."""
    if asked:
        return list(asked)
    count = case.blocks // case.kernel.spec.chip.groups
    ends = [share(UNITS, block, count) for block in range(count)]
    units = [last - first for first, last in ends]
    return sorted({0, units.index(max(units)), count - 1})


def interpreter(code: Code) -> set[int]:
    """Machine instructions at which script instructions start: one in each loop that executes script instructions.

    Exits if no template has such a function.
    """
    barriers = [pc for pc, i in enumerate(code.instructions) if i.family == "BAR" and INTERPRETER in code.places(pc)]
    if not barriers:
        sys.exit(
            f"the kernel has no block barrier in a function {INTERPRETER}: set INTERPRETER in "
            "bench/gpu_cost/executing.py to the function in which an instruction of the script begins"
        )
    first = min(code.instructions[pc].lines[0] for pc in barriers)
    return {pc for pc in barriers if code.instructions[pc].lines[0] == first}


def executed(case: Case, block: int, constants: Constants) -> list[Executed]:
    """Execute a block; return its script instructions in order."""
    plan = case.plan
    memory, parameter = memory_of(plan)
    machine = Machine(case.code, memory, parameter, block, case.kernel.spec.chip.shared_bytes)
    clock = Clock(case.code, constants, case.blocks)
    placed: list[tuple[str, Decoded | None]] = [("load", None), *_placed(plan, block)]
    found = []
    with np.errstate(all="ignore"):
        for (phase, d), (_, trace) in zip(placed, machine.run(interpreter(case.code)), strict=True):
            phase = "load" if d is not None and d.instruction.name == "load" else phase
            spent = clock.spend(trace)
            us = spent.cycles / constants.clock_ghz / 1e3
            found.append(Executed(phase, kind_of(d), d, block, spent, us, _form(case, d)))
    if memory[:2].any():
        sys.exit(f"{case.name}: block {block} stopped the launch at word {memory[0] - 1}")
    return found


def _form(case: Case, d: Decoded | None) -> str:
    form = d.instruction.form if d else ""
    return "Matvec in windows" if form == "Matvec" and d.instruction.on_chip and case.kernel.spec.chip.dense else form


def _placed(plan: Plan, block: int) -> Iterator[tuple[str, Decoded]]:
    """Phases and instructions in a block's stream."""
    entry = entry_points(plan.script)[block]
    start, stream = next(s for s in plan.streams if s[0] == entry)
    number = 0
    chained = False
    load: Decoded | None = None
    for d in instructions(plan.script, entry):
        if load is not None and d.instruction.name != "load":
            yield "load", load  # the code after the loads waits for their copies
        load = d if d.instruction.name == "load" else None
        behind, chained = chained, bool(d.flags & Flag.CHAINED)
        if behind:
            continue  # executed together with the preceding product
        sections = stream.sections
        while number + 1 < len(sections) and sections[number + 1].start <= d.position - start:
            number += 1
        yield sections[number].during, d


def kind_of(d: Decoded | None) -> str:
    """Name of an instruction's kind, for the tables."""
    if d is None:
        return "enter"
    name = d.instruction.name
    if d.flags & Flag.CHAINED:
        return "product and tail"
    if d.instruction.form == "Matvec":
        return "product" if d.instruction.on_chip else "product in memory"
    if name in ("signal", "wait", "barrier"):
        return "signal, wait"
    return name


def ends_with_wait(e: Executed) -> bool:
    """True if the instruction waits for other blocks."""
    return e.decoded is not None and e.decoded.instruction.name in ("wait", "barrier")


def slowest(runs: Sequence[Sequence[Executed]]) -> list[Executed]:
    """The instructions of the slowest block in each interval between two waits."""
    parts = [_intervals(run) for run in runs]
    return [
        e
        for interval in zip(*parts, strict=True)
        for e in max(interval, key=lambda part: sum(each.us for each in part))
    ]


def _intervals(run: Sequence[Executed]) -> list[list[Executed]]:
    parts: list[list[Executed]] = [[]]
    for e in run:
        parts[-1].append(e)
        if ends_with_wait(e):
            parts.append([])
    return parts
