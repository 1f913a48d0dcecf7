"""The published scheme (VPPS, section III): registers hold whole rows of matrices, `rpw` rows per warp in each slot.

Rows are dealt in turns, 8 * rpw at a time. Transposed products use the rows of the matrix itself, with atomic
additions. Matrices that do not fit in registers are kept in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from vpps.errors import CapacityError
from vpps.kernel.chip import WARPS, Chip, KernelSlot
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import ChipOptions, MatrixRole, Place
from vpps.script.slices import most_units

ACCUMULATORS = 64  # maximum sums per thread: rows per warp times vectors
MOST_ROWS = 8  # maximum rows per warp, unless the user sets more
TILES = (8, 4, 2, 1)  # vectors that a thread multiplies at a time
SLOW = 4  # cost of a shuffle or a shared-memory load, in fused multiply-adds: their rate is a quarter


def valid_rpw(columns: int, registers: int) -> range:
    """Valid numbers of rows per warp (VPPS, section III-A).

    Args:
        columns: columns of the widest matrix.
        registers: registers per thread for slots.
    """
    return range(1, registers // -(-columns // 32) + 1)


def place_published(
    roles: Sequence[MatrixRole], device: Device, vps: int, options: ChipOptions, registers: int
) -> tuple[Chip, dict[str, Place]]:
    """Choose slots for all matrices that fit, large matrices first. Arguments and result are as for `place_windows`.

    Raises:
        CapacityError: the user's rows per warp do not fit.
    """
    wanted = sorted((r for r in roles if not r.transposed), key=lambda r: -r.floats)
    widest = max((r.columns for r in wanted), default=1)
    valid = valid_rpw(widest, registers)
    if options.rpw is not None and options.rpw not in valid:
        raise CapacityError(
            f"rpw={options.rpw}: rows of up to {widest} columns take {-(-widest // 32)} registers each of the "
            f"{registers} for slots; valid: "
            + (f"{valid[0]} to {valid[-1]}" if valid else "none: leave ownership to the planner")
        )
    rpws = [options.rpw] if options.rpw else [rpw for rpw in valid if rpw <= MOST_ROWS]
    found = [_place(wanted, rpw, device, vps, registers) for rpw in rpws]
    chip, places = min(found, key=lambda one: _cost(*one), default=(Chip(), {}))
    for role in roles:
        if role.name not in places:
            is_there = role.transposed and role.matrix.name in places and places[role.matrix.name].slots
            why = "partial sums of W's rows take its place" if is_there else f"{registers} registers do not suffice"
            places[role.name] = Place("atomic" if is_there else "L2", why)
    return chip, places


def _place(
    roles: Sequence[MatrixRole], rpw: int, device: Device, vps: int, registers: int
) -> tuple[Chip, dict[str, Place]]:
    places: dict[str, Place] = {}
    slots: list[KernelSlot] = []
    fitting = (t for t in TILES if t * rpw <= ACCUMULATORS)
    widest = max((r.columns for r in roles), default=1)
    room = device.shared // (FLOAT32.bytes * -(-widest // 32) * 32)  # for vectors
    tile = next((t for t in fitting if t <= room), 1)
    for role in roles:
        columns, at = -(-role.columns // 32), slots[-1].end if slots else 0
        count = -(-pieces(role.rows, rpw) // vps)
        if at + count * rpw * columns <= registers and tile <= room:
            own = tuple(KernelSlot(rpw, columns, at + k * rpw * columns) for k in range(count))
            rows = most_units(role.rows, WARPS * rpw, vps, turns=True)
            places[role.name] = Place("registers", "fits in registers", rows, slots=own)
            slots += own
    chip = Chip(slots=tuple(slots), tile=tile, registers=slots[-1].end if slots else 0)
    return chip, places


def _cost(chip: Chip, places: dict[str, Place]) -> tuple[int, int]:
    """Cost (lower is better): first the negated number of placed matrices, then fused multiply-adds per vector."""
    return -len(places), sum(s.rows * s.columns + SLOW * (s.rows + s.columns) for s in chip.slots)


def pieces(rows: int, rpw: int) -> int:
    """Number of pieces in which a matrix is dealt, 8 * rpw rows each; a piece is a slot in one block."""
    return -(-rows // (WARPS * rpw))
