"""Measures the host's cost of a training step by batch size: recording a mini-batch, planning, writing the script.

    python bench/host_step.py --trees train.txt [--batch-sizes 1,2,4,...,1024] >> host_step.jsonl
    python bench/host_step.py --cases bulk,cells --batch-sizes 1,64 --shares

The model is the Tree-LSTM of treelstm.py with a loss at every node, in three forms (cases are named `FORM-TREES`):

    bulk     graphs that are data: one call records the mini-batch (graph.map)
    cells    a cell call per vertex
    ops      a call per operator: the same equations without cells

`value` is the milliseconds from the trees to the finished script, the median over mini-batches; `fb` also includes the
rest up to the end of the launch. `building` is the recording; `plan` is order, memory and index lists; `script` is the
instructions. `bytes` are the script's: `lists` is the part before its instructions (index lists and data),
`instructions` the rest. `peak` is the most bytes that a step allocates on top of the memory held between steps
(tracemalloc). `collections` is the number of garbage collections in a thousand steps.

`--shares` adds a line `share-FORM-TREES` per form and batch size: the share of a step that the kernel spends waiting
for the host, on target cpu. It is the time between two launches, divided by the step's time.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import harness
from datasets import name_of, trees_file
from models import Node, VppsBulkTreeLstm, VppsTreeLstm
from treelstm import LEARNING_RATE, in_batches, initial_weights
from trees import Tree, read_trees

import vpps
from vpps.engine.timeline import Timeline
from vpps.planner.native import library

BENCH = "host_step"
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
LIMIT = 4096  # trees to read
CASES = 8  # mini-batches measured per size, if there are enough trees


class PerOperator(VppsTreeLstm):
    """A model without cells: a vertex per operator."""

    def __init__(self, *settings: Any, **options: Any) -> None:
        """Take the arguments of VppsTreeLstm."""
        super().__init__(*settings, **options)
        self.weights = {name: self.handle.model[name] for name in ("W", "b", "U", "bU", "Wo", "bo")}

    def graph(self, batch: Sequence[list[Node]]) -> tuple[vpps.Graph, vpps.Expression]:
        """Record a mini-batch; returns it with its loss."""
        w = self.weights
        graph = vpps.Graph()
        losses = []
        for tree in batch:
            states: list[tuple[vpps.Expression, vpps.Expression]] = []
            for word, left, right, label in tree:
                if left < 0:
                    i, o, u = vpps.split(w["W"] @ graph.lookup(self.words, word) + w["b"], 3)
                    c = vpps.sigmoid(i) * vpps.tanh(u)
                else:
                    (h1, c1), (h2, c2) = states[left], states[right]
                    i, f1, f2, o, u = vpps.split(w["U"] @ vpps.concat([h1, h2]) + w["bU"], 5)
                    c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f1) * c1 + vpps.sigmoid(f2) * c2
                h = vpps.sigmoid(o) * vpps.tanh(c)
                states.append((h, c))
                losses.append(vpps.cross_entropy(w["Wo"] @ h + w["bo"], label))
        return graph, vpps.sum(losses) * (1.0 / len(batch))


FORMS: dict[str, type[VppsTreeLstm]] = {"bulk": VppsBulkTreeLstm, "cells": VppsTreeLstm, "ops": PerOperator}


class Step(NamedTuple):
    """Milliseconds of one step's host work, and the number of words in its script."""

    building: float
    plan: float
    script: float
    lists: int
    words: int

    @property
    def whole(self) -> float:
        """Return the total milliseconds."""
        return self.building + self.plan + self.script


def step(net: VppsTreeLstm, batch: Sequence[Any]) -> Step:
    """Record and plan a mini-batch, as `fb` does; launches nothing."""
    begin = time.perf_counter_ns()
    graph, loss = net.graph(batch)
    built = time.perf_counter_ns()
    plan = net.handle._plan_step(net.handle._configurator.prepare(graph), graph, loss, accumulate=False)
    encoded, end = plan.encoded[0], time.perf_counter_ns()
    lists = int(plan.script[4])  # the entry point of the first virtual processor
    return Step((built - begin) * 1e-6, (encoded - built) * 1e-6, (end - encoded) * 1e-6, lists, len(plan.script))


