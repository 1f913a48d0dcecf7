"""Microseconds of one signal/wait level, by blocks per multiprocessor and groups.

Every block of a group signals and waits for all of the group, thousands of times in one launch of one block (or two)
per multiprocessor. `floor` is one round trip to L2: a signal must get there and be seen. With two groups or more
every group has its own counter and they run at once.
"""

from __future__ import annotations

import argparse
import sys

from device import Build, Device, Report, run

BENCH = "gpu_barrier"
LINE = 32  # of barrier.cu


def builds(quick: bool) -> list[Build]:
    """One kernel."""
    return [Build("barrier.cu", "barriers")]


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check that every barrier is one, then time it."""
    (build,) = builds(options.quick)
    kernel, errors = device.load(build), device.zeros(1, "uint32")

    def case(per_sm: int, groups: int) -> None:
        width = per_sm * device.sms // groups
        blocks = width * groups
        words, cells = device.zeros(LINE * groups, "uint32"), device.zeros(2 * blocks, "uint32")

        def launch(levels: int, check: int = 0) -> None:
            words.fill(0)
            kernel(blocks, 0, words, cells, errors, width, levels, check, cooperative=True)

        launch(50 if options.smallest else 2000, check=1)
        if wrong := int(device.numpy(errors)[0]):
            sys.exit(f"{wrong} blocks saw data from before a barrier")
        values = device.per_repetition(launch, 500, options.rounds)
        name = f"blocks={blocks} per_sm={per_sm} groups={groups} width={width}"
        report(name, values, floor=device.l2_round_trip, barriers=2500)

    for per_sm in (1,) if options.quick else (1, 2):
        for groups in (1, 4) if options.quick else (1, 2, 4, 6):
            case(per_sm, groups)


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
