"""Cases to execute: compiled kernels, planned batches, and their simulated memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import PROGRAMS
from treelstm import LEARNING_RATE, initial_weights
from trees import read_trees

import vpps
from gpu_cost.machine import BASE
from gpu_cost.machine_code import Code, code_of
from vpps.cli.workload import load_workload
from vpps.data import graphs_of_trees
from vpps.data.treebank import Tree, parse_tree
from vpps.engine.ahead import Specialized
from vpps.engine.options import Example
from vpps.ops.precision import EXACT
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.instructions import COUNTERS
from vpps.zoo.trees import TreeLSTMSentiment

ARCH, SMS = "sm_90", 132
COMB_LEVELS = 7
REPORT_WORDS, LINE_WORDS = 4096, 32
MANY_SIGNALS = 1 << 28  # a count as if all others had signalled; below the mark of a stopped launch


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel and a batch.

    Attributes:
        name: name such as "tree-lstm batch=1".
        examples: number of examples in the batch.
        blocks: thread blocks of a launch.
    """

    name: str
    examples: int
    blocks: int
    kernel: Specialized
    plan: Plan
    code: Code


def case_of(name: str, batch: int, folder: Path, precision: str = EXACT.name, **options: Any) -> Case:
    """A vpps-train task with a batch of synthetic data."""
    work = load_workload(name, batch, [])
    example = work.first(1)[0]
    return planned(f"{name} batch={batch}", batch, work.model, example, folder, precision=precision, **options)


def bench_case(batch: int, trees: Path, folder: Path, precision: str = EXACT.name, **options: Any) -> Case:
    """The first batch of gpu_treelstm.py and gpu_timelines.py."""
    read, words = read_trees(trees, batch)
    net = PROGRAMS["vpps-bulk"](initial_weights(words, 256, 256), "sgd", LEARNING_RATE["sgd"], 1)
    example = net.graph([net.prepare(tree) for tree in read])
    rule = vpps.SGD(lr=LEARNING_RATE["sgd"])
    return planned(f"bench batch={batch}", batch, net.handle.model, example, folder, SMS, precision, rule, **options)


def comb_case(
    batch: int,
    folder: Path,
    precision: str = EXACT.name,
    levels: int = COMB_LEVELS,
    hidden: int = 256,
    **options: Any,
) -> Case:
    """Comb-shaped trees: every level has one inner node per tree, and one of its children is a leaf."""
    rng = np.random.default_rng(1)
    trees = [_comb([f"w{k}" for k in rng.integers(0, 2000, levels + 1)]) for _ in range(batch)]
    graphs = graphs_of_trees(trees, min_count=1)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, 2000, embedding=hidden, hidden=hidden)
    graph = vpps.Graph()
    loss = network.loss(graph, graphs[:]) * (1 / batch)
    name = f"tree-lstm comb={levels} batch={batch}"
    return planned(name, batch, model, (graph, loss), folder, precision=precision, **options)


def _comb(words: Sequence[str]) -> Tree:
    text = f"(1 {words[0]})"
    for word in words[1:]:
        text = f"(2 {text} (3 {word}))"
    return parse_tree(text)


def planned(
    name: str,
    batch: int,
    model: vpps.Model,
    example: Example,
    folder: Path,
    sms: int = SMS,
    precision: str = EXACT.name,
    rule: vpps.Optimizer | None = None,
    **options: Any,
) -> Case:
    """A case for any model: its kernel, compiled twice, and a plan for training on a graph.

    Args:
        rule: optimizer; default: Adam.
        options: options for weights on the chip, such as `groups`.
    """
    rule, passes = rule or vpps.Adam(lr=1e-3), vpps.Passes()
    vps = sms // options.get("groups", 1)
    kernel = vpps.specialize(
        model, example, arch=ARCH, sms=sms, vps=vps, optimizer=rule, passes=passes, precision=precision, **options
    )
    assert kernel.resources is not None
    code = code_of(kernel.source, ARCH, folder, kernel.resources.registers)
    planner = Planner(kernel.parameters, "sinks-last", "vector", passes)
    plan = planner.plan_training(*example, Update(rule, 1, 1, None), 0)
    beside = f" {precision}" if precision != EXACT.name else ""
    beside += "".join(f" {name}={value}" for name, value in options.items() if value != 1)
    return Case(name + beside, batch, sms, kernel, plan, code)


def memory_of(plan: Plan) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A launch's global memory, and the kernel's parameter. All floats of the pool are between 0.05 and 0.1."""
    sizes = {
        "report": REPORT_WORDS, "stopped": 32, "losses": 256,
        "counters": COUNTERS * LINE_WORDS, "cleared": COUNTERS * LINE_WORDS,
        "script": -(-len(plan.script) // 32) * 32, "pool": plan.pool_floats + 1024,
    }  # fmt: skip
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    memory = np.zeros(sum(sizes.values()), np.uint32)
    pool = memory[starts["pool"] :].view(np.float32)
    pool[64:] = np.random.default_rng(1).uniform(0.05, 0.1, len(pool) - 64)
    memory[starts["counters"] : starts["cleared"] : LINE_WORDS] = MANY_SIGNALS
    memory[starts["script"] : starts["script"] + len(plan.script)] = plan.script
    order = ("pool", "script", "counters", "cleared", "report")
    at = {name: BASE + 4 * start for name, start in starts.items()}
    parameter = [*(at[name] for name in order), 0, at["stopped"], at["losses"]]  # patience 0: no time limit
    return memory, np.array(parameter, np.uint64).view(np.uint32)
