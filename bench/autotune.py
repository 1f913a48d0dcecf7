"""What tuning while training finds, and what it costs: the zoo's Tree-LSTM on the cpu, batches of 1, 16 and 64.

    python bench/autotune.py [--rounds 15] [--batch-sizes 1,16,64] >> autotune.jsonl

A handle with `autotune=True` trains until it has settled, but for no more than `--limit` batches. Then handles in fixed
configurations train the same network on the same batches in turns: the first configuration, what was found online, and
every candidate. Kernels of candidates are compiled meanwhile, or come from the cache. One JSON object per line:

    found        value: milliseconds of a step in what was found online, peer_value: in the default configuration;
                 ratio above 1 is what tuning gains
    best fixed   the same, against the fastest of the candidates and the default: ratio below 1 is what tuning missed

Both have `first_turn` (milliseconds of a step before anything else was tried, as tuning timed it: all that is between
two calls), `settled` (the same, at the end), `batches` and `exchanges` until it settled, and `done`: whether it did.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from itertools import cycle

import harness

import vpps
from vpps.cli.workload import Workload, load_workload
from vpps.engine.configuration import Configuration
from vpps.tuning.online import Progress

BENCH = "autotune"
BATCHES = 12

Batch = tuple[vpps.Graph, vpps.Expression]


def workload(batch_size: int, hidden: int) -> Workload:
    """The same batches every time."""
    return load_workload("tree-lstm", batch_size, ["--hidden", str(hidden)])


def tuned(load: Workload, batches: Sequence[Batch], limit: int) -> tuple[Progress, float]:
    """How far tuning comes, and seconds per vertex of the first turn."""
    first = 0.0
    with vpps.Handle(load.model, vpps.Adam(), target="cpu", autotune=True, verify=False) as handle:
        for count, (graph, loss) in enumerate(cycle(batches)):
            handle.fb(graph, loss)
            progress = handle.tuning
            assert progress is not None
            if not progress.exchanges:
                first = progress.seconds
            if progress.done or count + 1 >= limit:
                return progress, first
    raise AssertionError("there are no batches")


def fixed(load: Workload, configuration: Configuration) -> vpps.Handle:
    """A handle that stays in a configuration."""
    handle = vpps.Handle(load.model, vpps.Adam(), target="cpu", verify=False)
    handle._configurator.configure(configuration)  # the tile, too, which no user chooses
    return handle


def step(handle: vpps.Handle, batches: Sequence[Batch]) -> float:
    """Milliseconds of a step, over all batches."""
    start = time.perf_counter()
    for graph, loss in batches:
        handle.fb(graph, loss)
    handle.sync_get_latest_loss()
    return (time.perf_counter() - start) / len(batches) * 1e3


def measured(
    configurations: Sequence[Configuration], batch_size: int, hidden: int, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of a step in every round, by `repr` of the configuration. Each has a network of its own; who goes
    first rotates."""
    loads = [workload(batch_size, hidden) for _ in configurations]
    batches = [load.first(BATCHES) for load in loads]
    handles = [fixed(load, c) for load, c in zip(loads, configurations, strict=True)]
    found: list[list[float]] = [[] for _ in configurations]
    for turn in range(rounds + 1):
        for place in range(len(handles)):
            k = (place + turn) % len(handles)
            found[k].append(step(handles[k], batches[k]))
    for handle in handles:
        handle.close()
    return {repr(c): times[1:] for c, times in zip(configurations, found, strict=True)}  # the first warms up


def main() -> None:
    """Measure all batch sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch-sizes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16, 64])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--limit", type=int, default=20_000, help="batches after which tuning is ended")
    options = parser.parse_args()
    os.environ["VPPS_TUNING"] = "0"  # what was found before would be used instead
    for batch_size in options.batch_sizes:
        load = workload(batch_size, options.hidden)
        batches = load.first(BATCHES)
        progress, first = tuned(load, batches, options.limit)
        default = Configuration()
        candidates = {repr(c): c for c in (default, progress.best, *(t.configuration for t in progress.trials))}
        for trial in progress.trials:
            if trial.reason:  # it does not run
                candidates.pop(repr(trial.configuration), None)
        times = measured(list(candidates.values()), batch_size, options.hidden, options.rounds)
        best = min(times, key=lambda key: statistics.median(times[key]))
        found = repr(progress.best)
        vertices = progress.vertices * 1e3
        for what, peer in (("found", repr(default)), ("best fixed", best)):
            harness.report(
                BENCH, f"{what}, tree-lstm hidden={options.hidden} batch={batch_size}", times[found], "ms",
                (candidates[peer].describe(), times[peer]), higher_is_better=False,
                found=progress.best.describe(), first_turn=harness.median([first * vertices]),
                settled=harness.median([progress.seconds * vertices]), batches=progress.batches,
                exchanges=progress.exchanges, candidates=len(progress.trials), done=progress.done,
            )  # fmt: skip


if __name__ == "__main__":
    main()
