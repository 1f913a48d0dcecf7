"""`Handle(autotune=True)`: candidates are tried on the first batches that are trained (VPPS, section III-C).

Every candidate has a turn of some batches, then all have another one in the opposite order, so that a machine that
becomes slower meanwhile favours none. A kernel is compiled when its turn begins. Every batch is trained once, so that
what is learned does not change.

Time is what passes between two calls of `fb` in a row, per vertex of the batch: kernel, host and what the caller does
between the calls, as they overlap. Medians leave out the odd batch after which somebody did more.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence

from vpps.text import counted
from vpps.tuning.candidates import GAIN, Candidate
from vpps.tuning.choices import Choice

_log = logging.getLogger(__name__)

UNTIMED = 2
"""Batches at the beginning of a turn that are not timed: a kernel is compiled, and the pipeline of launches fills."""

TIMED = 8
"""Batches of a turn that are timed."""

AUTOTUNE = "autotune"


class Autotuner:
    """Says with which candidate the next batch is trained.

    Args:
        candidates: the default first.
        clock: seconds; for tests.
    """

    def __init__(self, candidates: Sequence[Candidate], clock: Callable[[], float] = time.perf_counter) -> None:
        self._default = candidates[0]
        self._turns = [*candidates, *reversed(candidates)]  # the present one and those to come
        self._medians: dict[Candidate, list[float]] = {c: [] for c in candidates}  # seconds per vertex, of each turn
        self._clock = clock
        self._untimed = UNTIMED  # batches of the present turn
        self._seconds: list[float] = []  # per vertex, of the present turn
        self._last = 0.0  # when the latest batch was begun; 0: something else came after it
        self._running = 1  # vertices of that batch, which runs until the next one is begun

    @property
    def done(self) -> bool:
        """Whether all turns are over."""
        return not self._turns

    @property
    def current(self) -> Candidate:
        """What the next batch is to be trained with, until all turns are over."""
        return self._turns[0]

    def describe(self) -> str:
        """In words, how far it has come."""
        return f"being tuned: {counted(len(self._turns), 'turn')} of {UNTIMED + TIMED} batches left"

    def batch(self, vertices: int) -> None:
        """A batch of so many vertices was begun."""
        now = self._clock()
        took, self._last = now - self._last if self._last else 0.0, now
        ran, self._running = self._running, max(1, vertices)
        if self._untimed:
            self._untimed -= 1
        elif took > 0:
            self._seconds.append(took / ran)
        if len(self._seconds) >= TIMED:
            self._medians[self.current].append(statistics.median(self._seconds))
            self._go_on(self._turns[1:])

    def interrupted(self) -> None:
        """Something else than training came: the time until the next batch says nothing."""
        self._last = 0.0

    def failed(self, candidate: Candidate, error: Exception) -> None:
        """One that is not the default cannot be had: it gets no more turns."""
        _log.info("tuning: %s is left out: %s", candidate.describe(), error)
        self._medians.pop(candidate, None)
        self._go_on([turn for turn in self._turns if turn != candidate])

    def choice(self) -> Choice:
        """The fastest, once all turns are over."""
        seconds = {c: statistics.fmean(medians) for c, medians in self._medians.items()}
        default = seconds[self._default]
        for candidate, own in seconds.items():
            _log.info("tuning: %s takes %.2f of the time of the default", candidate.describe(), own / default)
        best = min(seconds, key=lambda c: seconds[c])
        if default < GAIN * seconds[best]:
            best = self._default
        return Choice(best, default / seconds[best], AUTOTUNE)

    def _go_on(self, turns: list[Candidate]) -> None:
        self._turns, self._untimed, self._seconds = turns, UNTIMED, []