def allocations(run: Callable[[], object], steps: int = 20) -> tuple[int, int]:
    """Return (the most bytes that a step allocates, garbage collections in a thousand steps)."""
    for _ in range(5):
        run()
    gc.collect()  # resets the counters of all generations
    before = [found["collections"] for found in gc.get_stats()]
    for _ in range(steps):
        run()
    collections = sum(found["collections"] for found in gc.get_stats()) - sum(before)
    tracemalloc.start()
    run()
    peaks = []
    for _ in range(3):
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        run()
        peaks.append(tracemalloc.get_traced_memory()[1] - base)
    tracemalloc.stop()
    return min(peaks), round(collections * 1000 / steps)


def run(form: str, size: int, options: argparse.Namespace, trees: Sequence[Tree], words: int) -> None:
    """Measure one form at one batch size."""
    net = make(form, options, words)
    prepared = [net.prepare(tree) for tree in trees[: max(size, min(len(trees), CASES * size))]]
    batches = in_batches(prepared, size)
    batches = [batch for batch in batches if len(batch) == size][:CASES] or [prepared]
    for batch in batches:
        step(net, batch)
    found: list[Step] = []
    whole: list[float] = []
    number = min(options.rounds, max(3, options.rounds * 64 // size))
    rounds = harness.interleave(
        {
            "step": lambda: found.extend(step(net, batch) for batch in batches),
            "fb": lambda: whole.extend(launched(net, batch) for batch in batches[:2]),
        },
        number,
    )
    assert rounds
    peak, collections = allocations(partial(step, net, batches[0]))

    parts = {
        part: round(statistics.median(getattr(s, part) for s in found), 4) for part in ("building", "plan", "script")
    }
    last = found[-1]
    harness.report(
        BENCH, f"{form}-{size}", [s.whole for s in found], "ms", higher_is_better=False,
        **parts, fb=round(statistics.median(whole), 4), best=round(min(s.whole for s in found), 4),
        bytes={"lists": 4 * last.lists, "instructions": 4 * (last.words - last.lists), "script": 4 * last.words},
        peak=peak, collections=collections, threads=options.threads, data=name_of(options.trees),
    )  # fmt: skip
    net.close()


def launched(net: VppsTreeLstm, batch: Sequence[Any]) -> float:
    """Return the milliseconds for recording and `fb` with nothing in flight: all host work of a step."""
    net.loss()
    begin = time.perf_counter_ns()
    net.step(batch)
    return (time.perf_counter_ns() - begin) * 1e-6


def run_share(form: str, size: int, options: argparse.Namespace, trees: Sequence[Tree], words: int) -> None:
    """Measure the share of a step that the kernel spends waiting for the host."""
    net = make(form, options, words, timeline=True)
    batches = in_batches([net.prepare(tree) for tree in trees], size)
    shares, milliseconds = [], []
    for _ in range(3):
        timelines: list[Timeline] = []
        for k, batch in enumerate(batches[: max(10, 512 // size)]):
            net.step(batch)
            if k:
                timelines.append(net.handle.timeline(wait=False))  # of the previous step
        net.loss()
        between = sum(max(0, b.start - a.end) for a, b in itertools.pairwise(timelines))
        span = timelines[-1].start - timelines[0].start
        shares.append(between / span)
        milliseconds.append(span * 1e-6 / (len(timelines) - 1))
    harness.report(
        BENCH, f"share-{form}-{size}", shares, "of the step", higher_is_better=False,
        step=round(statistics.median(milliseconds), 4), threads=options.threads, hidden=options.hidden,
        data=name_of(options.trees),
    )  # fmt: skip
    net.close()


def make(form: str, options: argparse.Namespace, words: int, timeline: bool = False) -> VppsTreeLstm:
    """Return the model in one form."""
    weights = initial_weights(words, options.hidden, options.hidden)
    return FORMS[form](weights, "sgd", LEARNING_RATE["sgd"], options.threads, timeline=timeline)


def main() -> None:
    """Measure every form at every batch size."""
    parser = harness.parser(__doc__, trees=None, batch_sizes=SIZES, hidden=256, threads=1, rounds=20)
    parser.add_argument("--cases", type=harness.words, default=list(FORMS), help="forms to measure: bulk, cells, ops")
    parser.add_argument("--shares", action="store_true", help="also measure the kernel's wait for the host")
    options = parser.parse_args()
    options.trees = trees_file(options.trees)
    library.library()
    trees, words = read_trees(options.trees, max(LIMIT, max(options.batch_sizes)))
    for form in options.cases:
        for size in options.batch_sizes:
            run(form, size, options, trees, words)
            if options.shares:
                run_share(form, size, options, trees, words)


if __name__ == "__main__":
    main()
