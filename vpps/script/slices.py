"""Who owns what: how an instruction's output is divided among the virtual processors.

The same arithmetic as in templates/script.cuh: barriers are placed and scripts verified by this one. It must not
influence results: every element is
computed by one VP, in an order that does not depend on the division.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Columns of a packed matrix that one tile covers; a multiple of every panel width.
TILE_COLUMNS = 64

TURN_BITS = 16  # see turn_owners


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


def unit_owners(width: int, parts: int, granule: int, n_vps: int) -> NDArray[np.int16]:
    """Owner of each unit of a row. VPs get whole blocks of `granule` units, the same ones in each part."""
    part = width // parts
    blocks = unit_blocks(width, parts, granule)
    owner = np.zeros(part, np.int16)
    for vp in range(n_vps):
        lo, hi = share(blocks, vp, n_vps)
        owner[lo * granule : hi * granule] = vp
    return np.tile(owner, parts)


def turn_owners(rows: int, word: int, n_vps: int) -> NDArray[np.int16]:
    """Owner of each row of a matrix that is dealt in turns: some rows to one VP after the other (VPPS III-A).

    Args:
        word: of an instruction (its `parts`): the rows of a turn, and who begins, from bit TURN_BITS on.
    """
    turn, first = word & ((1 << TURN_BITS) - 1), word >> TURN_BITS
    return ((np.arange(rows) // turn + first) % n_vps).astype(np.int16)


def tiles(rows: int, columns: int, panel: int) -> int:
    """Number of tiles (a panel of rows by TILE_COLUMNS columns) of a packed matrix."""
    return -(-rows // panel) * -(-columns // TILE_COLUMNS)
