"""What each virtual processor has of an instruction, in numbers: rows, units, panels and tiles of its slice."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vpps.script.access import columns_of_tiles, rows_of, tiles_of, units_of_rows, word
from vpps.script.disassemble import Decoded
from vpps.script.instructions import Flag
from vpps.script.slices import row_and_column

_DIVISION = (Flag.ROWS | Flag.ALONE | Flag.TURNS | Flag.OWNED).value


class Slice(NamedTuple):
    """What a virtual processor owns of an instruction's result.

    Attributes:
        first, rows: the rows from `first` on.
        units: of each row.
        panels: of packed rows that the units lie in.
    """

    first: int
    rows: int
    units: int
    panels: int


@lru_cache(maxsize=65536)
def _units(width: int, parts: int, bits: int, columns: int, panel: int, index: int, count: int) -> tuple[int, int]:
    units = units_of_rows(width, parts, bits, panel, index, count)
    return len(units), len(np.unique(units // columns // panel))


def slice_of(d: Decoded, panel: int, index: int, count: int) -> Slice:
    """The slice of virtual processor `index` of `count` that divide the instruction."""
    columns = word(d, "columns") if d.instruction.form == "PackedMatmul" else 1  # floats of a result's row
    rows = rows_of(d, index, count)
    return Slice(rows.start, len(rows), *_units(d.width, d.parts, d.bits & _DIVISION, columns, panel, index, count))


class Tiles(NamedTuple):
    """What a virtual processor owns of a packed matrix.

    Attributes:
        padded: elements, those of the last panel's padding rows included.
        valid: elements that belong to the matrix.
    """

    padded: int
    valid: int


@lru_cache(maxsize=4096)
def _tiles(rows: int, columns: int, parts: int, bits: int, panel: int, index: int, count: int) -> Tiles:
    elements = tiles_of(rows, columns, parts, bits, panel, index, count)
    return Tiles(len(elements), int(np.count_nonzero(row_and_column(elements, columns, panel)[0] < rows)))


def tiles_of_slice(d: Decoded, panel: int, index: int, count: int) -> Tiles:
    """The tiles, or rows on the chip, of virtual processor `index` of `count`."""
    return _tiles(d.width, columns_of_tiles(d), d.parts, d.bits & _DIVISION, panel, index, count)
