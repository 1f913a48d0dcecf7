"""Measures configurations over the same batches: warm-up apart, in turns, so that noise of the machine hits all alike.

A model in training is not disturbed: every turn runs on a copy of it (`ModelCopy`), from the same weights.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from vpps.errors import VppsError, WorkloadError
from vpps.graph.graph import Graph
from vpps.model.model import Model
from vpps.model.optim import Optimizer
from vpps.ops.operand import Expression
from vpps.session.handle import Handle
from vpps.targets import AUTO
from vpps.tuning.candidates import GAIN
from vpps.tuning.compiling import Compiled
from vpps.tuning.model_copy import ModelCopy

Batches = Callable[[], Iterable[tuple[Graph, Expression]]]
"""Gives the same graphs and losses at every call; recorded anew, as in training, or kept."""


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """What is measured.

    Attributes:
        batches: timed in each turn.
        rounds: turns of every configuration.
        warmup: batches before the timed ones of each turn, after the largest one.
        train: steps of training; else evaluation of the loss.
        target: as of `vpps.Handle`.
        optimizer: default SGD.
    """

    batches: int = 8
    rounds: int = 5
    warmup: int = 2
    train: bool = True
    target: str = AUTO
    optimizer: Optimizer | None = None


@dataclass(slots=True)
class Measured(Compiled):
    """How fast a configuration is; barriers are those of a launch, on average.

    Attributes:
        times: seconds per batch, a row per turn; None where it does not run.
        vps: virtual processors.
    """

    times: NDArray[np.float64] | None = None
    vps: int = 0

    @property
    def seconds(self) -> float:
        """Median over batches and turns; infinite where it does not run."""
        return float("inf") if self.times is None else float(np.median(self.times))

    @property
    def spread(self) -> float:
        """Seconds between the first and the third quartile."""
        if self.times is None:
            return 0.0
        first, third = np.percentile(self.times, (25, 75))
        return float(third - first)

    @property
    def variation(self) -> float:
        """How much times of one and the same batch vary: what the middle half of them spans, over their median."""
        if self.times is None:
            return 0.0
        first, third = np.percentile(self.times / np.median(self.times, axis=0), (25, 75))
        return float(third - first)

    def ratio(self, default: Measured) -> float:
        """How many times as fast as the default: median over the pairs of times of one batch in one turn. 0 where it
        does not run."""
        if self.times is None or default.times is None:
            return 0.0
        return float(np.median(default.times / self.times))

    def faster_than(self, default: Measured) -> bool:
        """By more than `GAIN`, and in three turns of four."""
        if self.times is None or default.times is None:
            return self.times is not None
        turns = np.median(default.times / self.times, axis=1)
        return self.ratio(default) >= GAIN and float(np.mean(turns > 1)) >= 0.75


def measure(
    model: Model,
    batches: Batches,
    found: Sequence[Measured],
    plan: MeasuringPlan,
    progress: Callable[[int, int], None] = lambda done, turns: None,
) -> None:
    """Add times to configurations, or the reason why there are none.

    Args:
        model: that the graphs are of.
        batches: what to run.
        found: what to compare; those that have a reason already are left out.
        plan: how long, and what.
        progress: is told after each turn how many of how many are done.

    Raises:
        WorkloadError: there are no batches.
        VppsError: none of the configurations runs: what the first one raised.
    """
    kept = list(islice(batches(), plan.batches))
    if not kept:
        raise WorkloadError("there are no batches to measure with")
    largest = max(kept, key=lambda batch: len(batch[0]))
    weights = model.numpy()
    taken: list[tuple[Measured, list[list[float]]]] = [(m, []) for m in found if not m.reason]
    errors: list[VppsError] = []
    for number in range(plan.rounds):
        for k, (measured, turns) in enumerate(taken if number % 2 == 0 else taken[::-1], 1):  # none is always first
            if not measured.reason:
                try:
                    turns.append(_turn(measured, ModelCopy(model, weights), batches, largest, plan))
                except VppsError as error:
                    measured.reason = str(error)
                    errors.append(error)
            progress(number * len(taken) + k, len(taken) * plan.rounds)
    for measured, turns in taken:
        measured.times = None if measured.reason else np.array(turns)
    if len(errors) == len(taken):
        raise errors[0]


def best_of(measured: Sequence[Measured]) -> Measured:
    """The fastest one; the first, where none is clearly faster. If that does not run there are no ratios to go by."""
    first = measured[0]
    faster = (m for m in measured[1:] if m.faster_than(first))
    return max(faster, key=lambda m: (m.ratio(first), -m.seconds), default=first)


def _turn(
    measured: Measured, copied: ModelCopy, batches: Batches, largest: tuple[Graph, Expression], plan: MeasuringPlan
) -> list[float]:
    """Run all batches once. Returns seconds of each."""
    barriers: list[int] = []
    times: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of losses that become infinite: nobody keeps these weights
        with Handle(
            copied.model, plan.optimizer if plan.train else None, target=plan.target,
            vps=measured.configuration.vps, train=plan.train, verify=False,
        ) as handle:  # fmt: skip
            handle._configurator.settle(measured.configuration)  # whatever the tuning database has
            for graph, loss in [largest, *islice(batches(), plan.warmup)]:
                _run(handle, *copied.of(graph, loss), plan.train)
            clock = time.perf_counter()
            for graph, loss in islice(batches(), plan.batches):
                _run(handle, *copied.of(graph, loss), plan.train)
                now = time.perf_counter()
                times.append(now - clock)
                clock = now
                barriers.append(handle._engine.plan.n_barriers if handle._engine.plan is not None else 0)
            handle.sync_get_latest_loss()
            engine = handle._engine
            measured.arrangement, measured.stepped_down = engine.arrangement, engine.stepped_down
            measured.resources, measured.vps = engine.machine.resources, engine.machine.vps
            measured.barriers = float(np.mean(barriers))
    return times


def _run(handle: Handle, graph: Graph, loss: Expression, train: bool) -> None:
    if train:
        handle.fb(graph, loss)  # returns as soon as the launch before has ended: the time of a batch, host and kernel
    else:
        handle.forward(graph, [loss])
