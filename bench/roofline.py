"""Compares launches with their floor: the least time in which the machine can do their operations, bytes and barriers.

    python bench/roofline.py tree-lstm [--batch-sizes 1,8,64] [--vps 2] [--precision bf16] [--hidden 256 ...]
    python bench/roofline.py tree-lstm --device cuda --peaks H100
    python bench/roofline.py my_module:build --peaks 0.1,200,50,0.5

Runs a vpps-train task with its settings, or your own function, as in `vpps-profile`. Prints a line for every phase of a
launch, one for waiting, and one for the launch. `value` is in microseconds, averaged over the batches, and for a phase
also over virtual processors. `peer_value` is the floor, and `ratio` is the floor divided by the time (1: no gain is
possible).

    floor of a phase = max(flops / peak, moved / far + (asked - moved) / near)
    floor of a launch = floors of the phases + barriers * barrier

`moved` is the bytes of distinct memory, read from the level that fits all of the launch's data (`far`). Repeated reads
are at best served by the nearest cache (`near`). The model divides work evenly, so a floor serves for comparison and
cannot be reached. Peaks of the processor are measured (peaks.py) or given by --peaks: TFLOP/s, GB/s near, GB/s far,
microseconds of a barrier; or the name of a GPU. Recording a timeline itself takes some time.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import harness
import peaks
from roofline_work import Work, work_of

from vpps import Handle
from vpps.cli.workload import Workload, load_workload
from vpps.engine.timeline import WAITING, Timeline
from vpps.errors import VppsError
from vpps.runtime.cores import default_vps, usable_cores

BENCH = "roofline"
NEAR = 16 * 1024  # bytes of a virtual processor that fit into the nearest cache


class Peaks(NamedTuple):
    """The peaks of a machine: operations and bytes per second, seconds of a barrier."""

    flops: float
    near: float
    far: float
    barrier: float


# Multiply-adds, reads of L2 by all blocks, barriers as measured by bench/gpu_check; memory by the data sheet.
GPUS = {"H100": Peaks(60e12, 6.6e12, 3.35e12, 0.99e-6), "H200": Peaks(60e12, 6.6e12, 4.8e12, 0.99e-6)}


def given_peaks(text: str) -> Peaks:
    """Peaks given on the command line."""
    if text in GPUS:
        return GPUS[text]
    flops, near, far, barrier = map(float, text.split(","))
    return Peaks(flops * 1e12, near * 1e9, far * 1e9, barrier * 1e-6)


def measured_peaks(vps: int, resident: float) -> Peaks:
    """Return this processor's measured peaks, for a launch that uses `resident` bytes."""
    near, far = (peaks.bandwidth(vps, size) for size in (NEAR * vps, max(resident, NEAR * vps)))
    return Peaks(peaks.flops(vps), max(near, far), far, peaks.barrier_seconds(vps))


def floors(work: Work, peaks: Peaks) -> dict[str, float]:
    """Return the floors in seconds, by phase, and for all barriers."""
    found = {
        name: max(a.flops / peaks.flops, a.moved / peaks.far + max(0.0, a.asked - a.moved) / peaks.near)
        for name, a in work.phases.items()
    }
    return found | {WAITING: work.barriers * peaks.barrier}


def measure(workload: Workload, options: Any, vps: int | None) -> tuple[list[Work], list[list[Timeline]]]:
    """Train on the first batches; returns each batch's work, and the timelines by round."""
    items = workload.first(options.batches)
    settings = {"target": options.device, "vps": vps, "precision": options.precision}
    with Handle(workload.model, workload.optimizer, timeline=True, **settings) as handle:

        def launches() -> list[Timeline]:
            found = []
            for graph, loss in items:
                handle.fb(graph, loss)
                found.append(handle.timeline())
            return found

        works = [work_of(timeline.plan) for timeline in launches()]  # also warms up
        return works, [launches() for _ in range(options.rounds)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def report(case: str, works: list[Work], rounds: list[list[Timeline]], given: Peaks) -> None:
    """Print a line for each phase, for waiting and for the launch."""
    floor_of = [floors(work, given) for work in works]
    seconds = [[timeline.seconds() for timeline in timelines] for timelines in rounds]

    def line(what: str, times: list[float], floor: float, **extra: Any) -> None:
        peer = "floor", [floor * 1e6] * len(times)
        us = [t * 1e6 for t in times]
        harness.report(BENCH, f"{what} {case}", us, "us", peer, higher_is_better=False, **extra)

    for name in floor_of[0]:
        floor, times = mean([f[name] for f in floor_of]), [mean([s[name].mean() for s in of]) for of in seconds]
        amounts = [work.phases[name] for work in works if name in work.phases]
        extra = {
            what: round(mean([getattr(a, what) for a in amounts])) for what in ("flops", "asked", "moved") if amounts
        }
        if floor:
            line(name, times, floor, **extra)
    line(
        "launch", [mean([t.duration for t in timelines]) for timelines in rounds],
        mean([sum(f.values()) for f in floor_of]), peaks=given._asdict(), barriers=mean([w.barriers for w in works]),
        resident=round(mean([w.resident for w in works])),
    )  # fmt: skip


def main() -> None:
    """Measure every batch size."""
    parser = harness.parser(__doc__, batch_sizes=[1, 8, 64], device="cpu", vps=None, rounds=5, precision="float32")
    parser.add_argument("workload", help="a task of vpps-train with optional settings, or module:function")
    parser.add_argument("--batches", type=int, default=8, help="mini-batches of a round (default: 8)")
    parser.add_argument("--peaks", type=given_peaks, help="TFLOP/s,GB/s,GB/s,us, or a GPU: " + ", ".join(GPUS))
    options, rest = parser.parse_known_args()
    if options.device != "cpu" and options.peaks is None:
        parser.error(f"--device {options.device}: give the peaks of the GPU with --peaks")
    vps = options.vps or default_vps(usable_cores(), overlapped=True) if options.device == "cpu" else options.vps
    for size in options.batch_sizes:
        try:
            workload = load_workload(options.workload, size, rest)
            works, rounds = measure(workload, options, vps)
        except VppsError as error:
            sys.exit(f"{BENCH}: {error}")
        case = f"{workload.name} {workload.settings}".strip() + f" batch={size} vps={rounds[0][0].n_vps}"
        given = options.peaks or measured_peaks(rounds[0][0].n_vps, mean([w.resident for w in works]))
        report(f"{case} precision={options.precision} device={options.device}", works, rounds, given)


if __name__ == "__main__":
    main()
