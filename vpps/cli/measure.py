"""Measures candidates over the same batches, in turns, so that noise of the machine hits all alike."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

import vpps
from vpps.cli.workload import Workload
from vpps.errors import VppsError
from vpps.graph.graph import Graph
from vpps.ops.operand import Expression
from vpps.tuning.candidates import GAIN, Candidate, candidates_for
from vpps.tuning.choices import Key, key_for


@dataclass(slots=True)
class Measured:
    """How fast a candidate is.

    Attributes:
        times: seconds per batch, a row per turn.
        reason: why it does not run; "" if it does.
    """

    candidate: Candidate
    times: list[list[float]] = field(default_factory=list)
    reason: str = ""

    @property
    def seconds(self) -> float:
        """Median over batches and turns; infinite if it does not run."""
        return float("inf") if self.reason else float(np.median(self.times))

    def ratio(self, default: Measured) -> float:
        """How many times as fast as the default: median over pairs of times of one batch in one turn. 0 if it does not
        run."""
        return 0.0 if self.reason else float(np.median(np.divide(default.times, self.times)))

    def is_faster_than(self, default: Measured) -> bool:
        """By `GAIN`, and in three turns of four."""
        if self.reason or self.ratio(default) < GAIN:
            return False
        turns = np.median(np.divide(default.times, self.times), axis=1)
        return float(np.mean(turns > 1)) >= 0.75


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured.

    Attributes:
        workload: gives the batches; its model is trained for that, from the same weights in every turn.
        options: of the handle: target and precision.
        train: steps of training, or evaluation of the loss.
        batches: timed in each turn.
        warmup: batches before those, after the largest one.
    """

    workload: Workload
    options: dict[str, Any]
    train: bool = True
    batches: int = 8
    warmup: int = 2

    def handle(self, candidate: Candidate) -> vpps.Handle:
        """A handle in the configuration of a candidate, whatever was found before."""
        optimizer = self.workload.optimizer if self.train else None
        options: dict[str, Any] = {"schedule": "vector", **self.options, **candidate.changes}
        return vpps.Handle(self.workload.model, optimizer, train=self.train, verify=False, **options)

    def candidates(self) -> tuple[list[Candidate], Key]:
        """What to try, the default first, and the key of the choice. Raises VppsError: the default does not run."""
        with self.handle(Candidate()) as handle:
            self._run(handle, *self.workload.first(1)[0])
            handle.sync_get_latest_loss()
            engine = handle._engine
            precisions = engine.configuration.precision
            return candidates_for(engine), key_for(self.workload.model, engine.machine, self.train, precisions)

    def measure(self, found: Sequence[Candidate], rounds: int, told: Callable[[int, int], None]) -> list[Measured]:
        """Times of all candidates, a turn of each in every round.

        Args:
            told: is told after each turn how many of how many are over.

        Raises:
            VppsError: the default, which is the first, does not run.
        """
        model = self.workload.model
        largest = max(self.workload.first(self.batches), key=lambda batch: len(batch[0]))
        weights = model.numpy()
        all_of_them = [Measured(candidate) for candidate in found]
        for number in range(rounds):
            in_turn = all_of_them if number % 2 == 0 else all_of_them[::-1]  # none is always first
            for k, measured in enumerate(in_turn, 1):
                if not measured.reason:
                    try:
                        measured.times.append(self._turn(measured.candidate, largest))
                    except VppsError as error:
                        if measured is all_of_them[0]:
                            raise
                        measured.reason = str(error)
                    for p in model:
                        p.assign(weights[p.name])
                told(number * len(found) + k, len(found) * rounds)
        return all_of_them

    def _turn(self, candidate: Candidate, largest: tuple[Graph, Expression]) -> list[float]:
        """Run all batches once. Returns seconds of each."""
        times: list[float] = []
        with warnings.catch_warnings(), self.handle(candidate) as handle:
            warnings.simplefilter("ignore", RuntimeWarning)  # of infinite losses: nobody keeps the weights
            for graph, loss in [largest, *islice(self.workload.batches(), self.warmup)]:
                self._run(handle, graph, loss)
            clock = time.perf_counter()
            for graph, loss in islice(self.workload.batches(), self.batches):
                self._run(handle, graph, loss)
                now = time.perf_counter()
                times.append(now - clock)
                clock = now
            handle.sync_get_latest_loss()
        return times

    def _run(self, handle: vpps.Handle, graph: Graph, loss: Expression) -> None:
        if self.train:
            handle.fb(graph, loss)  # returns once the launch before has ended: the time of a batch, host and kernel
        else:
            handle.forward(graph, [loss])


def best_of(found: Sequence[Measured]) -> Measured:
    """The fastest; the first, if none is clearly faster."""
    first = found[0]
    return max((m for m in found[1:] if m.is_faster_than(first)), key=lambda m: m.ratio(first), default=first)
