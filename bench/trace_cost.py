"""What recording a timeline costs, and how much of a launch it accounts for: vpps's Tree-LSTM, batches of 16 and 64.

    python bench/trace_cost.py [--rounds 15] [--vps N] >> trace_cost.jsonl

Two handles train the same network on the same batches in turns, one within `handle.trace()`. One JSON object per line:

    step       value: milliseconds of a plain step, peer_value: of a recorded one; ratio - 1 is what recording costs
    cpu time   the same in milliseconds of processor time, of all threads: what else the machine does matters little
    covered    value: share of the host's time from launching to having waited that the timeline's launch takes;
               `intervals`: share of the launch that instructions and waiting of each virtual processor add up to
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import harness

import vpps
from vpps.cli.workload import Workload, load_workload
from vpps.report.summary import KINDS

BENCH = "trace_cost"
BATCHES = 12
CONTENDERS = ("plain", "recorded")

Batch = tuple[vpps.Graph, vpps.Expression]


def workload(batch_size: int, hidden: int) -> Workload:
    """The same batches every time."""
    return load_workload("tree-lstm", batch_size, ["--hidden", str(hidden)])


def one_pass(handle: vpps.Handle, batches: Sequence[Batch], traced: bool) -> Callable[[], tuple[float, float]]:
    """Trains on all batches; wall and processor milliseconds of a step."""

    def run() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        with handle.trace() if traced else nullcontext():
            for graph, loss in batches:
                handle.fb(graph, loss)
            handle.sync_get_latest_loss()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return wall / len(batches) * 1e3, cpu / len(batches) * 1e3

    return run


def covered(handle: vpps.Handle, batches: Sequence[Batch]) -> tuple[list[float], float]:
    """Of every launch the share of the host's time; share of all that the intervals of each virtual processor are."""
    shares = []
    with handle.trace() as trace:
        for graph, loss in batches:
            handle.fb(graph, loss)
            handle.sync_get_latest_loss()
            waited = time.perf_counter_ns()
            timeline = trace.timelines[-1]
            shares.append(timeline.duration * 1e9 / (waited - timeline.host[-1].end))
    launches = sum(t.duration for t in trace.timelines)
    sums = [sum(getattr(vp, kind) for kind in KINDS) for vp in trace.summary().vps]
    return shares, min(sums, key=lambda s: -abs(s - launches)) / launches


def main() -> None:
    """Measure all batch sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vps", type=int, help="virtual processors; default: as a handle has them")
    parser.add_argument("--batch-sizes", type=lambda text: [int(n) for n in text.split(",")], default=[16, 64])
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    for batch_size in options.batch_sizes:
        loads = {name: workload(batch_size, options.hidden) for name in CONTENDERS}
        batches = {name: load.first(BATCHES) for name, load in loads.items()}
        handles = {
            name: vpps.Handle(load.model, vpps.Adam(), target="cpu", vps=options.vps, timeline=name == "recorded")
            for name, load in loads.items()
        }
        runs = {name: one_pass(handles[name], batches[name], name == "recorded") for name in CONTENDERS}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
        for turn in range(options.rounds + 1):
            for name in CONTENDERS[:: 1 if turn % 2 else -1]:
                found[name].append(runs[name]())
        case = f"tree-lstm hidden={options.hidden} batch={batch_size} vps={handles['plain'].vps}"
        for k, what in enumerate(("step", "cpu time")):
            plain, recorded = ([times[k] for times in found[name][1:]] for name in CONTENDERS)  # the first warms up
            harness.report(
                BENCH, f"{what}, {case}", plain, "ms", ("recorded", recorded), higher_is_better=False,
                median_cost=harness.median(recorded) / harness.median(plain) - 1,
            )  # fmt: skip
        shares, intervals = covered(handles["recorded"], batches["recorded"])
        harness.report(BENCH, f"covered, {case}", shares, "share", intervals=intervals, mean=statistics.mean(shares))
        for handle in handles.values():
            handle.close()


if __name__ == "__main__":
    main()
