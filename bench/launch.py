"""What a launch and a barrier cost when there is nothing to do, by number of virtual processors (cpu target).

One JSON object per line, microseconds: an empty launch and the wait for it, back to back; the same after a pause of a
millisecond, as between batches whose host work takes longer than the kernel; a barrier among many in one launch.
"""

from __future__ import annotations

import argparse
from functools import partial

import harness

from vpps.placement.distribution import FIRST_FREE
from vpps.report.roofline.peaks import barriers_script, launch_seconds
from vpps.runtime.cpu import CpuMachine

BENCH = "launch"
PAUSE = 1e-3  # seconds
BARRIERS = 200  # of a launch that has any


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
        empty, many = barriers_script(vps, 0), barriers_script(vps, BARRIERS)
        cases[f"empty launch, vps={vps}"] = partial(launch_seconds, machine, empty, 300)
        cases[f"empty launch after a pause, vps={vps}"] = partial(launch_seconds, machine, empty, 30, PAUSE)
        if vps > 1:
            cases[f"barrier, vps={vps}"] = lambda m=machine, w=many: launch_seconds(m, w, 5) / BARRIERS
    values: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, measure in cases.items():
            values[name].append(measure() * 1e6)
    for name, found in values.items():
        case = f"{name} cores={harness.usable_cores()}"
        harness.report(BENCH, case, found, "us", higher_is_better=False)


if __name__ == "__main__":
    main()
