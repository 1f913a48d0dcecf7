"""Training and inference with each batching policy, end to end, for ED-Batch's eight workloads.

    python bench/policies.py > bench/results/cpu/DATE-policies.jsonl
    python bench/policies.py --split --batch-sizes 64 --hidden 128 > bench/results/cpu/DATE-policies_split.jsonl
    python bench/policies_table.py bench/results/cpu/DATE-policies.jsonl

A line per workload, mode, batch size, hidden size and policy: examples per second as a user has them, host work
included, beside policy `depth`. Handles of all policies are in one process, and a round runs a few mini-batches with
each of them in turn, so that they see the same spells of the machine; rounds are short and many. `quartiles` are those
of the rounds' ratios.

The line of `auto` says besides how it compares with the best of the others: that is chosen by the even rounds (`best`)
and compared in the odd ones (`of_best`, `of_best_quartiles`), as the best of several equal ones is always a lucky one.
`same` names the policies with which the very same scripts run: what differs from 1 there is noise.

With --split a mini-batch is taken apart, as in ED-Batch's figure 9, one at a time and waited for, in milliseconds:
`construction` is joining the examples and recording the graph, `scheduling` policy, plan and script, `execution` the
rest.
"""

from __future__ import annotations

import argparse
import hashlib
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
from policies_table import BASELINE, BENCH, CHOOSER, PARTS, SPLIT
from workload_tasks import data_folder, data_of, make_task

import vpps
from vpps.planner.policies import POLICIES

MODES = ("train", "infer")
ORDER_SEED = 1
LEARN_ON = 32  # examples of the first mini-batch, from which machines are learned

Indices = NDArray[np.intp]
"""The examples of a mini-batch."""


class Contender:
    """A task with a handle of one policy.

    Args:
        infers: outputs only; else training by SGD.
    """

    def __init__(self, task: Any, policy: str, infers: bool, threads: int) -> None:
        self.task, self.infers = task, infers
        rule = vpps.SGD(lr=0.01)
        self.handle = vpps.Handle(task.model, rule, target="cpu", vps=threads, policy=policy, train=not infers)

    def step(self, examples: Indices) -> int:
        """A mini-batch; returns when its graph was recorded (`time.perf_counter_ns`)."""
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
        """Mini-batches that are not waited for, but for the last one."""
        for batch in batches:
            self.step(batch)
        self.handle.sync_get_latest_loss()

    def script(self, examples: Indices) -> str:
        """Run a mini-batch; a digest of its script."""
        self.step(examples)
        plan = self.handle._engine.plan
        assert plan is not None
        return hashlib.sha256(plan.script.tobytes()).hexdigest()

    def split(self, examples: Indices) -> tuple[float, float, float]:
        """Milliseconds of PARTS of a mini-batch; nothing may be in flight."""
        begin = time.perf_counter_ns()
        recorded = self.step(examples)
        self.handle.sync_get_latest_loss()
        end = time.perf_counter_ns()
        plan = self.handle._engine.plan
        assert plan is not None
        written = plan.encoded[1]
        return (recorded - begin) * 1e-6, (written - recorded) * 1e-6, (end - written) * 1e-6


class Case(NamedTuple):
    """What lines are about."""

    workload: str
    mode: str
    batch: int
    hidden: int
    threads: int

    def named(self, policy: str) -> str:
        """As lines have it."""
        return (
            f"task={self.workload} mode={self.mode} policy={policy} batch={self.batch} hidden={self.hidden} "
            f"threads={self.threads}"
        )


class Prepared(NamedTuple):
    """Contenders by policy, the mini-batches that they run, and a digest of their scripts, by policy."""

    contenders: Mapping[str, Contender]
    batches: Sequence[Indices]
    scripts: Mapping[str, str]


def prepare(contenders: Mapping[str, Contender], batches: Sequence[Indices], rounds: int = 2) -> Prepared:
    """Let every contender see all mini-batches, some times: kernels are compiled, machines learned, pools large."""
    scripts = {}
    for policy, contender in contenders.items():
        for _ in range(rounds):
            digests = [contender.script(batch) for batch in batches]
        scripts[policy] = " ".join(digests)
    return Prepared(contenders, batches, scripts)


def measure(case: Case, made: Prepared, options: argparse.Namespace) -> None:
    """Throughput of all policies."""
    begin = time.perf_counter()
    made.contenders[BASELINE].run(made.batches)
    spent = (time.perf_counter() - begin) / len(made.batches)
    n = max(1, round(options.seconds / spent))
    chosen = [made.batches[k % len(made.batches)] for k in range(n)]
    examples = sum(len(batch) for batch in chosen)
    runs = {policy: partial(contender.run, chosen) for policy, contender in made.contenders.items()}
    seconds = harness.interleave(runs, options.rounds)
    rates = {policy: [examples / s for s in taken] for policy, taken in seconds.items()}
    for policy, of_policy in rates.items():
        extra: dict[str, Any] = {} if policy == BASELINE else {"quartiles": quartiles(of_policy, rates[BASELINE])}
        if policy == CHOOSER:
            extra |= beside_best(rates, made.scripts)
        peer = None if policy == BASELINE else (BASELINE, rates[BASELINE])
        harness.report(BENCH, case.named(policy), of_policy, "examples/s", peer, mini_batches=n, **extra)


