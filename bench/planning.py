"""What planning costs the host: a batch of the Tree-LSTM of treelstm.py, by groups, schedule and products of matrices.

One JSON object per line, microseconds for planning a batch whose graph is there, recorded by one call (`bulk`) or a
call per vertex (`cells`), as for a GPU of 132 multiprocessors; `peer` is one group, schedule "vector" and gradients
without products, in the same run. `share` is the work of the busiest group, 1 / groups at best, and `barriers` those of
the group that has most. No kernel runs, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import harness
import numpy as np
from models import VppsBulkTreeLstm, VppsTreeLstm
from treelstm import in_batches, initial_weights
from trees import read_trees

import vpps
from vpps.compiler.arrangement import arrangements, matrices_of
from vpps.compiler.passes import Passes
from vpps.engine.ahead import gpu_for, stacks_of
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import ChipOptions
from vpps.placement.update import Update
from vpps.planner.native import library
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner

BENCH = "planning"
BLOCKS = 132
FORMS: dict[str, type[VppsTreeLstm]] = {"bulk": VppsBulkTreeLstm, "cells": VppsTreeLstm}


def seconds(work: Callable[[], object], times: int) -> float:
    """Seconds that something takes; the median."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def busiest(plan: Plan) -> float:
    """Share of the work that the busiest group has."""
    if plan.grouping is None:
        return 1.0
    return float(plan.grouping.work.max() / plan.grouping.work.sum())


def run(form: str, batch_size: int, options: argparse.Namespace) -> None:
    """Time all kinds on one batch, interleaved."""
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.hidden, options.hidden)
    model = FORMS[form](weights, "sgd", 0.01, 1)
    batch = in_batches([model.prepare(tree) for tree in trees], batch_size)[0]
    graph, loss = model.graph(batch)
    update = Update(vpps.SGD(lr=0.01), 1, 1, None)
    work: dict[str, Callable[[], float]] = {}
    shares: dict[str, tuple[float, int]] = {}
    for kind, (distribution, schedule) in kinds(model.handle.model, graph, options.groups).items():
        case = f"form={form} batch={batch_size} {kind} hidden={options.hidden}"
        planning = partial(Planner(distribution, schedule=schedule).plan_training, graph, loss, update, 0)
        plan = planning()
        shares[case] = busiest(plan), plan.n_barriers
        work[case] = partial(seconds, planning, options.times)
    found: dict[str, list[float]] = {case: [] for case in work}
    for _ in range(options.rounds):
        for case, measure in work.items():
            found[case].append(1e6 * measure())
    model.close()
    first = next(iter(found.values()))
    for case, (share, barriers) in shares.items():
        harness.report(
            BENCH, f"plan, {case}", found[case], "us", ("one group", first),
            higher_is_better=False, share=round(share, 3), barriers=barriers,
        )  # fmt: skip


def kinds(model: vpps.Model, graph: vpps.Graph, groups: list[int]) -> dict[str, tuple[Distribution, str]]:
    """What is planned for, by name: where parameters lie, and the schedule."""
    made = {f"groups={n}": (Distribution(model, BLOCKS // n, 1, 0, train=True, groups=n), "vector") for n in groups}
    gpu, _ = gpu_for("cuda", None, None, BLOCKS)
    stacks = stacks_of(model, graph, None, Passes(), 1)
    matrices = matrices_of(graph.blocks, Passes(), stacks)
    best = next(arrangements(matrices, gpu, BLOCKS, ChipOptions(gradients="gemm"), train=True))
    made["products"] = Distribution(model, BLOCKS, 1, 0, True, True, slots=best.slots, stacks=stacks), "vector"
    made["paper"] = Distribution(model, BLOCKS, 1, 0, train=True), "paper"
    return made


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Run every batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, metavar="FILE", help="Penn-bracketed trees, one a line")
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS), help="bulk,cells")
    parser.add_argument("--batch-sizes", type=_numbers, default=[1, 16, 64], metavar="N,N,...")
    parser.add_argument("--groups", type=_numbers, default=[1, 2, 4], metavar="N,N,...")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--limit", type=int, default=64, help="sentences, at most")
    parser.add_argument("--times", type=int, default=10, help="plans of which the median counts")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    library.library()
    for form in options.forms:
        for batch_size in options.batch_sizes:
            run(form, batch_size, options)


if __name__ == "__main__":
    main()
