"""Helpers for all `vpps-inspect` commands: define options, plan a batch with them, print or write reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from vpps.cli.console import exit_codes, plain_console
from vpps.cli.options import AUTO_TARGET, PRECISION_HELP, PRECISION_METAVAR, TargetName, policy_for, precisions_in
from vpps.cli.settings import keyword
from vpps.cli.workload import REST, WORKLOAD_HELP, Workload, load_workload
from vpps.compiler.schedule import SCHEDULES
from vpps.config import TARGET
from vpps.engine.configuration import Configuration
from vpps.errors import HandleError, KernelError, WorkloadError
from vpps.files import followed
from vpps.kernel.diagnostics import numbered
from vpps.ops.precision import EXACT
from vpps.planner.native.policy_table import POLICIES
from vpps.report.inspection import Inspection, inspect
from vpps.targets import AUTO, CUDA, TARGETS, listed, present_target

PROGRAM = "vpps-inspect"

WorkloadName = Annotated[str, typer.Argument(metavar="WORKLOAD", help=WORKLOAD_HELP, show_default=False)]
AnyWorkload = Annotated[
    str | None,
    typer.Argument(
        metavar="[WORKLOAD]",
        help=WORKLOAD_HELP + " Without a workload: the kernels that all models share.",
        show_default=False,
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples per batch.")]
Target = Annotated[
    TargetName, typer.Option(show_default="cuda with --arch or if there is a GPU, else cpu", help="Target.")
]
Arch = Annotated[
    str | None,
    typer.Option(metavar="sm_XX", help="GPU to plan and compile for, such as sm_90; this machine need not have it."),
]
Vps = Annotated[int | None, typer.Option(min=1, help="Virtual processors; by default, the target's own number.")]
Policy = Annotated[
    str | None, typer.Option(metavar="|".join(POLICIES), help="Batching policy.", show_default="sinks-last")
]
Schedule = Annotated[
    str | None, typer.Option(metavar="|".join(SCHEDULES), help="Instruction scheme.", show_default="vector")
]
Precision = Annotated[str, typer.Option(metavar=PRECISION_METAVAR, help=PRECISION_HELP)]
Train = Annotated[bool, typer.Option("--train/--inference", help="Plan the batch for training or for inference.")]
Lines = Annotated[str | None, typer.Option(metavar="FIRST:LAST", help="Show only these lines.")]
Numbers = Annotated[
    bool | None, typer.Option("--numbers/--no-numbers", show_default="on a terminal", help="Number the lines.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write to this file.")]


def chosen_target(target: TargetName, arch: str | None) -> str:
    """Return the target that options, environment and machine select. Raises typer.BadParameter, HandleError."""
    if arch is not None:
        if target not in (AUTO, CUDA.name):
            raise typer.BadParameter(f"does not apply to target {target}", param_hint="--arch")
        return CUDA.name
    name = TARGET.get() if target == AUTO else str(target)
    if name == AUTO:
        return present_target().name
    if name not in TARGETS:
        raise HandleError(f"{TARGET.name}={name}: expected {listed((AUTO, *TARGETS))}")
    return name


Shower = Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Option values of a `vpps-inspect` command; every command has some of these options.

    Attributes:
        rest: settings of the task, as command line arguments.
    """

    workload: WorkloadName | None
    batch_size: BatchSize = 16
    target: Target = AUTO_TARGET
    arch: Arch = None
    vps: Vps = None
    policy: Policy = None
    schedule: Schedule = None
    precision: Precision = EXACT.name
    train: Train = True
    lines: Lines = None
    numbers: Numbers = None
    output: Output = None
    rest: Sequence[str] = ()

    @cached_property
    def batches(self) -> Workload:
        """The workload. Raises WorkloadError if there is none."""
        if self.workload is None:
            raise WorkloadError("name a task or module:function: the output depends on the model")
        return load_workload(self.workload, self.batch_size, self.rest)

    def inspected(self, compiled: bool = False, arch: str | None = None) -> Inspection:
        """Plan the first batch of the workload with these options.

        Args:
            compiled: also compile the kernel.
            arch: architecture of the GPU; overrides the option.
        """
        workload, arch = self.batches, arch or self.arch
        example = workload.first(1)[0]
        runs_on = chosen_target(self.target, arch)
        options = {"vps": self.vps, "policy": policy_for(self.policy, example[0]), "schedule": self.schedule}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        given["precision"] = precisions_in(self.precision)
        return inspect(
            workload.model, example, runs_on, arch, configuration=Configuration(**given), train=self.train,
            optimizer=workload.optimizer, compiled=compiled,
        )  # fmt: skip


