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
from pathlib import Path
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
CONFIGURATIONS = ("none", *ABLATED, "all")
MODELS = ("tree-lstm", "fixed-lstm")
SCHEDULES = ("vector", "paper")
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, metavar="FILE", help="Penn-bracketed trees (default: SST, datasets.py)")
    parser.add_argument("--models", type=_names, default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--schedules", type=_names, default=list(SCHEDULES), help=f"of {', '.join(SCHEDULES)}")
    parser.add_argument("--configurations", type=_names, default=list(CONFIGURATIONS), metavar="NAME,...")
    parser.add_argument("--hidden", type=_numbers, default=[64, 128, 256, 512, 1024], metavar="N,N,...")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=2, help="mini-batches in a pass")
    parser.add_argument("--steps", type=int, default=64, help="of Fixed-LSTM")
    parser.add_argument("--threads", type=int, default=1, help="virtual processors")
    parser.add_argument("--cores", type=int, help="that the process is kept on (default: as many as --threads)")
    parser.add_argument("--passes", type=int, default=3, help="timed passes of every configuration, interleaved")
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that all of it runs")
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.batch_size, options.steps, options.passes = [32], 4, 6, 2
    for asked, known in (
        (options.models, MODELS), (options.schedules, SCHEDULES), (options.configurations, CONFIGURATIONS)
    ):  # fmt: skip
        if unknown := set(asked) - set(known):
            sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


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
