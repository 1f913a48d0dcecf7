"""Where a cell's instructions need a barrier between them.

Instructions of one group run without waiting for each other: whatever one of them reads from another was written by the
same virtual processor. The verifier checks the same rule on finished scripts, by execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.instr import Expand, Instr, Listed, ListKey, Offsets, SameRowGradient, Uses, View
from vpps.script.instructions import Role
from vpps.script.slices import unit_owners


@dataclass(frozen=True, slots=True)
class _Access:
    """Units [lo, hi) of a slab's rows, and who touches them: an owner per unit, the rows' owner, or everyone."""

    slab: int
    lo: int
    hi: int
    writes: bool
    owners: NDArray[np.int16] | None
    rows_of: tuple[int, int] | None  # slices are rows: domain of the slices, and of the rows

    def conflicts(self, other: _Access) -> bool:
        """Whether both touch the same units, and one writes."""
        return self.slab == other.slab and self.lo < other.hi and other.lo < self.hi and (self.writes or other.writes)

    def same_vp(self, other: _Access) -> bool:
        """Whether whatever both touch is touched by one virtual processor."""
        if self.owners is not None and other.owners is not None:
            lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
            mine, theirs = self.owners[lo - self.lo : hi - self.lo], other.owners[lo - other.lo : hi - other.lo]
            return bool(np.array_equal(mine, theirs))
        return self.rows_of is not None and self.rows_of == other.rows_of


def owners_of(instr: Instr, granule: int, n_vps: int) -> NDArray[np.int16]:
    """Owner of each unit of an instruction's result, where slices are units."""
    return unit_owners(instr.width, instr.parts, granule, n_vps, instr.turns)


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
    earlier = _Earlier()
    for instr in instrs:
        mine = _accesses(instr, granule, n_vps)
        instr.group = 0
        for access in mine:
            for group, other in earlier.conflicts(access):
                apart = n_vps > 1 and (exclusive or not access.same_vp(other))
                instr.group = max(instr.group, group + apart)
        for access in mine:
            earlier.add(access, instr.group)


class _Earlier:
    """Accesses with their groups, found by slab and units.

    Comparing all pairs takes seconds for a concatenation of thousands of pieces. Here accesses of similar widths share
    a size class, whose buckets are as wide as the widest of them, so an access can only reach into the next bucket.
    """

    def __init__(self) -> None:
        self._classes: dict[int, set[int]] = {}  # slab -> size classes
        self._buckets: dict[tuple[int, int, int], list[tuple[int, _Access]]] = {}  # (slab, class, bucket)

    def add(self, access: _Access, group: int) -> None:
        size = (access.hi - access.lo).bit_length()
        self._classes.setdefault(access.slab, set()).add(size)
        self._buckets.setdefault((access.slab, size, access.lo >> size), []).append((group, access))

    def conflicts(self, access: _Access) -> Iterator[tuple[int, _Access]]:
        """Groups and accesses that conflict with an access."""
        for size in self._classes.get(access.slab, ()):
            for bucket in range((access.lo >> size) - 1, (access.hi - 1 >> size) + 1):
                for group, other in self._buckets.get((access.slab, size, bucket), ()):
                    if access.conflicts(other):
                        yield group, other


def in_groups(instrs: Sequence[Instr]) -> list[list[Instr]]:
    """Instructions by group, each group in the original order."""
    groups: list[list[Instr]] = [[] for _ in range(max((i.group for i in instrs), default=-1) + 1)]
    for i in instrs:
        groups[i.group].append(i)
    return groups


# ---- from one step to the next


class Reads(NamedTuple):
    """What instructions read that others may have written in the step before.

    Attributes:
        kinds: of the index lists that name it.
        width: of the rows that a list names, in floats.
    """

    kinds: tuple[type, ...]
    width: Callable[[ListKey], int]


