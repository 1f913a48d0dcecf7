"""Splits the host's time of a training step on a GPU into parts, and counts bytes of device memory per step.

    python bench/gpu_step.py --trees train.txt >> results/gpu/DATE-step.jsonl

The model is the Tree-LSTM of treelstm.py. `value` is the host's microseconds per step without waiting for the device.
At batch 1 it should be below `aim`, 100 us, so that the device is the limit. Its parts:

    building   recording the graph (the user's loop)
    planning   order, memory, index lists, instructions
    copying    transfer of the script to the device
    launching  weights that the model changed, a larger pool, the launch itself
    other      checks, the loop around it

`waiting` is the wait for the previous launch, and `step` the whole step. --device cpu measures the cpu target, where
nothing is copied.

A line "device memory" follows for each batch size. It gives MB per step, from a model (every weight is read once and
written once). If Nsight Compute (ncu) is installed, it also has the kernel's reads and writes, both with L2 as the
previous launch left it and with L2 flushed. Only the measured figures include activations.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import harness
from datasets import trees_file
from models import VppsTreeLstm
from on_gpu import about
from treelstm import LEARNING_RATE, in_batches, initial_weights, train
from trees import Tree, read_trees

BENCH = "gpu_step"
AIM = 100.0  # microseconds at batch 1: expected device time of a Tree-LSTM step
PARTS = ("building", "planning", "copying", "launching", "other", "waiting")
METRICS = {"read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum"}


class Stopwatch:
    """Adds up time by part. Parts nest: time in an inner part does not count for the outer part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inner: list[float] = []  # for each running part: seconds spent in parts inside it
        self.ended = ExitStack()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed as a part."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                took = time.perf_counter() - start
                self.seconds[part] += took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return run

    def watch(self, owner: object, method: str, part: str) -> None:
        """Time calls of a method on all objects of the owner's class, until `ended`."""
        kind = type(owner)
        self.ended.enter_context(mock.patch.object(kind, method, self.timed(part, getattr(kind, method))))


def watched(net: VppsTreeLstm) -> Stopwatch:
    """Install a stopwatch in the handle and in the handle's machine, and return it."""
    watch = Stopwatch()
    watch.watch(net, "step", "other")
    watch.watch(net, "graph", "building")
    watch.watch(net.handle, "_plan_step", "planning")
    engine = net.handle._engine
    watch.watch(engine, "launch", "launching")
    machine = engine.machine
    watch.watch(machine, "wait", "waiting")
    if hasattr(machine, "stage"):  # targets that copy scripts
        watch.watch(machine, "stage", "copying")
    return watch


def network(words: int, options: argparse.Namespace) -> VppsTreeLstm:
    """Return the bench's model."""
    weights = initial_weights(words, options.embedding, options.hidden)
    return VppsTreeLstm(weights, "sgd", LEARNING_RATE["sgd"], options.vps, target=options.device)


def host_time(trees: list[Tree], words: int, batch_size: int, options: argparse.Namespace) -> None:
    """Measure and report the host's time at one batch size."""
    net = network(words, options)
    batches = in_batches([net.prepare(tree) for tree in trees], batch_size)
    train(net, batches)  # compiles, and enlarges the pool
    watch = watched(net)
    passes = []
    for _ in range(options.passes):
        watch.seconds = dict.fromkeys(PARTS, 0.0)
        train(net, batches)
        passes.append({part: 1e6 * seconds / len(batches) for part, seconds in watch.seconds.items()})
    vps = net.handle.vps
    watch.ended.close()
    net.close()
    busy = [sum(parts.values()) - parts["waiting"] for parts in passes]
    typical = passes[busy.index(statistics.median_low(busy))]  # one pass, so that its parts add up
    aim = {"aim": AIM} if batch_size == 1 else {}
    harness.report(
        BENCH, f"host, batch={batch_size} hidden={options.hidden} vps={vps} device={options.device}", busy, "us/step",
        **aim, **{part: round(value, 2) for part, value in typical.items()}, step=round(sum(typical.values()), 2),
        **about(["vpps"], options.device, options.trees),
    )  # fmt: skip


