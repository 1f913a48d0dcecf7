"""Count the batches into which each policy divides a mini-batch, for ED-Batch's eight workloads (figure 7, table 4).

    python bench/batching.py --data shared/data > bench/results/cpu/DATE-batching.jsonl
    python bench/plot.py bench/results/cpu/DATE-batching.jsonl
    python bench/batching_table.py bench/results/cpu/DATE-batching.jsonl

Prints a line per workload, granularity and policy. `value` is the number of batches: the median over mini-batches of 64
(`all` lists each one). `bound` is the lower bound (ED-Batch, A.3). `over_bound` is the number of batches divided by the
bound, both summed over all mini-batches. Counts are exactly reproducible, even on a busy machine. The state machines of
`fsm` are learned from another mini-batch, of 32, with --trials trials. The cost of learning corresponds to ED-Batch's
table 4: `trials`, `seconds`, `states`, and the batches of that mini-batch with their lower bound (`learned`).
`edbatch_learning` gives the figures of ED-Batch's program and paper.

Granularities:

    cells     vertices of vpps. `batches` counts pairs of cell and stage; `barriers` counts the barriers of the
              training step that the planner derives (`barriers_infer`: of inference)
    program   vertices of ED-Batch's program (edbatch_graphs.py). `edbatch` gives the batches that it launches and its
              bound, on its own mini-batches; `unseen` is the mean number of states per mini-batch that the machines did
              not know. Policies are applied to the whole graph, as published. Policies with "-within" in their names
              are applied only inside components of types, as in vpps

Policies: those of vpps, and fsm with four encodings: critical (vpps's own), base, max and sort. The last three are run
both without and with a phase in the state.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import harness
import numpy as np
from batching_whole import AS_IS, PER_COMPONENT, BatchCounts, Learner, Run, encodings, typed, within
from edbatch import FIGURES, TASKS
from edbatch_graphs import NETWORKS
from workload_tasks import data_folder, data_of, make_task

import vpps
from vpps.model.learned_policy import LearnedRecurrence
from vpps.planner.native.typed_graphs import Learned, LearningSettings, TypedGraph, learn
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.planner.policies import NAMED, learned_from
from vpps.record.topology import Topology

BENCH = "batching"
GRANULARITIES = ("program", "cells")
POLICIES = *NAMED, *encodings()
WHOLE = vpps.Passes(lazy_batching=False)
WITHIN = "-within"
WORKLOAD_OF = {task: workload for workload, task in TASKS.items()}
HIDDEN = 128


def mini_batches(task: Any, options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Return the mini-batch to learn from, and other mini-batches to measure."""
    n, first = options.batch, options.learn_on
    learning = task.train[np.arange(first)]
    ends = range(first + n, len(task.train) + 1, n)
    return learning, [task.train[np.arange(end - n, end)] for end in ends][: options.mini_batches]


# ---- granularity of ED-Batch's program


def whole_runs(learner: Learner, policies: Iterable[str]) -> dict[str, Run]:
    """Return each policy's runs at this granularity, by name."""
    known = encodings()
    runs: dict[str, Run] = {}
    for policy in policies:
        if policy in known:
            runs[policy] = learner.whole(known[policy])
            runs[policy + WITHIN] = learner.parts(known[policy])
        elif policy in PER_COMPONENT:
            runs[policy] = PER_COMPONENT[policy]
            runs[policy + WITHIN] = within(lambda part, policy=policy: PER_COMPONENT[policy])
        else:
            runs[policy] = AS_IS[policy]
    return runs


def run_program(name: str, learning: Any, batches: Sequence[Any], options: argparse.Namespace) -> None:
    """Print a workload's lines at the granularity of ED-Batch's program."""
    network = NETWORKS[name]
    learner = Learner(typed(network(learning)), LearningSettings(trials=options.trials))
    graphs = [typed(network(batch)) for batch in batches]
    bounds = [learn(graph, LearningSettings(trials=0)).lower_bound for graph in graphs]
    theirs: dict[str, int] = FIGURES["launched"].get(WORKLOAD_OF[name], {})
    known = encodings()
    for policy, run in whole_runs(learner, options.policies).items():
        found = [run(graph) for graph in graphs]
        extra: dict[str, Any] = {"unseen": round(statistics.mean(launched.unseen for launched in found), 1)}
        plain = policy.removesuffix(WITHIN)
        if plain in theirs:
            extra["edbatch"] = {"batches": theirs[plain], "bound": theirs["bound"]}
        if plain in known:
            machines = [
                learned
                for (encoding, types), learned in learner.learned.items()
                if encoding == known[plain] and bool(types) == policy.endswith(WITHIN)
            ]
            extra |= of_machines(machines)
            extra |= {"trials": sum(m.trials for m in machines), "seconds": sum(m.seconds for m in machines)}
            if policy == "fsm-sort":
                extra["edbatch_learning"] = FIGURES["learning"].get(WORKLOAD_OF[name], {})
        report(name, "program", policy, found, bounds, graphs[0], options, **extra)


