"""Every task of vpps.zoo on real data, training or inference: vpps beside PyTorch and DyNet in the same run.

    python bench/workloads.py > bench/results/cpu/DATE-workloads.jsonl
    python bench/workloads.py --mode infer --hidden 128 --batch-sizes 1,8,64,256 >> ...
    python bench/workloads.py --tasks tree-lstm --hidden 384 --embedding 128 >> ...         VPPS paper, figure 9
    python bench/workloads.py --memory --batch-sizes 128 >> ...

Sizes are those of the VPPS paper (section IV-E) unless --hidden says otherwise. Each contender runs in separate
processes (contenders.py), confined to the same cores; only one works at a time:

    vpps             as a user runs it
    torch            PyTorch, batched manually (peers/torch_zoo), as shipped
    torch-avx512     the same, with MKL told to use AVX-512, as by harness.mkl_avx512
    torch-per-node   PyTorch vertex by vertex
    dynet-agenda, dynet-depth   DyNet with its automatic batching (peers/dynet_zoo)
    dynet-native-agenda, dynet-native-depth   with --native-dynet FOLDER: compiled for this machine (peers/build_dynet)

Losses of the first mini-batches (each after an update), or outputs, must be equal to 1e-4: a contender that differs is
not measured. Prints one JSON object per line and peer. Rates are vertices per second divided by the mean number of
vertices per example, since slow contenders are timed on fewer examples. `gemm` and `peer_gemm` are each side's GFLOP/s
for the model's largest matrix times 64 vectors; products alone would give their ratio. Contenders that need more than
--slowest seconds for a mini-batch are left out; their lines say so under `skipped`.

With --memory, the value is the MB that a program adds: the peak resident set of a fresh process minus the resident set
with data and weights but before the program. This also holds for --mode infer.

Exit status 1 if a contender failed or differed; all others are still measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import numpy as np
from workers import FORMS, MKL_AVX512, NATIVE_DYNET, Worker, WorkerError
from workload_tasks import data_folder, data_of

from vpps.zoo.tasks import TASKS

BENCH = "workloads"
CHECKED_BATCHES = 3
TOLERANCE = 1e-4  # relative; for outputs, to the largest of them
GEMM_VECTORS = 64
PER_NODE_SHARE = 0.3  # of --slowest: unbatched programs are equally fast at any batch size
MEMORY_CONTENDERS = ("vpps", "torch")
MEMORY_BATCHES = 4
ORDER_SEED = 1


class Diagnostics:
    """Errors, printed at once and counted."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, text: str) -> None:
        """Print an error and count it."""
        print(f"{BENCH}: {text}", file=sys.stderr, flush=True)
        self.count += 1


class Measured:
    """A contender that is being measured on mini-batches of one size.

    Attributes:
        per_run: mini-batches per timing.
        rates: examples per second, by round.
    """

    def __init__(self, name: str, worker: Worker, work: Sequence[tuple[int, int]]) -> None:
        self.name, self.worker = name, worker
        self.examples = [examples for examples, _ in work]
        self.vertices = [vertices for _, vertices in work]
        self.per_run = 1
        self.rates: list[float] = []

    def run(self) -> float:
        """Return the seconds for `per_run` mini-batches."""
        seconds: float = self.worker.ask("run", name=self.name, n=self.per_run)
        return seconds

    def calibrate(self, seconds: float) -> None:
        """Choose the number of mini-batches that take about that many seconds."""
        for _ in range(2):  # the first estimate is rough: it is based on one mini-batch
            self.per_run = max(1, round(self.per_run * seconds / self.run()))

    def time(self) -> None:
        """Time a single round."""
        vertices = sum(self.vertices[k % len(self.vertices)] for k in range(self.per_run))
        per_example = sum(self.vertices) / sum(self.examples)
        self.rates.append(vertices / per_example / self.run())


