"""What each virtual processor has of an instruction, in numbers: rows, units, panels and tiles of its slice.

The same division as in script/slices.py, whose functions say who owns which element; here only how many matter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vpps.script.disassemble import Decoded
from vpps.script.instructions import Flag
from vpps.script.slices import TILE_COLUMNS, share, tiles, turn_owners, unit_owners

_DIVISION = Flag.ROWS | Flag.ALONE | Flag.TURNS | Flag.OWNED


class Slice(NamedTuple):
    """What a virtual processor owns of an instruction's result.

    Attributes:
        first, rows: the rows from `first` on.
        units: of each row.
        runs: spans of units (from, to) that are computed one after the other, one for each part of a row.
    """

    first: int
    rows: int
    units: int
    runs: tuple[tuple[int, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rows and self.units)

    def panels(self, panel: int, columns: int = 1) -> int:
        """Panels of packed rows that the runs touch, each run for itself; a row has `columns` units."""
        return sum((to - 1) // columns // panel - from_ // columns // panel + 1 for from_, to in self.runs)


@lru_cache(maxsize=65536)
def _slice(n: int, width: int, parts: int, flags: Flag, panel: int, index: int, count: int) -> Slice:
    if flags & Flag.ALONE:
        return Slice(0, n, width, ((0, width),))
    if flags & Flag.ROWS:
        first, stop = share(n, index, count)
        return Slice(first, stop - first, width, ((0, width),))
    if flags & Flag.TURNS:
        return Slice(0, n, int((turn_owners(width, parts, count) == index).sum()), ())
    owner = unit_owners(width, parts, panel, count)[: width // max(parts, 1)]
    mine = np.flatnonzero(owner == index)
    if not len(mine):
        return Slice(0, n, 0, ())
    first, stop, part = int(mine[0]), int(mine[-1]) + 1, len(owner)
    runs = tuple((k * part + first, k * part + stop) for k in range(max(parts, 1)))
    return Slice(0, n, len(mine) * max(parts, 1), runs)


def slice_of(d: Decoded, panel: int, index: int, count: int) -> Slice:
    """The slice of virtual processor `index` of `count` that divide the instruction."""
    return _slice(d.n, d.width, d.parts, d.flags & _DIVISION, panel, index, count)


class Tiles(NamedTuple):
    """What a virtual processor owns of a packed matrix.

    Attributes:
        padded: elements, those of the last panel's padding rows included.
        valid: elements that belong to the matrix.
    """

    padded: int
    valid: int


@lru_cache(maxsize=4096)
def _tiles(rows: int, columns: int, parts: int, flags: Flag, panel: int, index: int, count: int) -> Tiles:
    if flags & Flag.OWNED:  # whole rows, as the chip holds them
        owners = turn_owners(rows, parts, count) if flags & Flag.TURNS else unit_owners(rows, parts, panel, count)
        mine = int((owners == index).sum())
        return Tiles(mine * columns, mine * columns)
    across = -(-columns // TILE_COLUMNS)
    padded = valid = 0
    for tile in range(*share(tiles(rows, columns, panel), index, count)):
        width = min(TILE_COLUMNS, columns - tile % across * TILE_COLUMNS)
        padded += width * panel
        valid += width * min(panel, rows - tile // across * panel)
    return Tiles(padded, valid)


def tiles_of(d: Decoded, columns: int, panel: int, index: int, count: int) -> Tiles:
    """The tiles, or rows on the chip, of virtual processor `index` of `count`."""
    return _tiles(d.width, columns, d.parts, d.flags & _DIVISION, panel, index, count)
