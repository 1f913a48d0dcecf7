"""Training loop of all tasks: epochs, progress, evaluation, checkpoints, Ctrl-C."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console

import vpps
from vpps.callbacks import Callback, ProgressBar, TensorBoard
from vpps.cli.console import plain_console
from vpps.cli.options import LEARNING_RATES, TrainOptions, policy_for, precisions_in
from vpps.cli.saved_run import SavedRun, best_of
from vpps.distributed import World
from vpps.errors import DistributedError, VppsError
from vpps.model.optim import OPTIMIZERS, Optimizer
from vpps.zoo.task import Settings, Task


def run(task: Task[Any], options: TrainOptions, settings: Settings, resumed: SavedRun | None, world: World) -> None:
    """Train `task` until `options.epochs`; print a line and write a checkpoint after every epoch.

    All ranks of the world call this; only the first one prints and writes.

    Raises:
        DistributedError: `--autotune` is given although batches are divided.
        VppsError: there is no package for `--tensorboard`, or its folder cannot be written.
    """
    if options.autotune and world.shards > 1:
        raise DistributedError(
            "--autotune tries configurations on whole batches: leave it out here, and first run it or vpps-profile in "
            "one process; this run then uses their result"
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
    try:
        writes = options.tensorboard is not None and world.is_first
        curves = TensorBoard(str(options.tensorboard)) if writes else Callback()
    except (ModuleNotFoundError, OSError) as error:
        raise VppsError(f"--tensorboard {options.tensorboard}: {error}") from None
    graph = vpps.Graph()  # an example, so that the kernel is compiled before the clock starts
    loss = task.loss(graph, task.train[: options.batch_size]) * (1 / options.batch_size)
    try:
        with curves, vpps.Handle(
            task.model, optimizer=_optimizer(options), vps=options.vps, target=options.target,
            policy=policy_for(options.policy, graph, task.model.learned_policy), clip_norm=options.clip_norm,
            autotune=options.autotune, world=world, example=(graph, loss),
            precision=precisions_in(options.precision).written,
        ) as handle:  # fmt: skip
            for epoch in range(finished, options.epochs):
                start = time.perf_counter()
                trained = _epoch(task, handle, options, settings.seed, epoch, console, curves, world)
                speed = len(task.train) / (time.perf_counter() - start)
                scored = task.evaluate(handle) if world.shards == 1 else task.evaluate(handle, world)
                found = world.gather(scored)[0]  # all ranks stop or continue with the first one
                scores = "".join(f"  {name} {score:.3f}" for name, score in found.items())
                curves.on_epoch(epoch + 1, {"loss": trained, **found, "examples/s": speed})
                improved = best.see(next(iter(found.values())), epoch + 1)
                if options.checkpoint is not None:
                    handle.compare_weights()
                if options.checkpoint is not None and world.is_first:
                    kept = vars(options) | vars(settings)
                    saved = SavedRun(task.name, epoch + 1, kept, task.state(), vars(best), options.checkpoint)
                    if improved:  # write this file first: a run killed in between repeats the epoch and rewrites it
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
        """Record an epoch's score; return True if it is the best so far."""
        better = score < self.score if self.lower_is_better else score > self.score
        if better or not self.epoch or (math.isnan(self.score) and not math.isnan(score)):
            self.score, self.epoch = score, epoch
            return True
        return False

    def is_old(self, finished: int, patience: int | None) -> bool:
        """Return True if at least the last `patience` finished epochs brought no better score."""
        return patience is not None and finished - self.epoch >= patience


def _epoch(
    task: Task[Any], handle: vpps.Handle, options: TrainOptions, seed: int, epoch: int, console: Console,
    curves: Callback, world: World,
) -> float:  # fmt: skip
    """Train on every example once; return the mean loss per unit."""
    units = task.units(task.train[:])
    total, whole, n_batches = 0.0, 0, -(-len(task.train) // options.batch_size)
    # The order depends on seed and epoch alone, so a resumed run sees the same batches as an uninterrupted one.
    divided: dict[str, Any] = {} if world.shards == 1 else {"world": world}  # a user's own set may lack `world`
    with ProgressBar(n_batches, epoch=epoch + 1, console=console) as bar:

        def take(loss: float, number: int) -> float:
            """Show the loss of a batch of that number, from 1; return its sum over the batch."""
            for callback in (bar, curves):
                callback.on_step(epoch * n_batches + number, loss * len(task.train) / units)
            return loss * whole

        for k, batch in enumerate(task.train.batches(options.batch_size, seed=seed, epoch=epoch, **divided)):
            graph, size = vpps.Graph(), batch.whole if divided else len(batch)
            loss = task.loss(graph, batch) * (1 / size)
            stale = handle.fb(graph, loss)  # asynchronous: returns the loss of the previous step
            if k % len(world.mine):  # another shard of the same step
                continue
            if whole:
                total += take(stale, k // len(world.mine))
            whole = size
        return (total + take(handle.sync_get_latest_loss(), n_batches)) / units


def _optimizer(options: TrainOptions) -> Optimizer:
    rule = next(rule for rule in OPTIMIZERS if rule.name == options.optimizer)
    return rule(lr=LEARNING_RATES[options.optimizer] if options.lr is None else options.lr)
