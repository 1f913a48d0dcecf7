"""Plans the weights' places: `plan_onchip`, and smaller plans if a kernel spills: `step_down`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from vpps.errors import CapacityError
from vpps.kernel.chip import KERNEL_SHARED, WARPS, KernelMatrix
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import (
    ChipOptions,
    HeldMatrix,
    MatrixRole,
    MatrixSpec,
    OnChip,
    Place,
    check,
    never_held,
    roles_of,
)
from vpps.placement.onchip.published import pieces, place_published
from vpps.placement.onchip.windows import place_windows

MOST_GRADIENT_VERTICES = 32  # maximum vertices per step of a gradient sum: more would only lengthen waits
FEWER_REGISTERS = 32  # weight registers that are given up each time a kernel spills


def plan_onchip(matrices: Sequence[MatrixSpec], device: Device, vps: int, options: ChipOptions | None = None) -> OnChip:
    """Choose places on the chip for weights.

    Args:
        matrices: all weight matrices of the kernel.
        device: the GPU.
        vps: virtual processors (blocks) per group.
        options: the user's options; `groups=None` means one group.

    Raises:
        HandleError: a matrix or an option is malformed.
        CapacityError: an option exceeds the GPU's resources; the message says by how much, and names a remedy.
    """
    options = options if options is not None else ChipOptions()
    check(matrices, device, vps, options)
    return _plan(tuple(matrices), device, vps, options, device.registers)


def plan_groups(matrices: Sequence[MatrixSpec], device: Device, blocks: int, options: ChipOptions) -> OnChip:
    """Choose the number of groups, unless the options set it, and places on the chip for weights.

    Two groups halve the number of blocks that read each vector. According to the cost model, a step of a Tree-LSTM with
    256 units takes 7 % longer at batch 1 and 27 % less at batch 64 (docs/tuning.md). Two groups are chosen if
    each weight that may be on the chip is still read once per launch.

    Args:
        blocks: number of blocks in all groups.

    Raises:
        HandleError, CapacityError: as for `plan_onchip`.
    """
    if options.groups is None and options.ownership != "round-robin" and blocks % 2 == 0:
        halves = plan_onchip(matrices, device, blocks // 2, replace(options, groups=2))
        if not halves.chip.registers and not any(_reread(held, halves) for held in halves.held):
            return halves
    groups = 1 if options.groups is None else options.groups
    return plan_onchip(matrices, device, blocks // groups, replace(options, groups=groups))


def _reread(held: HeldMatrix, onchip: OnChip) -> bool:
    """True if a role is read from memory more than once in a launch for lack of room."""
    left_out = held.tier == "L2" and not never_held(held, onchip.vps, onchip.options)
    return held.place.refilled or left_out


def _plan(matrices: tuple[MatrixSpec, ...], device: Device, vps: int, options: ChipOptions, registers: int) -> OnChip:
    groups = 1 if options.groups is None else options.groups
    roles = roles_of(matrices)
    why = {role.name: never_held(role, vps, options) for role in roles}
    places = {name: Place("L2", reason) for name, reason in why.items() if reason}
    wanted = [role for role in roles if not why[role.name]]
    if options.ownership == "round-robin":
        chip, found = place_published(wanted, device, vps, options, registers)
    else:
        chip, found = place_windows(wanted, device, vps, groups, registers)
    held = _holders(roles, places | found, vps, groups)
    starts = {s: k for k, s in enumerate(chip.slots)}
    chip = replace(
        chip,
        matrices=tuple(
            KernelMatrix(starts[h.place.slots[0]], starts[h.place.slots[-1]] + 1, _described(h))
            for h in held
            if h.place.slots
        ),
        dense=tuple(h.dense for h in held if h.dense is not None),
        groups=groups,
    )
    vertices = chip.gradient_vertices
    while (vertices := 2 * vertices) <= MOST_GRADIENT_VERTICES:
        if replace(chip, gradient_vertices=vertices).shared_bytes <= device.shared + KERNEL_SHARED:
            chip = replace(chip, gradient_vertices=vertices)
    return OnChip(chip, held, vps, device, matrices, options, registers)


def _holders(roles: Sequence[MatrixRole], places: Mapping[str, Place], vps: int, groups: int) -> tuple[HeldMatrix, ...]:
    holders: list[HeldMatrix] = []
    numbers = count(1)
    next_piece = 0  # the published scheme continues the turns from one matrix to the next
    for role in roles:
        place = places[role.name]
        number = next(numbers) if place.slots or place.dense else 0
        if place.dense:
            place = replace(place, dense=replace(place.dense, number=number))
        holders.append(
            HeldMatrix(
                name=role.name,
                rows=role.rows,
                columns=role.columns,
                parts=role.parts,
                transposed=role.transposed,
                matrix=role.matrix,
                place=place,
                number=number,
                copies={"atomic": 0, "L2": 1}.get(place.tier, groups),
                turn=WARPS * place.slots[0].rows if place.slots else 0,
                first_vp=next_piece % vps if place.slots else 0,
            )
        )
        next_piece += pieces(role.rows, place.slots[0].rows) if place.slots else 0
    return tuple(holders)


def _described(held: HeldMatrix) -> str:
    """Description for a comment in the kernel's source."""
    return f"{held.name} {held.rows}x{held.columns} as {held.held_as}"


def step_down(onchip: OnChip) -> Iterator[OnChip]:
    """Plans with ever fewer registers, to try when the compiler spills; none if the user's options leave nothing to
    reduce."""
    with suppress(CapacityError):  # the user's rows per warp no longer fit
        while registers := onchip.chip.registers:
            fewer = (registers - 1) // FEWER_REGISTERS * FEWER_REGISTERS
            onchip = _plan(onchip.matrices, onchip.device, onchip.vps, onchip.options, fewer)
            yield onchip


def nothing_left(onchip: OnChip) -> str:
    """Message for a kernel that spills although the user's options allow no smaller plan."""
    registers, rpw = onchip.chip.registers, onchip.options.rpw
    if rpw is None:
        return (
            f"the kernel spills with {registers} registers of weights: please report this; until then keep a large "
            "matrix in memory: vpps.ChipOptions(tiers={'its name': 'L2'})"
        )
    return f"the kernel spills with {registers} registers of weights; leave rpw={rpw} to the planner"