class TaskBench:
    """The contenders of one task."""

    def __init__(self, name: str, options: argparse.Namespace, preload: Path | None, diagnostics: Diagnostics) -> None:
        self.name, self.options, self.preload, self.diagnostics = name, options, preload, diagnostics
        self.workers: dict[str, Worker] = {}
        self.facts: dict[str, Any] = {}  # by process
        self.gemm: dict[str, float | None] = {}
        self.versions: dict[str, str | None] = {}
        self.latest: dict[str, float] = {}  # examples/s at the previous batch size
        self.failed: set[str] = set()

    def start(self, contenders: Sequence[str], keep_memory: bool = True) -> list[str]:
        """Start the contenders' processes; returns those that could start."""
        options = self.options
        data = data_of(self.name, options.data)
        for process in dict.fromkeys(FORMS[name].process for name in contenders):
            form = next(form for form in FORMS.values() if form.process == process)
            worker = self.workers[process] = Worker(
                self.preload if process == MKL_AVX512 else None,
                options.native_dynet if process == NATIVE_DYNET else None,
            )
            try:
                self.facts[process] = worker.ask(
                    "start", kind=form.kind, task=self.name, data=None if data is None else str(data),
                    hidden=options.hidden, embedding=options.embedding, limit=options.limit, keep_memory=keep_memory,
                    dynet_megabytes=options.dynet_megabytes,
                )  # fmt: skip
                matrix = self.facts[process]["largest_matrix"]
                self.gemm[process] = matrix and worker.ask("product", rows=matrix[0], columns=matrix[1], n=GEMM_VECTORS)
                self.versions[process] = worker.ask("version")
            except WorkerError as error:
                self.diagnostics.add(f"{self.name}: {form.shown}: {error}")
                self.facts.pop(process, None)
        return [name for name in contenders if FORMS[name].process in self.facts]

    def close(self) -> None:
        """Stop all the processes."""
        for worker in self.workers.values():
            worker.close()

    def batches(self, batch_size: int) -> list[list[int]]:
        """Return the examples of every mini-batch: random, and the same for all contenders."""
        n = next(iter(self.facts.values()))["examples"]
        order = random.Random(ORDER_SEED).sample(range(n), n)
        full = [order[k : k + batch_size] for k in range(0, n - batch_size + 1, batch_size)]
        return full or [order]

    def begin(self, name: str, batch_size: int) -> Measured:
        """Return a contender that is ready to work."""
        worker = self.workers[FORMS[name].process]
        options = self.options
        form = {
            "name": name, "infers": options.mode == "infer", "lr": options.lr, "batch_size": batch_size,
            "threads": options.threads,
        }  # fmt: skip
        return Measured(name, worker, worker.ask("begin", form=form, batches=self.batches(batch_size)))

    def checked(self, contenders: Sequence[str], batch_size: int) -> Iterator[Measured]:
        """Yield the contenders whose results equal the first contender's."""
        expected: list[list[float]] | None = None
        for name in contenders:
            try:
                measured = self.begin(name, batch_size)
                results = measured.worker.ask("check", name=name, n=CHECKED_BATCHES)
            except WorkerError as error:
                self.fail(name, f"batch {batch_size}: {error}")
                continue
            if expected is None:
                expected = results
            elif difference := _difference(results, expected):
                self.fail(name, f"batch {batch_size}: {difference}, its figures would mean nothing")
                continue
            yield measured

    def fail(self, name: str, why: str) -> None:
        """Stop measuring a contender."""
        self.diagnostics.add(f"{self.name}: {FORMS[name].shown}: {why}")
        self.failed.add(name)

    def compare(self, contenders: Sequence[str], batch_size: int) -> None:
        """Check, time and report one batch size."""
        too_slow = {
            name: seconds
            for name in contenders
            if name in self.latest and (seconds := batch_size / self.latest[name]) > self.longest(name)
        }
        chosen = [name for name in contenders if name not in too_slow and name not in self.failed]
        entrants = {measured.name: measured for measured in self.checked(chosen, batch_size)}
        for turn in range(-1, self.options.passes):
            names = list(entrants)
            first = max(turn, 0) % max(len(names), 1)
            for name in names[first:] + names[:first]:
                try:
                    if turn < 0:
                        entrants[name].calibrate(self.options.seconds)
                    else:
                        entrants[name].time()
                except WorkerError as error:
                    self.fail(name, f"batch {batch_size}: {error}")
                    del entrants[name]
        self.latest |= {name: statistics.median(measured.rates) for name, measured in entrants.items()}
        self.report(entrants, batch_size)
        for name, seconds in too_slow.items():
            self.skipped(name, batch_size, f"{seconds:.1f} s for a mini-batch, by the rate of the size before")

    def longest(self, name: str) -> float:
        """Return the maximum seconds that a contender may take for a mini-batch."""
        share = PER_NODE_SHARE if name.endswith("per-node") else 1.0
        slowest: float = self.options.slowest * share
        return slowest

    def case(self, batch_size: int) -> str:
        """Return the case of a line."""
        options, facts = self.options, next(iter(self.facts.values()))
        return (
            f"task={self.name} mode={options.mode} batch={batch_size} {facts['sizes']} cores={options.cores} "
            f"threads={options.threads}"
        )

    def report(self, entrants: dict[str, Measured], batch_size: int) -> None:
        """Print a line per peer, or a single line if there is no peer or vpps is not measured."""
        peers = [name for name in entrants if name != "vpps"]
        emit = functools.partial(harness.report, BENCH, self.case(batch_size), unit="examples/s")
        own = entrants.get("vpps")
        for name in peers if own else []:
            assert own is not None
            emit(
                values=own.rates, peer=(FORMS[name].shown, entrants[name].rates), program="vpps",
                **self.extra("vpps"), **{f"peer_{key}": value for key, value in self.extra(name).items()},
            )  # fmt: skip
        if own is None or not peers:
            for name, measured in entrants.items():
                emit(values=measured.rates, program=FORMS[name].shown, **self.extra(name))

    def extra(self, name: str) -> dict[str, Any]:
        """Return further figures for a contender."""
        process = FORMS[name].process
        gemm, version = self.gemm[process], self.versions[process]
        return {"gemm": gemm and round(gemm, 1)} | ({"version": version} if version else {})

    def skipped(self, name: str, batch_size: int, why: str) -> None:
        """Print a line with the reason why a figure is missing."""
        line = {"bench": BENCH, "case": self.case(batch_size), "peer": FORMS[name].shown, "skipped": why}
        print(json.dumps(line | {"machine": harness.machine(), "commit": harness.commit()}), flush=True)

    def added_memory(self, name: str, batch_size: int) -> float:
        """Return the MB that a program adds to the memory resident before it is made."""
        worker = self.workers[FORMS[name].process]
        before: float = worker.ask("forget_peak")
        self.begin(name, batch_size)
        worker.ask("run", name=name, n=MEMORY_BATCHES)
        peak: float = worker.ask("peak")
        return peak - before


