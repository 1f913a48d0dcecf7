"""Tunes a model: candidates for its machine, their kernels, their times, the record for the database."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from vpps.engine.options import Example
from vpps.errors import CompileError, HandleError
from vpps.kernel.host_compiler import tile_of_machine
from vpps.kernel.render import tiles_of
from vpps.placement.onchip import Device
from vpps.profiling.measure import Batches, Measured, MeasuringPlan, measure
from vpps.profiling.search import SearchOutcome, candidates_of, search
from vpps.runtime.cores import default_vps, usable_cores
from vpps.targets import target_named
from vpps.tuning.candidates import Change, cpu_axes, gpu_axes
from vpps.tuning.compiling import Compiled, Compilers
from vpps.tuning.database import Tuned, TuningDatabase, key_for, now
from vpps.tuning.jobs import CpuJob
from vpps.tuning.subject import Recipe, Subject, cpu_job

Told = Callable[[str, int, int], None]
"""Is told what is being done ("compiled", "measured"), how often that was done, and how often it will be."""


def axes_named(names: Sequence[str], target: str) -> tuple[str, ...]:
    """Axes to search: the usual ones of the target, and those that are named; "all" names all.

    Raises:
        HandleError: there is no such axis on this target.
    """
    row = target_named(target)
    for name in names:
        if name not in (*row.axes, "all"):
            raise HandleError(f"axis {name!r}: on target {target} there are {', '.join(row.axes)}, and all")
    return tuple(name for name in row.axes if name in row.usual_axes or name in names or "all" in names)


def dry_run(
    subject: Subject, target: str, device: Device, arch: str, axes: Sequence[str], limit: int | None, told: Told
) -> tuple[list[Compiled], int, int]:
    """Compile all candidates for a GPU that need not be here.

    Returns:
        Kernels in the order of the candidates, how many candidates give the kernel of another one, how many are beyond
        the limit.

    Raises:
        HandleError, CapacityError: what is forced cannot be had.
        CompileError: there is no compiler for the architecture; raised before anything is compiled.
    """
    if arch:
        from vpps.kernel.nvrtc import check_arch

        check_arch(arch)
    chip = subject.chip(device)
    found, repeated, left_out = candidates_of(subject.base, gpu_axes(axes, chip, subject.base.onchip), chip, limit)
    rows = [Compiled(c.configuration, reason=c.reason) for c in found]
    possible = [k for k, c in enumerate(found) if not c.reason]
    with Compilers(subject.at_once) as compilers:
        done = compilers.all(
            Recipe(subject, target, device, arch, subject.base.vps), [found[k].configuration for k in possible]
        )
        for count, (k, compiled) in enumerate(done, 1):
            rows[possible[k]] = compiled
            told(f"compiled for {arch}", count, len(possible))
    return rows, repeated, left_out


def tune(
    subject: Subject,
    batches: Batches,
    plan: MeasuringPlan,
    axes: Sequence[str],
    device: Device | None,
    arch: str,
    limit: int | None,
    told: Told,
) -> SearchOutcome:
    """Compile and measure candidates, no more than `limit`; `device` and `arch` are None and "" on cpu.

    Raises:
        VppsError: the default configuration does not run; says why.
    """

    def timed(found: Sequence[Measured]) -> None:
        _compile(subject, [m for m in found if not m.reason], plan.target, device, arch, told)
        if all(m.reason for m in found):
            raise CompileError(found[0].reason)
        measure(subject.model, batches, found, plan, lambda done, turns: told("measured", done, turns))

    if device is None:
        return search(subject.base, _cpu_axes(subject, axes), timed, limit=limit)
    chip = subject.chip(device)
    return search(subject.base, gpu_axes(axes, chip, subject.base.onchip), timed, chip, limit)


def _cpu_axes(subject: Subject, names: Sequence[str]) -> dict[str, list[Change]]:
    cores = usable_cores()
    tiles = [tile.name for tile in tiles_of(tile_of_machine().isa)]
    return cpu_axes(names, cores, default_vps(cores, subject.train), tiles)


def _compile(
    subject: Subject, found: Sequence[Measured], target: str, device: Device | None, arch: str, told: Told
) -> None:
    """Have kernels in the cache; note the reason where there is none."""
    with Compilers(subject.at_once) as compilers:
        if device is not None:
            done = compilers.all(
                Recipe(subject, target, device, arch, subject.base.vps), [m.configuration for m in found]
            )
            for count, (k, compiled) in enumerate(done, 1):
                found[k].reason = compiled.reason
                told("compiled", count, len(found))
            return
        of_tile: dict[CpuJob, list[Measured]] = {}
        for measured in found:
            job, measured.reason = cpu_job(subject, measured.configuration)
            if job is not None:
                of_tile.setdefault(job, []).append(measured)
        jobs = list(of_tile)
        for count, (k, reason) in enumerate(compilers.each(jobs), 1):
            for measured in of_tile[jobs[k]]:
                measured.reason = reason
            told("compiled", count, len(jobs))


def record(subject: Subject, outcome: SearchOutcome, graphs: Sequence[Example], device: str, by: str) -> None:
    """Store what a search has found.

    Args:
        graphs: of the batches that were measured.
        device: as `device_name` has it.
        by: what measured.

    Raises:
        CompileError: the directory cannot be used.
    """
    cells = {cell for graph, _ in graphs for cell in graph.blocks}
    best = outcome.best
    vertices = int(statistics.median(len(graph) for graph, _ in graphs))
    tuned = Tuned(best.measured.configuration, best.measured.seconds, best.ratio, vertices, now(), by)
    key = key_for(subject.model, cells, device, subject.train, subject.base.precision)
    TuningDatabase().store(key, tuned)
