"""What learning a machine takes for each of ED-Batch's eight workloads: its table 4.

    python bench/fsm_learning.py --data shared/data > bench/results/cpu/DATE-fsm_learning.jsonl

A line per workload, granularity (batching.py) and encoding: `value` is the seconds that compiled code takes to learn
from a mini-batch of 32, lower bound included, `peer_value` those that Python takes to learn the very same table
(--compiled: without). `trials` were made, `states` are known afterwards, with which the mini-batch takes `batches`, at
least `bound`. At granularity `cells` there is a machine for each recurrence of several cells: where there is none there
is no line. What ED-Batch's program and its paper say is under `edbatch`; both learn at granularity `program`, with
encoding `sort`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np
from batching import WORKLOAD_OF, recorded
from batching_whole import encodings, parts_of, typed
from edbatch import FIGURES
from edbatch_graphs import NETWORKS
from workload_tasks import data_folder, data_of, make_task

from vpps.plan.native import policies as compiled
from vpps.plan.policies import learning
from vpps.plan.policies.cost import Costs, costs_on
from vpps.plan.policies.learning import Learned, Settings
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology

BENCH = "fsm_learning"
HIDDEN = 8  # on which nothing here depends

Learn = Callable[[TypedGraph, Settings, Costs], Learned]


def graphs_of(name: str, task: Any, examples: int) -> dict[str, list[TypedGraph]]:
    """What is learned from, by granularity."""
    batch = task.train[np.arange(examples)]
    graph, _ = recorded(task, batch)
    recurrences = [part.graph for part in parts_of(TypedGraph.of(Topology(graph))) if len(part.types) > 1]
    return {"program": [typed(NETWORKS[name](batch))], "cells": recurrences}


def seconds_of(learn: Learn, graphs: list[TypedGraph], settings: Settings) -> tuple[float, list[Learned]]:
    """How long learning all machines takes, and what is learned."""
    costs = costs_on("cpu", 1)  # which the reward of batches does not ask
    learned = [learn(graph, settings, costs) for graph in graphs]
    return sum(of_graph.seconds for of_graph in learned), learned


def measure(case: str, graphs: list[TypedGraph], settings: Settings, options: argparse.Namespace, **extra: Any) -> None:
    """Print a line."""
    compiled.learn(graphs[0], replace(settings, trials=1), costs_on("cpu", 1))  # so that compiled code is there
    found: dict[str, list[tuple[float, list[Learned]]]] = {"compiled": [], "Python": []}
    learners: dict[str, Learn] = {"compiled": compiled.learn}
    if not options.compiled:
        learners["Python"] = learning.learn
    runs = {
        name: lambda n=name, learn=learn: found[n].append(seconds_of(learn, graphs, settings))
        for name, learn in learners.items()
    }
    harness.interleave(runs, options.rounds)
    seconds = {name: [of_round for of_round, _ in rounds] for name, rounds in found.items()}
    tables = [[learned.machine for learned in machines] for rounds in found.values() for _, machines in rounds]
    if any(table != tables[0] for table in tables):
        sys.exit(f"{case}: compiled code learned another table than Python")
    _, machines = found["compiled"][0]
    harness.report(
        BENCH, case, seconds["compiled"], "s", ("Python", seconds["Python"]) if seconds["Python"] else None,
        higher_is_better=False, trials=sum(learned.trials for learned in machines),
        states=sum(len(learned.machine.table) for learned in machines),
        batches=sum(learned.batches for learned in machines), bound=sum(learned.lower_bound for learned in machines),
        vertices=sum(graph.n for graph in graphs), **extra,
    )  # fmt: skip


def main() -> None:
    """Every workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of data sets; default: $VPPS_DATA or shared/data")
    parser.add_argument("--synthetic", action="store_true", help="synthetic data")
    parser.add_argument("--workload", metavar="NAME,...", help=f"default: all of {', '.join(NETWORKS)}")
    parser.add_argument("--policy", metavar="NAME,...", help=f"default: all of {', '.join(encodings())}")
    parser.add_argument("--learn-on", type=int, default=32, metavar="N", help="examples that machines learn from")
    parser.add_argument("--trials", type=int, default=Settings().trials, help="at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="without Python, which takes long")
    options = parser.parse_args()
    folder = None if options.synthetic else data_folder(options.data)
    for name in harness.choose(options.workload, list(NETWORKS), "workloads"):
        task = make_task(name, data_of(name, folder), HIDDEN, None, options.learn_on)
        for granularity, graphs in graphs_of(name, task, options.learn_on).items():
            for policy in harness.choose(options.policy, list(encodings()), "policies") if graphs else []:
                case = f"task={name} granularity={granularity} policy={policy} batch={options.learn_on}"
                extra = {}
                theirs = FIGURES["learning"].get(WORKLOAD_OF[name])
                if theirs is not None and granularity == "program" and policy == "fsm-sort":
                    extra["edbatch"] = theirs
                settings = Settings(encoding=encodings()[policy], trials=options.trials)
                measure(case, graphs, settings, options, **extra)


if __name__ == "__main__":
    main()
