"""Callbacks of training loops: curves in TensorBoard, a progress bar, and a learning rate that falls on plateaus."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from vpps.errors import HandleError, ModelError
from vpps.values import as_count, as_mapping, as_number, said_of

if TYPE_CHECKING:
    from vpps.graph.graph import Graph
    from vpps.ops.operand import Expression
    from vpps.session.handle import Handle

__all__ = ["Callback", "Loop", "ProgressBar", "ReduceOnPlateau", "TensorBoard"]


class Callback:
    """Base class of callbacks: override what you need. As a context manager, it closes itself."""

    def on_step(self, step: int, loss: float, **values: float) -> None:
        """Take the loss of an update.

        Args:
            step: number of the update, from 1.
            loss: its loss.
            values: other numbers of the update by name, such as `rate`, the learning rate.
        """

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a finished epoch, which is counted from 1."""

    def close(self) -> None:
        """Release what the callback holds. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Loop:
    """The calls of a training loop of your own, for a handle and callbacks. Leaving the block closes the callbacks.

    `Handle.fb` returns the loss of the previous call. A Loop passes each loss on with the number of its own update, and
    waits for the kernel at the end of an epoch only.

    Args:
        handle: the training handle. In a world of several processes call the callbacks yourself, on one rank.
        callbacks: called in this order.
        epoch: number of epochs that are finished, where a run is resumed.

    Raises:
        HandleError: the handle trains with other processes.

    Example:
        >>> with Loop(handle, ProgressBar(), TensorBoard("runs/1")) as loop:  # doctest: +SKIP
        ...     for _ in range(10):
        ...         for batch in trees.batches(25):
        ...             graph = vpps.Graph()
        ...             loop.step(graph, network.loss(graph, batch))
        ...         loop.finish_epoch(accuracy=evaluate(handle))
    """

    def __init__(self, handle: Handle, *callbacks: Callback, epoch: int = 0) -> None:
        if handle._world is not None:
            raise HandleError("Loop: the handle trains with other processes; call the callbacks on one rank of them")
        self.handle, self.callbacks, self.epoch = handle, callbacks, epoch
        self._running = False  # a call of `fb` whose loss is not known yet
        self._update: int | None = None  # number of its update; None for accumulate=True
        self._loss = 0.0  # of the calls of an update so far
        self._losses: list[float] = []  # of the epoch's updates

    def step(self, graph: Graph, loss: Expression, accumulate: bool = False) -> None:
        """Call `handle.fb`. Accumulated calls are one update, whose loss is the sum of theirs."""
        latest = self.handle.fb(graph, loss, accumulate)
        self._pass_on(latest)
        self._running, self._update = True, None if accumulate else self.handle.model.step

    def finish_epoch(self, **metrics: float) -> dict[str, float]:
        """Wait for the last update, call `on_epoch`, and return the metrics: `loss`, the updates' mean, and yours."""
        self._flush()
        found = ({"loss": sum(self._losses) / len(self._losses)} if self._losses else {}) | metrics
        self.epoch, self._losses = self.epoch + 1, []
        for callback in self.callbacks:
            callback.on_epoch(self.epoch, found)
        return found

    def _flush(self) -> None:
        if self._running:
            self._pass_on(self.handle.sync_get_latest_loss())

    def _pass_on(self, loss: float) -> None:
        """Take the loss of the call that was running."""
        running, self._running = self._running, False
        self._loss += loss if running else 0.0
        if running and self._update is not None:
            total, self._loss = self._loss, 0.0
            self._losses.append(total)
            rate = self.handle.optimizer.at(self._update, "").rate
            for callback in self.callbacks:
                callback.on_step(self._update, total, rate=rate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with ExitStack() as stack:
            for callback in self.callbacks:
                stack.callback(callback.close)
            if kind is None:
                self._flush()


class TensorBoard(Callback):
    """Writes curves: `loss` and other numbers of every update, `epoch/NAME` for the metrics of epochs.

    Args:
        to: a folder, for the `SummaryWriter` of tensorboardX or, without that, of PyTorch; or a writer of yours, with
            the methods `add_scalar(tag, value, step)` and `close()`.

    Raises:
        ModuleNotFoundError: neither package is installed.
    """

    def __init__(self, to: Any) -> None:
        self.writer = _summary_writer(str(to)) if isinstance(to, str | Path) else to

    def on_step(self, step: int, loss: float, **values: float) -> None:
        for name, value in {"loss": loss, **values}.items():
            self.writer.add_scalar(name, value, step)

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"epoch/{name}", value, epoch)

    def close(self) -> None:
        self.writer.close()


def _summary_writer(folder: str) -> Any:
    for package in ("tensorboardX", "torch.utils.tensorboard"):
        with suppress(ImportError):
            return import_module(package).SummaryWriter(folder)
    raise ModuleNotFoundError("TensorBoard takes a package that writes its files: pip install tensorboardX")


