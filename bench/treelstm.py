"""Training speed of a binary Tree-LSTM: vpps beside PyTorch and DyNet, on equal weights and in the same run.

    leaf:   i, o, u = W e + b                            c = sig(i) * tanh(u)
    inner:  i, fl, fr, o, u = U concat(hl, hr) + bU      c = sig(i) * tanh(u) + sig(fl) * cl + sig(fr) * cr
    both:   h = sig(o) * tanh(c)
    loss:   sum over all nodes of cross_entropy(Wo h + bo, label) / batch size

With --precision bf16, the peers are vpps in float32, and PyTorch both under autocast and in float32. One JSON object
per line and per peer; see README.md. Exit status 1 when the contenders' losses differ.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import harness
import numpy as np
from numpy.typing import NDArray
from trees import Tree, read_trees

BENCH = "treelstm"
CLASSES = 5
CHECKED_BATCHES = 5  # each after an update, so that wrong gradients also show
TOLERANCE = 1e-4  # relative
CONTENDERS = ("vpps-per-child", "vpps-bulk", "vpps-distinct", "vpps", "autograd", "manual", "manual-distinct", "dynet")
REDUCED = "-bf16"  # suffix of contenders with bf16 products
REDUCED_TOLERANCE = 2e-3
REDUCED_CONTENDERS = ("vpps-bulk-bf16", "vpps-bulk", "autograd-bf16", "manual-bf16", "autograd", "manual")
WARM_UP = 64  # sentences
LEARNING_RATE = {"sgd": 0.05, "adam": 0.001}


class Contender(Protocol):
    """One program that trains the model. `step` may return before the work is done, `loss` waits for it."""

    def prepare(self, tree: Any) -> Any: ...
    def step(self, batch: Sequence[Any]) -> None: ...
    def loss(self) -> float: ...
    def close(self) -> None: ...


def initial_weights(words: int, embedding: int, hidden: int, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Return Glorot-uniform matrices; biases are small random numbers, so that a misplaced one changes the loss."""
    random = np.random.default_rng(seed)

    def uniform(bound: float, *shape: int) -> NDArray[np.float32]:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    def glorot(rows: int, columns: int) -> NDArray[np.float32]:
        return uniform((6.0 / (rows + columns)) ** 0.5, rows, columns)

    return {
        "words": uniform(0.1, words, embedding),
        "W": glorot(3 * hidden, embedding),
        "b": uniform(0.1, 3 * hidden),
        "U": glorot(5 * hidden, 2 * hidden),
        "bU": uniform(0.1, 5 * hidden),
        "Wo": glorot(CLASSES, hidden),
        "bo": uniform(0.1, CLASSES),
    }


def make_contender(name: str, weights: dict[str, NDArray[np.float32]], options: argparse.Namespace) -> Contender:
    """Return the program with that name, starting from a copy of the weights. Imports only the modules it needs."""
    lr = options.lr or LEARNING_RATE[options.optimizer]
    precision, name = "bf16" if name.endswith(REDUCED) else "float32", name.removesuffix(REDUCED)
    if name.startswith("vpps"):
        from models import PROGRAMS

        return PROGRAMS[name](weights, options.optimizer, lr, options.threads, precision=precision)
    if name == "dynet":
        from peers.dynet_treelstm import DynetTreeLstm, Pools, import_dynet

        pools = Pools.for_batches(options.nodes, weights, options.optimizer, models=len(options.batch_sizes))
        dynet = import_dynet(pools, options.dynet_autobatch)
        return DynetTreeLstm(dynet, weights, options.optimizer, lr, whole=options.batch_size <= 2)
    from peers.torch_treelstm import TorchTreeLstm

    return TorchTreeLstm(weights, name, options.optimizer, lr, options.threads, precision)


def in_batches(items: list[Any], size: int) -> list[list[Any]]:
    """Split into consecutive mini-batches; the last one may be smaller."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def most_nodes(trees: list[Tree], batch_size: int) -> int:
    """Return the number of nodes in the largest mini-batch with that many trees."""
    return max(sum(len(tree.labels) for tree in batch) for batch in in_batches(trees, batch_size))


def first_losses(contender: Contender, batches: Sequence[Any]) -> list[float]:
    """Train on the first batches and return their losses."""
    losses = []
    for batch in batches[:CHECKED_BATCHES]:
        contender.step(batch)
        losses.append(contender.loss())
    return losses


def check_losses(contenders: dict[str, Contender], batches: dict[str, list[Any]], tolerance: float = TOLERANCE) -> None:
    """Train all contenders on the first batches; exits (status 1) if a loss differs from the first contender's."""
    try:
        compare_losses({name: first_losses(c, batches[name]) for name, c in contenders.items()}, tolerance)
    except ArithmeticError as error:
        raise SystemExit(str(error)) from None


