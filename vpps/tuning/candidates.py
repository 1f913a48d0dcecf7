"""Candidates: the configurations that tuning tries. All compute the same, on cpu to the bit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

from vpps.engine.engine import Engine
from vpps.kernel.chip import WARPS
from vpps.ops.element import FLOAT32
from vpps.placement.onchip import ChipOptions, OnChip
from vpps.placement.onchip.published import valid_rpw
from vpps.runtime.cores import usable_cores

GAIN = 1.02
"""How many times as fast as the default a candidate must be to be chosen instead of it."""

_EVERY_COUNT = 8  # up to so many cores every number of virtual processors is tried


class Candidate(NamedTuple):
    """What tuning changes of a configuration; the default changes nothing.

    Attributes:
        vps: virtual processors (cpu).
        groups: groups of thread blocks, each with a copy of the weights and a part of the batch (cuda, simt).
        rpw: rows per warp in the published scheme, schedule "paper" with rows dealt in turns (cuda, simt).
    """

    vps: int | None = None
    groups: int | None = None
    rpw: int | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of a configuration, which are arguments of a handle as well."""
        onchip = ChipOptions(groups=self.groups)
        if self.rpw is not None:
            onchip = replace(onchip, ownership="round-robin", rpw=self.rpw)
        found: dict[str, Any] = {
            "vps": self.vps,
            "schedule": "vector" if self.rpw is None else "paper",
            "onchip": onchip,
        }
        usual = {"vps": None, "schedule": "vector", "onchip": ChipOptions()}
        return {name: value for name, value in found.items() if value != usual[name]}

    def describe(self) -> str:
        """In words, such as "vps 2"; "default"."""
        usual = Candidate()._asdict()
        changed = [f"{name} {value}" for name, value in self._asdict().items() if value != usual[name]]
        return ", ".join(changed) or "default"


CHANGED = ("vps", "schedule", "onchip")
"""Fields of a configuration that candidates change."""


def candidates_for(engine: Engine, chosen: Collection[str] = ()) -> list[Candidate]:
    """What may be faster for a model on a machine: the default first.

    The best number of groups depends on the size of the batch (docs/tuning.md). On an H100 a Tree-LSTM trained at 0.73
    of the default's speed with VPPS's rows in turns.

    Args:
        engine: with the default configuration; it has run a batch, so that it knows what the chip holds.
        chosen: fields of the configuration that the user gave, which stay as they are.
    """
    machine, onchip = engine.machine, engine.arrangement.onchip
    if machine.device is None:
        found = [Candidate(vps=n) for n in counts(usable_cores()) if n != machine.vps]
    elif onchip is None:  # there are no matrices
        found = []
    else:
        found = [Candidate(groups=n) for n in (1, 2, 4) if n != onchip.groups and not machine.vps % n]
        found += [Candidate(rpw=n) for n in rows_per_warp(onchip)]
    return [Candidate(), *(c for c in found if not c.changes.keys() & set(chosen))]


def counts(cores: int) -> list[int]:
    """Virtual processors to try: all numbers on small machines; on larger ones fewer, but all cores and one less."""
    if cores <= _EVERY_COUNT:
        return list(range(1, cores + 1))
    few = {2**k for k in range(cores.bit_length())} | {cores * 3 // 4, cores - 1, cores}
    return sorted(n for n in few if n <= cores)


def rows_per_warp(onchip: OnChip) -> list[int]:
    """Numbers for which registers have room, up to the first with which a block has all rows of any matrix. None if
    tensor cores multiply, as the published scheme is for float32, or if the chip holds nothing."""
    held = [held for held in onchip.held if held.number and not held.transposed]
    if not held or any(m.element != FLOAT32 for m in onchip.matrices):
        return []
    valid = valid_rpw(max(m.columns for m in held), onchip.device.registers)
    tallest = max(m.rows for m in held)
    return [n for n in valid if n == valid.start or WARPS * (n - valid.step) < tallest]
