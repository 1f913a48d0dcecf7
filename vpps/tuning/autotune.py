"""`Handle(autotune=True)`: tries candidates on the first training batches (VPPS, section III-C).

Every candidate gets a turn of several batches. Then all get a second turn in reverse order, so that no candidate gains
if the machine slows down. A kernel is compiled at the start of its turn. Each batch is used for training once, so
tuning does not change the learned weights.

The measured time is the time between two consecutive calls of `fb`, per vertex of the batch. It covers the kernel, the
host and the caller's work between calls, because these overlap. Medians ignore occasional batches with more such work.
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
"""Untimed batches at the beginning of a turn, in which the kernel compiles and the pipeline of launches fills."""

TIMED = 8
"""Timed batches of a turn."""

AUTOTUNE = "autotune"


class Autotuner:
    """Chooses the candidate for the next batch and measures its time.

    Args:
        candidates: the candidates, default first.
        clock: returns seconds; tests replace it.
    """

    def __init__(self, candidates: Sequence[Candidate], clock: Callable[[], float] = time.perf_counter) -> None:
        self._default = candidates[0]
        self._turns = [*candidates, *reversed(candidates)]  # the current turn and the following ones
        self._medians: dict[Candidate, list[float]] = {c: [] for c in candidates}  # seconds per vertex, for each turn
        self._clock = clock
        self._untimed = UNTIMED  # untimed batches left in the current turn
        self._seconds: list[float] = []  # seconds per vertex in the current turn
        self._last = 0.0  # start time of the latest batch; 0 if anything else followed it
        self._running = 1  # vertices of the latest batch, which runs until the next one starts

    @property
    def done(self) -> bool:
        """True if all turns are over."""
        return not self._turns

    @property
    def current(self) -> Candidate:
        """The candidate for the next batch; defined until all turns are over."""
        return self._turns[0]

    def describe(self) -> str:
        """Describe the progress of tuning."""
        return f"being tuned: {counted(len(self._turns), 'turn')} of {UNTIMED + TIMED} batches left"

    def batch(self, vertices: int) -> None:
        """Record the start of a batch with this number of vertices."""
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
        """Record an interruption of training: the time until the next batch is not counted."""
        self._last = 0.0

    def failed(self, candidate: Candidate, error: Exception) -> None:
        """Drop a candidate that failed; it must not be the default."""
        _log.info("tuning: %s is left out: %s", candidate.describe(), error)
        self._medians.pop(candidate, None)
        self._go_on([turn for turn in self._turns if turn != candidate])

    def choice(self) -> Choice:
        """Return the fastest candidate; call this after all turns."""
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
