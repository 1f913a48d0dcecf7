"""What learning a machine takes for each of ED-Batch's eight workloads: its table 4.

    python bench/fsm_learning.py --data shared/data > bench/results/cpu/DATE-fsm_learning.jsonl

A line per workload, granularity (batching.py) and encoding: `value` is the seconds that it takes to learn from a
mini-batch of 32, lower bound included. `trials` were made, `states` are known afterwards, with which the mini-batch
takes `batches`, at least `bound`. At granularity `cells` there is a machine for each recurrence of several cells: where
there is none there is no line. What ED-Batch's program and its paper say is under `edbatch`; both learn at granularity
`program`, with encoding `sort`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import harness
import numpy as np
from batching import WORKLOAD_OF, recorded
from batching_whole import encodings, parts_of, typed
from edbatch import FIGURES
from edbatch_graphs import NETWORKS
from workload_tasks import data_folder, data_of, make_task

from vpps.planner.native.typed_graphs import Learned, LearningSettings, TypedGraph, learn
from vpps.record.topology import Topology

BENCH = "fsm_learning"
HIDDEN = 8  # on which nothing here depends


def graphs_of(name: str, task: Any, examples: int) -> dict[str, list[TypedGraph]]:
    """What is learned from, by granularity."""
    batch = task.train[np.arange(examples)]
    graph, _ = recorded(task, batch)
    recurrences = [part.graph for part in parts_of(TypedGraph.of(Topology(graph))) if len(part.types) > 1]
    return {"program": [typed(NETWORKS[name](batch))], "cells": recurrences}


def learned_from(graphs: list[TypedGraph], settings: LearningSettings) -> list[Learned]:
    """All machines."""
    return [learn(graph, settings) for graph in graphs]


def measure(
    case: str, graphs: list[TypedGraph], settings: LearningSettings, options: argparse.Namespace, **extra: Any
) -> None:
    """Print a line."""
    learned_from(graphs, replace(settings, trials=1))  # so that compiled code is there
    rounds = [learned_from(graphs, settings) for _ in range(options.rounds)]
    seconds = [sum(learned.seconds for learned in machines) for machines in rounds]
    machines = rounds[0]
    harness.report(
        BENCH, case, seconds, "s",
        higher_is_better=False, trials=sum(learned.trials for learned in machines),
        states=sum(len(learned.automaton.states) for learned in machines),
        batches=sum(learned.batches for learned in machines), bound=sum(learned.lower_bound for learned in machines),
        vertices=sum(graph.n for graph in graphs), **extra,
    )  # fmt: skip


def main() -> None:
    """Every workload."""
    parser = harness.parser(__doc__, data=None, synthetic=False, workload=None, policy=None, rounds=3)
    parser.add_argument("--learn-on", type=int, default=32, metavar="N", help="examples that machines learn from")
    parser.add_argument("--trials", type=int, default=LearningSettings().trials, help="at most")
    options = parser.parse_args()
    folder = data_folder(options.data, options.synthetic)
    for name in harness.choose(options.workload, list(NETWORKS), "workloads"):
        task = make_task(name, data_of(name, folder), HIDDEN, None, options.learn_on)
        for granularity, graphs in graphs_of(name, task, options.learn_on).items():
            for policy in harness.choose(options.policy, list(encodings()), "policies") if graphs else []:
                case = f"task={name} granularity={granularity} policy={policy} batch={options.learn_on}"
                extra = {}
                theirs = FIGURES["learning"].get(WORKLOAD_OF[name])
                if theirs is not None and granularity == "program" and policy == "fsm-sort":
                    extra["edbatch"] = theirs
                settings = LearningSettings(encoding=encodings()[policy], trials=options.trials)
                measure(case, graphs, settings, options, **extra)


if __name__ == "__main__":
    main()
