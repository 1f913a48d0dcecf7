"""Places barriers between a cell's instructions.

The instructions of a group run without waiting for each other: if one of them reads the result of another, the reading
virtual processor also wrote it. The verifier checks the same rule by executing finished scripts.
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
    """Access to units [lo, hi) of a slab's rows, by an owner per unit, by the rows' owner, or by everyone."""

    slab: int
    lo: int
    hi: int
    writes: bool
    owners: NDArray[np.int16] | None
    rows_of: tuple[int, int] | None  # if divided by rows: domain of the division, and of the rows

    def conflicts(self, other: _Access) -> bool:
        """Return True if both touch the same units and at least one writes."""
        return self.slab == other.slab and self.lo < other.hi and other.lo < self.hi and (self.writes or other.writes)

    def same_vp(self, other: _Access) -> bool:
        """Return True if, for each shared unit, both accesses are by the same virtual processor."""
        if self.owners is not None and other.owners is not None:
            lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
            mine, theirs = self.owners[lo - self.lo : hi - self.lo], other.owners[lo - other.lo : hi - other.lo]
            return bool(np.array_equal(mine, theirs))
        return self.rows_of is not None and self.rows_of == other.rows_of


def owners_of(instr: Instr, granule: int, n_vps: int) -> NDArray[np.int16]:
    """Return the owner of each unit in the result of an instruction that is divided by units."""
    return unit_owners(instr.width, instr.parts, granule, n_vps, instr.turns)


def _accesses(instr: Instr, granule: int, n_vps: int) -> list[_Access]:
    found = []
    for role, view in instr.views():
        if view.slab < 0:
            continue  # other vertices' rows and parameters: written in another step
        owners: Any = None
        rows_of = None
        if instr.rows:
            # The reader of another domain's row (a vertex's row, read for its elements) may not own that row.
            mine = view.domain == instr.domain or (instr.elements and view.domain == instr.elements)
            rows_of = (instr.domain, view.domain) if mine and view not in instr.gathers else None
        elif role in (Role.WRITE, Role.READ) and view.width == instr.width:
            owners = owners_of(instr, granule, n_vps)
        found.append(
            _Access(view.slab, view.offset, view.offset + view.width, role in (Role.WRITE, Role.ADD), owners, rows_of)
        )
    return found


def assign_groups(instrs: Sequence[Instr], granule: int, n_vps: int, exclusive: bool) -> None:
    """Number the groups: an instruction is one group after each earlier instruction that it conflicts with across VPs.

    In exclusive scripts any virtual processor may execute an instruction, so every conflict counts.
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
    """Index of accesses and their groups, by slab and units.

    Comparing all pairs takes seconds for a concatenation of thousands of pieces. Here accesses of similar widths share
    a size class. Its buckets are as wide as its widest access, so an access extends at most into the next bucket.
    """

    def __init__(self) -> None:
        self._classes: dict[int, set[int]] = {}  # slab -> size classes
        self._buckets: dict[tuple[int, int, int], list[tuple[int, _Access]]] = {}  # (slab, class, bucket)

    def add(self, access: _Access, group: int) -> None:
        size = (access.hi - access.lo).bit_length()
        self._classes.setdefault(access.slab, set()).add(size)
        self._buckets.setdefault((access.slab, size, access.lo >> size), []).append((group, access))

    def conflicts(self, access: _Access) -> Iterator[tuple[int, _Access]]:
        """Yield the groups and accesses that conflict with an access."""
        for size in self._classes.get(access.slab, ()):
            for bucket in range((access.lo >> size) - 1, (access.hi - 1 >> size) + 1):
                for group, other in self._buckets.get((access.slab, size, bucket), ()):
                    if access.conflicts(other):
                        yield group, other


def in_groups(instrs: Sequence[Instr]) -> list[list[Instr]]:
    """Return the instructions by group, each group in the original order."""
    groups: list[list[Instr]] = [[] for _ in range(max((i.group for i in instrs), default=-1) + 1)]
    for i in instrs:
        groups[i.group].append(i)
    return groups


# ---- from one step to the next


class Reads(NamedTuple):
    """Values that instructions read and other virtual processors may have written in the previous step.

    Attributes:
        kinds: types of the index lists that name the values.
        width: function that returns the width of a list's rows in floats.
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
    """Return True if a step on other vertices may follow a step without a barrier in between.

    It may if two rules hold. The writer of each handed-over unit (a value in forward, a gradient of an argument in
    backward) is also its reader. No virtual processor reuses memory that another may still read.

    Args:
        before, after: the last instructions of one step, and the first instructions of a later step.
        handed_over: the views of values (in forward) or gradients (in backward) that other vertices read.
        shared: slabs whose memory both steps use.
        vps: panel, and number of virtual processors.
        reads: the handed-over values that the later instructions may read.
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
    """Return True if steps on different rows may share the memory of some slabs without a barrier in between. Owners
    may reuse their units, but not their rows, because a row's owner differs from step to step."""
    again = ((a, b) for a, b in _conflicts(before, after, vps) if a.slab in shared) if shared else ()
    return all(a.owners is not None and b.owners is not None and a.same_vp(b) for a, b in again)


def _owners_of_view(view: View, writers: Sequence[_Access]) -> NDArray[np.int16] | None:
    """Return the virtual processor that writes each unit of a view; None if some unit has several writers."""
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
    """Return the width of each handed-over value that an instruction reads, and the reader of each unit; None in place
    of the readers if any virtual processor may read it."""
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
    """Yield the pairs of conflicting accesses between two lists of instructions."""
    earlier = [a for instr in before for a in _accesses(instr, *vps)]
    later = [b for instr in after for b in _accesses(instr, *vps)]
    return ((a, b) for b in later for a in earlier if a.conflicts(b))


def shares_by_owner(before: Sequence[Instr], after: Sequence[Instr], vps: tuple[int, int]) -> bool:
    """Return True if, between two lists of instructions on the same vertices, only accesses by one owner conflict."""
    return all(a.same_vp(b) for a, b in _conflicts(before, after, vps))
