"""Tuning while training: candidates are tried on the batches that are trained anyway (VPPS, section III-C).

Training begins at once, on a GPU with one row per warp. Kernels of other candidates are compiled meanwhile, in
processes of their own. Then the candidate and the best configuration so far take turns of a few batches: B C1 B C2 B
..., so that each is compared with what ran before and after it, which costs two exchanges a candidate. Along an ordered
axis (rows per warp, number of virtual processors) the search goes on until it gets worse. What is trained does not
change: every batch is trained once, in whatever configuration.

Time is what passes between two calls of `fb` in a row, per vertex of the batch: kernel, host and what the caller does
in between, in the way in which they overlap. Medians leave out the odd batch after which somebody did more.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vpps.engine.configuration import Configuration
from vpps.errors import VppsError
from vpps.text import counted
from vpps.tuning.candidates import GAIN, Change, applied

_log = logging.getLogger(__name__)

UNTIMED = 2
"""Batches after an exchange that are not timed: weights are placed anew, the pipeline of host and kernel fills."""

TIMED = 8
"""Batches of a turn that are timed."""

_SIZES = 256  # of so many latest batches the typical size is taken


@dataclass(frozen=True, slots=True)
class Axis:
    """Changes to try, of the best configuration so far.

    Attributes:
        name: for reports.
        changes: in order.
        ordered: whether they go one way, so that what is worse ends the search along them.
    """

    name: str
    changes: tuple[Change, ...]
    ordered: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a candidate.

    Attributes:
        configuration: of it.
        ratio: time of the best configuration before it over its own; 0 where it does not run.
        reason: why it does not run, "" if it does.
    """

    configuration: Configuration
    ratio: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far tuning has come; `Handle.tuning`.

    Attributes:
        best: the configuration that is the fastest so far.
        ratio: time of the first configuration over the best one's, as far as is known.
        trials: candidates tried, in order.
        done: whether it is over.
        batches: trained since it began.
        exchanges: how often the configuration was changed.
        seconds: per vertex, of the best; 0 before it was timed.
        vertices: of a typical batch; 0 before the first.
        candidates: there are no more than so many; where more of something makes it worse, fewer are tried.
    """

    best: Configuration
    ratio: float
    trials: tuple[Trial, ...]
    done: bool
    batches: int
    exchanges: int
    seconds: float
    vertices: int = 0
    candidates: int = 0

    @property
    def is_gain(self) -> bool:
        """Whether something faster was found than what it began with."""
        return self.ratio > 1 and self.seconds > 0

    def describe(self) -> str:
        """One line for `explain()`."""
        state = "tuned online" if self.done else "being tuned"
        ran = sum(not trial.reason for trial in self.trials)
        gain = f", {self.ratio:.2f}x the first" if self.ratio != 1 else ""
        tried = counted(ran, "candidate") if self.done else f"{ran} of up to {counted(self.candidates, 'candidate')}"
        return f"{state}: {self.best.describe()} ({tried} tried in {counted(self.batches, 'batch', 'batches')}{gain})"


class OnlineTuner:
    """Decides in which configuration each batch is trained.

    Args:
        start: what a handle has without tuning: the first one, which it goes back to where a later batch cannot be had
            with the best one.
        axes: what to try.
        preparation: has candidates compiled.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        start: Configuration,
        axes: Sequence[Axis],
        preparation: Background,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.best = start
        self._start = start
        self._sizes: deque[int] = deque(maxlen=_SIZES)
        self._preparation = preparation
        self._clock = clock
        self._trials: list[Trial] = []
        self._ratio = 1.0
        self._batches = 0
        self._exchanges = 0
        self._candidates = self._search(axes)
        self._most = sum(len(axis.changes) for axis in axes)
        self._current = start  # of the latest batch
        self._trial: Configuration | None = None  # what is to be compared with the best one
        self._turn: list[float] = []
        self._untimed = UNTIMED
        self._before: list[float] = []  # seconds per vertex of the best one, before the candidate's turn
        self._own: list[float] = []  # of the candidate
        self._last = 0.0  # when the latest batch was begun; 0 where something else came after it
        self._running = 1  # vertices of that batch: it is what runs until the next one is begun
        self._trained = start  # configuration of the latest batch
        self._won: bool | None = None  # the latest candidate; None before it was judged
        self.done = False
        self._next()

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        seconds = statistics.median(self._before) if self._before else 0.0
        vertices = int(statistics.median(self._sizes)) if self._sizes else 0
        return Progress(
            self.best, self._ratio, tuple(self._trials), self.done, self._batches, self._exchanges, seconds, vertices,
            self._most,
        )  # fmt: skip

    def close(self) -> None:
        """Stay with what is the best so far."""
        self.done = True
        self._preparation.close()

    # ---- each batch

    def configuration(self) -> Configuration:
        """For the next batch."""
        ready = self._current == self.best and self._before and not self._own
        if self._trial is not None and ready and not self.done:
            reason = self._preparation.answer(self._trial)
            if reason:
                self._failed(reason)
            elif reason is not None:
                return self._change(self._trial)
        return self._current

    def batch(self, vertices: int) -> None:
        """A batch of so many vertices was begun in that configuration."""
        now = self._clock()
        took, self._last = now - self._last if self._last else 0.0, now
        ran, self._running = self._running, max(1, vertices)
        if self.done:
            return
        self._batches += 1
        self._sizes.append(vertices)
        self._exchanges += self._current != self._trained
        self._trained = self._current
        if self._untimed:
            self._untimed -= 1
            return
        if took > 0:
            self._turn.append(took / ran)
        if len(self._turn) >= TIMED:
            self._end_turn()

    def interrupted(self) -> None:
        """Something else than training came: the time until the next batch says nothing."""
        self._last = 0.0

    def failed(self, error: VppsError) -> Configuration | None:
        """The configuration does not do for a batch. Returns the one to go back to; None if that is the one which
        failed.

        A later batch may have cells and sizes for which even the best one does not do: then that is the end of tuning,
        and what a handle has without it goes on."""
        if self._current == self.best:
            if self._current == self._start:
                return None
            _log.info("tuning: %s is given up: %s", self.best.describe(), error)
            self._trials.append(Trial(self.best, 0.0, str(error)))
            self.best, self._ratio, self._before, self._own = self._start, 1.0, [], []
            self.close()
            return self._change(self.best)
        self._failed(str(error))
        return self._change(self.best)

    # ---- turns

    def _end_turn(self) -> None:
        seconds, self._turn = self._turn, []
        if self._current != self.best:
            self._own = seconds
            self._change(self.best)
        elif self._own:
            self._judge(seconds)
        else:
            self._before = seconds  # go on with the best until a candidate is ready

    def _judge(self, after: list[float]) -> None:
        """Compare the candidate's turn with those of the best one around it."""
        assert self._trial is not None
        ratio = statistics.median(self._before + after) / statistics.median(self._own)
        won = ratio >= GAIN and statistics.median(self._own) < min(map(statistics.median, (self._before, after)))
        _log.info("tuning: %s takes %.2f of the time of %s", self._trial.describe(), 1 / ratio, self.best.describe())
        self._trials.append(Trial(self._trial, ratio))
        self._before, own, self._own = after, self._own, []
        if won:
            self.best, self._before = self._trial, own
            self._ratio *= ratio
            self._change(self.best)
        self._won = won
        self._next()

    def _failed(self, reason: str) -> None:
        assert self._trial is not None
        _log.info("tuning: %s is left out: %s", self._trial.describe(), reason)
        self._trials.append(Trial(self._trial, 0.0, reason))
        self._own, self._won = [], False
        self._next()

    def _next(self) -> None:
        self._trial = next(self._candidates, None)
        if self._trial is None:
            self.close()
            _log.info("%s", self.progress.describe())
        else:
            self._preparation.ask(self._trial)

    def _change(self, configuration: Configuration) -> Configuration:
        if configuration != self._current:
            self._current, self._turn, self._untimed = configuration, [], UNTIMED
        return configuration

    def _search(self, axes: Sequence[Axis]) -> Iterator[Configuration]:
        """Candidates one after the other; each depends on what became of those before."""
        tried = {repr(self.best)}
        for axis in axes:
            base = self.best
            for change in axis.changes:
                candidate = applied(base, change)
                if repr(candidate) in tried:
                    continue
                tried.add(repr(candidate))
                yield candidate
                if axis.ordered and not self._won:
                    break


