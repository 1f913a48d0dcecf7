"""A million vertices in one graph: what planning and training it take, in seconds and bytes.

    python bench/million.py [--vertices 1000000] [--steps 100000] [--hidden 32] >> million.jsonl

Two graphs. `forest`: random binary trees, a Tree-LSTM cell per node and a loss per root; as wide as a level of all
trees. `chain`: one LSTM over so many steps, a loss at its end; as deep as it is long. Both from arrays (`bulk`) and
by a call per vertex (`calls`). Each is recorded and trained on `--rounds` times. The value is the median of a step in
seconds, from the first call of the graph to the end of the update; beside it

    building   recording the graph                  script, batch   bytes of the script and of the pool's slabs
    planning   order, memory, index lists           peak            resident set size of the process so far, MB
    encoding   the script's instructions            vertices of the graph, levels of its trees or steps, barriers
    kernel     the launch, waiting for it included

With `--shares` every graph is also recorded at a half and a quarter of its size: `growth` is the exponent of the step's
seconds in the number of vertices between the smallest and the largest, by part. 1 is linear.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphSet

BENCH = "million"
FORMS = ("bulk", "calls")
PARTS = ("building", "planning", "encoding", "kernel")
WORDS = 1000
CLASSES = 5
TREE_LEAVES = (2, 40)  # of a random tree, bounds included
Recorder = Callable[[vpps.Graph], vpps.Expression]


def random_forest(nodes: int, seed: int = 1) -> list[NDArray[np.int32]]:
    """Binary trees with that many nodes in all: the two children of every node, in post-order; -1 at leaves.

    A tree is a random parse: two neighbours of the row of subtrees made so far become one, again and again.
    """
    random = np.random.default_rng(seed)
    trees = []
    while nodes > 0:
        leaves = min(int(random.integers(TREE_LEAVES[0], TREE_LEAVES[1] + 1)), (nodes + 1) // 2)
        trees.append(_parse(random, leaves))
        nodes -= 2 * leaves - 1
    return trees


def _parse(random: np.random.Generator, leaves: int) -> NDArray[np.int32]:
    """Shift and reduce at random until all leaves are below one root."""
    left, right, stack = [], [], []
    shifted = 0
    while shifted < leaves or len(stack) > 1:
        if shifted < leaves and (len(stack) < 2 or random.random() < 0.5):
            left.append(-1)
            right.append(-1)
            shifted += 1
        else:
            right.append(stack.pop())
            left.append(stack.pop())
        stack.append(len(left) - 1)
    return np.array([left, right], np.int32).T


class Forest:
    """The Tree-LSTM of treelstm.py over a random forest, with a loss at every root."""

    def __init__(self, model: vpps.Model, nodes: int, hidden: int) -> None:
        words = model.lookup("words", (WORDS, hidden))
        W, b = model.parameter("W", (3 * hidden, hidden)), model.parameter("b", (3 * hidden,))
        U, bU = model.parameter("U", (5 * hidden, 2 * hidden)), model.parameter("bU", (5 * hidden,))
        Wo = model.parameter("Wo", (CLASSES, hidden))

        @vpps.cell
        def leaf(word):
            i, o, u = vpps.split(W @ vpps.lookup(words, word) + b, 3)
            c = vpps.sigmoid(i) * vpps.tanh(u)
            return vpps.sigmoid(o) * vpps.tanh(c), c

        @vpps.cell
        def inner(h_left, c_left, h_right, c_right):
            i, f_left, f_right, o, u = vpps.split(U @ vpps.concat([h_left, h_right]) + bU, 5)
            c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f_left) * c_left + vpps.sigmoid(f_right) * c_right
            return vpps.sigmoid(o) * vpps.tanh(c), c

        @vpps.cell
        def root_loss(h, label):
            return vpps.cross_entropy(Wo @ h, label)

        self.leaf, self.inner, self.root_loss = leaf, inner, root_loss
        trees = random_forest(nodes)
        self.children = [tree.tolist() for tree in trees]
        all_children = np.concatenate(trees)
        self.set = GraphSet(
            [len(tree) for tree in trees], all_children, kind=all_children[:, 0] >= 0, kinds=("leaf", "inner"),
            columns={"word": np.arange(len(all_children)) % WORDS},
            graph_columns={"label": np.arange(len(trees)) % CLASSES},
        )  # fmt: skip

    def calls(self, graph: vpps.Graph) -> vpps.Expression:
        """All trees in one graph, node by node; returns the mean loss."""
        losses = []
        leaf, inner, vertex = self.leaf, self.inner, 0
        for number, tree in enumerate(self.children):
            states: list[Any] = []
            for left, right in tree:
                states.append(graph.call(leaf, vertex % WORDS) if left < 0 else inner(*states[left], *states[right]))
                vertex += 1
            losses.append(self.root_loss(states[-1][0], number % CLASSES))
        return vpps.sum(losses) * (1.0 / len(losses))

    def bulk(self, graph: vpps.Graph) -> vpps.Expression:
        """The same from arrays."""
        trees = self.set[:]
        h, _ = graph.map(
            [self.leaf, self.inner], kind=trees.kind, children=trees.children, inputs={"word": trees["word"]},
            levels=trees.levels,
        )  # fmt: skip
        return vpps.sum(self.root_loss(h[trees.offsets[1:] - 1], trees["label"])) * (1.0 / len(trees))


class Chain:
    """An LSTM over one sequence, with a loss at its end."""

    def __init__(self, model: vpps.Model, steps: int, hidden: int) -> None:
        words = model.lookup("words", (WORDS, hidden))
        W, b = model.parameter("W", (4 * hidden, 2 * hidden)), model.parameter("b", (4 * hidden,))
        Wo = model.parameter("Wo", (CLASSES, hidden))

        @vpps.cell
        def step(h, c, word):
            i, f, o, u = vpps.split(W @ vpps.concat([vpps.lookup(words, word), h]) + b, 4)
            c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * c
            return vpps.sigmoid(o) * vpps.tanh(c), c

        @vpps.cell
        def end_loss(h, label):
            return vpps.cross_entropy(Wo @ h, label)

        self.step, self.end_loss, self.steps, self.hidden = step, end_loss, steps, hidden
        self.set = GraphSet([steps], np.arange(-1, steps - 1)[:, None], columns={"word": np.arange(steps) % WORDS})

    def bulk(self, graph: vpps.Graph) -> vpps.Expression:
        """The same from arrays."""
        chain = self.set[:]
        h, _ = graph.map(self.step, children=chain.children, inputs={"word": chain["word"]}, levels=chain.levels)
        return self.end_loss(h[-1], 1)

    def calls(self, graph: vpps.Graph) -> vpps.Expression:
        """The whole sequence, step by step; returns its loss."""
        h = c = graph.zeros(self.hidden)
        for k in range(self.steps):
            h, c = self.step(h, c, k % WORDS)
        return self.end_loss(h, 1)


def peak_megabytes() -> float:
    """Peak resident set size of this process so far, in MB of 10^6 bytes."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure(
    kind: type[Forest] | type[Chain], form: str, size: int, options: argparse.Namespace
) -> tuple[list[float], Any]:
    """Seconds of each step, and everything else that is reported of it."""
    model = vpps.Model(seed=1)
    net = kind(model, size, options.hidden)
    record: Recorder = getattr(net, form)
    levels = 1 + int(net.set[:].levels.max())
    totals, rounds = [], []
    # Timed without recording of instructions: that would take as much memory again.
    with vpps.Handle(model, vpps.SGD(lr=0.01), target="cpu", vps=options.threads) as handle:
        for _ in range(options.rounds):
            begin = time.perf_counter()
            graph = vpps.Graph()
            loss = record(graph)
            built = time.perf_counter()
            handle.fb(graph, loss)
            issued = time.perf_counter()
            value = handle.sync_get_latest_loss()
            end = time.perf_counter()
            if not math.isfinite(value):
                sys.exit(f"{BENCH}: the loss is {value}")
            plan = handle._engine.plan
            assert plan is not None
            encoding = (plan.encoded[1] - plan.encoded[0]) * 1e-9
            planning = issued - built - encoding  # with what little launching takes
            totals.append(end - begin)
            rounds.append(dict(zip(PARTS, (built - begin, planning, encoding, end - issued), strict=True)))
            use = handle.memory
            about = {
                "script": use.script, "batch": use.batch, "peak": round(peak_megabytes(), 1),
                "barriers": plan.n_barriers, "vertices": len(graph), "levels": levels,
                "loss": value,
            }  # fmt: skip
            del graph, loss, plan
    parts = {part: round(statistics.median(r[part] for r in rounds), 4) for part in PARTS}
    return totals, parts | about


