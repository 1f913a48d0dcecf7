"""Nanoseconds per instruction of an interpreter whose instructions do next to nothing.

Fetched from global memory, one ahead, or by chunks through shared memory; with and without a block barrier after
each. All multiprocessors run the same script, as with schedule "vector". `floor` is the latency of the one
multiply-add that an instruction does, 4 cycles: the rest is fetching, decoding and branching.
"""

from __future__ import annotations

import argparse

import numpy as np
from device import THREADS, Build, Device, Report, require, run
from numpy.typing import NDArray

BENCH = "gpu_interpreter"
FETCHES = ("global", "global, prefetched", "shared")  # FETCH in interpreter.cu
OPCODES, COUNT, CHUNK = 16, 1024, 256
CHUNK_BYTES = 32 * CHUNK


def builds(quick: bool) -> list[Build]:
    """A kernel per way to fetch."""
    syncs = (1,) if quick else (0, 1)
    return [
        Build("interpreter.cu", "interpreter", {"FETCH": fetch, "SYNC": sync})
        for fetch in range(len(FETCHES))
        for sync in syncs
    ]


def expected(script: NDArray[np.uint32], states: int, repeats: int) -> NDArray[np.uint32]:
    """What the states are after the script; the arithmetic is modulo 2^32."""
    state = np.arange(states, dtype=np.uint32)
    for _ in range(repeats):
        for opcode, operand in zip(script[:, 0], np.bitwise_xor.reduce(script[:, 1:], 1), strict=True):
            state = state * np.uint32(2 * opcode + 3) + operand
    return state


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check the states, then time."""
    random, count = np.random.default_rng(1), CHUNK if options.smallest else COUNT
    script = random.integers(0, 2**32, (count, 8), np.uint32)
    script[:, 0] = random.integers(0, OPCODES, count)
    words, states = device.array(script), device.zeros(device.sms * THREADS, np.uint32)
    for build in builds(options.quick):
        kernel = device.load(build)

        def launch(repeats: int) -> None:
            kernel(device.sms, CHUNK_BYTES, words, states, count, repeats)  # noqa: B023

        launch(2)
        wrong = np.count_nonzero(device.numpy(states) != expected(script, len(states), 2))
        require(wrong, 0, str(build))
        values = [1e3 * value / count for value in device.per_repetition(launch, 4, options.rounds)]
        sync = "barrier after each" if build.macros["SYNC"] else "no barrier"
        report(f"{FETCHES[build.macros['FETCH']]}, {sync}", values, "ns", floor=4e9 / device.clock)


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
