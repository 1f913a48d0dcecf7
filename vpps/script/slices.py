"""Who owns what: how an instruction's output is divided among the virtual processors.

The only place in Python that divides; on the device templates/script.cuh does the same, `Owned` (cuda/held.cuh) for
rows that the chip holds, and `GradientTiles` (cuda/tiles.cuh), for which the planner takes memory (`LaunchEnd::tiles`).
The division must not influence results: every element is computed by one VP, in an order that does not depend on it.
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

# Of gradients on a GPU: vertices for which another segment is begun, the most segments, and how many partial tiles
# there may be in memory before one virtual processor adds up all segments of a tile (32 MiB).
SEGMENT, MOST_SEGMENTS, SHARED_TILES = 64, 8, 1024
GRADIENT_ROWS = 128  # of a tile of such a gradient, which has TILE_COLUMNS columns


def share(total: int, vp: int, n_vps: int) -> tuple[int, int]:
    """The vp-th of n contiguous, nearly equal shares of range(total)."""
    return total * vp // n_vps, total * (vp + 1) // n_vps


def unit_blocks(width: int, parts: int, granule: int) -> int:
    """Blocks of `granule` units in one part of a row."""
    return -(-(width // parts) // granule)


def sliced_by_rows(width: int, parts: int, granule: int, n_vps: int) -> bool:
    """Whether rows are too narrow to be divided among the VPs, so that slices are rows.

    A thread block owns single units: it may come to some of them having none, if the weights are held where they are
    used. Threads of a host own whole panels of many units, of which each should have one.
    """
    enough = n_vps if granule > 1 else (n_vps + 1) // 2
    return n_vps > 1 and unit_blocks(width, parts, granule) < enough


@lru_cache(maxsize=256)
def unit_owners(width: int, parts: int, granule: int, n_vps: int, turns: bool = False) -> NDArray[np.int16]:
    """Owner of each unit of a row, or of each row of a matrix on the chip; not to be written to.

    VPs get whole blocks of `granule` units, the same ones in each of the `parts` equal parts. Or, in turns, one VP
    after the other gets some rows (VPPS III-A): then `parts` says how many, and from bit TURN_BITS on who begins.
    """
    if turns:
        turn, first = parts & ((1 << TURN_BITS) - 1), parts >> TURN_BITS
        found = (np.arange(width) // turn + first) % n_vps
    else:
        blocks = unit_blocks(width, parts, granule)
        ends = [share(blocks, vp, n_vps)[1] for vp in range(n_vps)]
        found = np.tile(np.searchsorted(ends, np.arange(width // parts) // granule, side="right"), parts)
    owners = found.astype(np.int16)
    owners.flags.writeable = False  # it is shared
    return owners


@lru_cache(maxsize=4096)
def units_of(width: int, parts: int, granule: int, vp: int, n_vps: int, turns: bool = False) -> Ints:
    """Those that one VP owns, in order; not to be written to. Arguments as of `unit_owners`."""
    found = np.flatnonzero(unit_owners(width, parts, granule, n_vps, turns) == vp)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=4096)
def most_units(width: int, parts: int, n_vps: int, turns: bool = False) -> int:
    """How many units the thread block has that owns most. Arguments as of `unit_owners`."""
    return int(np.bincount(unit_owners(width, parts, 1, n_vps, turns)).max())


def tiles(rows: int, columns: int, panel: int) -> int:
    """Number of tiles (a panel of rows by TILE_COLUMNS columns) of a packed matrix."""
    return -(-rows // panel) * -(-columns // TILE_COLUMNS)


def tile_elements(rows: int, columns: int, panel: int, vp: int, n_vps: int) -> Ints:
    """Elements of a packed matrix, with padding, in the tiles that one VP owns: they are in a row, as tiles are."""
    across = -(-columns // TILE_COLUMNS)
    begin, end = (
        (tile // across * columns + tile % across * TILE_COLUMNS) * panel
        for tile in share(tiles(rows, columns, panel), vp, n_vps)
    )
    return np.arange(begin, end)


class GradientTiles(NamedTuple):
    """How the gradient of a matrix is divided, by its shape and the number of vertices alone.

    Attributes:
        across: tiles side by side.
        tiles: of the matrix.
        stored: partial tiles of each, one behind the other.
    """

    across: int
    tiles: int
    stored: int

    @classmethod
    def of(cls, n: int, rows: int, columns: int) -> GradientTiles:
        """That of a sum over n vertices."""
        across = -(-columns // TILE_COLUMNS)
        n_tiles = -(-rows // GRADIENT_ROWS) * across
        segments = max(1, min(MOST_SEGMENTS, -(-n // SEGMENT)))
        return cls(across, n_tiles, 1 if n_tiles * segments > SHARED_TILES else segments)


def row_and_column(elements: Ints, columns: int, panel: int) -> tuple[Ints, Ints]:
    """Where elements of a packed matrix stand in it; rows beyond its last one are padding."""
    panels, within = np.divmod(elements, panel * columns)
    column, lane = np.divmod(within, panel)
    return panels * panel + lane, column
