"""`vpps-profile WORKLOAD`: finds the fastest configuration for a model on this machine, and keeps it for handles."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vpps.cli.console import Version, app_named, exit_codes, printed
from vpps.cli.inspected import AsJson, Output, Precision, Target, WorkloadName, as_file, chosen_target, emit, examples
from vpps.cli.options import AUTO_TARGET, TargetName, precisions_in
from vpps.cli.profile_tables import (
    compiled_json,
    compiled_table,
    left_out_notes,
    measured_json,
    measured_table,
    notes,
    why_unsteady,
)
from vpps.cli.streams import run_program
from vpps.cli.workload import REST, Workload, load_workload
from vpps.engine.ahead import gpu_for
from vpps.engine.configuration import Configuration
from vpps.engine.options import check_precision, check_precision_of
from vpps.errors import CompileError, HandleError
from vpps.model.precisions import ALL_EXACT
from vpps.ops.precision import EXACT
from vpps.placement.onchip import Device
from vpps.profiling import profiler
from vpps.profiling.measure import MeasuringPlan
from vpps.profiling.profiler import Told, axes_named
from vpps.targets import AUTO, CUDA, TARGETS
from vpps.tuning.database import device_name
from vpps.tuning.subject import Subject

PROGRAM = "vpps-profile"

USUAL_BATCH = 16
USUAL_BATCHES = 8
UNDO = "Undo it: VPPS_TUNING=0 for one program, vpps-cache clear --only-tuning for all."

app = app_named(PROGRAM)

BatchSize = Annotated[int, typer.Option(min=1, help="Examples per batch.")]
Vps = Annotated[int | None, typer.Option(min=1, help="Virtual processors, which are then not tuned.")]
Axes = Annotated[
    str,
    typer.Option(
        metavar="AXIS,...", show_default=False,
        help="Axes to search besides the usual ones, or all. cpu: vps, tile; policy (another one changes the last bits "
        "of gradients) and passes when asked. cuda, simt: slots "
        "(rows per warp, tiles, tiers of matrices); blocks, groups, gradients, transposed, policy, schedule and "
        "passes when asked.",
    ),
]  # fmt: skip
Inference = Annotated[bool, typer.Option("--inference", help="Tune evaluation of the loss, not training.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Compile all candidates for a GPU that need not be here, and run none.")
]
Arch = Annotated[
    list[str] | None,
    typer.Option(metavar="sm_XX", show_default="sm_90", help="With --dry-run: what to compile for; may be repeated."),
]
BatchCount = Annotated[int | None, typer.Option("--batches", min=1, show_default="8", help="Batches timed per turn.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns of every candidate.")]
Candidates = Annotated[
    int | None, typer.Option(min=1, show_default="all", help="Try the first N candidates only, the default included.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, show_default="one per core", help="Compilers at once.")
]
Store = Annotated[
    bool | None,
    typer.Option(
        "--store/--no-store", show_default="if times are steady",
        help="Keep the winner for handles, in the tuning database.",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class _Request:
    """What the command line asks for."""

    workload: Workload
    base: Configuration
    target: str
    axes: tuple[str, ...]
    train: bool
    candidates: int | None
    jobs: int | None
    as_json: bool
    output: Path | None

    @property
    def subject(self) -> Subject:
        """With the first batch as the typical one."""
        example = self.workload.first(1)[0]
        return Subject(self.workload.model, example, self.workload.optimizer, self.base, self.train, self.jobs)

    @property
    def what(self) -> str:
        """For titles."""
        w = self.workload
        settings = f" {w.settings}" if w.settings else ""
        precision = "" if self.base.precision == ALL_EXACT else f", {self.base.precision.describe()}"
        return f"{w.name}{settings}, batches of {w.batch_size}, {'training' if self.train else 'inference'}{precision}"

    def described(self) -> dict[str, Any]:
        """For programs."""
        w = self.workload
        return {
            "name": w.name, "settings": w.settings, "batch_size": w.batch_size, "train": self.train,
            "target": self.target, "axes": list(self.axes), "precision": self.base.precision.written,
        }  # fmt: skip


@app.command(
    context_settings=REST,
    **examples(
        f"{PROGRAM} tree-lstm --data trees --batch-size 16",
        f"{PROGRAM} my_module:build --inference --json --output tuned.json",
        f"{PROGRAM} tree-lstm --target cuda --axes blocks,gradients",
        f"{PROGRAM} tree-lstm --dry-run --arch sm_75 --arch sm_90",
    ),
)
def profile(
    context: typer.Context,
    workload: WorkloadName,
    batch_size: BatchSize = USUAL_BATCH,
    target: Target = AUTO_TARGET,
    vps: Vps = None,
    precision: Precision = EXACT.name,
    axes: Axes = "",
    inference: Inference = False,
    dry_run: DryRun = False,
    arch: Arch = None,
    batches: BatchCount = None,
    rounds: Rounds = 5,
    candidates: Candidates = None,
    jobs: Jobs = None,
    store: Store = None,
    as_json: AsJson = False,
    output: Output = None,
    version: Version = False,
) -> None:
    """Find the fastest configuration for a model on this machine, and keep it for handles.

    Kernels of all candidates are compiled side by side and timed over the same batches, in turns, on a copy of the
    model. Results do not depend on the configuration, only their time does. A vpps.Handle of the same model then uses
    what was found, on this device, for graphs of these cells; VPPS_TUNING=0 switches that off. What was measured once
    only (--rounds 1), or with times that vary much, is kept with --store alone.
    """
    with exit_codes(PROGRAM):
        if output is not None and not os.path.isdir(output.absolute().parent):
            raise HandleError(f"--output {output}: there is no folder {output.parent}; make it first")
        if arch and not dry_run:
            raise HandleError("--arch: kernels are compiled for the GPU that runs them; add --dry-run to run none")
        chosen = _target(target, dry_run)
        names = axes_named([name.strip() for name in axes.split(",") if name.strip()], chosen)
        loaded = load_workload(workload, batch_size, context.args)
        request = _Request(
            loaded, Configuration(vps=vps, precision=precisions_in(precision)), chosen, names, not inference,
            candidates, jobs, as_json, output,
        )  # fmt: skip
        check_precision(request.base.precision, chosen)
        check_precision_of(loaded.model, request.base.precision)
        if dry_run:
            _dry_run(request, arch or ["sm_90"])
        else:
            plan = MeasuringPlan(batches or USUAL_BATCHES, rounds, 2, not inference, chosen, loaded.optimizer)
            _tune(request, plan, store)


def _target(target: TargetName, dry_run: bool) -> str:
    """The target to tune for. Raises HandleError: it is not here."""
    if dry_run:
        name = CUDA.name if target == AUTO else str(target)
        if not TARGETS[name].is_gpu:
            raise HandleError(f"--dry-run: compilers for target {name} report no resources; leave it out to measure")
        return name
    chosen = chosen_target(target, None)
    why_unusable = TARGETS[chosen].why_unusable
    if why_unusable and (why := why_unusable()):
        raise HandleError(f"{why}; with --dry-run kernels are compiled all the same, and none is run")
    return chosen


def _dry_run(request: _Request, archs: Sequence[str]) -> None:
    has_archs = TARGETS[request.target].has_archs
    gpus = [gpu_for(request.target, None, name, None) for name in archs]
    found: dict[str, Any] = {}
    report: list[Table | str] = []
    for device, arch in gpus:
        with _progress() as told:
            rows, repeated, left_out = profiler.dry_run(
                request.subject, request.target, device, arch if has_archs else "", request.axes, request.candidates,
                told,
            )  # fmt: skip
        title, table = f"{request.what}: kernels for {arch} ({device.name})", compiled_table(rows, request.base)
        said: list[Table | str] = [title, table, *left_out_notes(repeated, left_out), ""]
        _print(request, said)
        report += said
        found[arch] = {
            "device": device.name, "candidates": compiled_json(rows, request.base), "repeated": repeated,
            "left_out": left_out,
        }  # fmt: skip
    _write(request, report, {"archs": found})
    for arch, of_arch in found.items():
        reasons = [candidate["reason"] for candidate in of_arch["candidates"]]
        if all(reasons):
            raise CompileError(f"nothing could be compiled for {arch or request.target}: {reasons[0]}")


def _tune(request: _Request, plan: MeasuringPlan, store: bool | None) -> None:
    machine_name, device, arch = _machine(request)
    subject, workload = request.subject, request.workload
    with _progress() as told:
        outcome = profiler.tune(subject, workload.batches, plan, request.axes, device, arch, request.candidates, told)
    failure: CompileError | None = None
    unsteady = why_unsteady(outcome, plan.rounds)
    wanted = not unsteady if store is None else store
    if wanted:
        try:
            profiler.record(subject, outcome, workload.first(plan.batches), machine_name, PROGRAM)
        except CompileError as error:
            failure = error  # raised at the end: what took minutes to measure is worth having all the same
    best = outcome.best
    default = best is outcome.rows[0]
    said = "nothing is clearly faster than the default" if default else f"{best.ratio:.2f}x the default"
    if outcome.rows[0].measured.times is None:
        said = "the default does not run"
    stored = wanted and failure is None
    kept = "kept for handles of this model" if stored else "not kept (--no-store)" if store is False else "not kept"
    winner = best.measured.configuration.describe(request.base)
    report: list[Table | str] = [f"{request.what} on {machine_name}", measured_table(outcome), *notes(outcome)]
    report.append(f"best: {winner}, {said}; {kept}")
    if unsteady:
        report.append(
            f"{unsteady[0].upper()}{unsteady[1:]}" + ("; --store keeps it all the same." if store is None else ".")
        )
    if stored:
        report.append(UNDO)
    _print(request, report)
    found = {"device": machine_name, "stored": stored, "unsteady": unsteady or None, **measured_json(outcome)}
    _write(request, report, found)
    if failure is not None:
        raise failure


def _machine(request: _Request) -> tuple[str, Device | None, str]:
    """The device of this machine as the database calls it, for planning, and the architecture."""
    from vpps.runtime.choice import make_machine
    from vpps.runtime.machine import Wanted

    base = request.base
    machine = make_machine(request.target, Wanted(base.vps, base.onchip, request.train, False))
    try:
        return device_name(machine), machine.device, machine.arch
    finally:
        machine.close()


def _print(request: _Request, what: Sequence[Table | str]) -> None:
    """On standard output, unless that is for JSON alone."""
    if not request.as_json or request.output is not None:
        printed(what)


def _write(request: _Request, report: Sequence[Table | str], found: dict[str, Any]) -> None:
    """What is asked for besides what was printed: JSON, or the same in a file."""
    if request.as_json or request.output is not None:
        emit(as_file(report, {"workload": request.described(), **found}, request.as_json), request.output)


@contextmanager
def _progress() -> Iterator[Told]:
    """A bar on a terminal, else lines; on standard error, so that what is printed stays clean."""
    if not sys.stderr.isatty():

        def line(what: str, done: int, total: int) -> None:
            if done == total or done % max(1, total // 10) == 0:
                print(f"{PROGRAM}: {what} {done}/{total}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def draw(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield draw


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 where nobody reads on."""
    run_program(PROGRAM, app)
