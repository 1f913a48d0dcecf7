"""The training loop that all tasks share: epochs, progress, evaluation, checkpoints, Ctrl-C."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import vpps
from vpps.cli.console import plain_console
from vpps.cli.options import LEARNING_RATES, TrainOptions, policy_for, precisions_in
from vpps.cli.saved_run import SavedRun, best_of
from vpps.distributed import World
from vpps.errors import DistributedError
from vpps.model.optim import OPTIMIZERS, Optimizer
from vpps.zoo.task import Settings, Task


def run(task: Task[Any], options: TrainOptions, settings: Settings, resumed: SavedRun | None, world: World) -> None:
    """Trains `task` from where it stands to `options.epochs`, with a line per epoch and a checkpoint after each.

    All ranks of the world call this. The first one prints and writes.

    Raises:
        DistributedError: `--autotune` where batches are divided.
    """
    if options.autotune and world.shards > 1:
        raise DistributedError(
            "--autotune tries configurations on whole batches: leave it out, and run it or vpps-profile in one process "
            "before; what they find is used here too"
        )
    if resumed is not None:
        task.model.restore(resumed.path)
    finished = resumed.epoch if resumed is not None else 0
    best = Best(task.lower_is_better) if resumed is None else Best(**resumed.best)
    console = plain_console(quiet=not world.is_first)
    console.print(f"{task.name} on {settings.data or 'synthetic data'}: {task.description}", soft_wrap=True)
    if finished >= options.epochs:
        console.print(f"{options.checkpoint} has finished epoch {finished}: ask for more with --epochs", soft_wrap=True)
        return
    if best.is_old(finished, options.patience):
        since = f"no better score since epoch {best.epoch} of {finished}"
        console.print(f"{options.checkpoint} has {since}: ask for more with --patience", soft_wrap=True)
        return
    graph = vpps.Graph()  # what it needs is compiled before the clock starts
    loss = task.loss(graph, task.train[: options.batch_size]) * (1 / options.batch_size)
    try:
        with vpps.Handle(
            task.model, optimizer=_optimizer(options), vps=options.vps, target=options.target,
            policy=policy_for(options.policy, graph, task.model.learned_policy), clip_norm=options.clip_norm,
            autotune=options.autotune, world=world, example=(graph, loss),
            precision=precisions_in(options.precision).written,
        ) as handle:  # fmt: skip
            for epoch in range(finished, options.epochs):
                start = time.perf_counter()
                trained = _epoch(task, handle, options, settings.seed, epoch, console, world)
                speed = len(task.train) / (time.perf_counter() - start)
                scored = task.evaluate(handle) if world.shards == 1 else task.evaluate(handle, world)
                found = world.gather(scored)[0]  # all go on, or stop, as the first does
                scores = "".join(f"  {name} {score:.3f}" for name, score in found.items())
                improved = best.see(next(iter(found.values())), epoch + 1)
                if options.checkpoint is not None:
                    handle.compare_weights()
                if options.checkpoint is not None and world.is_first:
                    kept = vars(options) | vars(settings)
                    saved = SavedRun(task.name, epoch + 1, kept, task.state(), vars(best), options.checkpoint)
                    if improved:  # before the other one: a run killed in between repeats the epoch, and finds it again
                        saved.save(task.model, best_of(options.checkpoint))
                    saved.save(task.model, options.checkpoint)
                world.barrier()
                finished = epoch + 1
                done = f"epoch {finished}/{options.epochs}  loss {trained:.4f} per {task.unit}"
                console.print(f"{done}{scores}  {speed:.0f} examples/s", soft_wrap=True)
                if best.is_old(finished, options.patience):
                    where = f", kept in {best_of(options.checkpoint)}" if options.checkpoint else ""
                    console.print(
                        f"no better {next(iter(found))} for {options.patience} epochs: the best, {best.score:.3f}, "
                        f"was epoch {best.epoch}{where}", soft_wrap=True,
                    )  # fmt: skip
                    break
            if options.autotune:
                console.print(handle.tuning, soft_wrap=True)
    except KeyboardInterrupt:
        kept_run = options.checkpoint is not None and os.path.exists(best_of(options.checkpoint))
        advice = f"; continue with --resume --checkpoint {options.checkpoint}" if kept_run else "; nothing was saved"
        raise KeyboardInterrupt(f"after {finished} of {options.epochs} epochs{advice}") from None


@dataclass
class Best:
    """The best score so far, for early stopping."""

    lower_is_better: bool
    score: float = math.nan
    epoch: int = 0

    def see(self, score: float, epoch: int) -> bool:
        """Takes note of an epoch's score; returns whether it is the best one."""
        better = score < self.score if self.lower_is_better else score > self.score
        if better or not self.epoch or (math.isnan(self.score) and not math.isnan(score)):
            self.score, self.epoch = score, epoch
            return True
        return False

    def is_old(self, finished: int, patience: int | None) -> bool:
        """Whether `patience` epochs or more, of those finished, were no better."""
        return patience is not None and finished - self.epoch >= patience


def _epoch(
    task: Task[Any], handle: vpps.Handle, options: TrainOptions, seed: int, epoch: int, console: Console, world: World
) -> float:
    """Trains on every example once and returns the mean loss per unit."""
    units = task.units(task.train[:])
    total, seen, whole = 0.0, 0, 0  # of the batches whose loss is known; of the one before
    columns = [TextColumn("epoch {task.fields[epoch]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[loss]}"))  # nothing before one is known
    n_batches = -(-len(task.train) // options.batch_size)
    quiet = console.quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        bar = progress.add_task("train", total=n_batches, epoch=epoch + 1, loss="")
        # The order depends on seed and epoch alone, so that a resumed run sees what an uninterrupted one would.
        divided: dict[str, Any] = {} if world.shards == 1 else {"world": world}  # sets of one's own need not know of it
        for k, batch in enumerate(task.train.batches(options.batch_size, seed=seed, epoch=epoch, **divided)):
            graph, size = vpps.Graph(), batch.whole if divided else len(batch)
            loss = task.loss(graph, batch) * (1 / size)
            stale = handle.fb(graph, loss)  # runs on while the next graph is built; returns the loss of the step before
            if k % len(world.mine):  # of the same step
                continue
            if whole:
                total, seen = total + stale * whole, seen + whole
                progress.update(bar, loss=f"loss {total / seen * len(task.train) / units:.4f}")
            progress.advance(bar)
            whole = size
    return (total + handle.sync_get_latest_loss() * whole) / units


def _optimizer(options: TrainOptions) -> Optimizer:
    rule = next(rule for rule in OPTIMIZERS if rule.name == options.optimizer)
    return rule(lr=LEARNING_RATES[options.optimizer] if options.lr is None else options.lr)
