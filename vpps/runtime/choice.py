"""Which machine runs a handle's kernels."""

from __future__ import annotations

from vpps.errors import HandleError
from vpps.runtime.machine import Machine, Wanted
from vpps.script.instructions import MAX_GROUPS
from vpps.targets import AUTO, GPUS, Target, listed, present_target, target_named
from vpps.values import as_index


def make_machine(target: str, wanted: Wanted) -> Machine:
    """The machine for a target, given by its name or as `AUTO`.

    Raises:
        HandleError, CompileError: it cannot be had; says why and what to do.
    """
    chosen = present_target() if target == AUTO else target_named(target)
    _check_groups(chosen, wanted)
    machine: Machine = chosen.machine(wanted)
    return machine


def _check_groups(target: Target, wanted: Wanted) -> None:
    """Raises HandleError where there cannot be so many groups of virtual processors."""
    given, vps = wanted.onchip.groups, wanted.vps
    groups = as_index(given)
    if groups is None or not 1 <= groups <= MAX_GROUPS:
        raise HandleError(f"ChipOptions(groups={given!r}): expected an int from 1 to {MAX_GROUPS}")
    if groups == 1:
        return
    if not target.is_gpu:
        raise HandleError(
            f"ChipOptions(groups={groups}): target {target.name!r} has one group, as all threads share the weights in "
            f"memory; use groups=1, or target {listed(GPUS)}"
        )
    if wanted.schedule == "paper":
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
