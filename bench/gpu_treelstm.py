"""Training speed of the Tree-LSTM of treelstm.py on a GPU: vpps and four programs in PyTorch, from equal weights.

    python bench/gpu_treelstm.py --trees train.txt >> results/gpu/DATE-treelstm.jsonl
    python bench/gpu_treelstm.py --trees train.txt --device cpu --seconds 0 --limit 8 --batch-sizes 1,4      (a check)

Measures sentences per second at steady state (steady.py); peers/torch_gpu_treelstm.py describes the four programs. vpps
takes graphs as data, because the others plan their levels in advance, unless --program says otherwise. The first line
is for vpps alone; a comparison with each peer follows. Losses of the first batches, each after an update, must agree,
or no figure is printed. A program that fails is named, the next one runs, and the exit status is 1. All this repeats
for each precision of products. PyTorch's counterpart is autocast or an equivalent for bf16, TF32 allowed for tf32, and
float32 for 3xtf32.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import harness
from datasets import trees_file
from on_gpu import TOLERANCES, about, alone_then_beside, choose_contenders, compare, configure, parse
from treelstm import LEARNING_RATE, in_batches, initial_weights
from trees import read_trees

import vpps

BENCH = "gpu_treelstm"
CONTENDERS = ("vpps", "autograd", "graphs", "manual", "pernode")


def make_contender(name: str, weights: dict[str, Any], precision: str, options: argparse.Namespace) -> Any:
    """Return the program with that name, starting from a copy of the weights."""
    lr = LEARNING_RATE["sgd"]
    if name == "vpps":
        from models import PROGRAMS

        program = PROGRAMS[options.program]
        onchip = vpps.ChipOptions(groups=options.groups) if options.device != "cpu" else None
        return program(weights, "sgd", lr, options.vps, target=options.device, precision=precision, onchip=onchip)
    from peers.torch_gpu_treelstm import make

    return make(name, weights, lr, options.device, options.compile, precision == "bf16")


def run(names: list[str], batch_size: int, precision: str, options: argparse.Namespace) -> bool:
    """Check, warm up, time and report contenders at one batch size. Returns True if all could be measured."""
    configure(names, options.device, precision)
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.embedding, options.hidden)

    def made(name: str) -> tuple[Any, list[Any]]:
        contender = make_contender(name, weights, precision, options)
        batches = in_batches([contender.prepare(tree) for tree in trees], batch_size)
        if name != "vpps":
            contender.plan(batches)
        return contender, batches

    case = f"batch={batch_size} hidden={options.hidden} embedding={options.embedding} precision={precision}"

    def shown(name: str) -> str:
        return f"torch {name}{', compiled cells' if options.compile and name in ('manual', 'graphs') else ''}"

    return compare(
        BENCH, case, "sentences/s", names, made, len(trees), TOLERANCES[precision], options, shown,
        {"program": options.program, "groups": options.groups, **about(names, options.device, options.trees)},
    )  # fmt: skip


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, trees=None, batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128], device="cuda", hidden=256, embedding=256,
        limit=512, passes=3, vps=None, contenders=None, quick=False,
    )  # fmt: skip
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="no torch.compile for cells")
    parser.add_argument("--groups", type=int, help="vpps's groups of thread blocks")
    parser.add_argument(
        "--program",
        default="vpps-bulk",
        choices=("vpps", "vpps-bulk", "vpps-distinct", "vpps-per-child"),
        help="of vpps (%(default)s)",
    )
    options = parse(parser)
    if options.quick:
        options.batch_sizes, options.limit, options.passes, options.precision = [1, 16], 64, 2, ["float32"]
        options.seconds = 0.1
    if options.device == "cpu":
        options.compile = False
    options.contenders = choose_contenders(options.contenders, CONTENDERS, options.device)
    options.trees = trees_file(options.trees)
    return options


def main() -> None:
    """Run every batch size in every precision."""
    options = parse_options()
    well = True
    for precision in options.precision:
        for batch_size in options.batch_sizes:
            case = partial(run, batch_size=batch_size, precision=precision, options=options)
            well &= alone_then_beside(options.contenders, case)
    sys.exit(not well)


if __name__ == "__main__":
    main()