def growth(small: dict[str, float], large: dict[str, float]) -> dict[str, float]:
    """Exponent of each part's seconds in the number of vertices."""
    doublings = math.log(large["vertices"] / small["vertices"])
    return {p: round(math.log(large[p] / small[p]) / doublings, 2) for p in PARTS if small[p] > 0 and large[p] > 0}


def main() -> None:
    """Measure both graphs."""
    parser = harness.parser(__doc__, hidden=32, threads=1, rounds=3)
    parser.add_argument("--vertices", type=int, default=1_000_000, help="nodes of the forest")
    parser.add_argument("--steps", type=int, default=100_000, help="of the chain")
    parser.add_argument("--graphs", default="forest,chain", help="of forest, chain")
    parser.add_argument("--forms", default=",".join(FORMS), help=f"of {', '.join(FORMS)}")
    parser.add_argument("--shares", action="store_true", help="also a quarter and a half of each, for `growth`")
    options = parser.parse_args()
    known: dict[str, tuple[type[Forest] | type[Chain], int]] = {
        "forest": (Forest, options.vertices),
        "chain": (Chain, options.steps),
    }
    if unknown := set(options.graphs.split(",")) - known.keys():
        sys.exit(f"unknown graphs: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if unknown := set(options.forms.split(",")) - set(FORMS):
        sys.exit(f"unknown forms: {', '.join(sorted(unknown))}; there are {', '.join(FORMS)}")
    for name, form in itertools.product(options.graphs.split(","), options.forms.split(",")):
        kind, size = known[name]
        smallest: dict[str, float] | None = None
        for share in (4, 2, 1) if options.shares else (1,):
            totals, about = measure(kind, form, size // share, options)
            extra: dict[str, object] = {"growth": growth(smallest, about)} if smallest else {}
            smallest = smallest or about
            case = f"{name} form={form} vertices={size // share} hidden={options.hidden} threads={options.threads}"
            harness.report(BENCH, case, totals, "s", **about, **extra)


if __name__ == "__main__":
    main()
