"""Measures the processor's peaks: multiply-adds, memory reads by the size of an array, a barrier."""

from __future__ import annotations

import ctypes
import functools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import numpy as np

from vpps.kernel.host_compiler import ISA_FLAGS, tile_of_machine
from vpps.kernel.render import TILES
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import barrier, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC

SECONDS, TIMES = 0.004, 8  # duration of a measurement; measurements per result: the best one counts
BARRIERS = 200  # barriers in the launch that measures a barrier


@functools.cache
def _loops() -> ctypes.CDLL:
    """Return the compiled loops of peaks.cpp, for the instruction set of the kernel."""
    isa = tile_of_machine().isa
    source = Path(__file__).with_name("peaks.cpp").read_text()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("-O2", "-ffp-contract=fast", f"-DLANES={TILES[isa].lanes}", *ISA_FLAGS[isa])
        library = ctypes.CDLL(str(harness.shared_library(folder, "peaks", "c++", source, *flags)))
    library.multiply_add.argtypes, library.read.argtypes = (
        [ctypes.c_long],
        [ctypes.c_void_p, ctypes.c_long, ctypes.c_long],
    )
    library.multiply_add.restype = library.read.restype = ctypes.c_double
    return library


def _rate(threads: int, work: Callable[[int], float]) -> float:
    """Return the amount of work per second, summed over threads that begin together. Times are the threads' CPU times,
    so other programs disturb them little; threads that outnumber the cores take turns."""
    together = threading.Barrier(threads)

    def rate(thread: int) -> float:
        work(thread)  # warms the caches
        together.wait()
        start, amount, passed = time.thread_time(), 0.0, 0.0
        while passed < SECONDS:
            amount += work(thread)
            passed = time.thread_time() - start
        return amount / passed

    with ThreadPoolExecutor(threads) as pool:
        best = max(sum(pool.map(rate, range(threads))) for _ in range(TIMES))
    return best * min(1.0, harness.usable_cores() / threads)


def flops(threads: int) -> float:
    """Return the floating-point operations per second; a fused multiply-add counts as two."""
    return _rate(threads, lambda thread: float(_loops().multiply_add(20_000)))


def bandwidth(threads: int, size: float) -> float:
    """Return the bytes per second at which threads read `size` bytes in total, each its own part."""
    floats = max(1, round(size / threads / 4096)) * 1024  # whole pages
    parts = [np.ones(floats, np.float32) for _ in range(threads)]
    vectors = floats // tile_of_machine().lanes
    times = 1 + (1 << 18) // floats
    return _rate(threads, lambda thread: float(_loops().read(parts[thread].ctypes.data, vectors, times)))


def barrier_seconds(vps: int) -> float:
    """Return the seconds that a barrier takes among a `CpuMachine`'s virtual processors. A single one never waits."""
    if vps == 1:
        return 0.0
    machine = CpuMachine(vps)
    machine.reserve(FIRST_FREE, 0)

    def seconds(barriers: int) -> float:
        entry = HEADER_WORDS + vps
        parts = [plain([MAGIC, vps, 1, 0] + [entry] * vps), *(barrier(target=vps * (k + 1)) for k in range(barriers))]
        script = np.concatenate([*parts, plain(encode("end", 0, 0))])
        script[3] = len(script)

        def launch() -> None:
            machine.launch(script)
            machine.wait()

        return min(statistics.median(harness.timed(launch, 5)) for _ in range(3 * TIMES))

    try:
        return max(0.0, seconds(BARRIERS) - seconds(0)) / BARRIERS
    finally:
        machine.close()
