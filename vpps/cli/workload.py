"""Workloads of `vpps-profile` and `vpps-inspect`: batches from a task of `vpps-train` or from a user's function."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import typer

import vpps
from vpps.cli.settings import fields_from, parameters_of
from vpps.engine.options import check_loss
from vpps.errors import VppsError, WorkloadError
from vpps.model.optim import Optimizer
from vpps.zoo.task import Settings, Task
from vpps.zoo.tasks import TASKS

REST = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that also accepts a task's settings as options."""

WORKLOAD_HELP = (
    "A task of vpps-train, optionally with its settings (--hidden 256 --data DIR ...; `vpps-train TASK --help` lists "
    "them), or your own module:function. The function takes the batch size and returns (model, batches); batches is an "
    "iterable of (graph, loss)."
)

Batches = Iterable[tuple[vpps.Graph, vpps.Expression]]


@dataclass(frozen=True)
class Workload:
    """Mini-batches to train on.

    Attributes:
        name: "tree-lstm" or "module:function".
        model: the model to train.
        settings: non-default settings of the task, for reports; "" for a function.
        batches: yields new graphs and losses at every call; endless for a task.
        optimizer: the optimizer that `vpps-train` uses; None for the handle's default.
    """

    name: str
    model: vpps.Model
    settings: str
    batches: Callable[[], Iterator[tuple[vpps.Graph, vpps.Expression]]]
    optimizer: Optimizer | None = None

    def first(self, count: int) -> list[tuple[vpps.Graph, vpps.Expression]]:
        """Return the first batches, at most `count`. Raises WorkloadError if there is none."""
        found = list(islice(self.batches(), count))
        if not found:
            raise WorkloadError(f"{self.name} returned no batches; return (model, [(graph, loss), ...])")
        return found


def load_workload(name: str, batch_size: int, rest: Sequence[str] = ()) -> Workload:
    """Load a workload by name.

    Args:
        name: a task, or module:function; modules may be in the working directory.
        batch_size: examples per mini-batch.
        rest: the task's settings, as command line arguments.

    Raises:
        WorkloadError: there is no such task or function, or the function does not return a workload.
        Click's UsageError, exit code 2: `rest` contains an argument that is not a setting of the task.
        DataError: the data of the task cannot be read.
    """
    if name in TASKS:
        return _of_task(TASKS[name], batch_size, rest)
    if ":" not in name:
        wrong = " (options come after it)" if name.startswith("-") else ""
        raise WorkloadError(
            f"{name!r} is not a task{wrong}: expected one of {', '.join(TASKS)}, or module:function of your own"
        )
    if rest:
        raise WorkloadError(
            f"{rest[0]}: this command has no such option, and {name} takes no settings; give them inside the function"
        )
    return _of_function(name, batch_size)


def _of_task(kind: type[Task[Any]], batch_size: int, rest: Sequence[str]) -> Workload:
    settings = _parsed(kind, rest)
    task = kind(settings)
    default = kind.settings_type()
    given = {f: v for f, v in vars(settings).items() if v != getattr(default, f)}

    def batches() -> Iterator[tuple[vpps.Graph, vpps.Expression]]:
        epoch = 0
        while True:
            for batch in task.train.batches(batch_size, seed=settings.seed, epoch=epoch):
                if len(batch) == batch_size or len(task.train) < batch_size:  # full batches only
                    graph = vpps.Graph()
                    loss = task.loss(graph, batch) * (1 / len(batch))
                    yield graph, loss
            epoch += 1

    shown = " ".join(f"{name}={value}" for name, value in given.items())
    return Workload(kind.name, task.model, shown, batches, vpps.Adam(lr=1e-3))


def _parsed(kind: type[Task[Any]], rest: Sequence[str]) -> Settings:
    """Parse settings from arguments. Raises Click's UsageError."""
    found: dict[str, Any] = {}

    def command(**values: Any) -> None:
        found.update(values)

    command.__signature__ = inspect.Signature(parameters_of(kind.settings_type))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(add_help_option=False)(command)
    typer.main.get_command(app).main(list(rest), prog_name=kind.name, standalone_mode=False)
    return kind.settings_type(**fields_from(kind.settings_type, found))


def _of_function(name: str, batch_size: int) -> Workload:
    function = _function(name)
    call = f"{name}({batch_size})"
    with _errors_of(call, "; it is called with the batch size"):
        built = function(batch_size)
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], vpps.Model)):
        raise WorkloadError(f"{name} returned {built!r}; expected (model, batches)")
    model, batches = built
    if not isinstance(batches, Iterable):
        raise WorkloadError(f"{name} returned batches that are {batches!r}; expected an iterable of (graph, loss)")
    with _errors_of(f"batches of {call}"):
        kept = batches if isinstance(batches, Sequence) else list(islice(batches, MOST_KEPT))
    for item in kept:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], vpps.Graph)):
            raise WorkloadError(f"{name}: a batch is {item!r}; expected (graph, loss)")
        if not isinstance(item[1], vpps.Expression):
            raise WorkloadError(f"{name}: the loss of a batch is {item[1]!r}; expected a vpps.Expression of its graph")
        check_loss(*item)
    return Workload(name, model, "", lambda: iter(kept))


def _function(name: str) -> Callable[[int], Any]:
    """Import the function that `module:function` names. Raises WorkloadError."""
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise WorkloadError(f"{name}: expected module:function, such as my_module:build for build in my_module.py")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        with _errors_of(f"import {module_name}"):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        script = f"; for the file {module_name} write {module_name[:-3]}:{function_name}" * module_name.endswith(".py")
        raise WorkloadError(
            f"{name}: {error}; vpps searches this folder and the paths of Python packages{script}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise WorkloadError(f"{name}: {module.__file__} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


@contextmanager
def _errors_of(what: str, called_wrongly: str = "") -> Iterator[None]:
    """Turn an error in the user's code into a WorkloadError with its file and line.

    Errors from vpps and errors about missing modules are propagated unchanged.

    Args:
        what: description of the user's code.
        called_wrongly: text to append if the function rejects its arguments.
    """
    try:
        yield
    except (VppsError, ModuleNotFoundError):
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        said = f"{type(error).__name__}: {error}"
        if not frames:
            raise WorkloadError(f"{what}: {error}{called_wrongly}") from error
        if not isinstance(error, SyntaxError):  # a SyntaxError names its own file and line
            said += f" ({frames[-1].filename}, line {frames[-1].lineno})"
        raise WorkloadError(f"{what}: {said}") from error


MOST_KEPT = 64
"""Most batches to take from a function that yields them one by one."""
