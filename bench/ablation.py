"""What each pass of the cell compiler brings, in the form of figure 10 of the Cavs paper.

    python bench/ablation.py --trees train.txt --threads 2 >> ablation.jsonl
    python bench/plot.py ablation.jsonl

Tree-LSTM on the trees of a file and Fixed-LSTM (64 steps), both written gate by gate (gatewise.py), in mini-batches
of 64: with none of the passes lazy batching, fusion, horizontal fusion, alignment and streaming, with each of them
alone, and with all. What else the cell compiler does (common subexpressions, constants, dead outputs) is on
everywhere.

`value` is seconds of a step and `peer` the same with none of the passes, so `ratio` is a bar of the figure;
`barriers` are those of a step, `computation` the seconds of its launch alone. Exit status 1 where losses differ.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from typing import Any

import harness
import host_share
from datasets import name_of, trees_file
from gatewise import GatewiseLstm, GatewiseTreeLstm, random_sequences
from models import TreesAsData
from treelstm import CLASSES, check_losses, in_batches
from trees import read_trees

import vpps

BENCH = "ablation"
ABLATED = ("lazy_batching", "fusion", "horizontal", "alignment", "streaming")
KNOWN = {
    "models": ("tree-lstm", "fixed-lstm"),
    "schedules": ("vector", "paper"),
    "configurations": ("none", *ABLATED, "all"),
}
WORDS, OUTPUTS = 1000, 100  # of Fixed-LSTM: its vocabulary, and the words that it predicts


def passes_of(configuration: str) -> vpps.Passes:
    """Of ABLATED all, none, or the one named."""
    assert {f.name for f in fields(vpps.Passes)} >= set(ABLATED)
    return replace(vpps.Passes(), **{name: configuration in ("all", name) for name in ABLATED})


def run(model: str, hidden: int, schedule: str, options: argparse.Namespace) -> None:
    """Measure all configurations of one model, interleaved."""
    kind: type[GatewiseTreeLstm] | type[GatewiseLstm]
    number = options.batch_size * options.batches
    if model == "tree-lstm":
        trees, words = read_trees(options.trees, number)
        data = TreesAsData()
        numbers = [data.add(tree) for tree in trees]
        graphs, kind, sizes, source = data.set, GatewiseTreeLstm, (words, CLASSES), name_of(options.trees)
    else:
        numbers = list(range(number))
        graphs, kind, sizes = random_sequences(number, options.steps, WORDS, OUTPUTS), GatewiseLstm, (WORDS, OUTPUTS)
        source = f"random, {options.steps} steps"
    batches = in_batches(numbers, options.batch_size)
    contenders: dict[str, Any] = {
        name: kind(graphs, *sizes, hidden, options.threads, schedule, passes_of(name))
        for name in options.configurations
    }
    check_losses(contenders, dict.fromkeys(contenders, batches))
    measured = host_share.measure(contenders, dict.fromkeys(contenders, batches), options.passes)
    barriers = {name: contender.barriers for name, contender in contenders.items()}
    for contender in contenders.values():
        contender.close()
    case = f"model={model} hidden={hidden} batch={options.batch_size} schedule={schedule} threads={options.threads}"
    for name, m in measured.items():
        extra: dict[str, object] = {
            "barriers": barriers[name],
            "computation": harness.median(m.computations),
            "data": source,
        }
        base = measured.get("none") if name != "none" else None
        if base is not None:
            extra["computation_ratio"] = harness.median_ratio(base.computations, m.computations)
        peer = None if base is None else ("none of them", base.steps)
        harness.report(BENCH, f"{case} passes={name}", m.steps, "s/step", peer, higher_is_better=False, **extra)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(__doc__, trees=None, batch_size=64, threads=1, cores=None, passes=3, quick=False)
    for name, known in KNOWN.items():
        parser.add_argument(f"--{name}", type=harness.words, default=list(known), help=f"of {', '.join(known)}")
    parser.add_argument("--hidden", type=harness.numbers, default=[64, 128, 256, 512, 1024], metavar="N,N,...")
    parser.add_argument("--batches", type=int, default=2, help="mini-batches in a pass")
    parser.add_argument("--steps", type=int, default=64, help="of Fixed-LSTM")
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.batch_size, options.steps, options.passes = [32], 4, 6, 2
    for name, known in KNOWN.items():
        if unknown := set(getattr(options, name)) - set(known):
            sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def main() -> None:
    """Measure every model, size and schedule."""
    options = parse_options()
    harness.confine(options.cores or options.threads)
    harness.keep_freed_memory()
    if "tree-lstm" in options.models:
        options.trees = trees_file(options.trees)
    for model in options.models:
        for hidden in options.hidden:
            for schedule in options.schedules:
                run(model, hidden, schedule, options)


if __name__ == "__main__":
    main()
