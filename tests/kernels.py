"""Kernels with more instructions than a test needs, so that few are compiled; for targets with one kernel per model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

import vpps.engine.engine
from vpps.kernel import host_compiler
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.spec import KernelSpec
from vpps.runtime.simt import SimtMachine
from vpps.script.instructions import TABLE

OF_HELD = frozenset({"load", "held_matvec", "matvec_transposed"})  # instructions of kernels that hold weights
# Instructions of a cell come with the cell.
EVERYTHING = frozenset(i.name for i in TABLE if not i.on_host) - OF_HELD - {"tail"}
OPTIMIZERS = ("sgd", "adam")  # used by most tests; code for all seven takes as long to compile as everything else
END_OF_LAUNCH = frozenset(
    i.name
    for i in TABLE
    if (
        i.form.startswith(("Update", "Outer", "StepTiles"))
        and i.name.partition(".")[2] in ("", *OPTIMIZERS)
        and not i.on_host
    )
    or i.form.startswith("Squares")
    or i.form in ("Clip", "ColumnSum", "DivideByCount", "Guard", "SumTiles", "Watch")
)


def widen(monkeypatch: pytest.MonkeyPatch, machine: type, widened: Callable[[KernelSpec], KernelSpec]) -> None:
    """Make machines of a class use the kernel for `widened(spec)` instead of `spec`."""
    specialise = machine.specialise  # type: ignore[attr-defined]
    monkeypatch.setattr(machine, "specialise", lambda self, spec: specialise(self, widened(spec)))


def know_the_end_of_launches(spec: KernelSpec) -> KernelSpec:
    """Add the usual optimizers, clipping and accumulating gradients to a spec."""
    return replace(spec, instructions=spec.instructions | END_OF_LAUNCH)


def know_gradients(spec: KernelSpec) -> KernelSpec:
    """Add gradients that the host reads, which a kernel for an example lacks, and the instructions that only "paper"
    needs in a model without means."""
    return replace(spec, instructions=spec.instructions | {"outer_tiles", "sum_tiles", "divide_by_count"})


def know_everything_in_memory(spec: KernelSpec) -> KernelSpec:
    """Add all instructions if there are no tails and no weights on the chip: one kernel serves every model."""
    is_special = spec.chip.slots or spec.chip.dense or spec.tails
    return spec if is_special else replace(spec, instructions=spec.instructions | EVERYTHING)


def compile_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the cpu target's kernels in 3 s instead of 20, for tests of other instruction sets or tiles. The usual
    kernel is still optimised."""
    flags = tuple("-O0" if flag == "-O2" else flag for flag in host_compiler.FLAGS)
    monkeypatch.setattr(host_compiler, "FLAGS", flags)


def compile_tails_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile tail libraries in a fifth of the time, for tests with many tails that run only a few times."""
    build = host_compiler.build_library

    def build_quickly(library: HostLibrary) -> Path:
        flags = tuple("-O0" if flag == "-O2" else flag for flag in library.flags)
        return build(replace(library, flags=flags) if library.name == "tails" else library)

    monkeypatch.setattr(host_compiler, "build_library", build_quickly)


class _NotLaunchedError(Exception):
    """Raised in place of a launch, after it is planned."""


def know_all_of(machine: type, calls: Iterable[Callable[[], object]]) -> Callable[[KernelSpec], KernelSpec]:
    """Make a kernel without weights on the chip serve all these handle calls, tails included. Plans the calls for
    machines of the given class, without launching them."""
    specs: list[KernelSpec] = []

    def note(self: object, spec: KernelSpec) -> bool:
        specs.append(spec)
        return True

    def stop(*unused: object) -> None:
        raise _NotLaunchedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "can_run", note)
        patch.setattr(machine, "launch", stop)
        for call in calls:
            with suppress(_NotLaunchedError):
                call()
    needed = reduce(KernelSpec.joined, specs)
    assert needed.tails
    return needed.joined


def emulate_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make emulated handles keep no weights on the chip, and share one kernel."""
    keep_weights_in_memory(monkeypatch)
    widen(monkeypatch, SimtMachine, know_everything_in_memory)


def keep_weights_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make handles keep no weights on the chip."""
    monkeypatch.setattr(vpps.engine.engine, "matrices_of", lambda *unused: {})
