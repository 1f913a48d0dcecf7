"""Which machine runs a handle's kernels."""

from __future__ import annotations

from vpps.errors import HandleError
from vpps.plan.onchip import Options
from vpps.runtime.machine import Machine


def make_machine(target: str, vps: int | None, onchip: Options, train: bool, timeline: bool) -> Machine:
    """The machine for a target.

    Args:
        target: "cpu", "cuda", "simt", or "auto": "cuda" where there is a GPU that can be used, else "cpu".
        vps: virtual processors; None for what suits the machine.
        onchip: what is forced of the distribution of weights over the chip.
        train: whether the host will work during launches.
        timeline: whether kernels record what every virtual processor does when.

    Raises:
        HandleError, CompileError: it cannot be had; says why and what to do.
    """
    if target == "auto":
        from vpps.runtime.driver import why_cuda_is_unusable

        target = "cpu" if timeline or why_cuda_is_unusable() else "cuda"
    if timeline and target != "cpu":
        raise HandleError(f"timeline=True: target {target!r} records no timelines; use target='cpu' for one")
    if target == "simt":
        from vpps.runtime.simt import SimtMachine

        return SimtMachine(vps)
    if target == "cuda":
        from vpps.runtime.cuda import CudaMachine

        return CudaMachine(vps, blocks_per_sm=onchip.blocks_per_sm or 1)
    from vpps.runtime.cpu import CpuMachine

    return CpuMachine(vps, overlapped=train, timeline=timeline)
