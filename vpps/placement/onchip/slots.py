"""Slots: tiles of weights that a block holds, which shape suits a matrix, and which of its rows lie where.

A block's 8 warps form 8 / wk groups of wk warps. In a slot of shape (R, C, wk) every group holds R rows; the lanes of
its wk warps hold C columns each of every one. So a slot has room for R * 8 / wk rows of 32 * wk * C columns and takes
R * C registers of every thread, or R * C KiB of shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vpps.kernel.chip import WARPS
from vpps.ops.element import FLOAT32, ElementType

Ownership = Literal["aligned", "round-robin"]

WARPS_PER_ROW = (1, 2, 4, 8)
ACCUMULATORS = 64  # sums that a thread carries: rows of a slot times vertices of a tile
SHAPED_FOR = 8  # vertices of a tile that shapes are chosen for

# Fused multiply-adds to a shuffle or a load from shared memory: the units that do those run at a quarter of the rate.
SLOW = 4


@dataclass(frozen=True, slots=True)
class SlotShape:
    """Slots of one shape that hold all a block owns of a matrix.

    Attributes:
        rows: R, of each group of warps.
        columns: C, of each lane.
        warps: wk, along a row.
        slots: how many.
        element: of the weights in them.
    """

    rows: int
    columns: int
    warps: int
    slots: int
    element: ElementType = FLOAT32

    @property
    def registers(self) -> int:
        """Registers of every thread, or KiB of shared memory, of all the slots."""
        return self.slots * self.element.words(self.rows * self.columns)

    @property
    def width(self) -> int:
        """Columns of a row with padding: floats of a vertex in the staging buffer."""
        return 32 * self.warps * self.columns

    @property
    def cost(self) -> int:
        """Time of one vertex in fused multiply-adds of a thread: the products, summing R rows over the lanes, and
        loading C values of the vector."""
        return self.slots * (self.rows * self.columns + SLOW * self.rows + SLOW * self.columns)


@lru_cache(maxsize=4096)
def shapes(rows_owned: int, columns: int, max_rows: int, element: ElementType = FLOAT32) -> tuple[SlotShape, ...]:
    """Shapes for `rows_owned` rows of `columns` columns, cheapest first; of equal ones the one with fewer registers,
    then the one with more columns per lane."""
    found: list[SlotShape] = []
    for warps in WARPS_PER_ROW:
        groups = WARPS // warps
        per_lane = -(-columns // (32 * warps))
        tallest = min(max_rows, -(-rows_owned // groups))
        found += [
            SlotShape(rows, per_lane, warps, -(-rows_owned // (rows * groups)), element)
            for rows in range(1, tallest + 1)
        ]
    return tuple(sorted(found, key=lambda s: (s.cost, s.registers, -s.columns)))


def whole_rows(rows: int, columns: int, rpw: int, n_vps: int, element: ElementType = FLOAT32) -> SlotShape:
    """The paper's shape: a warp holds `rpw` whole rows of every slot."""
    return SlotShape(rpw, -(-columns // 32), 1, -(-pieces(rows, rpw) // n_vps), element)


def valid_rpw(rowmax: int, budget: int) -> range:
    """Rows per warp that the paper's scheme can choose from (VPPS, section III-A).

    Args:
        rowmax: columns of the widest matrix that is held, transposes counted.
        budget: registers of a thread for slots.
    """
    return range(1, budget // -(-rowmax // 32) + 1)


def pieces(rows: int, rpw: int) -> int:
    """Pieces of 8 * rpw rows that a matrix is dealt in, round-robin: one is a slot of one block."""
    return -(-rows // (WARPS * rpw))


def in_slot_order(rows: NDArray[np.int32], shape: SlotShape) -> NDArray[np.int32]:
    """Rows of a VP as (slots, groups of warps, R), -1 where there is none."""
    table = np.full(shape.slots * (WARPS // shape.warps) * shape.rows, -1, np.int32)
    table[: len(rows)] = rows
    return table.reshape(shape.slots, WARPS // shape.warps, shape.rows)