def device_memory(words: int, batch_size: int, options: argparse.Namespace) -> None:
    """Report bytes of device memory per step at one batch size."""
    weights = initial_weights(words, options.embedding, options.hidden)
    once = sum(array.nbytes for name, array in weights.items() if name != "words")
    found = {"modelled_read": float(once), "modelled_written": float(once)}
    if options.device == "cuda" and shutil.which("ncu"):
        for caches, suffix in (("none", ""), ("all", "_flushed")):
            for kind, values in profile(batch_size, caches, options).items():
                found[f"measured_{kind}{suffix}"] = statistics.median(values)
    elif options.device == "cuda":
        print("ncu is not on the PATH: bytes of device memory are modelled only", file=sys.stderr)
    mb = {name: round(value / 1e6, 3) for name, value in found.items()}
    harness.report(
        BENCH, f"device memory, batch={batch_size} hidden={options.hidden} device={options.device}",
        [mb.get("measured_read", mb["modelled_read"])], "MB/step", measured="measured_read" in mb, **mb,
        **about(["vpps"], options.device, options.trees),
    )  # fmt: skip


def profile(batch_size: int, caches: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the bytes read and written by each of some launches. caches: "all" flushes them before each."""
    metrics = ["--metrics", ",".join(METRICS.values())]
    found = read_profile(under_ncu(metrics, caches, batch_size, options.profiled, options.profiled, options))
    if not all(found.values()):
        sys.exit(f"ncu measured no launch: {found}")
    return found


def under_ncu(
    what: Sequence[str], caches: str, batch_size: int, skipped: int, counted: int, options: argparse.Namespace
) -> str:
    """Return Nsight Compute's output for some launches of this program, as CSV. Exits if it fails."""
    command = [
        "ncu", *what, "--cache-control", caches, "--clock-control", "none", "--kernel-name", "vpps_kernel",
        "--launch-skip", str(skipped), "--launch-count", str(counted), "--csv", "--print-units", "base",
    ]  # fmt: skip
    child = [
        sys.executable, __file__, "--steps-only", "--trees", str(options.trees), "--batch-sizes", str(batch_size),
        "--hidden", str(options.hidden), "--embedding", str(options.embedding),
        "--limit", str(2 * skipped * batch_size), "--profiled", str(skipped),
    ]  # fmt: skip
    child += ["--vps", str(options.vps)] if options.vps else []
    run = subprocess.run([*command, *child], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"ncu failed with status {run.returncode}:\n{run.stdout}\n{run.stderr}")
    return run.stdout


def rows_of(output: str) -> Iterator[dict[str, str]]:
    """Yield the rows of ncu's --csv output, without the lines before them."""
    lines = output.splitlines()
    header = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    yield from csv.DictReader(lines[header:])


def read_profile(output: str) -> dict[str, list[float]]:
    """Return the values of METRICS, one per launch."""
    found: dict[str, list[float]] = {kind: [] for kind in METRICS}
    for row in rows_of(output):
        for kind, metric in METRICS.items():
            if row["Metric Name"] == metric:
                found[kind].append(float(row["Metric Value"].replace(",", "")))
    return found


def steps_only(trees: Sequence[Tree], words: int, options: argparse.Namespace) -> None:
    """Train for enough launches, for a profiler to watch."""
    net = network(words, options)
    batches = in_batches([net.prepare(tree) for tree in trees], options.batch_sizes[0])
    for _ in range(-(-2 * options.profiled // len(batches))):
        train(net, batches)
    net.close()


def main() -> None:
    """Measure every batch size."""
    parser = harness.parser(
        __doc__, trees=None, batch_sizes=[1, 8, 64], device="cuda", hidden=256, embedding=256, limit=512, passes=5,
        vps=None, quick=False,
    )  # fmt: skip
    parser.add_argument("--profiled", type=int, default=20, help="launches that ncu profiles, after as many others")
    parser.add_argument("--steps-only", action="store_true", help="train and print nothing: for ncu")
    options = parser.parse_args()
    if options.quick:
        options.batch_sizes, options.limit, options.passes = [1], 64, 3
    options.trees = trees_file(options.trees)
    trees, words = read_trees(options.trees, options.limit)
    if options.steps_only:
        steps_only(trees, words, options)
        return
    for batch_size in options.batch_sizes:
        host_time(trees, words, batch_size, options)
        device_memory(words, batch_size, options)


if __name__ == "__main__":
    main()
