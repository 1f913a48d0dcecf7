"""Which machine runs a handle's kernels."""

from __future__ import annotations

from vpps.errors import HandleError
from vpps.plan.onchip import ChipOptions
from vpps.runtime.machine import Machine
from vpps.script.instructions import MAX_GROUPS
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
        target: "cpu", "cuda", "simt", or "auto": "cuda" where there is a GPU that can be used, else "cpu".
        vps: virtual processors; None for what suits the machine.
        onchip: what is forced of the distribution of weights over the chip.
        train: whether the host will work during launches.
        timeline: whether kernels record what every virtual processor does when.
        schedule: name of the schedule.
        tile: name of the tile of products, on cpu; None for the processor's usual one.

    Raises:
        HandleError, CompileError: it cannot be had; says why and what to do.
    """
    if target == "auto":
        from vpps.runtime.driver import why_cuda_is_unusable

        target = "cpu" if why_cuda_is_unusable() else "cuda"
    groups = _checked_groups(onchip, target, schedule, vps)
    if target == "simt":
        from vpps.runtime.simt import DEFAULT_VPS, SimtMachine

        count = max(DEFAULT_VPS, groups) // groups * groups if vps is None else vps
        return SimtMachine(count, timeline=timeline)
    if target == "cuda":
        from vpps.runtime.cuda import CudaMachine

        return CudaMachine(vps, blocks_per_sm=onchip.blocks_per_sm or 1, groups=groups, timeline=timeline)
    from vpps.runtime.cpu import CpuMachine

    return CpuMachine(vps, overlapped=train, timeline=timeline, tile=tile)


def _checked_groups(onchip: ChipOptions, target: str, schedule: str, vps: int | None) -> int:
    """Groups of virtual processors. Raises HandleError where there cannot be so many."""
    groups = as_index(onchip.groups)
    if groups is None or not 1 <= groups <= MAX_GROUPS:
        raise HandleError(f"ChipOptions(groups={onchip.groups!r}): expected an int from 1 to {MAX_GROUPS}")
    if groups == 1:
        return groups
    if target == "cpu":
        raise HandleError(
            f"ChipOptions(groups={groups}): target 'cpu' has one group, as all threads share the weights in memory; "
            "use groups=1, or target 'cuda' or 'simt'"
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
