"""Slots: tiles of weights that a block holds, which shape suits a matrix, and which of its rows lie where.

A block's 8 warps form 8 / wk groups of wk warps. In a slot of shape (R, C, wk) every group holds R rows; the lanes of
its wk warps hold C columns each of every one. So a slot has room for R * 8 / wk rows of 32 * wk * C columns and takes
R * C registers of every thread, or R * C KiB of shared memory. In bf16 it takes half as many, as pairs of tf32 twice as
many: those are fragments for tensor cores, and R is a multiple of FRAGMENT_ROWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vpps.kernel.chip import FRAGMENT_ROWS, MMA_ROWS, MMA_VECTORS, WARPS, floats_passed
from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, WORD_BYTES, ElementType

Ownership = Literal["aligned", "round-robin"]

WARPS_PER_ROW = (1, 2, 4, 8)
ACCUMULATORS = 64  # sums that a thread carries: rows of a slot times vertices of a tile
SHAPED_FOR = 8  # vertices of a tile that shapes are chosen for
MOST_ROWS = ACCUMULATORS // SHAPED_FOR  # R of a slot
MOST_FRAGMENT_ROWS = (
    64  # likewise: a thread carries half as many sums of 8 vectors, and more spare few loads of vectors
)

# Fused multiply-adds to a shuffle or a load from shared memory: the units that do those run at a quarter of the rate.
SLOW = 4

# The same for an mma.sync of 8 vectors by 16 rows, of 16 columns in bf16, of 8 in tf32: a multiprocessor of an A100
# multiplies and adds 1024 times a clock in bf16, half as often in tf32 (NVIDIA A100 white paper).
MMA = 8
# By element: (such products of 16 columns, conversions of what a lane has of 8 vectors there). One of pairs is three.
FRAGMENTS = {BFLOAT16: (1, 2), TF32: (2, 4), TF32_PAIR: (6, 8)}


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
    def cost(self) -> float:
        """Time of one vertex in fused multiply-adds of a thread: the products, summing R rows over the lanes, and
        loading C values of the vector. With tensor cores an eighth of 8 vertices: products, loading and converting what
        a lane has of 16 columns of 8 vectors, and storing its four sums of 16 rows."""
        if self.element == FLOAT32:
            return self.slots * (self.rows * self.columns + SLOW * self.rows + SLOW * self.columns)
        products, conversions = FRAGMENTS[self.element]
        high = -(-self.rows // MMA_ROWS)
        of_columns = 2 * self.columns * (high * products * MMA + SLOW * (4 + conversions))
        return self.slots * (of_columns + SLOW * 4 * high) / MMA_VECTORS

    @property
    def passed(self) -> int:
        """Floats of each thread of one of the slots that go to or from the staging buffer at a time."""
        return floats_passed(self.rows, self.columns, self.element)


@lru_cache(maxsize=4096)
def shapes(
    rows_owned: int, columns: int, max_rows: int | None = None, element: ElementType = FLOAT32
) -> tuple[SlotShape, ...]:
    """Shapes for `rows_owned` rows of `columns` columns, cheapest first; of equal ones the one with fewer registers,
    then the one with more columns per lane. Pairs of tf32 round nothing, and weights in float32 serve as well.

    Args:
        max_rows: most rows R; None for as many as registers for sums allow.
    """
    found: list[SlotShape] = []
    for kind in (element, FLOAT32) if element == TF32_PAIR else (element,):
        step = row_step(kind)
        most = MOST_ROWS if kind == FLOAT32 else MOST_FRAGMENT_ROWS
        most = max(step, min(most, max_rows or most) // step * step)
        for warps in WARPS_PER_ROW:
            groups = WARPS // warps
            per_lane = -(-columns // (32 * warps))
            tallest = min(most, -(-rows_owned // (step * groups)) * step)
            found += [
                SlotShape(rows, per_lane, warps, -(-rows_owned // (rows * groups)), kind)
                for rows in range(step, tallest + 1, step)
            ]
    return tuple(sorted(found, key=lambda s: (s.cost, s.registers, -s.columns)))


def row_step(element: ElementType) -> int:
    """What the rows R of a slot are a multiple of."""
    return 1 if element == FLOAT32 else FRAGMENT_ROWS


def whole_rows(rows: int, columns: int, rpw: int, n_vps: int, element: ElementType = FLOAT32) -> SlotShape:
    """The paper's shape: a warp holds `rpw` whole rows of every slot."""
    return SlotShape(rpw, -(-columns // 32), 1, -(-pieces(rows, rpw) // n_vps), element)


def valid_rpw(rowmax: int, budget: int, element: ElementType = FLOAT32) -> range:
    """Rows per warp that the paper's scheme can choose from (VPPS, section III-A).

    Args:
        rowmax: columns of the widest matrix that is held, transposes counted.
        budget: registers of a thread for slots.
        element: of its weights.
    """
    step = row_step(element)
    return range(step, WORD_BYTES * budget // (element.bytes * -(-rowmax // 32)) + 1, step)


def pieces(rows: int, rpw: int) -> int:
    """Pieces of 8 * rpw rows that a matrix is dealt in, round-robin: one is a slot of one block."""
    return -(-rows // (WARPS * rpw))


def in_slot_order(rows: NDArray[np.int32], shape: SlotShape) -> NDArray[np.int32]:
    """Rows of a VP as (slots, groups of warps, R), -1 where there is none."""
    table = np.full(shape.slots * (WARPS // shape.warps) * shape.rows, -1, np.int32)
    table[: len(rows)] = rows
    return table.reshape(shape.slots, WARPS // shape.warps, shape.rows)
