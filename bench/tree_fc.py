"""Tree-FC, the benchmark of TensorFlow Fold and Cavs: vpps, PyTorch and DyNet, with times of host and computation.

    leaf:   h = embedding of its word
    inner:  h = tanh(W concat(hl, hr) + b)
    loss:   sum over the trees of cross_entropy(Wo h + bo, label) at the root / batch size

    python bench/tree_fc.py --threads 1 --mkl-avx512 >> tree_fc.jsonl                      figure 9a, table 1 left
    python bench/tree_fc.py --trees train.txt --threads 1 --mkl-avx512 >> tree_fc.jsonl    figure 9b, table 1 right

Trains on complete binary trees of 32 to 1024 leaves; with --trees, the Tree-LSTM of treelstm.py on those trees instead,
by batch size. Exit status 1 if the contenders' losses differ.

Steps are made one at a time and waited for, which separates host and computation, as in figure 9 and table 1 of the
Cavs paper. The same rounds also measure steps without waiting. The host's part is:

    vpps       recording the graph or joining graphs that are data, planning, the script: until the kernel can begin
    PyTorch    the level schedule of the mini-batch; every operator that Python then calls counts as computation
    DyNet      building the expressions; its search for batches is part of forward and counts as computation
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import harness
import numpy as np
import treelstm
from numpy.typing import NDArray
from trees import Tree, read_trees

BENCH = "tree_fc"
CLASSES = treelstm.CLASSES
WORDS = 1000
CONTENDERS = ("vpps-bulk", "vpps", "autograd", "manual", "dynet")
LEARNING_RATE = 0.05
CHECKED_BATCHES = 2  # different batches, the second after an update


def initial_weights(hidden: int, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Return Glorot-uniform matrices; embeddings in (-1, 1), so that tanh is not linear; small random biases."""
    random = np.random.default_rng(seed)

    def uniform(bound: float, *shape: int) -> NDArray[np.float32]:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    return {
        "words": uniform(1.0, WORDS, hidden),
        "W": uniform((6.0 / (3 * hidden)) ** 0.5, hidden, 2 * hidden),
        "b": uniform(0.1, hidden),
        "Wo": uniform((6.0 / (CLASSES + hidden)) ** 0.5, CLASSES, hidden),
        "bo": uniform(0.1, CLASSES),
    }


def complete_trees(leaves: int, number: int, seed: int = 1) -> list[Tree]:
    """Return complete binary trees in post-order with random words and labels. `leaves`: a power of two."""
    random = np.random.default_rng(seed)
    left: list[int] = []
    right: list[int] = []
    open_subtrees: list[tuple[int, int]] = []  # (height, root), heights descending: works like a binary counter
    for _ in range(leaves):
        height = 0
        left.append(-1)
        right.append(-1)
        while open_subtrees and open_subtrees[-1][0] == height:
            left.append(open_subtrees.pop()[1])
            right.append(len(left) - 2)
            height += 1
        open_subtrees.append((height, len(left) - 1))
    is_leaf = np.array(left) < 0
    trees = []
    for _ in range(number):
        words = np.where(is_leaf, random.integers(0, WORDS, len(left)), -1)
        trees.append(Tree(random.integers(0, CLASSES, len(left)).tolist(), words.tolist(), left, right))
    return trees


def make_contender(name: str, weights: dict[str, NDArray[np.float32]], options: argparse.Namespace) -> Any:
    """Return the program with that name, starting from a copy of the weights. Imports only the modules it needs."""
    if name.startswith("vpps"):
        from tree_fc_models import PROGRAMS

        return PROGRAMS[name](weights, LEARNING_RATE, options.threads)
    if name == "dynet":
        from peers.dynet_tree_fc import DynetTreeFc, pools_for
        from peers.dynet_treelstm import import_dynet

        pools = pools_for(options.nodes, weights, models=len(options.leaves))
        return DynetTreeFc(import_dynet(pools, options.dynet_autobatch), weights, LEARNING_RATE)
    from peers.torch_tree_fc import TorchTreeFc

    return TorchTreeFc(weights, name, "sgd", LEARNING_RATE, options.threads)


def tree_fc(leaves: int, options: argparse.Namespace) -> None:
    """Check, warm up, time and report one size of trees."""
    trees = complete_trees(leaves, CHECKED_BATCHES * options.batch_size)
    options.nodes = options.batch_size * (2 * max(options.leaves) - 1)
    weights = initial_weights(options.hidden)
    contenders = {name: make_contender(name, weights, options) for name in options.contenders}
    batches = {
        name: treelstm.in_batches([c.prepare(tree) for tree in trees], options.batch_size)
        for name, c in contenders.items()
    }
    case = f"tree-fc leaves={leaves} batch={options.batch_size} hidden={options.hidden}"
    compare(case, contenders, batches, options)


def tree_lstm(batch_size: int, options: argparse.Namespace) -> None:
    """Check, warm up, time and report the Tree-LSTM on the trees of a file, at one batch size."""
    trees, words = read_trees(options.trees, options.limit)
    options.batch_size, options.nodes = batch_size, treelstm.most_nodes(trees, max(options.batch_sizes))
    weights = treelstm.initial_weights(words, options.hidden, options.hidden)
    contenders = {name: treelstm.make_contender(name, weights, options) for name in options.contenders}
    batches = {
        name: treelstm.in_batches([c.prepare(tree) for tree in trees], batch_size)[: options.batches]
        for name, c in contenders.items()
    }
    compare(f"tree-lstm batch={batch_size} hidden={options.hidden}", contenders, batches, options)


