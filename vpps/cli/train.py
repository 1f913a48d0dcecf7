"""`vpps-train NAME`: trains the networks of vpps.zoo. Every task is a command; its settings are the options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import typer

from vpps.cli.console import Version, app_named, exit_codes
from vpps.cli.options import TrainOptions, learning_rate
from vpps.cli.ranks import RankedCommand, RankedGroup, says_another, warnings_once
from vpps.cli.saved_run import SavedRun, resolve
from vpps.cli.settings import keyword, parameters_of
from vpps.cli.streams import run_program
from vpps.config import notice
from vpps.distributed import init
from vpps.errors import CheckpointError
from vpps.values import as_path
from vpps.zoo.task import Task
from vpps.zoo.tasks import TASKS

app = app_named("vpps-train", RankedGroup)


@app.callback()
def about(version: Version = False) -> None:
    """Train dynamic neural networks, one kernel launch per mini-batch.

    Every command trains on synthetic data by default. With --data, every command except tree-fc trains on your data;
    see `vpps-train NAME --help`. Under mpiexec, srun or torchrun, all processes train one network together.
    """


def command_of(task: type[Task[Any]], program: str = "vpps-train") -> Callable[..., None]:
    """Return a function for Typer whose parameters are the task's settings and the loop's options.

    Args:
        program: name of the program, the prefix of error messages.
    """

    def command(ctx: typer.Context, **_: Any) -> None:
        from vpps.cli import loop  # imported late to keep --help fast

        with exit_codes(program, says_another):
            settings, options, resumed = resolve(ctx, task)
            world = init(shards=options.shards, timeout=options.timeout)
        with exit_codes(program), world:
            try:
                with exit_codes(program, lambda *_: world.await_turn()):  # print before the world ends all ranks
                    with warnings_once(world):
                        if resumed is not None and resumed.taken:
                            notice(f"as {resumed.path} says: {', '.join(resumed.taken)}")
                        made = task(settings) if resumed is None else resumed.task_of(task, settings)
                    loop.run(made, options, settings, resumed, world)
            except typer.Exit as error:
                raise SystemExit(error.exit_code) from None

    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += parameters_of(task.settings_type)
    hints = get_type_hints(TrainOptions, include_extras=True)
    hints["lr"] = learning_rate(task.training.get("lr"))
    for option in fields(TrainOptions):
        default = task.training.get(option.name, option.default)
        parameters.append(keyword(option.name, default, hints[option.name]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = (inspect.getdoc(task) or "").partition("\n\nAttributes:")[0]  # users do not need attributes
    return command


def _epilog(task: type[Task[Any]]) -> str:
    return f"[bold]--data[/bold]: {task.data_help}"


for _task in TASKS.values():
    app.command(_task.name, epilog=_epilog(_task))(command_of(_task))


def main() -> None:
    """Run the program. Exit code: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C, 141 if the reader is gone."""
    run_program("vpps-train", app)


def load_run(path: str | Path, task: type[Task[Any]] | None = None) -> Task[Any]:
    """Restore a task that `vpps-train --checkpoint` saved, with its data and weights, for predictions:

        task = load_run("my.run.best")
        with vpps.Handle(task.model, train=False) as handle:
            for batch, values in task.results(handle, task.dev): ...

    Args:
        path: the checkpoint, or the best model beside it.
        task: your own task class; by default the `vpps-train` task that the checkpoint names.

    Raises:
        CheckpointError: the file is missing or damaged, vpps-train did not write it, or it belongs to another task.
        DataError: the data no longer exists.
    """
    path = as_path(path, "load_run", CheckpointError)
    run = SavedRun.load(path, None if task is None else task.name)
    if task is None and run.task not in TASKS:
        raise CheckpointError(f"{path}: is a run of {run.task!r}, a task of your own: load_run(path, ItsClass)")
    kind = task or TASKS[run.task]
    made = run.task_of(kind, kind.settings_type(**run.options(kind.settings_type)))
    made.model.restore(path)
    return made


def main_of(task: type[Task[Any]]) -> None:
    """Run your own task as a program with the options and exit codes of `vpps-train`.

    if __name__ == "__main__":
        main_of(MyTask)  # python my_task.py --data my_data --epochs 5 --checkpoint my.run
    """
    name = Path(sys.argv[0]).name
    program = app_named(task.name)
    program.command(epilog=_epilog(task), cls=RankedCommand)(command_of(task, name))
    run_program(name, program)