def compare_losses(by_name: dict[str, list[float]], tolerance: float) -> None:
    """Raise ArithmeticError if a loss differs from that of the first contender."""
    for number, losses in enumerate(zip(*by_name.values(), strict=True)):
        # This form also fails for NaN.
        if not all(abs(loss - losses[0]) <= tolerance * abs(losses[0]) for loss in losses):
            found = dict(zip(by_name, losses, strict=True))
            raise ArithmeticError(f"the losses of batch {number} differ, the figures would mean nothing: {found}")


def train(contender: Contender, batches: Sequence[Any]) -> None:
    """Make one pass, from the first graph to the end of the last update."""
    for batch in batches:
        contender.step(batch)
    contender.loss()


def run(batch_size: int, options: argparse.Namespace) -> None:
    """Check, warm up, time and report one batch size."""
    trees, words = read_trees(options.trees, options.limit)
    options.batch_size, options.nodes = batch_size, most_nodes(trees, max(options.batch_sizes))
    weights = initial_weights(words, options.embedding, options.hidden)
    contenders = {name: make_contender(name, weights, options) for name in options.contenders}
    batches = {name: in_batches([c.prepare(tree) for tree in trees], batch_size) for name, c in contenders.items()}
    check_losses(contenders, batches, TOLERANCE if options.precision == "float32" else REDUCED_TOLERANCE)
    for name, contender in contenders.items():
        train(contender, batches[name][: -(-WARM_UP // batch_size)])
    seconds = harness.interleave(
        {name: partial(train, contender, batches[name]) for name, contender in contenders.items()}, options.passes
    )
    last_loss = {name: contender.loss() for name, contender in contenders.items()}
    for contender in contenders.values():
        contender.close()

    rates = {name: [len(trees) / s for s in times] for name, times in seconds.items()}
    per_tree = {name: harness.median([1e6 / rate for rate in values]) for name, values in rates.items()}
    case = (
        f"batch={batch_size} hidden={options.hidden} embedding={options.embedding} optimizer={options.optimizer} "
        f"cores={options.cores} threads={options.threads}"
    )
    emit = partial(harness.report, BENCH, case, unit="sentences/s")
    programs = [name for name in rates if name.startswith("vpps")]
    if options.precision == "bf16":  # vpps in float32 is a peer
        programs = [name for name in programs if name.endswith(REDUCED)]
    peers = [name for name in rates if name not in programs]
    for name in programs or peers:
        own = {"program": name if programs else peer_name(name, options), "us_per_tree": per_tree[name]}
        for peer in peers if programs else []:
            emit(
                values=rates[name], peer=(peer_name(peer, options), rates[peer]), **own, loss=last_loss[name],
                peer_us_per_tree=per_tree[peer], peer_loss=last_loss[peer],
            )  # fmt: skip
        if not programs or not peers:
            emit(values=rates[name], **own, loss=last_loss[name])


def peer_name(contender: str, options: argparse.Namespace) -> str:
    """Return a peer's name in results, which includes MKL's code path."""
    if contender == "dynet":
        from peers.dynet_treelstm import STRATEGIES

        return f"DyNet {STRATEGIES[options.dynet_autobatch]}"
    if contender.startswith("vpps"):
        return f"{contender} in float32"
    return f"torch level-batched {contender}{', MKL AVX-512' if options.mkl_avx512 else ''}"


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, trees=..., batch_sizes=[1, 8, 64], hidden=256, embedding=None, threads=1, cores=None, limit=512,
        passes=3, contenders=None, dynet_autobatch=1, mkl_avx512=False, precision="float32",
    )  # fmt: skip
    parser.add_argument("--optimizer", choices=list(LEARNING_RATE), default="sgd")
    parser.add_argument("--lr", type=float, help=f"default: {LEARNING_RATE}")
    options = parser.parse_args()
    options.cores = options.cores or options.threads
    options.embedding = options.embedding or options.hidden
    if options.precision == "bf16":
        options.contenders = harness.choose(options.contenders, REDUCED_CONTENDERS, "contenders")
    else:
        options.contenders = harness.choose_contenders(options.contenders, CONTENDERS)
    return options


def main() -> None:
    """Run every batch size."""
    options = parse_options()
    # OpenMP reads it when torch is loaded: spinning threads would take the timed contender's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if options.mkl_avx512:
        harness.mkl_avx512()
    harness.confine(options.cores)
    harness.keep_freed_memory()
    for batch_size in options.batch_sizes:
        run(batch_size, options)


if __name__ == "__main__":
    main()
