"""`vpps-train NAME`: trains the networks of vpps.zoo. A command per task, its options made from the task's settings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from vpps.cli import loop
from vpps.cli.options import OptimizerName, TrainOptions, learning_rate
from vpps.cli.saved_run import SavedRun, resolve
from vpps.errors import CheckpointError, ModelError
from vpps.zoo.task import Task
from vpps.zoo.tasks import TASKS


def _typer(name: str) -> typer.Typer:
    return typer.Typer(
        name=name, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )


app = _typer("vpps-train")


@app.callback()
def about() -> None:
    """Train dynamic neural networks, one kernel launch per mini-batch.

    Every command trains on synthetic data as it is and, but for tree-fc, on yours with --data; `vpps-train NAME --help`
    says which.
    """


def command_of(task: type[Task[Any]], program: str = "vpps-train") -> Callable[..., None]:
    """The function that Typer makes a command of: its signature is the task's settings and the loop's options.

    Args:
        program: its name, which errors begin with.
    """
    settings = {field.name: field for field in fields(task.settings_type)}
    types = get_type_hints(task.settings_type)
    fixed = {name for name, field in settings.items() if field.metadata.get("shapes_model")}

    def command(ctx: typer.Context, **_: Any) -> None:
        with loop.exit_codes(program):
            values, resumed = resolve(ctx, task.name, fixed, task.training.get("optimizer", OptimizerName.ADAM))
            chosen = task.settings_type(**{name: _as(types[name], values.pop(name)) for name in settings})
            made = task(chosen, resumed.state if resumed else None)
            loop.run(made, TrainOptions(**values), chosen, resumed)

    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for name, field in settings.items():
        parameters.append(_parameter(name, types[name], field))
    hints = get_type_hints(TrainOptions, include_extras=True)
    hints["lr"] = learning_rate(task.training.get("lr"))
    for option in fields(TrainOptions):
        default = task.training.get(option.name, option.default)
        parameters.append(_keyword(option.name, default, hints[option.name]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = (inspect.getdoc(task) or "").partition("\n\nAttributes:")[0]  # of the class, no matter of users
    return command


def _parameter(name: str, kind: Any, field: Field[Any]) -> inspect.Parameter:
    """A setting as an option. Raises ModelError where it has no default."""
    if field.default is MISSING:
        raise ModelError(f"setting {name!r} has no default; write {name}: ... = setting(default, 'what it is for')")
    declared = [f"--{name.replace('_', '-')}"] if kind is bool and not field.default else []
    option = typer.Option(
        *declared, help=field.metadata.get("help"), min=field.metadata.get("min"),
        show_default="synthetic data" if kind == Path | None else True, resolve_path=Path in (kind, *get_args(kind)),
        rich_help_panel="Data and network",
    )  # fmt: skip
    return _keyword(name, field.default, Annotated[kind, option])


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _as(kind: Any, value: Any) -> Any:
    """A setting, from how a checkpoint keeps it (`as_kept`)."""
    if not isinstance(value, str):
        return value
    for type_ in (kind, *get_args(kind)):  # of `Path | None`, for example
        if isinstance(type_, type) and issubclass(type_, Path | Enum):
            return type_(value)
    return value


def _epilog(task: type[Task[Any]]) -> str:
    return f"[bold]--data[/bold]: {task.data_help}"


for _task in TASKS.values():
    app.command(_task.name, epilog=_epilog(_task))(command_of(_task))


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    app()


def load_run(path: str | Path, task: type[Task[Any]] | None = None) -> Task[Any]:
    """The task that `vpps-train --checkpoint` kept, its data read and its weights restored; for predictions:

        task = load_run("my.run.best")
        with vpps.Handle(task.model, train=False) as handle:
            for batch, values in task.results(handle, task.dev): ...

    Args:
        path: the checkpoint, or the best model beside it.
        task: of one's own; by default that of `vpps-train` which the checkpoint names.

    Raises:
        CheckpointError: the file is missing or damaged, was not written by vpps-train, or is of another task.
        DataError: the data is not there any more.
    """
    run = SavedRun.load(Path(path), None if task is None else task.name)
    if task is None and run.task not in TASKS:
        raise CheckpointError(f"{path}: is a run of {run.task!r}, a task of your own: load_run(path, ItsClass)")
    kind = task or TASKS[run.task]
    types = get_type_hints(kind.settings_type)
    names = {field.name for field in fields(kind.settings_type)} & run.settings.keys()
    made = kind(kind.settings_type(**{name: _as(types[name], run.settings[name]) for name in names}), run.state)
    made.model.restore(path)
    return made


def main_of(task: type[Task[Any]]) -> None:
    """Makes a program of a task of your own, with the options of `vpps-train`; it exits as that does.

    if __name__ == "__main__":
        main_of(MyTask)  # python my_task.py --data my_data --epochs 5 --checkpoint my.run
    """
    program = _typer(task.name)
    program.command(epilog=_epilog(task))(command_of(task, Path(sys.argv[0]).name))
    program()
