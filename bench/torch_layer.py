"""A tree layer of vpps inside a PyTorch network, compared with the same network only in vpps and only in PyTorch.

    encoder:    x = tanh(We words[word] + be)                                      of every leaf
    layer:      the binary Tree-LSTM of treelstm.py, h of every node from x
    classifier: sum of cross_entropy(Wo h + bo, label) / batch size                over all nodes, or the roots

    vpps              all in vpps
    mixed             encoder and classifier in PyTorch; vpps's Adam updates the layer, PyTorch's the rest
    mixed-torch-adam  like mixed, but PyTorch's Adam updates everything
    outside           only PyTorch's part of mixed: there is no layer, and losses are not compared
    torch-manual      all in PyTorch, the layer batched by level with a hand-written backward
    torch-autograd    like torch-manual, but autograd does the backward pass

Every program trains with Adam (table rows that a batch does not use are not updated). Prints a line of JSON per pair of
programs; see README.md. Exit status 1 if losses differ. --sharing measures `mixed` with two PyTorch threads beside two
virtual processors, for each way in which idle PyTorch threads wait, and with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

import harness
import numpy as np
import treelstm
from datasets import name_of, trees_file
from numpy.typing import NDArray
from trees import read_trees

BENCH = "torch_layer"
CONTENDERS = ("vpps", "mixed", "mixed-torch-adam", "outside", "torch-manual", "torch-autograd")
SHARING: dict[str, tuple[int, str | None]] = {
    "torch threads=2": (2, None),
    "torch threads=2 OMP_WAIT_POLICY=passive": (2, "passive"),
    "torch threads=1": (1, None),
}
"""Threads of PyTorch, and their way to wait for work (libgomp: None spins for a while)."""


def initial_weights(words: int, hidden: int) -> dict[str, NDArray[np.float32]]:
    """Return the weights of treelstm.py and the encoder."""
    weights = treelstm.initial_weights(words, hidden, hidden)
    encoder = treelstm.initial_weights(1, hidden, hidden, seed=2)
    # Vectors large enough that tanh is not linear.
    return weights | {"words": 10 * weights["words"], "We": encoder["W"][:hidden], "be": encoder["b"][:hidden]}


def run(batch_size: int, options: argparse.Namespace) -> None:
    """Check, warm up, time and report one batch size."""
    from torch_layer_models import PROGRAMS, Settings

    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.hidden)
    settings = Settings(treelstm.LEARNING_RATE["adam"], options.loss, options.threads, options.torch_threads)
    contenders = {name: PROGRAMS[name](weights, settings) for name in options.contenders}
    batches = {
        name: treelstm.in_batches([c.prepare(tree) for tree in trees], batch_size) for name, c in contenders.items()
    }
    treelstm.check_losses({name: c for name, c in contenders.items() if name != "outside"}, batches)
    for name, contender in contenders.items():
        treelstm.train(contender, batches[name][: -(-treelstm.WARM_UP // batch_size)])
    seconds = harness.interleave(
        {name: partial(treelstm.train, contender, batches[name]) for name, contender in contenders.items()},
        options.passes,
    )
    losses = {name: contender.loss() for name, contender in contenders.items()}
    for contender in contenders.values():
        contender.close()
    report(batch_size, {name: [len(trees) / s for s in times] for name, times in seconds.items()}, losses, options)


def report(
    batch_size: int, rates: Mapping[str, list[float]], losses: Mapping[str, float], options: argparse.Namespace
) -> None:
    """Print a line for every pair of a program with vpps and a program with less of vpps. `outside` has no line: the
    lines of the mixed programs give its microseconds per sentence."""
    case = (
        f"batch={batch_size} loss={options.loss} hidden={options.hidden} cores={options.cores} "
        f"threads={options.threads} torch_threads={options.torch_threads}"
    )
    shared = {"waiting": os.environ.get("OMP_WAIT_POLICY", "default"), "data": name_of(options.trees)}
    emit = partial(harness.report, BENCH, case, unit="sentences/s", **shared)
    for name, values in rates.items():
        own: dict[str, object] = {"program": shown(name, options), "loss": losses[name]}
        if name.startswith("mixed") and "outside" in rates:
            per_tree = {"us_per_tree": values, "outside_us_per_tree": rates["outside"]}
            own |= {key: harness.median([1e6 / rate for rate in of]) for key, of in per_tree.items()}
        peers = [] if name.startswith(("torch", "outside")) else [p for p in rates if _peer(name, p)]
        for peer in peers:
            emit(values=values, peer=(shown(peer, options), rates[peer]), **own, peer_loss=losses[peer])
        if len(rates) == 1:
            emit(values=values, **own)


def _peer(name: str, other: str) -> bool:
    """Return True if a line compares the first program with the other."""
    return other.startswith("torch") or (other == "vpps" != name)


def shown(contender: str, options: argparse.Namespace) -> str:
    """Return the contender's name in results, which includes MKL's code path."""
    with_torch = contender != "vpps" and options.mkl_avx512
    name = contender.replace("torch-", "torch level-batched ") if contender.startswith("torch") else contender
    return f"{name}{', MKL AVX-512' if with_torch else ''}"


def share(options: argparse.Namespace) -> None:
    """Time `mixed` in separate processes, since libgomp reads its settings once; a round is one process of each."""
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.passes):
        for setting, (threads, waiting) in SHARING.items():
            environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
            command = [
                sys.executable, __file__, "--contenders", "mixed", "--passes", "1", "--threads", str(options.threads),
                "--cores", str(options.cores), "--torch-threads", str(threads), "--loss", options.loss,
                "--waiting", waiting or "default", "--trees", str(options.trees), "--limit", str(options.limit),
                "--hidden", str(options.hidden), "--batch-sizes", ",".join(map(str, options.batch_sizes)),
            ]  # fmt: skip
            made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            for line in map(json.loads, made.stdout.splitlines()):
                rates.setdefault((line["case"].split()[0], setting), []).append(line["value"])
    best = list(SHARING)[-1]
    for (batch, setting), values in rates.items():
        case = f"{batch} loss={options.loss} hidden={options.hidden} cores={options.cores} threads={options.threads}"
        emit = partial(harness.report, BENCH, f"{case} {setting}", values, "sentences/s", data=name_of(options.trees))
        if setting == best:
            emit()
        else:
            emit((best, rates[batch, best]))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, trees=None, batch_sizes=[1, 4, 16, 32, 64, 128], hidden=256, threads=1, cores=None, limit=512,
        passes=5, contenders=None, mkl_avx512=False,
    )  # fmt: skip
    parser.add_argument("--torch-threads", type=int, default=1, help="PyTorch's threads beside vpps (default: 1)")
    parser.add_argument("--loss", choices=["nodes", "roots"], default="nodes", help="vertices with a loss")
    parser.add_argument("--waiting", choices=["passive", "default"], default="default", help="for OpenMP's threads")
    parser.add_argument("--sharing", action="store_true", help="time `mixed` by threads of PyTorch instead")
    options = parser.parse_args()
    options.cores = options.cores or options.threads
    options.contenders = harness.choose(options.contenders, CONTENDERS, "contenders")
    options.trees = trees_file(options.trees)
    return options


def main() -> None:
    """Run every batch size."""
    options = parse_options()
    if options.sharing:
        share(options)
        return
    if options.waiting == "passive":  # OpenMP reads this variable when torch is loaded
        os.environ["OMP_WAIT_POLICY"] = "passive"
    if options.mkl_avx512:
        harness.mkl_avx512()
    harness.confine(options.cores)
    harness.keep_freed_memory()
    for batch_size in options.batch_sizes:
        run(batch_size, options)


if __name__ == "__main__":
    main()
