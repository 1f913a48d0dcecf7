"""A contender at steady state: examples per second, and a step's host time and GPU time, measured separately."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import harness
from models import Trainer
from treelstm import Contender

AHEAD = 5  # steps: no contender's queue holds more than four (vpps's: two)
SAMPLES = 16  # steps per pass that are timed one by one, spread over a round of the batches
DELAY_BYTES = 1 << 20  # copying that much to the GPU takes about 20 us, enqueuing a launch 5 us


class Steady:
    """Measurements of a contender, from passes over some batches.

    Args:
        n: examples in the batches.
        seconds: least duration of a pass. A pass is whole rounds over the batches, so all passes do equal work.

    Attributes:
        rates: examples per second in each pass.
        host: host seconds of a step that finds the queue empty, so that it never waits.
        kernel: GPU seconds of a step that is enqueued as a whole; empty without a GPU.
    """

    def __init__(self, contender: Contender, batches: Sequence[Any], n: int, seconds: float) -> None:
        self._contender, self._batches, self._n, self._seconds = contender, batches, n, seconds
        self._clock = kernel_clock(contender)
        self.rates: list[float] = []
        self.host: list[float] = []
        self.kernel: list[float] = []

    def measure(self) -> None:
        """Make a pass. Raises ArithmeticError if training diverged to non-finite numbers, which changes the steps."""
        self.rates.append(self._rate())
        if not math.isfinite(self._contender.loss()):
            raise ArithmeticError("the loss is not finite any more")
        for batch in self._batches[:: -(-len(self._batches) // SAMPLES)]:
            start = time.perf_counter()
            self._contender.step(batch)
            self.host.append(time.perf_counter() - start)
            self._contender.loss()
            if self._clock is not None:
                self.kernel.append(self._clock(batch, self.host[-1]))

    def _rate(self) -> float:
        """Both clock readings follow the last step of a round, with the same work in the queue."""
        for batch in ([*self._batches] * AHEAD)[-AHEAD:]:
            self._contender.step(batch)
        rounds, start, took = 0, time.perf_counter(), 0.0
        while not rounds or took < self._seconds:
            for batch in self._batches:
                self._contender.step(batch)
            rounds += 1
            took = time.perf_counter() - start
        return rounds * self._n / took

    def apart(self, prefix: str = "") -> dict[str, float | None]:
        """Return the median microseconds of a step, for a line."""
        return {
            f"{prefix}{name}_us": harness.median([1e6 * s for s in found]) if found else None
            for name, found in (("host", self.host), ("kernel", self.kernel))
        }


def kernel_clock(contender: Any) -> Callable[[Any, float], float] | None:
    """Return a function that trains on a batch and returns the GPU's seconds, given the host's; None without a GPU."""
    if isinstance(contender, Trainer):
        return LaunchClock(contender) if contender.handle.target == "cuda" else None
    if contender.device.type != "cuda":
        return None
    from peers.torch_gpu import kernel_seconds

    return lambda batch, host: kernel_seconds(lambda: contender.step(batch), host)


class LaunchClock:
    """Times launches of vpps by events directly before and after them in their stream. A copy before these events
    delays them, so that the launch is enqueued before its turn; otherwise the time of the call would count."""

    def __init__(self, net: Trainer) -> None:
        from cuda.bindings import driver as api

        self._net, self._api = net, api
        self._driver = driver = net.handle._engine.machine._driver
        self._launching = driver.launching
        with driver:
            self._begun, self._ended = (driver._value(api.cuEventCreate(0)) for _ in range(2))
            self._source, self._target = driver.pinned(DELAY_BYTES, "a copy"), driver.allocate(DELAY_BYTES, "a copy")

    def __call__(self, batch: Any, host: float) -> float:
        with mock.patch.object(self._driver, "launching", self._timed):
            self._net.step(batch)
            self._net.loss()
        with self._driver as driver:
            return 1e-3 * float(driver._value(self._api.cuEventElapsedTime(self._begun, self._ended)))

    def _timed(self, kernel: Any, blocks: int, threads: int, stream: Any, parameters: int) -> Callable[[], Any]:
        driver = self._driver
        calls = (
            driver.copying_in(self._target.address, self._source.address, DELAY_BYTES, stream),
            driver.recording(self._begun, stream),
            self._launching(kernel, blocks, threads, stream, parameters),
            driver.recording(self._ended, stream),
        )

        def run() -> Any:
            results = [call() for call in calls]
            return next((result for result in results if int(result[0])), results[0])

        return run