def of_machines(machines: Sequence[Learned | LearnedRecurrence]) -> dict[str, Any]:
    """Sum states, batches and lower bounds over some automata."""
    return {
        "states": sum(len(learned.automaton.states) for learned in machines),
        "learned": {
            "batches": sum(learned.batches for learned in machines),
            "bound": sum(learned.lower_bound for learned in machines),
        },
    }


# ---- vpps's granularity


def run_cells(name: str, task: Any, learning: Any, batches: Sequence[Any], options: argparse.Namespace) -> None:
    """Print a workload's lines at vpps's own granularity."""
    first, _ = recorded(task, learning)
    with vpps.Handle(task.model, vpps.SGD(lr=0.01), target="cpu", vps=options.threads) as handle:
        distribution = handle._configurator.prepare(first).distribution
    graphs = [recorded(task, batch) for batch in batches]
    typed_graphs = [TypedGraph.of(Topology(graph)) for graph, _ in graphs]
    bounds = [learn(graph, LearningSettings(trials=0)).lower_bound for graph in typed_graphs]
    for chosen in options.policies:
        policy, extra = chosen, dict[str, Any]()
        if chosen in encodings():
            policy = learned_from([first], LearningSettings(encoding=encodings()[chosen], trials=options.trials))
            extra = of_machines(policy.recurrences)
        planner, whole = (Planner(distribution, policy, passes=passes) for passes in (None, WHOLE))
        found = [launched(whole.plan_forward(graph, [loss])) for graph, loss in graphs]
        training = [planner.plan_training(graph, loss, None, 0) for graph, loss in graphs]
        inference = [planner.plan_forward(*evaluated(task, batch)) for batch in batches]
        report(
            name, "cells", chosen, found, bounds, typed_graphs[0], options,
            barriers=harness.median([plan.n_barriers for plan in training]),
            barriers_infer=harness.median([plan.n_barriers for plan in inference]),
            hidden=options.hidden, threads=options.threads, **extra,
        )  # fmt: skip


def launched(plan: Plan) -> BatchCounts:
    """Count batches and stages of a plan with unsplit cells."""
    stages = [np.unique(block.step_stage) for block in plan.blocks]
    return BatchCounts(sum(map(len, stages)), len(np.unique(np.concatenate(stages))))


def recorded(task: Any, batch: Any) -> tuple[vpps.Graph, vpps.Expression]:
    """Record a mini-batch with its loss."""
    graph = vpps.Graph()
    return graph, task.loss(graph, batch)


def evaluated(task: Any, batch: Any) -> tuple[vpps.Graph, list[vpps.Rows]]:
    """Record a mini-batch with its outputs."""
    graph = vpps.Graph()
    return graph, [task.outputs(graph, batch)]


def report(
    name: str, granularity: str, policy: str, found: Sequence[BatchCounts], bounds: Sequence[int], first: TypedGraph,
    options: argparse.Namespace, **extra: Any,
) -> None:  # fmt: skip
    """Print one result line."""
    batches = [launched.batches for launched in found]
    harness.report(
        BENCH, f"task={name} granularity={granularity} policy={policy} batch={options.batch}", batches, "batches",
        bound=harness.median(bounds), over_bound=float(f"{sum(batches) / sum(bounds):.4g}"),
        stages=harness.median([launched.stages for launched in found]),
        vertices=first.n, types=len(np.unique(first.type_of)), all=batches, bounds=list(bounds), **extra,
    )  # fmt: skip


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(__doc__, data=None, synthetic=False, workload=None, policy=None, hidden=HIDDEN, threads=2)
    parser.add_argument("--granularity", choices=GRANULARITIES, help="default: both")
    parser.add_argument("--batch", type=int, default=64, help="examples in a mini-batch")
    parser.add_argument("--mini-batches", type=int, default=8, metavar="N", help="most mini-batches to measure")
    parser.add_argument("--learn-on", type=int, default=32, metavar="N", help="examples to learn machines from")
    parser.add_argument("--trials", type=int, default=LearningSettings().trials, help="most trials of learning")
    options = parser.parse_args(arguments)
    options.workloads = harness.choose(options.workload, list(NETWORKS), "workloads")
    options.policies = harness.choose(options.policy, list(POLICIES), "policies")
    options.data = data_folder(options.data, options.synthetic)
    return options


def main() -> None:
    """Measure every requested workload."""
    options = parse_options()
    for name in options.workloads:
        limit = options.learn_on + options.batch * options.mini_batches
        task = make_task(name, data_of(name, options.data), options.hidden, None, limit)
        learning, batches = mini_batches(task, options)
        if not batches:
            sys.exit(f"{name}: {len(task.train)} examples are too few to learn from {options.learn_on} and measure")
        if options.granularity != "cells":
            run_program(name, learning, batches, options)
        if options.granularity != "program":
            run_cells(name, task, learning, batches, options)


if __name__ == "__main__":
    main()
