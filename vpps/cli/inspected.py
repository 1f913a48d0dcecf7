"""What the commands of `vpps-inspect` share: options, a batch planned as they say, reports printed or written."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vpps.cli.console import plain_console
from vpps.cli.options import TargetName
from vpps.cli.workload import WORKLOAD_HELP, Workload, load_workload
from vpps.config import PASSES, TARGET
from vpps.errors import HandleError, WorkloadError
from vpps.inspection.inspection import Inspection, inspect
from vpps.inspection.listing import Listing
from vpps.inspection.report import Report
from vpps.plan.passes import Passes
from vpps.plan.policies import POLICIES
from vpps.plan.schedule import SCHEDULES
from vpps.targets import AUTO, CUDA, TARGETS, listed, present_target
from vpps.tuning.configuration import Configuration
from vpps.tuning.database import device_called, tuned_on

WorkloadName = Annotated[str, typer.Argument(metavar="WORKLOAD", help=WORKLOAD_HELP, show_default=False)]
AnyWorkload = Annotated[
    str | None,
    typer.Argument(
        metavar="[WORKLOAD]",
        help=WORKLOAD_HELP + " Target cpu needs none: its kernel is the same for all models.",
        show_default=False,
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples per batch.")]
Target = Annotated[
    TargetName, typer.Option(show_default="cuda with --arch or where there is a GPU, else cpu", help="What runs it.")
]
Arch = Annotated[
    str | None,
    typer.Option(metavar="sm_XX", help="GPU to plan and compile for, such as sm_90; it need not be there."),
]
Vps = Annotated[int | None, typer.Option(min=1, help="Virtual processors; by default as many as the target likes.")]
Policy = Annotated[
    str | None, typer.Option(metavar="|".join(POLICIES), help="Batching policy.", show_default="sinks-last")
]
Schedule = Annotated[
    str | None, typer.Option(metavar="|".join(SCHEDULES), help="How steps become instructions.", show_default="vector")
]
Train = Annotated[bool, typer.Option("--train/--inference", help="What the batch is planned for.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Lines = Annotated[str | None, typer.Option(metavar="FIRST:LAST", help="Only these lines.")]
Numbers = Annotated[
    bool | None, typer.Option("--numbers/--no-numbers", show_default="on a terminal", help="Number the lines.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write to this file.")]


def chosen_target(target: TargetName, arch: str | None) -> str:
    """The target that options, environment and machine lead to. Raises typer.BadParameter, HandleError."""
    if arch is not None:
        if target not in (AUTO, CUDA.name):
            raise typer.BadParameter(f"means nothing for target {target}", param_hint="--arch")
        return CUDA.name
    name = TARGET.get() if target == AUTO else str(target)
    if name == AUTO:
        return present_target().name
    if name not in TARGETS:
        raise HandleError(f"{TARGET.name}={name}: expected {listed((AUTO, *TARGETS))}")
    return name


def workload_of(name: str | None, batch_size: int, rest: Sequence[str]) -> Workload:
    """A workload that must be there. Raises WorkloadError."""
    if name is None:
        raise WorkloadError("name a task or module:function: what is shown depends on the model")
    return load_workload(name, batch_size, rest)


def inspected(
    workload: Workload,
    target: TargetName,
    arch: str | None = None,
    vps: int | None = None,
    policy: str | None = None,
    schedule: str | None = None,
    train: bool = True,
    compiled: bool = False,
) -> Inspection:
    """The first batch of a workload, planned (and its kernel compiled) as the options say.

    What they leave open is as the tuning database has it, as for a handle; then a line on standard error says so.
    """
    example = workload.first(1)[0]
    runs_on = chosen_target(target, arch)
    given: dict[str, Any] = {"vps": vps, "policy": policy, "schedule": schedule}
    given = {name: value for name, value in given.items() if value is not None}
    if PASSES.is_set:
        given["passes"] = Passes.from_environment()
    # Of a GPU that is named nothing was measured here.
    tuned = tuned_on(workload.model, example[0], lambda: _device(runs_on), train) if arch is None else None
    configuration = Configuration(**given)
    if tuned is not None:
        configuration = replace(tuned.configuration, **given)
        print(
            f"vpps-inspect: as tuned: {tuned.describe()}; options come first, VPPS_TUNING=0 is the default",
            file=sys.stderr,
        )
    return inspect(
        workload.model,
        example,
        runs_on,
        arch,
        configuration=configuration,
        train=train,
        optimizer=workload.optimizer,
        compiled=compiled,
    )


def _device(target: str) -> str:
    """The device of this machine that handles would use, as the tuning database calls it; "" where there is none."""
    row = TARGETS[target]
    if not row.is_gpu:
        from vpps.kernel.host_compiler import tile_of_machine

        return device_called(target, tile_of_machine().isa, None)
    gpu = row.device()
    return "" if gpu is None else device_called(target, "", gpu)


def show(report: Report, as_json: bool, output: Path | None) -> None:
    """Print a report, or write it to a file."""
    emit(json.dumps(report.as_json()) + "\n" if as_json else report.text(), output)


def emit(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file. Raises WorkloadError where that cannot be written."""
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WorkloadError(f"{output} cannot be written ({error.strerror}); choose another --output") from error


def show_listing(listing: Listing, lines: str | None, numbers: bool | None, as_json: bool, output: Path | None) -> None:
    """Print a listing: on a terminal with colours and numbers of lines, elsewhere as it is; or write it to a file.

    Args:
        lines: "120:160", "120:", ":160", "120": only these.
        numbers: of lines; None: on a terminal.

    Raises:
        typer.BadParameter: `lines` is nothing like that.
        KernelError: there are no such lines.
    """
    if lines is not None:
        listing = listing.between(*_range(lines))
    on_terminal = output is None and sys.stdout.isatty()
    if as_json or not on_terminal:
        if numbers and not as_json:
            emit(listing.numbered(), output)
        else:
            show(listing, as_json, output)
        return
    from rich.syntax import Syntax

    plain_console().print(
        Syntax(
            listing.source.rstrip("\n"),
            listing.language,
            theme="ansi_dark",
            background_color="default",
            line_numbers=numbers is not False,
            start_line=listing.first,
        )
    )


def _range(lines: str) -> tuple[int, int | None]:
    first, colon, last = lines.partition(":")
    try:
        return int(first or 1), int(last) if last else (None if colon else int(first))
    except ValueError:
        raise typer.BadParameter(f"{lines!r}: expected FIRST:LAST, such as 120:160", param_hint="--lines") from None


def examples(*lines: str) -> dict[str, Any]:
    """Settings of a command: its examples, below its options."""
    return {"epilog": "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)}
