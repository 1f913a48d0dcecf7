"""`vpps-profile WORKLOAD`: finds the fastest configuration for a model on this machine, and keeps it for handles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vpps.cli.console import app_named, exit_codes, plain_console
from vpps.cli.options import TargetName
from vpps.cli.profile_tables import compiled_json, compiled_table, measured_json, measured_table, notes
from vpps.cli.workload import REST, WORKLOAD_HELP, Workload, load_workload
from vpps.errors import HandleError
from vpps.plan.onchip import Device
from vpps.tuning.configuration import Configuration
from vpps.tuning.database import device_name
from vpps.tuning.measure import Plan
from vpps.tuning.profiler import Subject, Told, axes_named, dry_run, record, tune

app = app_named("vpps-profile")

_EXAMPLES = """
[bold]Axes[/bold]

cpu: vps, tile and policy; passes when asked\n
cuda, simt: slots (rows per warp dealt in turns, tiles, tiers of matrices); blocks, groups, gradients, transposed,
policy, schedule and passes when asked

[bold]Examples[/bold]

vpps-profile tree-lstm --data trees --batch-size 16\n
vpps-profile my_module:build --inference --json tuned.json\n
vpps-profile tree-lstm --target cuda --axes blocks,gradients\n
vpps-profile tree-lstm --dry-run --arch sm_75 --arch sm_90
"""

Arch = Annotated[
    list[str] | None,
    typer.Option(
        metavar="sm_NN", show_default="sm_90", help="With --dry-run: what to compile for; may be repeated."
    ),
]  # fmt: skip
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all of it as JSON; - prints that only.")
]


class _Output(StrEnum):
    STANDARD = "-"


@dataclass(frozen=True)
class _Request:
    """What the command line asks for."""

    workload: Workload
    base: Configuration
    target: str
    axes: tuple[str, ...]
    inference: bool
    candidates: int | None
    jobs: int | None
    json: Path | None

    @property
    def subject(self) -> Subject:
        """Of the first batch."""
        example = self.workload.first(1)[0]
        return Subject(
            self.workload.model, example, self.workload.optimizer, self.base, not self.inference, self.jobs
        )  # fmt: skip

    @property
    def what(self) -> str:
        """For titles."""
        w = self.workload
        kind = "inference" if self.inference else "training"
        return f"{w.name}{f' {w.settings}' if w.settings else ''}, batches of {w.batch_size}, {kind}"


@app.command(context_settings=REST, epilog=_EXAMPLES)
def profile(
    ctx: typer.Context,
    workload: Annotated[str, typer.Argument(help=WORKLOAD_HELP)],
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per batch.")] = 16,
    target: Annotated[TargetName, typer.Option(help="What runs the kernel.")] = TargetName.AUTO,
    vps: Annotated[int | None, typer.Option(min=1, help="Virtual processors, not to be tuned.")] = None,
    axes: Annotated[
        str, typer.Option(metavar="AXIS,...", show_default=False, help="Search these axes as well; all for all.")
    ] = "",
    inference: Annotated[bool, typer.Option("--inference", help="Tune evaluation of the loss, not training.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compile all candidates for a GPU that is not here; run none.")
    ] = False,
    arch: Arch = None,
    batches: Annotated[int, typer.Option(min=1, help="Batches to time in a turn.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every candidate.")] = 5,
    candidates: Annotated[
        int | None, typer.Option(min=1, show_default="all", help="Try only the first N candidates of the space.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, show_default="one per core", help="Compilers at once.")
    ] = None,
    store: Annotated[bool, typer.Option(help="Keep the winner for handles, in the tuning database.")] = True,
    json_file: Json = None,
) -> None:
    """Find the fastest configuration for a model on this machine, and keep it for handles.

    Kernels of all candidates are compiled side by side and timed over the same batches, in turns, on a copy of the
    model. Results do not depend on the configuration, only their time does. A vpps.Handle of the same model then uses
    what was found; VPPS_TUNING=0 switches that off.
    """
    with exit_codes("vpps-profile"):
        if arch and not dry_run:
            raise HandleError("--arch: kernels are compiled for the GPU that runs them; add --dry-run to run none")
        chosen = _target(target, dry_run)
        if dry_run and chosen == "cpu":
            raise HandleError("--dry-run: a compiler for target cpu reports no resources; leave --dry-run out")
        names = axes_named([name.strip() for name in axes.split(",") if name.strip()], chosen)
        loaded = load_workload(workload, batch_size, ctx.args)
        request = _Request(
            loaded, Configuration(vps=vps), chosen, names, inference, candidates, jobs, json_file
        )  # fmt: skip
        if dry_run:
            _dry_run(request, arch or ["sm_90"])
        else:
            _tune(request, Plan(batches, rounds, train=not inference, target=chosen, optimizer=loaded.optimizer), store)


def _target(target: TargetName, dry_run: bool) -> str:
    """The target to tune for. Raises HandleError: it is not here."""
    if dry_run:
        return "cuda" if target is TargetName.AUTO else target.value
    from vpps.runtime.driver import why_cuda_is_unusable

    why = why_cuda_is_unusable() if target in (TargetName.AUTO, TargetName.CUDA) else None
    if target is TargetName.CUDA and why:
        raise HandleError(f"{why} With --dry-run kernels are compiled all the same, and none is run.")
    return ("cpu" if why else "cuda") if target is TargetName.AUTO else target.value


def _dry_run(request: _Request, archs: Sequence[str]) -> None:
    from vpps.ahead import gpu_for

    console, found = _console(request), {}
    for name in archs:
        device, arch = gpu_for(request.target, None, name, None)
        with _progress() as told:
            rows, repeated, left_out = dry_run(
                request.subject, device, arch, request.axes, request.candidates, told
            )  # fmt: skip
        if console is not None:
            console.print(compiled_table(rows, f"{request.what}: kernels for {arch} ({device.name})"))
            console.print()
        found[arch] = {
            "device": device.name, "candidates": compiled_json(rows), "repeated": repeated, "left_out": left_out
        }  # fmt: skip
    _write_json(request, {"workload": _described(request), "archs": found})


def _tune(request: _Request, plan: Plan, store: bool) -> None:
    machine_name, device, arch = _machine(request)
    subject = request.subject
    with _progress() as told:
        outcome = tune(
            subject, request.workload.batches, plan, request.axes, device, arch, request.candidates, told
        )  # fmt: skip
    best = outcome.best
    console = _console(request)
    if console is not None:
        console.print(measured_table(outcome, f"{request.what} on {machine_name}"))
        for note in notes(outcome):
            console.print(note)
    graphs = request.workload.first(plan.batches)
    kept = None
    if store:
        _, kept = record(subject, outcome, graphs, machine_name)
    if console is not None:
        default = best is outcome.rows[0]
        said = "nothing is clearly faster than the default" if default else f"{best.ratio:.2f}x the default"
        stored = "kept for handles of this model" if store else "not kept (--no-store)"
        console.print(f"best: {best.measured.configuration.describe()}, {said}; {stored}")
    result = {"workload": _described(request), "device": machine_name, "stored": kept is not None}
    _write_json(request, result | measured_json(outcome))


def _machine(request: _Request) -> tuple[str, Device | None, str]:
    """The device of this machine as the database calls it, for planning, and the architecture."""
    from vpps.runtime.choice import make_machine

    base = request.base
    machine = make_machine(request.target, base.vps, base.onchip, not request.inference, False)
    try:
        return device_name(machine), machine.device, machine.arch
    finally:
        machine.close()


def _described(request: _Request) -> dict[str, Any]:
    w = request.workload
    return {
        "name": w.name, "settings": w.settings, "batch_size": w.batch_size, "train": not request.inference,
        "target": request.target, "axes": list(request.axes),
    }  # fmt: skip


def _console(request: _Request) -> Console | None:
    """Standard output; None where it is for JSON alone."""
    return None if str(request.json) == _Output.STANDARD else plain_console()


def _write_json(request: _Request, found: dict[str, Any]) -> None:
    if request.json is None:
        return
    text = json.dumps(found, indent=1) + "\n"
    if str(request.json) == _Output.STANDARD:
        sys.stdout.write(text)
        return
    try:
        request.json.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HandleError(f"--json {request.json}: cannot be written: {error.strerror}") from error


@contextmanager
def _progress() -> Iterator[Told]:
    """On a terminal a bar, else lines; on standard error, so that what is printed stays clean."""
    if not sys.stderr.isatty():

        def line(what: str, done: int, total: int) -> None:
            print(f"vpps-profile: {what} {done}/{total}", file=sys.stderr)

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
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    app()