def _difference(results: list[list[float]], expected: list[list[float]]) -> str | None:
    """Describe a difference between results above TOLERANCE, or return None."""
    for k, (own, wanted) in enumerate(zip(results, expected, strict=True)):
        if len(own) != len(wanted):
            return f"mini-batch {k} has {len(own)} numbers, expected {len(wanted)}"
        worst = np.abs(np.subtract(own, wanted)).max() / np.abs(wanted).max()
        if not worst <= TOLERANCE:  # a NaN counts as different
            return f"mini-batch {k} differs by {worst:.1e} (such as {own[0]:.6g} for {wanted[0]:.6g})"
    return None


def measure_speed(name: str, options: argparse.Namespace, preload: Path | None, diagnostics: Diagnostics) -> None:
    """Measure all batch sizes of a task."""
    bench = TaskBench(name, options, preload, diagnostics)
    try:
        started = bench.start(options.contenders)
        if started:
            facts = next(iter(bench.facts.values()))
            print(f"{name}: {facts['description']}", file=sys.stderr, flush=True)
        for batch_size in options.batch_sizes if started else []:
            bench.compare(started, batch_size)
    finally:
        bench.close()


def measure_memory(name: str, options: argparse.Namespace, preload: Path | None, diagnostics: Diagnostics) -> None:
    """Measure each contender's peak memory, in a process per contender, batch size and round."""
    for batch_size in options.batch_sizes:
        added: dict[str, list[float]] = {}
        case = ""
        for contender in options.contenders:
            for _ in range(options.passes):
                bench = TaskBench(name, options, preload, diagnostics)
                try:
                    if not bench.start([contender], keep_memory=False):
                        break
                    case = bench.case(batch_size)
                    added.setdefault(contender, []).append(bench.added_memory(contender, batch_size))
                except WorkerError as error:
                    bench.fail(contender, str(error))
                    break
                finally:
                    bench.close()
        full = {contender: values for contender, values in added.items() if len(values) == options.passes}
        own = full.pop("vpps", None)
        for contender, values in full.items():
            shown = FORMS[contender].shown
            if own is None:
                harness.report(f"{BENCH}_memory", case, values, "MB", program=shown)
            else:
                harness.report(
                    f"{BENCH}_memory", case, own, "MB", (shown, values), higher_is_better=False, program="vpps"
                )
        if own is not None and not full:
            harness.report(f"{BENCH}_memory", case, own, "MB", program="vpps")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, mode="train", batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128], hidden=None, embedding=None, contenders=None,
        data=None, synthetic=False, limit=512, passes=None, threads=1, cores=None,
    )  # fmt: skip
    parser.add_argument("--tasks", metavar="NAME,...", help=f"default: all of {', '.join(TASKS)}")
    parser.add_argument("--native-dynet", type=Path, metavar="FOLDER", help="the python folder of peers/build_dynet")
    parser.add_argument("--dynet-megabytes", type=int, default=1024, help="size of each of DyNet's two large pools")
    parser.add_argument("--seconds", type=float, default=0.15, help="target duration of a timing")
    parser.add_argument("--slowest", type=float, default=1.0, help="most seconds per mini-batch")
    parser.add_argument("--lr", type=float, default=0.01, help="of SGD")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of speed")
    options = parser.parse_args()
    options.tasks = options.tasks.split(",") if options.tasks else list(TASKS)
    if unknown := set(options.tasks) - set(TASKS):
        sys.exit(f"unknown tasks: {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    known = list(MEMORY_CONTENDERS) if options.memory and options.contenders is None else list(FORMS)
    if options.native_dynet is None:
        known = [name for name in known if FORMS[name].process != NATIVE_DYNET]
    options.contenders = harness.choose_contenders(options.contenders, known)
    options.cores = options.cores or options.threads
    options.passes = options.passes or (1 if options.memory else 5)
    options.data = data_folder(options.data, options.synthetic)
    return options


@contextmanager
def _preloaded(contenders: Sequence[str]) -> Iterator[Path | None]:
    """Yield the library that makes MKL use AVX-512, if a contender needs it."""
    with tempfile.TemporaryDirectory(prefix="vpps-bench-") as folder:
        needed = any(FORMS[name].process == MKL_AVX512 for name in contenders)
        yield harness.mkl_avx512_library(folder) if needed else None


def main() -> None:
    """Measure every requested task."""
    options = parse_options()
    harness.confine(options.cores)
    diagnostics = Diagnostics()
    measure = measure_memory if options.memory else measure_speed
    with _preloaded(options.contenders) as preload:
        for name in options.tasks:
            measure(name, options, preload, diagnostics)
    sys.exit(1 if diagnostics.count else 0)


if __name__ == "__main__":
    main()