class ProgressBar(Callback):
    """A bar for the updates of an epoch, with the mean loss so far; a line per epoch. Only terminals show the bar.

    Args:
        steps: updates per epoch; None if unknown.
        epoch: number of the first epoch.
        console: a `rich.console.Console`. Default: one for standard error.
    """

    def __init__(self, steps: int | None = None, *, epoch: int = 1, console: Any = None) -> None:
        from rich import progress
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False) if console is None else console
        first, last = (progress.TextColumn(f"{{task.fields[{name}]}}") for name in ("epoch", "loss"))
        columns = (first, progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn(), last)
        hidden = self.console.quiet or not self.console.is_terminal
        self._progress = progress.Progress(*columns, console=self.console, transient=True, disable=hidden)
        self._bar = self._progress.add_task("train", total=steps, epoch=f"epoch {epoch}", loss="")
        self._sum, self._steps = 0.0, 0
        self._progress.start()

    def on_step(self, step: int, loss: float, **values: float) -> None:
        self._sum, self._steps = self._sum + loss, self._steps + 1
        self._progress.update(self._bar, advance=1, loss=f"loss {self._sum / self._steps:.4f}")

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._sum, self._steps = 0.0, 0
        shown = "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
        self.console.print(f"epoch {epoch}{shown}", markup=False, soft_wrap=True)
        self._progress.reset(self._bar, epoch=f"epoch {epoch + 1}", loss="")

    def close(self) -> None:
        self._progress.stop()


@dataclass(eq=False)
class ReduceOnPlateau(Callback):
    """A learning rate that is multiplied by `factor` when a metric has stopped improving: `vpps.Adam(lr=rate)`.

    The rule is that of PyTorch's `ReduceLROnPlateau`. A metric is better if it beats the best one by `threshold`. The
    rate falls after more than `patience` metrics in a row that are not better. Then `cooldown` metrics are not counted.

    Args:
        lr: the first rate; afterwards the current one.
        metric: name of the metric that `on_epoch` takes.
        mode: "min" if lower is better, "max" if higher is better.
        factor: between 0 and 1.
        threshold: a part of the best metric with `threshold_mode="rel"`, or a difference with "abs".
        min_lr: the rate does not fall below this.
        eps: a change of the rate that is not larger is not made.

    Raises:
        ModelError: an argument is out of its range.
    """

    lr: float
    _: KW_ONLY
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: int = 0
    min_lr: float = 0.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        self._best: float | None = None
        self._bad = self._cooling = 0  # metrics that were not better; metrics that do not count
        for name in ("patience", "cooldown"):
            setattr(self, name, as_count(getattr(self, name), f"ReduceOnPlateau: {name}", ModelError, least=0))
        for name in ("lr", "factor", "threshold", "min_lr", "eps"):
            value = as_number(getattr(self, name))
            if value is None or not 0 <= value < (1 if name == "factor" else inf):
                expected = "a number in [0, 1)" if name == "factor" else "a finite number >= 0"
                raise ModelError(f"ReduceOnPlateau({name}={getattr(self, name)!r}): expected {expected}")
            setattr(self, name, value)
        for name, known in (("mode", ("min", "max")), ("threshold_mode", ("rel", "abs"))):
            if getattr(self, name) not in known:
                raise ModelError(f"ReduceOnPlateau({name}={getattr(self, name)!r}): expected {' or '.join(known)}")

    def __call__(self, update: int) -> float:
        """Return the rate, as a schedule of an optimizer: it is the same for every update until `step` changes it."""
        return self.lr

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Call `step` with the metric. Raises ModelError if it is missing."""
        if self.metric not in metrics:
            said = said_of(self.metric, metrics.keys())
            raise ModelError(f"ReduceOnPlateau(metric={self.metric!r}): the epoch has no such metric; {said}")
        self.step(metrics[self.metric])

    def step(self, metric: float) -> None:
        """Take the next value of the metric, and lower the rate if it has not improved for too long. NaN is no
        improvement. In a world of several processes, every rank has to give the same values."""
        metric = float(metric)
        if self._is_better(metric):
            self._best, self._bad = metric, 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad > self.patience:
            lr = max(self.lr * self.factor, self.min_lr)
            self.lr = lr if self.lr - lr > self.eps else self.lr
            self._cooling, self._bad = self.cooldown, 0

    def _is_better(self, metric: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self._best is None:
            return metric * sign > -inf
        margin = self._best * self.threshold if self.threshold_mode == "rel" else self.threshold
        return metric * sign > self._best * sign + margin

    def state_dict(self) -> dict[str, float | None]:
        """Return the rate and what is known of the metric, as JSON types, such as for the metadata of `Model.save`."""
        return {"lr": self.lr, "best": self._best, "bad": self._bad, "cooling": self._cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises ModelError if it never returned this."""
        known = as_mapping(state, "ReduceOnPlateau.load_state_dict", ModelError)
        lr, best = as_number(known.get("lr")), known.get("best", "")
        if known.keys() != self.state_dict().keys() or lr is None or (best is not None and as_number(best) is None):
            raise ModelError(f"ReduceOnPlateau.load_state_dict({state!r}): expected what state_dict() returns")
        bad, cooling = (as_count(known[name], name, ModelError, least=0) for name in ("bad", "cooling"))
        self.lr, self._best, self._bad, self._cooling = lr, best, bad, cooling