def compare(case: str, contenders: dict[str, Any], batches: dict[str, list[Any]], options: argparse.Namespace) -> None:
    """Check that all contenders compute the same results, time them, print the lines."""
    treelstm.check_losses(contenders, batches)
    measured = measure(contenders, batches, options.passes)
    losses = {name: contender.loss() for name, contender in contenders.items()}
    for contender in contenders.values():
        contender.close()
    case = f"{case} cores={options.cores} threads={options.threads}"
    report(case, measured, lambda name: treelstm.peer_name(name, options), losses)


class Contender(Protocol):
    """One program that trains a model. `step` is `run(graph(batch))`; both may return before the work is done."""

    def step(self, batch: Sequence[Any]) -> None: ...
    def graph(self, batch: Sequence[Any]) -> Any: ...
    def run(self, graph: Any) -> None: ...
    def loss(self) -> float: ...


class Split(NamedTuple):
    """Seconds of one step."""

    host: float
    computation: float


def split_step(contender: Contender, batch: Sequence[Any]) -> Split:
    """Make one step, wait for it, and split its time. Nothing may be in flight."""
    begin = time.perf_counter_ns()
    graph = contender.graph(batch)
    prepared = time.perf_counter_ns()
    contender.run(graph)
    contender.loss()
    end = time.perf_counter_ns()
    planned: Callable[[], int] | None = getattr(contender, "planned", None)
    if planned is not None:
        prepared = planned()
    return Split((prepared - begin) * 1e-9, (end - prepared) * 1e-9)


def split_pass(contender: Contender, batches: Sequence[Any]) -> Split:
    """Return the mean over the batches, for steps with waiting."""
    steps = [split_step(contender, batch) for batch in batches]
    return Split(*(sum(column) / len(steps) for column in zip(*steps, strict=True)))


def train_pass(contender: Contender, batches: Sequence[Any]) -> None:
    """Run steps without waiting, from the first graph to the end of the last update."""
    for batch in batches:
        contender.step(batch)
    contender.loss()


class Measured(NamedTuple):
    """One contender's seconds per step, one value per round."""

    steps: list[float]
    hosts: list[float]
    computations: list[float]

    @property
    def shares(self) -> list[float]:
        """Return the host's share of a step with waiting."""
        return [host / (host + computed) for host, computed in zip(self.hosts, self.computations, strict=True)]


def measure(
    contenders: Mapping[str, Contender], batches: Mapping[str, Sequence[Any]], rounds: int
) -> dict[str, Measured]:
    """Time all contenders, interleaved, on the batches that each has prepared."""
    splits: dict[str, list[Split]] = {name: [] for name in contenders}

    def take_apart(name: str) -> None:
        splits[name].append(split_pass(contenders[name], batches[name]))

    seconds = harness.interleave(
        {name: partial(train_pass, contender, batches[name]) for name, contender in contenders.items()}
        | {f"{name}, apart": partial(take_apart, name) for name in contenders},
        rounds,
    )
    return {
        name: Measured([s / len(batches[name]) for s in seconds[name]], *map(list, zip(*splits[name], strict=True)))
        for name in contenders
    }


def report(
    case: str,
    measured: Mapping[str, Measured],
    peer_name: Callable[[str], str],
    losses: Mapping[str, float],
) -> None:
    """Print a line per pair of a vpps program and a peer, or per contender if all are of one kind."""
    programs = {name: m for name, m in measured.items() if name.startswith("vpps")}
    peers = {name: m for name, m in measured.items() if name not in programs}
    for name, m in (programs or peers).items():
        own = {"program": name if programs else peer_name(name), **_parts(m), "loss": losses[name]}
        if not programs or not peers:
            harness.report(BENCH, case, m.steps, "s/step", **own)
            continue
        for peer, p in peers.items():
            theirs = {f"peer_{key}": value for key, value in (_parts(p) | {"loss": losses[peer]}).items()}
            harness.report(
                BENCH, case, m.steps, "s/step", (peer_name(peer), p.steps), higher_is_better=False, **own, **theirs,
                computation_ratio=harness.median_ratio(p.computations, m.computations),
            )  # fmt: skip


def _parts(m: Measured) -> dict[str, float]:
    return {
        "host": harness.median(m.hosts),
        "host_share": harness.median(m.shares),
        "computation": harness.median(m.computations),
    }


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(
        __doc__, trees=None, batch_size=64, batch_sizes=[1, 16, 32, 64, 128, 256], hidden=None, limit=512, threads=1,
        cores=None, passes=3, contenders=None, dynet_autobatch=1, mkl_avx512=False, quick=False,
    )  # fmt: skip
    parser.add_argument("--leaves", type=harness.numbers, default=[32, 64, 128, 256, 512, 1024], metavar="N,N,...")
    parser.add_argument("--batches", type=int, default=64, help="most mini-batches in a pass over a file's trees")
    options = parser.parse_args()
    if bad := [n for n in options.leaves if n < 2 or n & (n - 1)]:
        sys.exit(f"--leaves {','.join(map(str, bad))}: complete trees have 2, 4, 8 ... leaves")
    if options.quick:
        options.leaves, options.batch_size, options.hidden = [4, 16], 4, options.hidden or 32
        options.batch_sizes, options.limit, options.passes = [1, 8], 32, 2
    options.hidden = options.hidden or (256 if options.trees else 512)
    options.cores = options.cores or options.threads
    options.optimizer, options.lr = "sgd", None
    options.contenders = harness.choose_contenders(options.contenders, CONTENDERS)
    return options


def main() -> None:
    """Measure every requested size."""
    options = parse_options()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in treelstm.py
    if options.mkl_avx512:
        harness.mkl_avx512()
    harness.confine(options.cores)
    harness.keep_freed_memory()
    if options.trees:
        for batch_size in options.batch_sizes:
            tree_lstm(batch_size, options)
    else:
        for leaves in options.leaves:
            tree_fc(leaves, options)


if __name__ == "__main__":
    main()
