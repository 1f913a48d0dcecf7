"""Tunes a model: candidates for its machine, their kernels, their times, the record for the database."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from vpps.engine.configuration import Configuration
from vpps.engine.options import Example
from vpps.errors import CompileError, HandleError
from vpps.placement.onchip import Device
from vpps.profiling.measure import Batches, Measured, MeasuringPlan, measure
from vpps.profiling.search import SearchOutcome, candidates_of, search
from vpps.targets import target_named
from vpps.tuning.candidates import Change, cpu_axes, gpu_axes
from vpps.tuning.compiling import Compiled, Compilers
from vpps.tuning.database import Key, Tuned, TuningDatabase, key_for, now
from vpps.tuning.jobs import CpuJob
from vpps.tuning.subject import Recipe, Subject, cpu_job

Told = Callable[[str, int, int], None]
"""Is told what is being done ("compiled", "measured"), how often that was done, and how often it will be."""


def told_nobody(what: str, done: int, total: int) -> None:
    """For whoever does not want to know."""


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
    subject: Subject,
    target: str,
    device: Device,
    arch: str,
    axes: Sequence[str],
    limit: int | None = None,
    told: Told = told_nobody,
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
    device: Device | None = None,
    arch: str = "",
    limit: int | None = None,
    told: Told = told_nobody,
) -> SearchOutcome:
    """Compile and measure candidates.

    Args:
        subject: what is tuned.
        batches: to measure with.
        plan: how long, on which target.
        axes: names.
        device, arch: the GPU of this machine; None and "" on cpu.
        limit: measure no more than so many.
        told: of progress.

    Raises:
        VppsError: the default configuration does not run; says why.
    """

    def timed(configurations: Sequence[Configuration]) -> list[Measured]:
        reasons = _compile(subject, configurations, plan.target, device, arch, told)
        left = [c for c, reason in zip(configurations, reasons, strict=True) if not reason]
        if not left:
            raise CompileError(reasons[0])
        times = iter(
            measure(subject.model, batches, left, plan, lambda done, turns: told("measured", done, turns))
        )  # fmt: skip
        return [
            Measured(c, reason=reason) if reason else next(times)
            for c, reason in zip(configurations, reasons, strict=True)
        ]

    if device is None:
        return search(subject.base, _cpu_axes(subject, axes), timed, limit=limit)
    chip = subject.chip(device)
    return search(subject.base, gpu_axes(axes, chip, subject.base.onchip), timed, chip, limit)


def _cpu_axes(subject: Subject, names: Sequence[str]) -> dict[str, list[Change]]:
    from vpps.kernel.host_compiler import tile_of_machine
    from vpps.kernel.render import tiles_of
    from vpps.runtime.cores import default_vps, usable_cores

    cores = usable_cores()
    tiles = [tile.name for tile in tiles_of(tile_of_machine().isa)]
    return cpu_axes(names, cores, default_vps(cores, subject.train), tiles)


def _compile(
    subject: Subject,
    configurations: Sequence[Configuration],
    target: str,
    device: Device | None,
    arch: str,
    told: Told,
) -> list[str]:
    """Have kernels in the cache. Reasons why there is none, in order; "" where there is."""
    reasons = [""] * len(configurations)
    with Compilers(subject.at_once) as compilers:
        if device is not None:
            done = compilers.all(Recipe(subject, target, device, arch, subject.base.vps), configurations)
            for count, (k, compiled) in enumerate(done, 1):
                reasons[k] = compiled.reason
                told("compiled", count, len(configurations))
            return reasons
        of_tile: dict[CpuJob, list[int]] = {}
        for k, configuration in enumerate(configurations):
            job, reasons[k] = cpu_job(subject, configuration)
            if job is not None:
                of_tile.setdefault(job, []).append(k)
        jobs = list(of_tile)
        for count, (k, reason) in enumerate(compilers.each(jobs), 1):
            for c in of_tile[jobs[k]]:
                reasons[c] = reason
            told("compiled", count, len(jobs))
    return reasons


def record(
    subject: Subject,
    outcome: SearchOutcome,
    graphs: Sequence[Example],
    device: str,
    by: str = "vpps-profile",
    database: TuningDatabase | None = None,
) -> tuple[Key, Tuned]:
    """Store what a search has found.

    Args:
        graphs: of the batches that were measured.
        device: as `device_name` has it.
        by: what measured.
        database: default: the one in the cache directory.

    Raises:
        CompileError: the directory cannot be used.
    """
    cells = {cell for graph, _ in graphs for cell in graph.blocks}
    key = key_for(subject.model, cells, device, subject.train)
    best = outcome.best
    vertices = int(statistics.median(len(graph) for graph, _ in graphs))
    tuned = Tuned(best.measured.configuration, best.measured.seconds, best.ratio, vertices, now(), by)
    (TuningDatabase() if database is None else database).store(key, tuned)
    return key, tuned
