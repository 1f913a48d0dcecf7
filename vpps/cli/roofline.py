"""`vpps-profile --roofline`: what a launch has to do, the least time for it on this machine, the time it took."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vpps.cli.console import printed, table_of
from vpps.cli.inspected import as_file, emit
from vpps.cli.options import precisions_in
from vpps.cli.workload import load_workload
from vpps.compiler.schedule import SCHEDULES
from vpps.engine.options import check_precision, check_precision_of
from vpps.errors import WorkloadError
from vpps.kernel.host_compiler import tile_of_machine
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.precision import EXACT
from vpps.profiling.roofline import BATCHES, PASSES, Point, estimated_point, measured_point
from vpps.report.roofline.peaks import MIB, Peaks, machine_peaks
from vpps.report.roofline.sheets import device_named, sheet_peaks
from vpps.runtime.cores import default_vps, usable_cores
from vpps.runtime.cpu import MAX_VPS
from vpps.targets import AUTO, CPU, target_named
from vpps.text import counted

BATCH_SIZES = (1, 8, 64)
BUSY = 0.75  # load of a core, from which on times are no good


def roofline(
    name: str,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    rest: Sequence[str] = (),
    *,
    target: str = AUTO,
    vps: int | None = None,
    schedule: str = "vector",
    batches: int = BATCHES,
    passes: int = PASSES,
    remeasure: bool = False,
    device: str | None = None,
    precision: str = EXACT.name,
    as_json: bool = False,
    output: Path | None = None,
) -> None:
    """Measure, and print a table or JSON. Numbers are positive: the command line has seen to that.

    Args:
        batch_sizes: each is a point.
        rest: settings of the workload, as arguments of a command line.
        target: one that is no GPU, or `AUTO`.
        batches, passes: that are measured for each point.
        remeasure: what the machine gives, though that is known from before.
        device: name of a GPU: its floors by its data sheet, and nothing is measured.
        precision: as of the command line.
        output: a file for what is printed.

    Raises:
        VppsError: an argument is wrong, with a sentence that says which and what to do.
    """
    precisions = precisions_in(precision)
    _check(target, vps, schedule, device, precisions)
    gpu = None if device is None else device_named(device)
    workloads = [load_workload(name, size, rest) for size in batch_sizes]
    if precisions != ALL_EXACT:
        check_precision_of(workloads[0].model, precisions)
        workloads = [replace(w, settings=f"{w.settings} precision={precision}".strip()) for w in workloads]
    n_vps = default_vps(usable_cores(), overlapped=True) if vps is None else vps
    with _progress() as progress:
        if gpu is not None:
            peaks = sheet_peaks(gpu)
            points = [estimated_point(w, gpu, schedule, batches, progress) for w in workloads]
        else:
            peaks = machine_peaks(n_vps, tile_of_machine().isa, remeasure, lambda what: progress(f"machine: {what}"))
            _warn_if_busy()
            points = [measured_point(w, peaks, schedule, batches, passes, progress, precisions) for w in workloads]
    if as_json or output is not None:
        found = {"machine": peaks.as_json(), "points": [point.as_json() for point in points]}
        emit(as_file(_report(points, peaks), found, as_json), output)
    else:
        printed(_report(points, peaks))


def _warn_if_busy() -> None:
    """Say so where other programs will take part of the time."""
    cores = usable_cores()
    if (load := os.getloadavg()[0]) > BUSY * cores:
        print(
            f"vpps-profile: this machine has a load of {load:.1f} on {cores} cores: others take part of the time",
            file=sys.stderr,
        )


def _check(target: str, vps: int | None, schedule: str, device: str | None, precisions: Precisions) -> None:
    """Raise WorkloadError where an argument is wrong."""
    row = None if target == AUTO else target_named(target)
    if device is not None and ((row is not None and not row.has_archs) or vps is not None):
        given = f"--target {target}" if vps is None else f"--vps {vps}"
        raise WorkloadError(f"--device {device} {given}: the device says what runs and on how many; leave {given} out")
    if device is None and row is not None and row.is_gpu:
        raise WorkloadError(
            f"--roofline --target {target}: what a machine gives is measured for target cpu only; use --target cpu, or "
            "--device NAME for the floors of a GPU by its data sheet"
        )
    if device is not None and precisions != ALL_EXACT:
        raise WorkloadError(f"--device {device}: a GPU's floor is that of float32; leave --precision out")
    check_precision(precisions, CPU.name)
    if vps is not None and not 1 <= vps <= MAX_VPS:
        raise WorkloadError(f"--vps {vps}: expected 1 to {MAX_VPS}")
    if schedule not in SCHEDULES:
        raise WorkloadError(f"--schedule {schedule}: expected one of {', '.join(SCHEDULES)}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says what is going on, where somebody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    with console.status("") as status:
        yield status.update


def _report(points: Sequence[Point], peaks: Peaks) -> Iterator[Table | str]:
    """A short description of the machine, then two tables for each point."""
    yield (
        f"{peaks.name} ({peaks.isa}), {counted(peaks.n_vps, 'virtual processor')}, {peaks.source}"
        + (f" at load {peaks.load:g}" if peaks.load is not None else "")
        + f": {peaks.flops / 1e9:.0f} GFLOP/s, read {_rates(peaks)}, barrier {peaks.barrier * 1e6:.1f} us, "
        f"launch {peaks.launch * 1e6:.0f} us"
    )
    for point in points:
        title = " ".join(filter(None, (point.workload, point.settings)))
        yield (
            f"\n{title}, batch size {point.batch_size}, schedule {point.schedule}: averages of {point.batches} launches"
            + (f", medians of {point.passes} passes" if point.passes else ", not measured")
        )
        yield _floors(point)
        yield _phases(point)
        if (conclusion := _conclusion(point)) is not None:
            yield conclusion


def _conclusion(point: Point) -> str | None:
    """What is most above its floor, a phase or waiting; None where nothing was measured."""
    farthest = point.farthest
    if farthest is None or farthest.ratio is None or farthest.seconds is None:
        return None
    most = f"{farthest.name}, {farthest.ratio:.2f} x"
    waiting = (point.waiting or 0.0) - point.floor.barriers
    if waiting > farthest.seconds - farthest.floor.seconds:
        most = f"waiting, {_us(point.waiting)} us of {_us(point.seconds)}; of the phases, {most}"
    return (
        f"most time above its floor: {most}\n"
        f"a training step takes {_us(point.step)} us with the host's planning beside the launch"
    )


def _rates(peaks: Peaks) -> str:
    sizes = [size for size in peaks.read.sizes if size in (peaks.read.sizes[0], 1 * MIB, 8 * MIB, peaks.read.sizes[-1])]
    return ", ".join(
        f"{peaks.read.at(size) / 1e9:.0f} GB/s from {'' if k else 'a buffer of '}{_size(size)}"
        for k, size in enumerate(sizes)
    )


def _size(size: float) -> str:
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size / 1024:g} KiB"


def _floors(point: Point) -> Table:
    """What a launch has to do, and the time that each of it takes at least."""
    amount = point.amount
    parameters = amount.weights + amount.gradients + amount.updates
    rows = [
        ("compute", f"{amount.flops / 1e6:.2f} MFLOP", _us(point.floor.of("compute"))),
        ("weights", f"{parameters / 1e6:.2f} MB", _us(point.floor.of("weights"))),
        ("activations", f"{(amount.activations + amount.script) / 1e6:.2f} MB", _us(point.floor.of("activations"))),
        ("barriers", f"{point.barriers:.0f}", _us(point.floor.barriers)),
        ("launch", "1", _us(point.floor.launch)),
        ("floor", f"{point.resident / MIB:.1f} MiB in use", _us(point.floor.seconds)),
    ]
    if point.seconds is not None:
        rows.append(("measured", f"{point.ratio:.2f} x the floor", _us(point.seconds)))
    return table_of(("a launch", "amount", "floor us"), rows, left=("a launch",))


def _phases(point: Point) -> Table:
    """Phase by phase."""
    times = () if point.seconds is None else ("measured us", "x floor", "GFLOP/s", "GB/s")
    rows: list[tuple[str, ...]] = []
    for phase in point.phases:
        amounts = f"{phase.amount.flops / 1e6:.2f}", f"{phase.amount.bytes / 1e6:.2f}", f"{phase.intensity:.2f}"
        floor = _us(phase.floor.seconds), phase.floor.bound
        found: tuple[str, ...] = ()
        if phase.seconds:
            rates = (phase.amount.flops, phase.amount.bytes)
            found = _us(phase.seconds), f"{phase.ratio:.2f}", *(f"{n / phase.seconds / 1e9:.1f}" for n in rates)
        rows.append((phase.name, *amounts, *floor, *found))
    waited: tuple[str, ...] = ()
    if point.waiting is not None:
        ratio = f"{point.waiting / point.floor.barriers:.2f}" if point.floor.barriers else ""
        waited = _us(point.waiting), ratio
    rows.append(("waiting", "", "", "", _us(point.floor.barriers), "", *waited))
    return table_of(("phase", "MFLOP", "MB", "FLOP/byte", "floor us", "bound", *times), rows, left=("phase",))


def _us(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.1f}"
