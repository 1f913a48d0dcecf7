"""The training loop that all tasks share: epochs, progress, evaluation, checkpoints, Ctrl-C."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import vpps
from vpps.cli.options import LEARNING_RATES, OptimizerName, TrainOptions
from vpps.cli.saved_run import SavedRun
from vpps.errors import VppsError
from vpps.optim import OPTIMIZERS, Optimizer

Example = TypeVar("Example")


class Task(ABC, Generic[Example]):
    """What is trained: a model, its data and its losses."""

    model: vpps.Model
    train: Sequence[Example]
    description: str
    """Sizes of data and model, for the first line of output."""
    unit: str
    """What the reported loss is an average over, such as "node"."""

    @abstractmethod
    def loss(self, graph: vpps.Graph, example: Example) -> vpps.Expression:
        """The loss of one example, summed over its units."""

    @abstractmethod
    def units(self, example: Example) -> int:
        """How many units that loss is a sum of."""

    @abstractmethod
    def evaluate(self, handle: vpps.Handle) -> Mapping[str, float]:
        """Scores on held-out data by name."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What must be kept beside weights and options to build this task again; JSON types."""


def run(task: Task[Any], options: TrainOptions, resumed: SavedRun | None, command: str) -> None:
    """Trains `task` from where it stands to `options.epochs`, with a line per epoch and a checkpoint after each."""
    if resumed is not None and options.checkpoint is not None:
        task.model.restore(options.checkpoint)
    finished = resumed.epoch if resumed is not None else 0
    # force_terminal=False: no colours and no animation in a file or a pipe, whatever the environment asks for.
    console = Console(force_terminal=None if sys.stdout.isatty() else False, highlight=False)
    console.print(f"{command}: {task.description}", soft_wrap=True)
    if finished >= options.epochs:
        console.print(f"{options.checkpoint} has finished epoch {finished}: ask for more with --epochs", soft_wrap=True)
        return
    try:
        with vpps.Handle(task.model, optimizer=_optimizer(options), vps=options.vps) as handle:
            for epoch in range(finished, options.epochs):
                start = time.perf_counter()
                loss = _epoch(task, handle, options, epoch, console)
                speed = len(task.train) / (time.perf_counter() - start)
                scores = "".join(f"  {name} {score:.3f}" for name, score in task.evaluate(handle).items())
                if options.checkpoint is not None:
                    SavedRun(command, epoch + 1, vars(options), task.state()).save(task.model, options.checkpoint)
                finished = epoch + 1
                done = f"epoch {finished}/{options.epochs}  loss {loss:.4f} per {task.unit}"
                console.print(f"{done}{scores}  {speed:.0f} sentences/s", soft_wrap=True)
    except KeyboardInterrupt:
        kept = options.checkpoint is not None and finished
        advice = f"; continue with --resume --checkpoint {options.checkpoint}" if kept else "; nothing was saved"
        raise KeyboardInterrupt(f"after {finished} of {options.epochs} epochs{advice}") from None


def _epoch(task: Task[Any], handle: vpps.Handle, options: TrainOptions, epoch: int, console: Console) -> float:
    """Trains on every example once and returns the mean loss per unit."""
    # The order depends on seed and epoch alone, so that a resumed run sees what an uninterrupted one would.
    order = np.random.default_rng((options.seed, epoch)).permutation(len(task.train)).tolist()
    batches = [order[i : i + options.batch_size] for i in range(0, len(order), options.batch_size)]
    total, units = 0.0, 0  # of the batches whose loss is known
    columns = [TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("train", total=len(batches), epoch=epoch + 1, loss=math.nan)
        previous: list[Any] = []
        for batch in batches:
            examples = [task.train[k] for k in batch]
            graph = vpps.Graph()
            loss = vpps.sum([task.loss(graph, example) for example in examples]) * (1 / len(examples))
            stale = handle.fb(graph, loss)  # runs on while the next graph is built; returns the loss of the call before
            if previous:
                total += stale * len(previous)
                units += sum(map(task.units, previous))
                progress.update(bar, loss=total / units)
            progress.advance(bar)
            previous = examples
    total += handle.sync_get_latest_loss() * len(previous)
    return total / (units + sum(map(task.units, previous)))


def _optimizer(options: TrainOptions) -> Optimizer:
    name = OptimizerName(options.optimizer)
    rule = next(rule for rule in OPTIMIZERS if rule.name == name)
    return rule(lr=LEARNING_RATES[name] if options.lr is None else options.lr)


@contextmanager
def exit_codes(program: str = "vpps-train") -> Iterator[None]:
    """Turns a VppsError into one sentence and exit code 1, Ctrl-C into one and exit code 130 (128 + SIGINT)."""
    try:
        yield
    except VppsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as interrupt:
        print(f"{program}: interrupted {interrupt}".rstrip(), file=sys.stderr)
        raise typer.Exit(130) from None
