"""What `vpps-cache warm` compiles: everything that a target, or a model on it, will ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import vpps
from vpps.cli.workload import Workload
from vpps.config import RECORDER
from vpps.graph import recorder
from vpps.planner.native import library as planner
from vpps.targets import TARGETS


@dataclass(frozen=True, slots=True)
class WarmingStep:
    """Something to compile.

    Attributes:
        what: it is.
        compile: does it, or finds it in the cache; raises CompileError.
        needed: False if everything works without it, only slower.
    """

    what: str
    compile: Callable[[], object]
    needed: bool = True


def steps(
    target: str, workload: Workload | None, arch: str | None, vps: int | None, train: bool
) -> Iterator[WarmingStep]:
    """What there is to compile for a target, the host's own code first.

    Args:
        target: its name.
        workload: whose model's kernel is compiled, too; None for what serves all models.
        arch: of the GPU; None for that of the machine's, or sm_90.
        vps: virtual processors of a specialised kernel; None for all that the GPU runs side by side.
        train: whether the kernel is to train, or to evaluate only.
    """
    yield WarmingStep("planner", planner.build)
    if RECORDER.get() != "python":
        yield WarmingStep("recorder of graphs", recorder.build, needed=False)
    common = TARGETS[target].common
    for what, build in common() if common else ():
        yield WarmingStep(what, build)
    if workload is not None:
        yield WarmingStep(
            f"{target} kernel of {workload.name}", lambda: _specialised(workload, target, arch, vps, train)
        )


def _specialised(workload: Workload, target: str, arch: str | None, vps: int | None, train: bool) -> None:
    sms = None
    row = TARGETS[target]
    if row.has_archs and arch is None and (gpu := row.device()) is not None:
        arch, sms = f"sm_{gpu.sm}", gpu.sms
    vpps.specialize(
        workload.model,
        workload.first(1)[0],
        target,
        arch,
        sms,
        vps=vps,
        optimizer=workload.optimizer,
        train=train,
    )
