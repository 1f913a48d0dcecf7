"""Training and inference with each batching policy, end to end, for ED-Batch's eight workloads.

    python bench/policies.py > bench/results/cpu/DATE-policies.jsonl
    python bench/policies.py --split --batch-sizes 64 --hidden 128 > bench/results/cpu/DATE-policies_split.jsonl
    python bench/policies_table.py bench/results/cpu/DATE-policies.jsonl

Prints a line per workload, mode, batch size, hidden size and policy: a user's examples per second, host work included,
compared with policy `depth`. One process holds handles for all policies. A round runs a few mini-batches with each of
them in turn, so that all see the same disturbances; there are many short rounds. `quartiles` are the quartiles of the
rounds' ratios.

With --split, mini-batches run one at a time, as in ED-Batch's figure 9. Their milliseconds are split into
`construction` (joining the examples and recording the graph), `scheduling` (policy, plan and script), and `execution`
(the rest).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import harness
import numpy as np
from edbatch_graphs import NETWORKS
from numpy.typing import NDArray
from policies_table import BASELINE, BENCH, PARTS, SPLIT
from workload_tasks import data_folder, data_of, make_task

import vpps
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.policies import NAMED

MODES = ("train", "infer")
ORDER_SEED = 1
LEARN_ON = 32  # examples in the first mini-batch, from which machines are learned

Indices = NDArray[np.intp]
"""The examples of a mini-batch."""


class Contender:
    """A task and a handle with one policy.

    Args:
        infers: True to compute outputs only; False to train by SGD.
    """

    def __init__(self, task: Any, policy: str, infers: bool, threads: int) -> None:
        self.task, self.infers = task, infers
        rule, chosen = vpps.SGD(lr=0.01), policy if policy in NAMED else self._learned()
        self.handle = vpps.Handle(task.model, rule, target="cpu", vps=threads, policy=chosen, train=not infers)

    def _learned(self) -> vpps.LearnedPolicy:
        graph, (batch,) = vpps.Graph(), mini_batches(self.task, LEARN_ON, 1)
        self.task.loss(graph, self.task.train[batch])
        return vpps.learn_policy(graph)

    def step(self, examples: Indices) -> int:
        """Run a mini-batch; returns the time at which its graph was recorded (`time.perf_counter_ns`)."""
        batch, graph = self.task.train[examples], vpps.Graph()
        if self.infers:
            wanted = [self.task.outputs(graph, batch)]
            recorded = time.perf_counter_ns()
            self.handle.forward(graph, wanted)
        else:
            loss = self.task.loss(graph, batch) * (1.0 / len(batch))
            recorded = time.perf_counter_ns()
            self.handle.fb(graph, loss)
        return recorded

    def run(self, batches: Sequence[Indices]) -> None:
        """Run mini-batches and wait only for the last one."""
        for batch in batches:
            self.step(batch)
        self.handle.sync_get_latest_loss()

    def split(self, examples: Indices) -> tuple[float, float, float]:
        """Return the milliseconds of a mini-batch's PARTS; nothing may be in flight."""
        begin = time.perf_counter_ns()
        recorded = self.step(examples)
        self.handle.sync_get_latest_loss()
        end = time.perf_counter_ns()
        plan = self.handle._engine.plan
        assert plan is not None
        written = plan.encoded[1]
        return (recorded - begin) * 1e-6, (written - recorded) * 1e-6, (end - written) * 1e-6


class Case(NamedTuple):
    """The settings to which lines refer."""

    workload: str
    mode: str
    batch: int
    hidden: int
    threads: int

    def named(self, policy: str) -> str:
        """Return the case's name for lines."""
        return (
            f"task={self.workload} mode={self.mode} policy={policy} batch={self.batch} hidden={self.hidden} "
            f"threads={self.threads}"
        )


def measure(
    case: Case, contenders: Mapping[str, Contender], batches: Sequence[Indices], options: argparse.Namespace
) -> None:
    """Measure throughput of all policies."""
    begin = time.perf_counter()
    contenders[BASELINE].run(batches)
    spent = (time.perf_counter() - begin) / len(batches)
    n = max(1, round(options.seconds / spent))
    chosen = [batches[k % len(batches)] for k in range(n)]
    examples = sum(len(batch) for batch in chosen)
    runs = {policy: partial(contender.run, chosen) for policy, contender in contenders.items()}
    seconds = harness.interleave(runs, options.rounds)
    rates = {policy: [examples / s for s in taken] for policy, taken in seconds.items()}
    for policy, of_policy in rates.items():
        extra: dict[str, Any] = {} if policy == BASELINE else {"quartiles": quartiles(of_policy, rates[BASELINE])}
        peer = None if policy == BASELINE else (BASELINE, rates[BASELINE])
        harness.report(BENCH, case.named(policy), of_policy, "examples/s", peer, mini_batches=n, **extra)


