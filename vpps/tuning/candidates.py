"""Candidates: the configurations that tuning tries. All compute the same results, bit for bit on cpu."""

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
"""Least speedup of a candidate over the default to replace it."""

_EVERY_COUNT = 8  # up to this number of cores, every number of virtual processors is a candidate


class Candidate(NamedTuple):
    """Changes to a configuration; the default candidate changes nothing.

    Attributes:
        vps: virtual processors (cpu).
        groups: groups of thread blocks, each with a copy of the weights and a part of the batch (cuda, simt).
        rpw: rows per warp in the published scheme (schedule "paper", round-robin rows; cuda, simt).
    """

    vps: int | None = None
    groups: int | None = None
    rpw: int | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The changed fields of a configuration; they are also arguments of a handle."""
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
        """Describe the candidate, such as "vps 2" or "default"."""
        usual = Candidate()._asdict()
        changed = [f"{name} {value}" for name, value in self._asdict().items() if value != usual[name]]
        return ", ".join(changed) or "default"


CHANGED = ("vps", "schedule", "onchip")
"""Configuration fields that candidates change."""


def candidates_for(engine: Engine, chosen: Collection[str] = ()) -> list[Candidate]:
    """Return the default candidate, then others that may be faster for a model on a machine.

    The best number of groups depends on the batch size (docs/tuning.md). On an H100, a Tree-LSTM trained 0.73 times as
    fast with VPPS's round-robin rows as with the default.

    Args:
        engine: an engine with the default configuration, which has run a batch and so knows what the chip holds.
        chosen: configuration fields that the user set; candidates do not change them.
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
    """Return the numbers of virtual processors to try: all on small machines; on larger ones a few, up to all cores."""
    if cores <= _EVERY_COUNT:
        return list(range(1, cores + 1))
    few = {2**k for k in range(cores.bit_length())} | {cores * 3 // 4, cores - 1, cores}
    return sorted(n for n in few if n <= cores)


def rows_per_warp(onchip: OnChip) -> list[int]:
    """Return the rows per warp that fit in registers, up to the first that lets a block hold all rows of any matrix.

    The list is empty if tensor cores compute products (the published scheme is for float32), or the chip holds nothing.
    """
    held = [held for held in onchip.held if held.number and not held.transposed]
    if not held or any(m.element != FLOAT32 for m in onchip.matrices):
        return []
    valid = valid_rpw(max(m.columns for m in held), onchip.device.registers)
    tallest = max(m.rows for m in held)
    return [n for n in valid if n == valid.start or WARPS * (n - valid.step) < tallest]
