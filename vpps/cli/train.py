"""`vpps-train NAME`: trains the networks of vpps.zoo. A command per task, its options made from the task's settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from vpps.cli import loop
from vpps.cli.options import TrainOptions
from vpps.cli.saved_run import resolve
from vpps.zoo.task import Task
from vpps.zoo.tasks import TASKS

app = typer.Typer(name="vpps-train", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def about() -> None:
    """Train dynamic neural networks, one kernel launch per mini-batch."""


def command_of(task: type[Task[Any]]) -> Callable[..., None]:
    """The function that Typer makes a command of: its signature is the task's settings and the loop's options."""
    settings = {field.name: field for field in fields(task.settings_type)}
    types = get_type_hints(task.settings_type)
    fixed = {name for name, field in settings.items() if field.metadata.get("shapes_model")}

    def command(ctx: typer.Context, **_: Any) -> None:
        with loop.exit_codes():
            values, resumed = resolve(ctx, fixed)
            chosen = task.settings_type(**{name: _as(types[name], values.pop(name)) for name in settings})
            made = task(chosen, resumed.state if resumed else None)
            loop.run(made, TrainOptions(**values), chosen, resumed)

    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for name, field in settings.items():
        parameters.append(_parameter(name, types[name], field))
    hints = get_type_hints(TrainOptions, include_extras=True)
    for option in fields(TrainOptions):
        default = task.training.get(option.name, option.default)
        parameters.append(
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[option.name]
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = inspect.getdoc(task)
    return command


def _parameter(name: str, kind: Any, field: Field[Any]) -> inspect.Parameter:
    """A setting as an option."""
    assert field.default is not MISSING
    declared = [f"--{name.replace('_', '-')}"] if kind is bool and not field.default else []
    option = typer.Option(
        *declared, help=field.metadata["help"], min=field.metadata["min"],
        show_default="synthetic data" if kind == Path | None else True, resolve_path=kind == Path | None,
    )  # fmt: skip
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=Annotated[kind, option]
    )


def _as(kind: Any, value: Any) -> Any:
    """A setting that a checkpoint kept as text."""
    return Path(value) if kind == Path | None and isinstance(value, str) else value


for _task in TASKS.values():
    app.command(_task.name, epilog=f"[bold]--data[/bold]: {_task.data_help}")(command_of(_task))


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    app()
