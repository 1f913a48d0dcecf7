"""The targets: what runs kernels. A row says what a target can do and names what compiles for it and runs it.

Elsewhere the rows are asked for what is meant - whether weights are held on a chip, whether times are real - and no
target is known by its name. Nothing is imported for a row before it is used.
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
    """A function, named by its place, "module:name", and imported when it is called."""

    place: str

    def __call__(self, *arguments: Any) -> Any:
        return resolve_name(self.place)(*arguments)

    def __bool__(self) -> bool:
        return bool(self.place)


NOTHING = Hook("")


@dataclass(frozen=True, slots=True)
class Target:
    """What runs kernels.

    Attributes:
        name: what users call it.
        machine: `runtime.machine.MachineRequest` -> the `Machine` that runs a handle's kernels.
        common: what is the same for every model, and -> compiles it.
        generates: -> whether code for tails of cells can be generated on this machine; left out where it always can.
        is_gpu: virtual processors are blocks of threads and weights are held on the chip by kernels that are made for a
            model; else they are threads of the host, and one kernel serves all models, but for tails of cells.
        is_emulated: what is executed is as on the real one, how long it takes is not. Never chosen by `AUTO`.
        has_archs: kernels are compiled for one of several architectures, which need not be that of this machine.
        fixed_vps: they are also compiled for one number of virtual processors.
        listings: what can be shown of a compiled kernel besides its source.
        why_unusable: -> why this machine does not have it, or None; left out where every machine does.
        device: -> the GPU to plan for where none is named, or None if there is no such GPU; of GPUs alone, as
        render: `KernelSpec`, whether headers are only named -> the source, and
        compile: `KernelSpec`, architecture -> `kernel.resources.Kernel`.
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
"""By name; `AUTO` is the first one that is there."""

GPUS = tuple(name for name, target in TARGETS.items() if target.is_gpu)


def target_named(name: object) -> Target:
    """A row of the table. Raises HandleError: there is no such target."""
    if not isinstance(name, str) or name not in TARGETS:
        raise HandleError(f"target={name!r}: expected {listed(TARGETS)}")
    return TARGETS[name]


def present_target() -> Target:
    """What `AUTO` means on this machine."""
    return next(t for t in TARGETS.values() if not t.is_emulated and not (t.why_unusable and t.why_unusable()))


def listed(names: Iterable[str]) -> str:
    """For messages: 'cpu', 'cuda' or 'simt'."""
    *others, last = map(repr, sorted(names))
    return f"{', '.join(others)} or {last}"