def quartiles(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The middle half of the rounds' ratios lies between them."""
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    low, high = np.quantile(ratios, [0.25, 0.75]).tolist()
    return [harness.median([low]), harness.median([high])]


def beside_best(rates: Mapping[str, Sequence[float]], scripts: Mapping[str, str]) -> dict[str, Any]:
    """How the policy that chooses compares with the best of the others."""
    fixed = [policy for policy in rates if policy != CHOOSER]
    best = max(fixed, key=lambda policy: statistics.median(rates[policy][::2]))
    own, other = rates[CHOOSER][1::2], rates[best][1::2]
    return {
        "best": best,
        "of_best": harness.median_ratio(own, other),
        "of_best_quartiles": quartiles(own, other),
        "same": [policy for policy in fixed if scripts[policy] == scripts[CHOOSER]],
    }


def measure_split(case: Case, made: Prepared, options: argparse.Namespace) -> None:
    """Where the time of a mini-batch goes, with each policy."""
    parts: dict[str, list[list[float]]] = {policy: [] for policy in made.contenders}

    def take_apart(policy: str) -> None:
        split = [made.contenders[policy].split(batch) for batch in made.batches]
        parts[policy].append([statistics.mean(column) for column in zip(*split, strict=True)])

    harness.interleave({policy: partial(take_apart, policy) for policy in made.contenders}, options.rounds)
    totals = {policy: [sum(of_round) for of_round in rounds] for policy, rounds in parts.items()}
    for policy, rounds in parts.items():
        shown = {name: harness.median(column) for name, column in zip(PARTS, zip(*rounds, strict=True), strict=True)}
        peer = None if policy == BASELINE else (BASELINE, totals[BASELINE])
        harness.report(SPLIT, case.named(policy), totals[policy], "ms", peer, higher_is_better=False, **shown)


def contenders_of(
    tasks: Callable[[], Any], mode: str, policies: Sequence[str], threads: int
) -> Iterator[tuple[str, Contender]]:
    """A handle per policy. Those that train have a model each; one model is enough for all that do not."""
    shared = tasks() if mode == "infer" else None
    for policy in policies:
        yield policy, Contender(tasks() if shared is None else shared, policy, mode == "infer", threads)


def mini_batches(task: Any, size: int, n: int) -> list[Indices]:
    """Examples in random order, the same for everyone."""
    order = np.array(random.Random(ORDER_SEED).sample(range(len(task.train)), len(task.train)))
    return [order[k : k + size] for k in range(0, max(len(order) - size, 0) + 1, size)][:n]


def run(name: str, mode: str, hidden: int, options: argparse.Namespace) -> None:
    """All batch sizes of a workload, with one mode and hidden size."""
    limit = max(LEARN_ON, max(options.batch_sizes) * options.mini_batches)
    make = partial(make_task, name, data_of(name, options.data), hidden, None, limit)
    contenders = dict(contenders_of(make, mode, options.policies, options.threads))
    some = next(iter(contenders.values())).task
    for contender in contenders.values():  # what machines learn from
        contender.run(mini_batches(contender.task, LEARN_ON, 1))
    for size in options.batch_sizes:
        case = Case(name, mode, size, hidden, options.threads)
        made = prepare(contenders, mini_batches(some, size, options.mini_batches))
        (measure_split if options.split else measure)(case, made, options)
    for contender in contenders.values():
        contender.handle.close()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(
        __doc__, data=None, synthetic=False, workload=None, policy=None, batch_sizes=[1, 8, 64], rounds=24, threads=1,
        cores=None,
    )  # fmt: skip
    parser.add_argument("--mode", choices=MODES, help="default: both")
    parser.add_argument("--hidden", type=harness.numbers, default=[128, 256], metavar="N,...")
    parser.add_argument("--mini-batches", type=int, default=4, metavar="N", help="different ones of each size")
    parser.add_argument("--seconds", type=float, default=0.05, help="that a policy's part of a round should take")
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
    """Everything."""
    options = parse_options()
    os.environ["VPPS_TUNING"] = "0"  # machines are learned here, whatever was learned before
    harness.confine(options.cores)
    harness.keep_freed_memory()
    for name in options.workloads:
        for hidden in options.hidden:
            for mode in options.modes:
                run(name, mode, hidden, options)


if __name__ == "__main__":
    main()
