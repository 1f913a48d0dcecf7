"""What each virtual processor has of an instruction, in numbers: rows, units, panels and tiles of its slice.

The same division as in script/slices.py, whose functions say who owns which element; here only how many matter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from vpps.script.disassemble import Decoded
from vpps.script.instructions import Flag
from vpps.script.slices import TILE_COLUMNS, share, tiles, turn_owners, unit_blocks

_DIVISION = Flag.ROWS | Flag.ALONE | Flag.TURNS | Flag.OWNED


class Slice(NamedTuple):
    """What a virtual processor owns of an instruction's result.

    Attributes:
        first, rows: the rows from `first` on.
        units: of each row.
        panels: of packed rows that the units lie in; those of each part of a row are computed for themselves.
    """

    first: int
    rows: int
    units: int
    panels: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rows and self.units)


@lru_cache(maxsize=65536)
def _slice(n: int, width: int, parts: int, flags: Flag, columns: int, panel: int, index: int, count: int) -> Slice:
    def panels(first: int, stop: int) -> int:
        return (stop - 1) // columns // panel - first // columns // panel + 1

    if flags & Flag.ALONE:
        return Slice(0, n, width, panels(0, width))
    if flags & Flag.ROWS:
        first, stop = share(n, index, count)
        return Slice(first, stop - first, width, panels(0, width))
    if flags & Flag.TURNS:
        units = int((turn_owners(width, parts, count) == index).sum())
        return Slice(0, n, units, units)
    parts = max(parts, 1)
    part = width // parts
    first, stop = (k * panel for k in share(unit_blocks(width, parts, panel), index, count))
    stop = min(stop, part)
    if first >= stop:
        return Slice(0, n, 0, 0)
    of_parts = (panels(k * part + first, k * part + stop) for k in range(parts))
    return Slice(0, n, (stop - first) * parts, sum(of_parts))


def slice_of(d: Decoded, panel: int, index: int, count: int) -> Slice:
    """The slice of virtual processor `index` of `count` that divide the instruction."""
    columns = d.fields["columns"] if d.instruction.form == "PackedMatmul" else 1  # floats of a result's row
    assert isinstance(columns, int)
    return _slice(d.n, d.width, d.parts, d.flags & _DIVISION, columns, panel, index, count)


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
        mine = _slice(0, rows, parts, flags & ~(Flag.ROWS | Flag.ALONE), 1, panel, index, count).units
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
