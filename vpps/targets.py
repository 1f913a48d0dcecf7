"""Table of the targets that run kernels. Each row lists a target's capabilities and names its compiler and machine.

Other modules test capabilities - weights held on a chip, real times - and never a target's name. The modules that a
row names are imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from vpps.errors import HandleError

AUTO = "auto"
"""The first target of the table that this machine has."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A function identified by its location, "module:name", and imported when it is called."""

    place: str

    def __call__(self, *arguments: Any) -> Any:
        return resolve_name(self.place)(*arguments)

    def __bool__(self) -> bool:
        return bool(self.place)


NOTHING = Hook("")


@dataclass(frozen=True, slots=True)
class Target:
    """A target that runs kernels. Hooks are described as arguments -> result.

    Attributes:
        name: the user's name of the target.
        machine: `runtime.machine.MachineRequest` -> the `Machine` that runs a handle's kernels.
        common: name of the library that all models share, and a hook that compiles it.
        generates: -> True if this machine can generate code for tails of cells; left out if every machine can.
        is_gpu: True: virtual processors are thread blocks, and a kernel made for the model holds weights on the chip.
            False: they are threads of the host, and all models share one kernel, except for tails of cells.
        is_emulated: results are those of the real target, but times are not. `AUTO` never chooses it.
        has_archs: kernels are compiled for one of several architectures, not necessarily this machine's.
        fixed_vps: kernels are also compiled for one number of virtual processors.
        listings: listings of a compiled kernel that can be shown besides its source.
        why_unusable: -> the reason why this machine cannot run the target, or None; left out if every machine can.
        device: -> the GPU to plan for if the user names none, or None if there is no such GPU. GPU targets only.
        render: `KernelSpec`, True to only name the headers -> the source. GPU targets only.
        compile: `KernelSpec`, architecture -> `kernel.resources.Kernel`. GPU targets only.
    """

    name: str
    machine: Hook
    common: tuple[str, Hook] = ("", NOTHING)
    generates: Hook = NOTHING
    is_gpu: bool = False
    is_emulated: bool = False
    has_archs: bool = False
    fixed_vps: bool = False
    listings: tuple[str, ...] = ()
    why_unusable: Hook = NOTHING
    device: Hook = NOTHING
    render: Hook = NOTHING
    compile: Hook = NOTHING


CUDA = Target(
    "cuda",
    machine=Hook("vpps.runtime.cuda:CudaMachine.for_handle"),
    is_gpu=True,
    has_archs=True,
    fixed_vps=True,
    listings=("ptx", "sass"),
    why_unusable=Hook("vpps.runtime.driver:why_cuda_is_unusable"),
    device=Hook("vpps.runtime.driver:present_gpu"),
    render=Hook("vpps.kernel.render:render_cuda"),
    compile=Hook("vpps.runtime.cuda:compiled"),
)
CPU = Target(
    "cpu",
    machine=Hook("vpps.runtime.cpu:CpuMachine.for_handle"),
    common=("cpu kernel", Hook("vpps.kernel.host_compiler:build_cpu")),
    generates=Hook("vpps.kernel.host_compiler:has_compiler"),
    listings=("asm",),
)
SIMT = Target(
    "simt",
    machine=Hook("vpps.runtime.simt:SimtMachine.for_handle"),
    common=("emulator of a GPU", Hook("vpps.kernel.simt_compiler:build_emulator")),
    is_gpu=True,
    is_emulated=True,
    device=Hook("vpps.runtime.simt:default_gpu"),
    render=CUDA.render,
    compile=Hook("vpps.runtime.simt:compiled"),
)

TARGETS = {target.name: target for target in (CUDA, CPU, SIMT)}
"""Targets by name; `AUTO` is the first one that this machine has."""

GPUS = tuple(name for name, target in TARGETS.items() if target.is_gpu)


def target_named(name: object) -> Target:
    """Return the target with this name. Raises HandleError: there is no such target."""
    if not isinstance(name, str) or name not in TARGETS:
        raise HandleError(f"target={name!r}: expected {listed(TARGETS)}")
    return TARGETS[name]


def present_target() -> Target:
    """Return the target that `AUTO` stands for on this machine."""
    return next(t for t in TARGETS.values() if not t.is_emulated and not (t.why_unusable and t.why_unusable()))


def listed(names: Iterable[str]) -> str:
    """Format names as a list for messages: 'cpu', 'cuda' or 'simt'."""
    *others, last = map(repr, sorted(names))
    return f"{', '.join(others)} or {last}"