class Background:
    """Compiles candidates one after the other, in the background.

    Args:
        compile: has a candidate's kernel in the cache, and returns why it cannot be had, or "".
        end: ends what `compile` is waiting for.
    """

    def __init__(self, compile: Callable[[Configuration], str], end: Callable[[], None] = lambda: None) -> None:
        self._compile: Callable[[Configuration], str] | None = compile
        self._end = end
        self._answers: dict[str, str | None] = {}
        self._asked: list[Configuration] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None

    def ask(self, configuration: Configuration) -> None:
        """Begin with this one, unless that has been asked for."""
        with self._changed:
            if repr(configuration) in self._answers or self._ended:
                return
            self._answers[repr(configuration)] = None
            self._asked.append(configuration)
            self._changed.notify()
            if self._thread is None:  # a daemon: a process that ends does not wait for compilers
                thread = threading.Thread(target=self._run, name="vpps-tuning", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system starts no more: training goes on as it is
                    self._answers[repr(self._asked.pop())] = str(error)
                    if isinstance(error.__context__, KeyboardInterrupt):  # start() waits, and Ctrl-C breaks that wait
                        raise error.__context__ from None
                else:
                    self._thread = thread

    def answer(self, configuration: Configuration) -> str | None:
        """Why it cannot be had, "" if it is ready, None if nobody knows yet."""
        with self._changed:
            return self._answers.get(repr(configuration))

    def close(self) -> None:
        """Nothing more is needed."""
        with self._changed:
            self._ended = True
            self._compile = None  # it holds an example and a copy of the model
            self._changed.notify()
        self._end()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._asked and not self._ended:
                    self._changed.wait()
                compile = self._compile
                if compile is None:
                    return
                configuration = self._asked.pop(0)
            try:
                reason = compile(configuration)
            except VppsError as error:
                reason = str(error)
            except Exception as error:  # training goes on, whatever it is
                _log.warning("tuning: %s cannot be compiled", configuration.describe(), exc_info=True)
                reason = repr(error)
            del compile
            with self._changed:
                self._answers[repr(configuration)] = reason
