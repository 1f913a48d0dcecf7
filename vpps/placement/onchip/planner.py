"""From matrices to slots: `plan_onchip`, and smaller and smaller plans where a kernel spills: `step_down`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from vpps.errors import CapacityError, SpillError
from vpps.kernel.chip import KERNEL_SHARED, RESULT_FLOATS, SUM_FLOATS, WARPS, Chip, KernelMatrix, KernelSlot, sums_of
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import CP_ASYNC, Device
from vpps.placement.onchip.holding import (
    TILES,
    ChipOptions,
    Gradients,
    HeldMatrix,
    Limits,
    MatrixSpec,
    OnChip,
    check,
    roles_of,
)
from vpps.placement.onchip.place import ON_CHIP, Attempt, SlotRequest, place
from vpps.placement.onchip.slots import pieces, row_step
from vpps.placement.onchip.windows import Windows, place_windows
from vpps.script.slices import most_units

MOST_GRADIENT_VERTICES = 32  # that are brought together to add up gradients: with more, a GPU would only wait longer


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
    return _plan(_request(tuple(matrices), device, vps, options, Limits()))


def _request(
    matrices: tuple[MatrixSpec, ...], device: Device, vps: int, options: ChipOptions, limits: Limits
) -> SlotRequest:
    windows = place_windows(matrices, device, vps, options, limits)
    return SlotRequest(matrices, device, vps, options, limits, windows)


def _plan(request: SlotRequest) -> OnChip:
    attempt = place(request)
    windows = request.windows
    attempt.places |= windows.places
    device, options, room = request.device, request.options, attempt.room
    of_matrix = attempt.gradients()
    gradients: Gradients = next((g for g in of_matrix.values() if g == "overlay"), "tiles" if of_matrix else "none")
    slots, ranges = _number_slots(attempt, of_matrix)
    top = {tier: max((s.end for s in slots if s.in_registers == (tier == "registers")), default=0) for tier in ON_CHIP}
    held = _holders(attempt, ranges, of_matrix, windows.behind(top["registers"]))
    chip = Chip(
        slots,
        tuple(KernelMatrix(h.number, h.slots.start, h.slots.stop, _described(h)) for h in held if h.slots),
        tuple(h.dense for h in held if h.dense is not None),
        windows.tiles,
        windows.whole,
        registers=top["registers"] + sum(4 * h.dense.fours for h in held if h.dense and h.dense.home >= 0),
        shared_units=top["shared"],
        tile=attempt.tile,
        stage=room.stage,
        sums=max(room.sums, *(t.sums for t in windows.tiles), 0),
        results=RESULT_FLOATS if windows.dense else 0,  # tiles are chosen for that
        groups=options.groups,
        turns=bool(slots) and options.ownership == "round-robin",
    )
    available = device.shared + KERNEL_SHARED
    vertices = chip.gradient_vertices  # in the place of weights
    while not chip.keeps_gradients and (vertices := 2 * vertices) <= MOST_GRADIENT_VERTICES:
        if replace(chip, gradient_vertices=vertices).shared_bytes <= available:
            chip = replace(chip, gradient_vertices=vertices)
    # If there is room, a second staging buffer first, then one for results, then twice the vectors in all of them.
    doubled = replace(chip, buffers=2)
    if slots and device.sm >= CP_ASYNC and doubled.shared_bytes <= available:
        chip = doubled
    with_results = replace(chip, results=RESULT_FLOATS)
    if slots and with_results.shared_bytes <= available:
        chip = with_results
        longer = replace(chip, tiles=2, sums=2 * chip.sums)
        assert 2 * SUM_FLOATS <= RESULT_FLOATS  # as many results has a tile at most (compiler/passes/chaining.py)
        if chip.buffers == 2 and chip.leaves_registers and longer.shared_bytes <= available:
            chip = longer
    return OnChip(chip, held, gradients, request.vps, device, request.matrices, options, request.limits)


def _number_slots(
    attempt: Attempt, of_matrix: Mapping[str, Gradients]
) -> tuple[tuple[KernelSlot, ...], dict[str, range]]:
    """Slots in order, and those of each role. In each tier W come first, then transposes.

    Gradients that stay take the place of the weights: they are made when nothing is multiplied by these any more.
    """
    slots: list[KernelSlot] = []
    ranges: dict[str, range] = {}
    for tier in ON_CHIP:
        at = 0
        roles = [r for r in attempt.request.roles if attempt.places[r.name].tier == tier]
        for role in sorted(roles, key=lambda r: r.transposed):
            shape, way = attempt.places[role.name].shape, of_matrix.get(role.name)
            assert shape is not None
            for _ in range(shape.slots):
                slots.append(
                    KernelSlot(
                        shape.rows, shape.columns, shape.warps, at, tier == "registers", way == "overlay",
                        way is not None, shape.element,
                    )
                )  # fmt: skip
                at += slots[-1].size
            ranges[role.name] = range(len(slots) - shape.slots, len(slots))
    return tuple(slots), ranges


def _holders(
    attempt: Attempt, ranges: Mapping[str, range], of_matrix: Mapping[str, Gradients], windows: Windows
) -> tuple[HeldMatrix, ...]:
    request, holders = attempt.request, list[HeldMatrix]()
    numbers = count(1)
    next_piece = 0  # the paper deals a matrix from where the one before it ended
    for role in roles_of(request.matrices):
        where, slots = attempt.places[role.name], ranges.get(role.name, range(0))
        n_pieces = 0
        if request.options.ownership == "round-robin" and where.shape is not None:
            n_pieces = pieces(role.rows, where.shape.rows)
            rows_owned = most_units(role.rows, WARPS * where.shape.rows, request.vps, turns=True)
        else:
            rows_owned = attempt.rows_owned(role)
        dense = windows.dense.get(role.name)
        number = next(numbers) if slots or dense else 0
        holders.append(
            HeldMatrix(
                name=role.name,
                rows=role.rows,
                columns=role.columns,
                parts=role.parts,
                transposed=role.transposed,
                matrix=role.matrix,
                tier=where.tier,
                number=number,
                slots=slots,
                copies={"atomic": 0, "L2": 1}.get(where.tier, request.options.groups),
                rows_owned=rows_owned,
                reason=where.reason,
                gradient=of_matrix.get(role.name, ""),
                shape=where.shape,
                dense=None if dense is None else replace(dense, number=number),
                ownership=request.options.ownership,
                first_vp=next_piece % request.vps if n_pieces else 0,
            )
        )
        next_piece += n_pieces
    return tuple(holders)


def _described(held: HeldMatrix) -> str:
    """For whoever reads the kernel."""
    shape = held.shape
    assert shape is not None
    return f"{held.name} {held.rows}x{held.columns} as {shape.slots} x ({shape.rows}, {shape.columns}, {shape.warps})"


def step_down(onchip: OnChip) -> Iterator[OnChip]:
    """Plans with less and less in registers, for when the compiler spills.

    Slots in place of windows, then fewer vertices per tile (tensor cores take 8 all the same), then fewer slots in
    registers (the least useful role, one at a time, to shared memory or L2) as long as there are some, then fewer rows
    per slot, then no slot in registers: those elsewhere have all their rows again, then fewer. Otherwise every plan
    keeps what the one before it gave up. What the user forced (products, tile, tiers, rpw) stays.

    Raises:
        SpillError: at the first plan, where forced options leave nothing to give up.
    """
    last = onchip
    for smaller in (_no_windows, _fewer_vertices, _fewer_slots, _fewer_rows, _no_slots, _fewer_rows):
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
    return _plan(_request(last.matrices, last.device, last.vps, last.options, limits))


def _no_windows(last: OnChip) -> Iterator[OnChip]:
    if last.chip.dense and last.options.products == "auto":
        limits = replace(last.limits, windows=False)
        yield _plan(_request(last.matrices, last.device, last.vps, last.options, limits))


def _fewer_vertices(last: OnChip) -> Iterator[OnChip]:
    only_fragments = last.chip.has_fragments and all(slot.element != FLOAT32 for slot in last.chip.slots)
    if last.options.tile is None and last.chip.slots and not only_fragments:
        for tile in TILES:
            if 2 <= tile < last.chip.tile:
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
    in_registers = [h for h in last.held if h.tier == "registers" and h.name not in last.options.tiers]
    for held in sorted(in_registers, key=lambda h: (h.matrix.uses, h.floats, not h.transposed)):
        plan = _without(last, held)
        if plan is not None and 0 < plan.chip.registers < last.chip.registers:
            last = plan
            yield last


def _no_slots(last: OnChip) -> Iterator[OnChip]:
    evicted = last.limits.evicted | {h.name for h in last.held if h.name not in last.options.tiers}
    with suppress(CapacityError):  # something that the user forced would not fit
        plan = _again(last, evicted=evicted, max_rows=None, shapes={})
        if plan.chip.registers < last.chip.registers:
            yield plan


def _fewer_rows(last: OnChip) -> Iterator[OnChip]:
    rows = max((slot.rows for slot in last.chip.slots), default=1)
    least = min((row_step(slot.element) for slot in last.chip.slots), default=1)
    while rows > least and last.options.rpw is None:
        rows //= 2
        try:
            plan = _again(last, max_rows=rows, shapes={})
        except CapacityError:
            return  # lower slots pad more, and something that the user forced no longer fits
        # They pad more; and pairs of tf32 in place of float32 need fewer sums, which then grow once more.
        if plan.chip.registers <= last.chip.registers and _sums(plan) <= _sums(last):
            last = plan
            yield last


def _sums(onchip: OnChip) -> int:
    """That a thread carries, at most."""
    return max((sums_of(s.rows, onchip.chip.tile, s.element) for s in onchip.chip.slots), default=0)


def nothing_left(onchip: OnChip) -> str:
    """What to say of a kernel that spills although it holds as little as what the user forced allows."""
    options = onchip.options
    forced: dict[str, object] = {"tile": options.tile, "rpw": options.rpw, "tiers": dict(options.tiers) or None}
    forced |= {"products": options.products if options.products != "auto" else None}
    named = {name: value for name, value in forced.items() if value is not None}
    holding = f"{onchip.chip.registers} registers of each thread for slots and {onchip.chip.tile} vertices per tile"
    if not named:
        return f"the kernel spills with {holding}, and nothing is left to give up: please report this"
    least = min((h for h in onchip.held if h.tier == "registers"), key=lambda h: h.floats, default=None)
    advice = f"leave {'one of them' if len(named) > 1 else 'it'} to the planner"
    if least is not None and least.name in options.tiers:
        advice += f", or give tiers={{{least.name!r}: 'shared'}}"
    written = ", ".join(f"{name}={value!r}" for name, value in named.items())
    return f"the kernel spills with {holding}, and {written} leaves nothing to give up; {advice}"