def follows_freely(
    before: Sequence[Instr],
    handed_over: Sequence[View],
    after: Sequence[Instr],
    shared: Collection[int],
    vps: tuple[int, int],
    reads: Reads,
) -> bool:
    """Whether instructions of one step may follow those of another, of other vertices, with no barrier between.

    That is so if whatever the first hand over - values of vertices in forward, gradients of arguments in backward - is
    read by who wrote it, and if nobody uses memory again that others may still read.

    Args:
        before, after: the last instructions of one step, and the first ones of a later one.
        handed_over: the views of values (in forward) or gradients (in backward) that other vertices read.
        shared: slabs of which both steps use the same memory.
        vps: panel, and number of virtual processors.
        reads: what the later ones may read of that.
    """
    written = [a for instr in before for a in _accesses(instr, *vps) if a.writes]
    for view in handed_over:
        writers = [a for a in written if a.slab == view.slab and a.lo < view.offset + view.width and view.offset < a.hi]
        owners = _owners_of_view(view, writers)
        for width, theirs in (r for instr in after for r in _readers(instr, vps, reads)) if writers else ():
            if width == view.width and (theirs is None or owners is None or not np.array_equal(theirs, owners)):
                return False
    return reuses_by_owner(before, after, shared, vps)


def reuses_by_owner(
    before: Sequence[Instr], after: Sequence[Instr], shared: Collection[int], vps: tuple[int, int]
) -> bool:
    """Whether instructions on other rows may have the same memory of some slabs, with no barrier between: units may be
    used again by their owners, while rows of two steps never are the same virtual processor's."""
    again = ((a, b) for a, b in _conflicts(before, after, vps) if a.slab in shared) if shared else ()
    return all(a.owners is not None and b.owners is not None and a.same_vp(b) for a, b in again)


def _owners_of_view(view: View, writers: Sequence[_Access]) -> NDArray[np.int16] | None:
    """Who has written each unit of a view; None where that is not always one and the same virtual processor."""
    owners: NDArray[np.int16] = np.full(view.width, -1, np.int16)
    for a in writers:
        lo, hi = max(a.lo, view.offset), min(a.hi, view.offset + view.width)
        if a.owners is None:
            return None
        mine, at = a.owners[lo - a.lo : hi - a.lo], slice(lo - view.offset, hi - view.offset)
        if ((owners[at] >= 0) & (owners[at] != mine)).any():
            return None
        owners[at] = mine
    return owners


def _readers(instr: Instr, vps: tuple[int, int], reads: Reads) -> list[tuple[int, NDArray[np.int16] | None]]:
    """How an instruction reads what vertices of other steps hand over: the width of that, and who reads each unit; None
    where that may be anybody."""
    mine = None if instr.rows or instr.reads_parts else owners_of(instr, *vps)
    found: list[tuple[int, NDArray[np.int16] | None]] = []

    def note(key: ListKey, by_units: bool) -> None:
        key = key.of if isinstance(key, Expand) else key
        if isinstance(key, reads.kinds):
            width = reads.width(key)
            found.append((width, mine if by_units and width == instr.width else None))

    for role, view in instr.views():
        if view.slab < 0 and view.rows is not None:
            whole = view.width == instr.width and view.offset == 0
            note(view.rows, role in (Role.READ, Role.WRITE) and whole and not isinstance(view.rows, SameRowGradient))
    summed = [instr.values.get("offsets")]
    if instr.tail is not None:
        summed = [what.offsets for _, what in instr.operands["views"] if isinstance(what, Listed)]
    for offsets in summed:
        if isinstance(offsets, Uses | Offsets):
            note(offsets.of if isinstance(offsets, Offsets) else offsets, instr.name in ("gather_sum", "tail"))
    return found


def _conflicts(
    before: Sequence[Instr], after: Sequence[Instr], vps: tuple[int, int]
) -> Iterator[tuple[_Access, _Access]]:
    """What instructions of both touch and one writes."""
    earlier = [a for instr in before for a in _accesses(instr, *vps)]
    later = [b for instr in after for b in _accesses(instr, *vps)]
    return ((a, b) for b in later for a in earlier if a.conflicts(b))


def shares_by_owner(before: Sequence[Instr], after: Sequence[Instr], vps: tuple[int, int]) -> bool:
    """Whether all that instructions of both touch and one writes, of the same vertices, is touched by its owner."""
    return all(a.same_vp(b) for a, b in _conflicts(before, after, vps))
