"""Divides an instruction's output among the virtual processors.

No other Python module does this. On the device, the counterparts are templates/script.cuh, `Owned` (cuda/held.cuh) for
on-chip rows, and `GradientTiles` (cuda/tiles.cuh), for which the planner allocates memory (`LaunchEnd::tiles`). The
division must not influence results: one VP computes each element, in an order that does not depend on the division.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Columns of a packed matrix that one tile covers; a multiple of every panel width.
TILE_COLUMNS = 64

TURN_BITS = 16  # see unit_owners

# Gradients on a GPU: vertices per segment, most segments, and most partial tiles in memory (32 MiB). If there are more
# tiles, one virtual processor adds up all segments of a tile.
SEGMENT, MOST_SEGMENTS, SHARED_TILES = 64, 8, 1024
GRADIENT_ROWS = 128  # rows per tile of such a gradient; a tile has TILE_COLUMNS columns


def share(total: int, vp: int, n_vps: int) -> tuple[int, int]:
    """Return the vp-th of n contiguous, nearly equal shares of range(total)."""
    return total * vp // n_vps, total * (vp + 1) // n_vps


def unit_blocks(width: int, parts: int, granule: int) -> int:
    """Return the number of blocks of `granule` units in one part of a row."""
    return -(-(width // parts) // granule)


def sliced_by_rows(width: int, parts: int, granule: int, n_vps: int) -> bool:
    """Return True if rows are too narrow to be divided among the VPs, so that slices are rows.

    A thread block owns single units; some may have none, so that weights stay where they are used. A host thread
    owns whole panels of many units, and each thread should have a panel.
    """
    enough = n_vps if granule > 1 else (n_vps + 1) // 2
    return n_vps > 1 and unit_blocks(width, parts, granule) < enough


@lru_cache(maxsize=256)
def unit_owners(width: int, parts: int, granule: int, n_vps: int, turns: bool = False) -> NDArray[np.int16]:
    """Return the owner of each unit of a row, or of each row of a matrix on the chip, as a read-only array.

    VPs get whole blocks of `granule` units, the same blocks in each of the `parts` equal parts. With `turns`, one VP
    after the other gets some rows (VPPS III-A): `parts` has their number in its low TURN_BITS bits, then the first VP.
    """
    if turns:
        turn, first = parts & ((1 << TURN_BITS) - 1), parts >> TURN_BITS
        found = (np.arange(width) // turn + first) % n_vps
    else:
        blocks = unit_blocks(width, parts, granule)
        ends = [share(blocks, vp, n_vps)[1] for vp in range(n_vps)]
        found = np.tile(np.searchsorted(ends, np.arange(width // parts) // granule, side="right"), parts)
    owners = found.astype(np.int16)
    owners.flags.writeable = False  # the cache shares it
    return owners


@lru_cache(maxsize=4096)
def units_of(width: int, parts: int, granule: int, vp: int, n_vps: int, turns: bool = False) -> Ints:
    """Return the units that one VP owns, in order, as a read-only array. Arguments as for `unit_owners`."""
    found = np.flatnonzero(unit_owners(width, parts, granule, n_vps, turns) == vp)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=4096)
def most_units(width: int, parts: int, n_vps: int, turns: bool = False) -> int:
    """Return the largest number of units that a thread block owns. Arguments as for `unit_owners`."""
    return int(np.bincount(unit_owners(width, parts, 1, n_vps, turns)).max())


def tiles(rows: int, columns: int, panel: int) -> int:
    """Return the number of tiles (a panel of rows by TILE_COLUMNS columns) of a packed matrix."""
    return -(-rows // panel) * -(-columns // TILE_COLUMNS)


def tile_elements(rows: int, columns: int, panel: int, vp: int, n_vps: int) -> Ints:
    """Return the elements of a packed matrix, with padding, in the tiles of one VP; they are contiguous."""
    across = -(-columns // TILE_COLUMNS)
    begin, end = (
        (tile // across * columns + tile % across * TILE_COLUMNS) * panel
        for tile in share(tiles(rows, columns, panel), vp, n_vps)
    )
    return np.arange(begin, end)


class GradientTiles(NamedTuple):
    """Division of a matrix's gradient into tiles. It depends only on the shape and the number of vertices.

    Attributes:
        across: number of tiles side by side.
        tiles: number of tiles of the matrix.
        stored: number of partial tiles of each tile, one after the other in memory.
    """

    across: int
    tiles: int
    stored: int

    @classmethod
    def of(cls, n: int, rows: int, columns: int) -> GradientTiles:
        """Return the division of a sum over n vertices."""
        across = -(-columns // TILE_COLUMNS)
        n_tiles = -(-rows // GRADIENT_ROWS) * across
        segments = max(1, min(MOST_SEGMENTS, -(-n // SEGMENT)))
        return cls(across, n_tiles, 1 if n_tiles * segments > SHARED_TILES else segments)


def row_and_column(elements: Ints, columns: int, panel: int) -> tuple[Ints, Ints]:
    """Return the rows and columns of elements of a packed matrix; rows beyond its last one are padding."""
    panels, within = np.divmod(elements, panel * columns)
    column, lane = np.divmod(within, panel)
    return panels * panel + lane, column
