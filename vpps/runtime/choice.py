"""Which machine runs a handle's kernels."""

from __future__ import annotations

from vpps.errors import HandleError
from vpps.placement.onchip import ChipOptions
from vpps.runtime.machine import Machine, Wanted
from vpps.script.instructions import MAX_GROUPS
from vpps.targets import AUTO, GPUS, Target, listed, present_target, target_named
from vpps.values import as_index


def make_machine(
    target: str,
    vps: int | None,
    onchip: ChipOptions,
    train: bool,
    timeline: bool,
    schedule: str = "vector",
    tile: str | None = None,
) -> Machine:
    """The machine for a target.

    Args:
        target: its name, or `AUTO`.
        vps: virtual processors; None for what suits the machine.
        onchip: what is forced of the distribution of weights over the chip.
        train: whether the host will work during launches.
        timeline: whether kernels record what every virtual processor does when.
        schedule: name of the schedule.
        tile: name of the tile of products, on cpu; None for the processor's usual one.

    Raises:
        HandleError, CompileError: it cannot be had; says why and what to do.
    """
    chosen = present_target() if target == AUTO else target_named(target)
    groups = _checked_groups(onchip, chosen, schedule, vps)
    machine: Machine = chosen.machine(Wanted(vps, groups, onchip, train, timeline, tile))
    return machine


def _checked_groups(onchip: ChipOptions, target: Target, schedule: str, vps: int | None) -> int:
    """Groups of virtual processors. Raises HandleError where there cannot be so many."""
    groups = as_index(onchip.groups)
    if groups is None or not 1 <= groups <= MAX_GROUPS:
        raise HandleError(f"ChipOptions(groups={onchip.groups!r}): expected an int from 1 to {MAX_GROUPS}")
    if groups == 1:
        return groups
    if not target.is_gpu:
        raise HandleError(
            f"ChipOptions(groups={groups}): target {target.name!r} has one group, as all threads share the weights in "
            f"memory; use groups=1, or target {listed(GPUS)}"
        )
    if schedule == "paper":
        raise HandleError(
            f"ChipOptions(groups={groups}) with schedule='paper': the published scheme has one group; use groups=1, or "
            "schedule='vector'"
        )
    count = groups if vps is None else as_index(vps)
    if count is not None and (count % groups or not count):
        raise HandleError(
            f"vps={vps} with groups={groups}: groups are equally large; use a multiple of {groups} virtual processors, "
            f"such as vps={max(count // groups, 1) * groups}"
        )
    return groups
