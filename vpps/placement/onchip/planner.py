"""From matrices to slots: `plan_onchip`, and smaller and smaller plans where a kernel spills: `step_down`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vpps.errors import CapacityError, SpillError
from vpps.kernel.chip import RESULT_FLOATS
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import WARPS, Device
from vpps.placement.onchip.gradients import choose_gradients
from vpps.placement.onchip.holding import (
    PERSISTENT,
    TILES,
    ChipOptions,
    Gradients,
    HeldMatrix,
    Limits,
    MatrixRole,
    MatrixSpec,
    MatrixUse,
    OnChip,
    Slot,
    Tier,
    check,
)
from vpps.placement.onchip.place import Attempt, SlotRequest, place
from vpps.placement.onchip.slots import pieces
from vpps.script.slices import most_units
from vpps.text import KIB

ON_CHIP: tuple[Tier, ...] = ("registers", "shared")


def plan_onchip(matrices: Sequence[MatrixSpec], device: Device, vps: int, options: ChipOptions | None = None) -> OnChip:
    """Decide which weights live where on the chip.

    Args:
        matrices: all weight matrices of the kernel.
        device: the GPU.
        vps: virtual processors (blocks) of a group.
        options: what the user forces.

    Raises:
        HandleError: a matrix or an option is malformed.
        CapacityError: something forced does not fit; says by how much, and what to do.
    """
    options = options if options is not None else ChipOptions()
    check(matrices, device, vps, options)
    return _plan(SlotRequest(tuple(matrices), device, vps, options, Limits()))


def _plan(request: SlotRequest) -> OnChip:
    attempt = place(request)
    device, options = request.device, request.options
    uses = attempt.uses()
    strategy, of_matrix = choose_gradients(
        request.matrices, uses, attempt.places, device, options.gradients, options.groups
    )
    slots, ranges = _number_slots(request.roles, attempt)
    gradient_slots = _gradient_slots(request.roles, attempt, slots, ranges, uses, of_matrix)
    room = attempt.room
    staging = room.tile * room.widest
    top = dict.fromkeys(ON_CHIP, 0)
    for slot in (*slots, *gradient_slots):
        if slot is not None:
            top[slot.tier] = max(top[slot.tier], slot.at + slot.size)
    buffers = 1
    if device.copies_asynchronously:
        buffers += FLOAT32.bytes * (room.staged(2) + room.sums) + KIB * top["shared"] <= room.shared
    staged = room.staged(buffers)
    taken = FLOAT32.bytes * (staged + room.sums) + KIB * top["shared"]
    results = RESULT_FLOATS if slots and taken + FLOAT32.bytes * RESULT_FLOATS <= room.shared else 0
    return OnChip(
        slots=slots,
        gradient_slots=gradient_slots,
        held=_holders(request, attempt, ranges, of_matrix),
        gradients=strategy,
        tile=attempt.tile,
        blocks_per_sm=request.blocks_per_sm,
        registers=top["registers"],
        shared_bytes=taken + FLOAT32.bytes * results,
        staging_floats=staging,
        staging_buffers=buffers if staging else 0,
        staged_floats=staged,
        sums_floats=room.sums,
        results_floats=results,
        vps=request.vps,
        device=device,
        matrices=request.matrices,
        options=options,
        limits=request.limits,
    )


def _number_slots(roles: Sequence[MatrixRole], attempt: Attempt) -> tuple[tuple[Slot, ...], dict[str, range]]:
    """Slots in order, and those of each role. In each tier W come first, then transposes, then what is free."""
    slots: list[Slot] = []
    ranges = {role.name: range(0) for role in roles}
    for tier in ON_CHIP:
        at = 0
        for role in sorted(roles, key=lambda r: r.transposed):
            where = attempt.places[role.name]
            if where.tier != tier or where.shape is None:
                continue
            shape, first = where.shape, len(slots)
            for _ in range(shape.slots):
                slots.append(Slot(shape.rows, shape.columns, shape.warps, tier, at, shape.element))
                at += slots[-1].size
            ranges[role.name] = range(first, len(slots))
    return tuple(slots), ranges


def _gradient_slots(
    roles: Sequence[MatrixRole],
    attempt: Attempt,
    slots: Sequence[Slot],
    ranges: dict[str, range],
    uses: dict[str, MatrixUse],
    of_matrix: dict[str, Gradients],
) -> tuple[Slot | None, ...]:
    """A slot of the same shape for the gradient of each slot that has one on the chip."""
    found: list[Slot | None] = [None] * len(slots)
    at: dict[str, int] = {}
    for role in roles:
        way = of_matrix.get(role.name)
        if role.transposed or way not in PERSISTENT:
            continue
        tier = attempt.places[role.name].tier
        use = uses[tier]
        at.setdefault(tier, use.weights + use.transposes)
        for s in ranges[role.name]:
            found[s] = slots[s] if way == "overlay" else replace(slots[s], at=at[tier])
            at[tier] += slots[s].size
    return tuple(found)


def _holders(
    request: SlotRequest, attempt: Attempt, ranges: dict[str, range], of_matrix: dict[str, Gradients]
) -> tuple[HeldMatrix, ...]:
    holders = []
    next_piece = 0  # the paper deals a matrix from where the one before it ended
    for role in request.roles:
        where, slots = attempt.places[role.name], ranges[role.name]
        n_pieces = 0
        if request.options.ownership == "round-robin" and where.shape is not None:
            n_pieces = pieces(role.rows, where.shape.rows)
            rows_owned = most_units(role.rows, WARPS * where.shape.rows, 1, request.vps, turns=True)
        else:
            rows_owned = attempt.rows_owned(role)
        holders.append(
            HeldMatrix(
                role="W^T" if role.transposed else "W",
                matrix=role.matrix.name,
                tier=where.tier,
                first_slot=slots.start,
                last_slot=slots.stop,
                copies={"atomic": 0, "L2": 1}.get(where.tier, request.options.groups),
                rows_owned=rows_owned,
                reason=where.reason,
                gradient="" if role.transposed else of_matrix.get(role.name, ""),
                rows=role.rows,
                columns=role.columns,
                parts=role.parts,
                shape=where.shape,
                ownership=request.options.ownership,
                first_vp=next_piece % request.vps if n_pieces else 0,
                element=role.matrix.element,
            )
        )
        next_piece += n_pieces
    return tuple(holders)


def step_down(onchip: OnChip) -> Iterator[OnChip]:
    """Plans with less and less in registers, for when the compiler spills.

    Fewer vertices per tile, then fewer slots in registers (the least useful role, one at a time, to shared
    memory or L2) as long as there are some, then fewer rows per slot, then no slot in registers: those elsewhere have
    all their rows again, then fewer. Otherwise every plan keeps what the one before it gave up. What the user forced
    (tile, gradients, tiers, rpw) stays.

    Raises:
        SpillError: at the first plan, where forced options leave nothing to give up.
    """
    last = onchip
    for smaller in (_fewer_vertices, _fewer_slots, _fewer_rows, _no_slots, _fewer_rows):
        for plan in smaller(last):
            if plan.to_key() != last.to_key():
                yield plan
            last = plan
    if last is onchip:
        raise SpillError(nothing_left(onchip))


def _again(last: OnChip, **changes: Any) -> OnChip:
    """The plan once more with other limits: what is out of registers stays out, shapes stay."""
    out = frozenset(h.name for h in last.held if h.tier != "registers")
    kept: dict[str, Any] = {
        "shapes": {h.name: h.shape for h in last.held if h.shape is not None},
        "evicted": last.limits.evicted | out,
    }
    limits = replace(last.limits, **(kept | changes))
    return _plan(SlotRequest(last.matrices, last.device, last.vps, last.options, limits))


def _fewer_vertices(last: OnChip) -> Iterator[OnChip]:
    if last.options.tile is None:
        for tile in TILES:
            if 2 <= tile < last.tile:
                last = _again(last, tile=tile)
                yield last


def _without(last: OnChip, held: HeldMatrix) -> OnChip | None:
    """The plan with a role out of registers; None where something that the user forced would then not fit."""
    out = {h.name for h in last.held if h.tier != "registers"}
    try:
        return _again(last, evicted=last.limits.evicted | out | {held.name})
    except CapacityError:
        return None


def _fewer_slots(last: OnChip) -> Iterator[OnChip]:
    uses = {m.name: m.uses for m in last.matrices}
    in_registers = [h for h in last.held if h.tier == "registers" and h.name not in last.options.tiers]
    for held in sorted(in_registers, key=lambda h: (uses[h.matrix], h.rows * h.columns, h.role == "W")):
        plan = _without(last, held)
        if plan is not None and 0 < plan.registers < last.registers:
            last = plan
            yield last


def _no_slots(last: OnChip) -> Iterator[OnChip]:
    evicted = last.limits.evicted | {h.name for h in last.held if h.name not in last.options.tiers}
    with suppress(CapacityError):  # something that the user forced would not fit
        plan = _again(last, evicted=evicted, max_rows=None, shapes={})
        if plan.registers < last.registers:
            yield plan


def _fewer_rows(last: OnChip) -> Iterator[OnChip]:
    rows = max((slot.rows for slot in last.slots), default=1)
    while rows > 1 and last.options.rpw is None:
        rows //= 2
        try:
            plan = _again(last, max_rows=rows, shapes={})
        except CapacityError:
            return  # lower slots pad more, and something that the user forced no longer fits
        if plan.registers <= last.registers:  # they pad more
            last = plan
            yield last


def nothing_left(onchip: OnChip) -> str:
    """What to say of a kernel that spills although it holds as little as what the user forced allows."""
    options = onchip.options
    forced: dict[str, object] = {"tile": options.tile, "rpw": options.rpw, "tiers": dict(options.tiers) or None}
    if options.gradients != "auto":
        forced["gradients"] = options.gradients
    if options.blocks_per_sm == 2:
        forced["blocks_per_sm"] = 2
    named = {name: value for name, value in forced.items() if value is not None}
    holding = f"{onchip.registers} registers of each thread for slots and {onchip.tile} vertices per tile"
    if not named:
        return f"the kernel spills with {holding}, and nothing is left to give up: please report this"
    least = min((h for h in onchip.held if h.tier == "registers"), key=lambda h: h.rows * h.columns, default=None)
    advice = f"leave {'one of them' if len(named) > 1 else 'it'} to the planner"
    if least is not None and least.name in options.tiers:
        advice += f", or give tiers={{{least.name!r}: 'shared'}}"
    written = ", ".join(f"{name}={value!r}" for name, value in named.items())
    return f"the kernel spills with {holding}, and {written} leaves nothing to give up; {advice}"
