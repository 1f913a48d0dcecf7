"""Training speed of the Tree-LSTM of treelstm.py on a GPU: vpps beside four programs in PyTorch, from equal weights.

    python bench/gpu_treelstm.py --trees train.txt >> results/gpu/DATE-treelstm.jsonl
    python bench/gpu_treelstm.py --trees train.txt --device cpu --limit 8 --batch-sizes 1,4     (a check, no figures)

Sentences per second; what the four programs do is written in peers/torch_gpu_treelstm.py. There is a line of vpps
alone, then one for each of the others beside it. Losses of the first batches, each after an update, must agree, or
there is no figure; whoever fails is named, the next one runs, and the exit status is 1. Products of PyTorch run in
float32, then all is repeated with TF32 allowed (`tf32=on`), where losses agree less closely; vpps computes in float32
in both.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from functools import partial
from typing import Any

import harness
from datasets import name_of, trees_file
from on_gpu import LossesDifferError, choose_contenders, configure, describe, each_beside_vpps
from treelstm import CHECKED_BATCHES, LEARNING_RATE, in_batches, initial_weights, train
from trees import read_trees

BENCH = "gpu_treelstm"
CONTENDERS = ("vpps", "autograd", "graphs", "manual", "pernode")
TOLERANCE = {"off": 1e-4, "on": 1e-2}  # relative, of losses


def make_contender(name: str, weights: dict[str, Any], options: argparse.Namespace) -> Any:
    """The program of that name, starting from a copy of the weights."""
    lr = LEARNING_RATE["sgd"]
    if name == "vpps":
        from models import VppsTreeLstm

        return VppsTreeLstm(weights, "sgd", lr, options.vps, target=options.device)
    from peers.torch_gpu_treelstm import make

    return make(name, weights, lr, options.device, options.compile)


def check_losses(contenders: dict[str, Any], batches: dict[str, list[Any]], tolerance: float) -> None:
    """Train all on the first batches. Raises LossesDifferError where a loss is not the first contender's."""
    for number in range(min(CHECKED_BATCHES, min(map(len, batches.values())))):
        losses = {}
        for name, contender in contenders.items():
            contender.step(batches[name][number])
            losses[name] = contender.loss()
        expected = next(iter(losses.values()))
        # Written so that a NaN fails too.
        if not all(abs(loss - expected) <= tolerance * abs(expected) for loss in losses.values()):
            raise LossesDifferError(f"the losses of batch {number} differ, the figures would mean nothing: {losses}")


def run(names: list[str], batch_size: int, tf32: str, options: argparse.Namespace) -> None:
    """Check, warm up, time and report contenders at one batch size."""
    configure(names, options.device, tf32 == "on")
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.embedding, options.hidden)
    contenders = {name: make_contender(name, weights, options) for name in names}
    batches = {name: in_batches([c.prepare(tree) for tree in trees], batch_size) for name, c in contenders.items()}
    for name, contender in contenders.items():
        if name != "vpps":
            contender.plan(batches[name])
    check_losses(contenders, batches, TOLERANCE[tf32])
    for name, contender in contenders.items():
        train(contender, batches[name])  # all sizes once: allocator, cuBLAS, compilers
    seconds = harness.interleave(
        {name: partial(train, contender, batches[name]) for name, contender in contenders.items()}, options.passes
    )
    losses = {name: contender.loss() for name, contender in contenders.items()}
    padding = {name: round(c.padding, 3) for name, c in contenders.items() if hasattr(c, "padding")}
    for contender in contenders.values():
        contender.close()

    rates = {name: [len(trees) / s for s in times] for name, times in seconds.items()}
    case = f"batch={batch_size} hidden={options.hidden} embedding={options.embedding} tf32={tf32}"
    extra = {
        "data": name_of(options.trees), "gpu": describe(names, options.device),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    for name in [name for name in rates if name != "vpps"]:
        more = extra | ({"padding": padding[name]} if name in padding else {})
        peer = f"torch {name}{', compiled cells' if options.compile and name in ('manual', 'graphs') else ''}"
        if "vpps" in rates:
            harness.report(
                BENCH, case, rates["vpps"], "sentences/s", (peer, rates[name]), loss=losses["vpps"],
                peer_loss=losses[name], **more,
            )  # fmt: skip
        else:
            harness.report(BENCH, case, rates[name], "sentences/s", program=peer, loss=losses[name], **more)
    if list(rates) == ["vpps"]:
        harness.report(BENCH, case, rates["vpps"], "sentences/s", loss=losses["vpps"], **extra)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(
        __doc__, trees=None, batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128], device="cuda", hidden=256, embedding=256,
        limit=512, passes=5, vps=None, tf32="both", contenders=None, quick=False,
    )  # fmt: skip
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="no torch.compile for cells")
    options = parser.parse_args()
    if options.quick:
        options.batch_sizes, options.limit, options.passes, options.tf32 = [1, 16], 64, 2, "off"
    if options.device == "cpu":
        options.compile = False
    options.contenders = choose_contenders(options.contenders, CONTENDERS, options.device)
    options.trees = trees_file(options.trees)
    return options


def main() -> None:
    """Run every batch size with both precisions."""
    options = parse_options()
    well = True
    for tf32 in ("off", "on") if options.tf32 == "both" else (options.tf32,):
        for batch_size in options.batch_sizes:
            case = partial(run, batch_size=batch_size, tf32=tf32, options=options)
            well &= each_beside_vpps(options.contenders, case)
    sys.exit(not well)


if __name__ == "__main__":
    main()