def command(
    app: typer.Typer,
    *lines: str,
    options: str = "",
    language: str = "",
    types: dict[str, Any] | None = None,
    **defaults: Any,
) -> Callable[[Shower], Shower]:
    """Turn a function of a `Request` and its own options into a command that prints or writes the function's result.

    Args:
        lines: examples for the help text.
        options: further fields of `Request` that become options. Every command has workload and batch size, and
            output unless the function declares it.
        language: Pygments name of the program's language, if the result is a program; adds the line options.
        types: option declarations that replace those of `Request`.
        defaults: default values that replace those of `Request`.
    """

    def add(function: Shower) -> Shower:
        hints = get_type_hints(Request, include_extras=True) | {"workload": WorkloadName} | (types or {})
        usual = {f.name: f.default for f in fields(Request)} | {"workload": Parameter.empty} | defaults
        own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature(function, eval_str=True).parameters.values()][1:]
        names = ["workload", "batch_size", *options.split(), *(("lines", "numbers") if language else ())]
        ending = [name for name in ("output",) if name not in {p.name for p in own}]
        first, last = ([keyword(name, usual[name], hints[name]) for name in part] for part in (names, ending))

        def run(context: typer.Context, **given: Any) -> None:
            with exit_codes(PROGRAM):
                request = Request(**defaults | {name: given.pop(name) for name in (*names, *ending)}, rest=context.args)
                found = function(request, **given)
                if language:
                    show_program(found, function.__name__, language, request)
                else:
                    emit(found, request.output)

        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        run.__signature__ = Signature([context, *first, *own, *last])  # type: ignore[attr-defined]
        run.__doc__ = function.__doc__
        app.command(function.__name__, context_settings=REST, **examples(*lines))(run)
        return function

    return add


def emit(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file. Raises WorkloadError if the file cannot be written."""
    if output is None:
        print(text, end="")
        return
    try:
        followed(output).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WorkloadError(f"{output} cannot be written ({error.strerror}); choose another --output") from error


def show_program(text: str, what: str, language: str, request: Request) -> None:
    """Print a program, with colours and line numbers on a terminal, or write it to a file.

    Args:
        what: name of the text for error messages.
        language: Pygments name of the language.

    Raises:
        typer.BadParameter: `--lines` is not a range.
        KernelError: there are no such lines.
    """
    first = 1
    if request.lines is not None:
        first, last = _range(request.lines)
        lines = text.splitlines()
        if not 1 <= first <= len(lines):
            raise KernelError(f"there is no line {first}: the {what} has lines 1 to {len(lines)}")
        part = lines[first - 1 : None if last is None else max(first, last)]
        text = "\n".join([*part, ""])
    if request.output is not None or not sys.stdout.isatty():
        if request.numbers:
            text = "\n".join([*numbered(enumerate(text.splitlines(), first)), ""])
        emit(text, request.output)
        return
    from rich.syntax import Syntax

    plain_console().print(
        Syntax(
            text.rstrip("\n"),
            language,
            theme="ansi_dark",
            background_color="default",
            line_numbers=request.numbers is not False,
            start_line=first,
        )
    )


def _range(lines: str) -> tuple[int, int | None]:
    first, colon, last = lines.partition(":")
    try:
        return int(first or 1), int(last) if last else (None if colon else int(first))
    except ValueError:
        raise typer.BadParameter(f"{lines!r}: expected FIRST:LAST, such as 120:160", param_hint="--lines") from None


def examples(*lines: str) -> dict[str, Any]:
    """Return command settings that show examples below the options."""
    return {"epilog": "[bold]Examples[/bold]\n\n" + "\n\n".join(lines)}