def quartiles(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the quartiles of the rounds' ratios."""
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    low, high = np.quantile(ratios, [0.25, 0.75]).tolist()
    return [harness.median([low]), harness.median([high])]


def measure_split(
    case: Case, contenders: Mapping[str, Contender], batches: Sequence[Indices], options: argparse.Namespace
) -> None:
    """Split a mini-batch's time into parts, for each policy."""
    parts: dict[str, list[list[float]]] = {policy: [] for policy in contenders}

    def take_apart(policy: str) -> None:
        split = [contenders[policy].split(batch) for batch in batches]
        parts[policy].append([statistics.mean(column) for column in zip(*split, strict=True)])

    harness.interleave({policy: partial(take_apart, policy) for policy in contenders}, options.rounds)
    totals = {policy: [sum(of_round) for of_round in rounds] for policy, rounds in parts.items()}
    for policy, rounds in parts.items():
        shown = {name: harness.median(column) for name, column in zip(PARTS, zip(*rounds, strict=True), strict=True)}
        peer = None if policy == BASELINE else (BASELINE, totals[BASELINE])
        harness.report(SPLIT, case.named(policy), totals[policy], "ms", peer, higher_is_better=False, **shown)


def contenders_of(
    tasks: Callable[[], Any], mode: str, policies: Sequence[str], threads: int
) -> Iterator[tuple[str, Contender]]:
    """Yield a handle per policy. Each training handle has its own model; all others share a model."""
    shared = tasks() if mode == "infer" else None
    for policy in policies:
        yield policy, Contender(tasks() if shared is None else shared, policy, mode == "infer", threads)


def mini_batches(task: Any, size: int, n: int) -> list[Indices]:
    """Return examples in a random order that is the same for every contender."""
    order = np.array(random.Random(ORDER_SEED).sample(range(len(task.train)), len(task.train)))
    return [order[k : k + size] for k in range(0, max(len(order) - size, 0) + 1, size)][:n]


def run(name: str, mode: str, hidden: int, options: argparse.Namespace) -> None:
    """Measure all of a workload's batch sizes, in one mode and with one hidden size."""
    limit = max(LEARN_ON, max(options.batch_sizes) * options.mini_batches)
    make = partial(make_task, name, data_of(name, options.data), hidden, None, limit)
    contenders = dict(contenders_of(make, mode, options.policies, options.threads))
    some = next(iter(contenders.values())).task
    for size in options.batch_sizes:
        case = Case(name, mode, size, hidden, options.threads)
        batches = mini_batches(some, size, options.mini_batches)
        for contender in contenders.values():  # compiles kernels and enlarges pools
            contender.run([*batches, *batches])
        (measure_split if options.split else measure)(case, contenders, batches, options)
    for contender in contenders.values():
        contender.handle.close()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, data=None, synthetic=False, workload=None, policy=None, batch_sizes=[1, 8, 64], rounds=24, threads=1,
        cores=None,
    )  # fmt: skip
    parser.add_argument("--mode", choices=MODES, help="default: both")
    parser.add_argument("--hidden", type=harness.numbers, default=[128, 256], metavar="N,...")
    parser.add_argument("--mini-batches", type=int, default=4, metavar="N", help="different mini-batches of each size")
    parser.add_argument("--seconds", type=float, default=0.05, help="target duration of a policy's part of a round")
    parser.add_argument("--split", action="store_true", help="construction, scheduling, execution")
    options = parser.parse_args(arguments)
    options.workloads = harness.choose(options.workload, list(NETWORKS), "workloads")
    options.policies = harness.choose(options.policy, list(POLICIES), "policies")
    if BASELINE not in options.policies:
        options.policies.insert(0, BASELINE)
    options.modes = MODES if options.mode is None else (options.mode,)
    options.cores = options.cores or options.threads
    options.data = data_folder(options.data, options.synthetic)
    return options


def main() -> None:
    """Measure all workloads and modes."""
    options = parse_options()
    os.environ["VPPS_TUNING"] = "0"  # handles differ only in the policy
    harness.confine(options.cores)
    harness.keep_freed_memory()
    for name in options.workloads:
        for hidden in options.hidden:
            for mode in options.modes:
                run(name, mode, hidden, options)


if __name__ == "__main__":
    main()
