"""What the user is told about the distribution of weights, and what would have to be different for more to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from vpps.errors import VppsError
from vpps.kernel.chip import KERNEL_SHARED, WARPS
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import HeldMatrix, MatrixSpec, OnChip, Tier
from vpps.placement.onchip.place import NARROW_ROWS, ROW_SLICED, Room, gradient_short, least_of
from vpps.placement.onchip.planner import ON_CHIP, plan_onchip
from vpps.placement.onchip.slots import SlotShape, row_step, shapes, whole_rows
from vpps.text import KIB, WIDTH, columns, in_bytes, note

WHERE = {
    "none": "none: nothing is trained",
    "overlay": "in the place of the weights, once backward is done: the update has those in memory (overlay)",
    "registers": "in registers of their own",
    "passes": "tile by tile, not kept on the chip (passes)",
    "gemm": "operands concatenated, one cuBLAS product per matrix and a second launch (gemm)",
}
HEADER = (
    *(("", "matrix"), ("", "role"), ("", "shape"), ("", "tier"), ("", "copies"), ("groups", "x blocks")),
    *(("slots of", "(R,C,wk)"), ("regis-", "ters"), ("warps", "busy"), ("per", "block"), ("", "moments")),
    *(("", "gradient"), ("", "why")),
)
LEFT = (0, 1, 2, 3, 11, 12)  # columns of text
MOST_SHORT = 5  # roles without room that are listed one by one
MOST_UNITS = 1 << 16  # of a matrix, when asking how large the model could be


def explain(onchip: OnChip, moments: int = 0, more: Sequence[tuple[str, str]] = ()) -> str:
    """A table of where the weights live and why, totals, and what would fit next: plain text of 110 columns.

    Args:
        moments: of the optimizer, per weight.
        more: names and texts of what else there is to say of the kernel.
    """
    return (
        "\n\n".join(
            [
                _table(onchip, moments),
                "\n".join(note(f"{name:<15}", text) for name, text in [*_totals(onchip, moments), *more]),
                "\n".join(note("", n) for n in _next(onchip)),
            ]
        )
        + "\n"
    )


def _table(onchip: OnChip, moments: int) -> str:
    reasons = list(dict.fromkeys(held.reason for held in onchip.held))
    rows = []
    for held in onchip.held:
        shape = held.shape
        has_moments = moments and held.gradient
        rows.append(
            (
                held.matrix.name,
                "W^T" if held.transposed else "W",
                f"{held.rows}x{held.columns}",
                held.tier,
                str(held.copies),
                f"{onchip.options.groups} x {_blocks(onchip, held)}",
                held.in_slots or "-",
                str(shape.registers) if shape and held.tier == "registers" else "-",
                f"{held.warps_busy}/{WARPS}" if shape else "-",
                f"{shape.registers} KiB" if shape else "-",
                in_bytes(FLOAT32.bytes * moments * held.rows * held.columns) if has_moments else "-",
                held.gradient or "-",
                f"[{1 + reasons.index(held.reason)}]",
            )
        )
    notes = [note(f"[{i}] ", reason) for i, reason in enumerate(reasons, 1)]
    return "\n".join([*columns(list(zip(*HEADER, strict=True)), rows, LEFT, WIDTH), "", *notes])


def _blocks(onchip: OnChip, held: HeldMatrix) -> int:
    """Blocks of a group that hold some of it; of what is in no slot, those that compute with it."""
    if held.shape is None:
        return onchip.vps
    if held.ownership == "round-robin":
        return min(onchip.vps, -(-held.rows // (8 * held.shape.rows)))
    return min(onchip.vps, held.rows // held.parts)


def _totals(onchip: OnChip, moments: int) -> list[tuple[str, str]]:
    chip, device, groups = onchip.chip, onchip.device, onchip.options.groups
    blocks, slots = chip.blocks_per_sm, onchip.weights_in("shared")
    staging = FLOAT32.bytes * chip.tiles * chip.tile * chip.stage
    gradients = chip.shared_units - slots
    all_weights = sum(h.floats for h in onchip.held)
    on_chip = sum(h.floats for h in onchip.held if h.tier in ON_CHIP)
    off = sum(h.bytes for h in onchip.held if h.tier == "L2")
    n_groups = "1 group" if groups == 1 else f"{groups} groups"
    buffers = "two staging buffers" if chip.buffers == 2 else "a staging buffer"
    share = f"{(chip.shared_bytes - KERNEL_SHARED) // KIB} of {device.shared(blocks) // KIB} KiB per block"
    shared = [f"{buffers} of {staging // KIB} KiB"] if staging else []
    shared += [f"{in_bytes(FLOAT32.bytes * chip.sums)} of partial sums"] if chip.sums else []
    shared += [f"{in_bytes(FLOAT32.bytes * chip.results)} of results"] if chip.results else []
    shared += [f"slots of {slots} KiB"] if slots else []
    shared += [f"gradients of {gradients} KiB beyond them"] if gradients else []
    registers = onchip.weights_in("registers")
    memory = FLOAT32.bytes * moments * sum(m.rows * m.columns for m in onchip.matrices if m.trained)
    return [
        (
            "device",
            f"{device.name}: {n_groups} of {onchip.vps} blocks on {device.sms} multiprocessors, {blocks} on each",
        ),
        (
            "kernel",
            f"{chip.tile} vertices per tile, {chip.tiles * chip.tile} brought together, {onchip.options.ownership} "
            "ownership",
        ),
        ("gradients", WHERE[onchip.gradients]),
        (
            "registers",
            f"{chip.registers} of {device.registers(blocks)} per thread; weights take {registers}",
        ),
        ("shared memory", f"{share}: {', '.join(shared)}" if shared else share),
        ("on the chip", f"{on_chip:,} of {all_weights:,} weights, transposes counted"),
        (
            "through L2",
            f"{in_bytes(off)} of weights, L2 holds {in_bytes(device.l2_bytes)}"
            + (": the rest comes from memory" if off > device.l2_bytes else ""),
        ),
        *([("moments", f"{in_bytes(memory)} in memory")] if memory else []),
    ]


class Sizes:
    """Plans of the same model with other sizes.

    Attributes:
        onchip: the plan as it is.
    """

    def __init__(self, onchip: OnChip) -> None:
        self.onchip = onchip
        self._plan = cache(self._scaled)

    def keeps(self, unit: int, units: int, names: Sequence[str], tiers: Sequence[Tier]) -> bool:
        """Whether roles would be in one of the tiers, were a model of `unit` units one of `units`."""
        plan = self._plan(unit, units)
        return plan is not None and all(plan.of(name).tier in tiers for name in names)

    def most(self, unit: int, names: Sequence[str], tiers: Sequence[Tier]) -> int:
        """The most units with which the named roles stay in the given tiers."""
        step = _step(unit)
        fits, fails = unit, 2 * unit
        while fails < MOST_UNITS and self.keeps(unit, fails, names, tiers):
            fits, fails = fails, 2 * fails
        while fails - fits > step:
            middle = fits + (fails - fits) // 2 // step * step
            if self.keeps(unit, middle, names, tiers):
                fits = middle
            else:
                fails = middle
        return fits

    def fewer(self, unit: int, names: Sequence[str], tiers: Sequence[Tier] = ON_CHIP) -> int:
        """The most units, fewer than there are, with which the named roles are in the given tiers; 0 for none."""
        step = _step(unit)
        candidates = range((unit - 1) // step * step, 0, -step)
        return next((units for units in candidates if self.keeps(unit, units, names, tiers)), 0)

    def _scaled(self, unit: int, units: int) -> OnChip | None:
        """The plan with every size that is a multiple of `unit` made the same multiple of `units`."""

        def scaled(size: int) -> int:
            return size if size % unit else size // unit * units

        now = self.onchip
        matrices = [replace(m, rows=scaled(m.rows), columns=scaled(m.columns)) for m in now.matrices]
        try:
            return plan_onchip(matrices, now.device, now.vps, now.options)
        except VppsError:  # parts that no longer divide the rows, or something forced that no longer fits
            return None


def capacity(matrices: Sequence[MatrixSpec], device: Device, unit: int, step: int = 16) -> tuple[int, int]:
    """How large a model may be whose weights, with transposes, all stay in registers, or on the chip at least.

    Args:
        matrices: of the model with `unit` units. Those with fewer rows than half of the blocks are not counted.
        device: on which a block runs on every multiprocessor.
        step: of the sizes.

    Returns:
        The most units with which all are in registers, and on the chip; 0 where there are none.
    """
    sizes = Sizes(plan_onchip(matrices, device, device.sms))
    names = [held.name for held in sizes.onchip.held if held.reason not in (ROW_SLICED, NARROW_ROWS)]

    def most(tiers: Sequence[Tier]) -> int:
        as_it_is = sizes.keeps(unit, unit, names, tiers)
        return (sizes.most(unit, names, tiers) if as_it_is else sizes.fewer(unit, names, tiers)) // step * step

    return most(("registers",)), most(ON_CHIP)


def _step(unit: int) -> int:
    """Steps between sizes that are tried: about 64 below a given one, multiples of 8 where that is not too coarse."""
    return max(8 if unit >= 64 else 1, unit // 64 // 8 * 8)


def _next(onchip: OnChip) -> list[str]:
    """What is short for each role that found no place, or how far the model could grow."""
    sizes = Sizes(onchip)
    short = [h for h in onchip.held if h.tier not in ON_CHIP and _wanted_on_chip(onchip, h)]
    if short:
        lines = [_shortage(onchip, held, sizes) for held in short[:MOST_SHORT]]
        if len(short) > MOST_SHORT:
            need, room = sum(_least(onchip, held).registers for held in short), _room(onchip)
            lines.append(
                f"these and {len(short) - MOST_SHORT} more: {need - room.left('registers')} registers or "
                f"{need - room.left('shared')} KiB of shared memory short together"
            )
        return lines
    in_registers = [h.name for h in onchip.held if h.tier == "registers"]
    on_chip = [h.name for h in onchip.held if h.tier in ON_CHIP]
    if not on_chip:
        return ["no weights are on the chip, and none are short of room"]
    largest = max(onchip.matrices, key=lambda m: m.rows * m.columns)
    unit = largest.rows // largest.parts
    most = sizes.most(unit, on_chip, ON_CHIP)
    lines = [f"what is on the chip stays there up to {most} units of {largest.name} (now {unit})"]
    if in_registers:
        most = sizes.most(unit, in_registers, ("registers",))
        lines.append(f"what is in registers stays there up to {most} units of {largest.name}")
    return lines


def _wanted_on_chip(onchip: OnChip, held: HeldMatrix) -> bool:
    """Whether only lack of room keeps it off the chip: neither its shape, nor the user, nor an earlier spill."""
    by_force = held.name in onchip.options.tiers or (held.transposed and onchip.options.transposed == "atomic")
    by_shape = held.reason in (ROW_SLICED, NARROW_ROWS)
    return not by_force and not by_shape and held.name not in onchip.limits.evicted


def _least(onchip: OnChip, held: HeldMatrix) -> SlotShape:
    """The smallest slots that would hold a role."""
    if held.ownership == "round-robin":
        rpw = max((slot.rows for slot in onchip.chip.slots), default=row_step(held.matrix.element))
        return whole_rows(held.rows, held.columns, rpw, onchip.vps, held.matrix.element)
    return least_of(shapes(held.rows_owned, held.columns, onchip.limits.max_rows, held.matrix.element))


def _room(onchip: OnChip) -> Room:
    """What the plan leaves of a block's registers and shared memory."""
    chip = onchip.chip
    return Room(
        onchip.device.registers(chip.blocks_per_sm),
        onchip.device.shared(chip.blocks_per_sm),
        chip.tile,
        max((slot.width for slot in chip.slots), default=0),
        chip.has_fragments,
        max((slot.passed for slot in chip.slots), default=0),
        max((h.shape.slots * h.shape.rows for h in onchip.held if h.shape is not None), default=0),
        taken={tier: onchip.weights_in(tier) for tier in ON_CHIP},
    )


def _shortage(onchip: OnChip, held: HeldMatrix, sizes: Sizes) -> str:
    """What a role lacks beside all the others, and the size of the model that would have room for it."""
    least = _least(onchip, held)
    room = _room(onchip).beside(least)
    registers, shared = least.registers - room.left("registers"), least.registers - room.left("shared")
    if held.trained and least.gradient > room.registers:
        short = gradient_short(least, room)
    elif registers > 0:
        short = f"{registers} registers or {shared} KiB of shared memory short"
    else:
        short = f"{shared - least.registers} KiB short in the staging buffer for its rows"
    matrix = held.matrix
    unit = matrix.rows // matrix.parts
    fits = sizes.fewer(unit, [held.name])
    if fits:
        return f"{held.name}: {short}; would fit with {fits} units of {matrix.name} (now {unit})"
    return f"{held.name}: {short}; fewer units of {matrix.name} alone do not make it fit"
