"""Reports the placement of weights to the user, and computes the largest model that fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from vpps.kernel.chip import KERNEL_SHARED, WARPS, Chip
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import NARROW_ROWS, ROW_SLICED, HeldMatrix, MatrixSpec, OnChip
from vpps.placement.onchip.planner import plan_onchip
from vpps.text import KIB, WIDTH, columns, counted, in_bytes, labelled, note

HEADER = (
    *(("", "matrix"), ("", "role"), ("", "shape"), ("", "tier"), ("", "copies"), ("groups", "x blocks")),
    *(("window, or", "slots (R, C)"), ("regis-", "ters"), ("warps", "busy"), ("per", "block"), ("", "moments")),
    ("", "why"),
)
LEFT = (0, 1, 2, 3, 11)  # columns that contain text
ON_CHIP = ("registers", "shared")
MOST_UNITS = 1 << 12  # upper bound of `capacity`


def explain(onchip: OnChip, moments: int = 0, more: Sequence[tuple[str, str]] = ()) -> str:
    """Return a table of the weights' places with reasons, and totals, as plain text of 110 columns.

    Args:
        moments: number of the optimizer's moments per weight.
        more: names and texts for further lines about the kernel.
    """
    return f"{_table(onchip, moments)}\n\n{labelled([*_totals(onchip, moments), *more])}"


def _table(onchip: OnChip, moments: int) -> str:
    reasons = list(dict.fromkeys(held.place.reason for held in onchip.held))
    rows = []
    for held in onchip.held:
        has_moments = moments and held.trained
        rows.append(
            (
                held.matrix.name,
                "W^T" if held.transposed else "W",
                f"{held.rows}x{held.columns}",
                held.tier,
                str(held.copies),
                f"{onchip.groups} x {_blocks(onchip, held)}",
                held.held_as or "-",
                str(held.registers) if held.tier == "registers" else "-",
                f"{held.warps_busy}/{WARPS}" if held.number else "-",
                f"{held.kib} KiB" if held.number else "-",
                in_bytes(FLOAT32.bytes * moments * held.rows * held.columns) if has_moments else "-",
                f"[{1 + reasons.index(held.place.reason)}]",
            )
        )
    notes = [note(f"[{i}] ", reason) for i, reason in enumerate(reasons, 1)]
    return "\n".join([*columns(list(zip(*HEADER, strict=True)), rows, LEFT, WIDTH), "", *notes])


def _blocks(onchip: OnChip, held: HeldMatrix) -> int:
    """Blocks in a group that hold a part of it or, if it is in memory, compute with it."""
    if held.turn:
        return min(onchip.vps, -(-held.rows // held.turn))
    return min(onchip.vps, held.rows // held.parts) if held.number else onchip.vps


def _totals(onchip: OnChip, moments: int) -> list[tuple[str, str]]:
    chip, device, groups = onchip.chip, onchip.device, onchip.groups
    all_weights = sum(h.floats for h in onchip.held)
    on_chip = sum(h.floats for h in onchip.held if h.tier in ON_CHIP and not h.place.refilled)
    off = sum(h.bytes for h in onchip.held if h.tier == "L2" or h.place.refilled)
    n_groups = "1 group" if groups == 1 else f"{groups} groups"
    share = f"{(chip.shared_bytes - KERNEL_SHARED) // KIB} of {device.shared // KIB} KiB per block"
    shared = [f"vectors {FLOAT32.bytes * chip.staged // KIB} KiB"] if chip.staged else []
    shared += [f"partial sums {FLOAT32.bytes * chip.sums // KIB} KiB"] if chip.sums else []
    shared += [f"results {FLOAT32.bytes * chip.results // KIB} KiB"] if chip.results else []
    shared += [f"windows {chip.window_kib} KiB"] if chip.dense else []
    memory = FLOAT32.bytes * moments * sum(m.rows * m.columns for m in onchip.matrices if m.trained)
    return [
        (
            "device",
            f"{device.name}: {n_groups} of {counted(onchip.vps, 'block')} on {device.sms} multiprocessors",
        ),
        ("kernel", f"{_vertices(chip)}{onchip.options.ownership} ownership"),
        ("registers", f"weights take {chip.registers} of {device.registers} per thread"),
        ("shared memory", f"{share}: {', '.join(shared)}" if shared else share),
        ("on the chip", f"{on_chip:,} of {all_weights:,} weights, transposes counted"),
        (
            "through L2",
            f"{in_bytes(off)} of weights, L2 holds {in_bytes(device.l2_bytes)}"
            + (": the rest comes from memory" if off > device.l2_bytes else ""),
        ),
        *([("moments", f"{in_bytes(memory)} in memory")] if memory else []),
    ]


def _vertices(chip: Chip) -> str:
    if not chip.dense and not chip.slots:
        return ""
    return f"at most {chip.most_vectors if chip.dense else chip.tile} vertices multiplied together, "


def capacity(matrices: Sequence[MatrixSpec], device: Device, unit: int, step: int = 16) -> int:
    """Largest number of units for which a launch reads each weight and transpose from memory only once.

    Args:
        matrices: matrices of the model with `unit` units. Matrices with fewer rows than half of the blocks are ignored.
        device: the GPU; every multiprocessor runs one block.
        step: step between the sizes that are tried.

    Returns:
        The number of units, or 0 if no size fits.
    """
    plan = plan_onchip(matrices, device, device.sms)
    names = [held.name for held in plan.held if held.place.reason not in (ROW_SLICED, NARROW_ROWS)]

    def scaled(size: int, units: int) -> int:
        return size if size % unit else size // unit * units

    def reads_again(units: int) -> bool:
        """True if a model of this size keeps some matrix in memory, or reads some matrix from there more than once."""
        larger = [replace(m, rows=scaled(m.rows, units), columns=scaled(m.columns, units)) for m in matrices]
        places = [plan_onchip(larger, device, device.sms).of(name).place for name in names]
        return any(place.dense is None or place.refilled for place in places)

    sizes = range(0, MOST_UNITS, step)
    return sizes[bisect_left(sizes, True, lo=1, key=reads_again) - 1]
