"""What a launch and a barrier cost when there is nothing to do, by number of virtual processors (cpu target).

One JSON object per line, microseconds: an empty launch and the wait for it, back to back; the same after a pause of a
millisecond, as between batches whose host work takes longer than the kernel; a barrier among many in one launch.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import harness
import numpy as np
from numpy.typing import NDArray

from vpps.plan import writer
from vpps.plan.distribution import FIRST_FREE
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC

BENCH = "launch"
PAUSE = 1e-3  # seconds
BARRIERS = 200  # of a launch that has any


def script(vps: int, barriers: int) -> NDArray[np.uint32]:
    """A script of barriers alone."""
    entry = HEADER_WORDS + vps
    parts = [plain([MAGIC, vps, 1, 0] + [entry] * vps)]
    for k in range(barriers):
        words = writer.BARRIERS[0].copy()
        words[-1] = vps * (k + 1)
        parts.append(words)
    return np.concatenate([*parts, plain(encode("end", 0, 0))])


def launches(machine: CpuMachine, words: NDArray[np.uint32], times: int, pause: float = 0.0) -> float:
    """Seconds that one launch takes, pauses not included; the median."""
    found = []
    for _ in range(times):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        machine.launch(words)
        machine.wait()
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def main() -> None:
    """Run all cases of all numbers of virtual processors, interleaved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vps", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16])
    parser.add_argument("--confine", type=int, metavar="CORES", help="keep the process on that many cores")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.confine:
        harness.confine(options.confine)
    cases = {}
    for vps in options.vps:
        machine = CpuMachine(vps)
        machine.reserve(FIRST_FREE, 0)
        empty, many = script(vps, 0), script(vps, BARRIERS)
        cases[f"empty launch, vps={vps}"] = partial(launches, machine, empty, 300)
        cases[f"empty launch after a pause, vps={vps}"] = partial(launches, machine, empty, 30, PAUSE)
        if vps > 1:
            cases[f"barrier, vps={vps}"] = lambda m=machine, w=many: launches(m, w, 5) / BARRIERS
    values: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, measure in cases.items():
            values[name].append(measure() * 1e6)
    for name, found in values.items():
        case = f"{name} cores={harness.usable_cores()}"
        harness.report(BENCH, case, found, "us", higher_is_better=False)


if __name__ == "__main__":
    main()
