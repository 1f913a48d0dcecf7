"""Where a cell's instructions need a barrier between them.

Instructions of one group run without waiting for each other: whatever one of them reads from another was written by the
same virtual processor. The verifier checks the same rule on finished scripts, by execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.plan.instr import Instr
from vpps.script.instructions import Role
from vpps.script.slices import turn_owners, unit_owners


@dataclass(frozen=True, slots=True)
class _Access:
    """Units [lo, hi) of a slab's rows, and who touches them: an owner per unit, the rows' owner, or everyone."""

    slab: int
    lo: int
    hi: int
    writes: bool
    owners: NDArray[np.int16] | None
    rows_of: tuple[int, int] | None  # slices are rows: domain of the slices, and of the rows

    def same_vp(self, other: _Access) -> bool:
        """Whether whatever both touch is touched by one virtual processor."""
        if self.owners is not None and other.owners is not None:
            lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
            mine, theirs = self.owners[lo - self.lo : hi - self.lo], other.owners[lo - other.lo : hi - other.lo]
            return bool(np.array_equal(mine, theirs))
        return self.rows_of is not None and self.rows_of == other.rows_of


@lru_cache(maxsize=1024)
def _owners(width: int, parts: int, turns: bool, granule: int, n_vps: int) -> NDArray[np.int16]:
    return turn_owners(width, parts, n_vps) if turns else unit_owners(width, parts, granule, n_vps)


def owners_of(instr: Instr, granule: int, n_vps: int) -> NDArray[np.int16]:
    """Owner of each unit of an instruction's result, where slices are units."""
    return _owners(instr.width, instr.parts, instr.turns, granule, n_vps)


def _accesses(instr: Instr, granule: int, n_vps: int) -> list[_Access]:
    found = []
    for role, view in instr.views():
        if view.slab < 0:
            continue  # other vertices' rows and parameters: written in another step
        owners: Any = None
        rows_of = None
        if instr.rows:
            # A row of another domain (a vertex's row read for its elements) need not be its owner's.
            mine = view.domain == instr.domain or (instr.elements and view.domain == instr.elements)
            rows_of = (instr.domain, view.domain) if mine and view not in instr.gathers else None
        elif role in (Role.WRITE, Role.READ) and view.width == instr.width:
            owners = owners_of(instr, granule, n_vps)
        found.append(
            _Access(view.slab, view.offset, view.offset + view.width, role in (Role.WRITE, Role.ADD), owners, rows_of)
        )
    return found


def assign_groups(instrs: Sequence[Instr], granule: int, n_vps: int, exclusive: bool) -> None:
    """Number the groups: an instruction comes one group after every earlier one that it conflicts with across VPs.

    With exclusive scripts nothing is known of who executes an instruction, so every conflict counts.
    """
    earlier: list[tuple[Instr, list[_Access]]] = []
    for instr in instrs:
        mine = _accesses(instr, granule, n_vps)
        group = 0
        for other, theirs in earlier:
            for a in mine:
                for b in theirs:
                    if a.slab != b.slab or a.lo >= b.hi or b.lo >= a.hi or not (a.writes or b.writes):
                        continue
                    group = max(group, other.group + (0 if n_vps == 1 or (not exclusive and a.same_vp(b)) else 1))
        instr.group = group
        earlier.append((instr, mine))


def in_groups(instrs: Sequence[Instr]) -> list[list[Instr]]:
    """Instructions by group, each group in the original order."""
    groups: list[list[Instr]] = [[] for _ in range(max((i.group for i in instrs), default=-1) + 1)]
    for i in instrs:
        groups[i.group].append(i)
    return groups
