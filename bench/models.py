"""The models that the benches train, written on the public API of vpps as a user would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from trees import Tree

import vpps
from vpps.data import GraphBatch, GraphSet


class Node(NamedTuple):
    """A node in post-order: a leaf has a word, an inner node the places of its children before it."""

    word: int
    left: int
    right: int
    label: int


class Trainer:
    """Base class of the vpps programs: a handle, and the parts of a step that the benches time.

    Attributes:
        handle: made by the program once its parameters exist.
    """

    handle: vpps.Handle

    def graph(self, batch: Sequence[Any]) -> tuple[vpps.Graph, vpps.Expression]:
        """Record a mini-batch; returns it with its loss."""
        raise NotImplementedError

    def step(self, batch: Sequence[Any]) -> None:
        """Train on one mini-batch; returns while the kernel is still running."""
        self.run(self.graph(batch))

    def run(self, graph: tuple[vpps.Graph, vpps.Expression]) -> None:
        """Run the remaining part of a step."""
        self.handle.fb(*graph)

    def planned(self) -> int:
        """Return the time (`time.perf_counter_ns`) when the latest script was complete and the kernel could begin."""
        plan = self.handle._engine.plan
        assert plan is not None
        return plan.encoded[1]

    def loss(self) -> float:
        """Wait for the latest step and return its loss before the update."""
        return self.handle.sync_get_latest_loss()

    def close(self) -> None:
        """Stop the virtual processors."""
        self.handle.close()


def tree_states(
    W: vpps.Parameter, b: vpps.Parameter, U: vpps.Parameter | Sequence[vpps.Parameter], bU: vpps.Parameter
) -> tuple[Any, Any]:
    """Return functions that compute h and c of a leaf and of an inner node, by the equations in `treelstm.py`. U may be
    split into two matrices, one per child."""

    def finished(c, o):
        return vpps.sigmoid(o) * vpps.tanh(c), c

    def leaf(x):
        i, o, u = vpps.split(W @ x + b, 3)
        return finished(vpps.sigmoid(i) * vpps.tanh(u), o)

    def inner(h_left, c_left, h_right, c_right):
        whole = isinstance(U, vpps.Parameter)
        product = U @ vpps.concat([h_left, h_right]) if whole else U[0] @ h_left + U[1] @ h_right
        i, f_left, f_right, o, u = vpps.split(product + bU, 5)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f_left) * c_left + vpps.sigmoid(f_right) * c_right
        return finished(c, o)

    return leaf, inner


class VppsTreeLstm(Trainer):
    """Trains the Tree-LSTM whose equations and weights are in `treelstm.py`, recording a cell call per node."""

    per_child: ClassVar[bool] = False

    def __init__(
        self,
        weights: Mapping[str, NDArray[np.float32]],
        optimizer: str,
        lr: float,
        threads: int,
        target: str = "cpu",
        **options: Any,
    ) -> None:
        """Copy the weights. optimizer: "sgd" or "adam"; threads: virtual processors; the rest: see vpps.Handle."""
        model = vpps.Model(seed=1)
        self.words = model.lookup("words", weights["words"].shape, init=weights["words"])
        W, b, bU, Wo, bo = (
            model.parameter(name, weights[name].shape, init=weights[name]) for name in ("W", "b", "bU", "Wo", "bo")
        )
        parts = np.split(weights["U"], 2, axis=1) if self.per_child else [weights["U"]]
        U, *right = (model.parameter(f"U{k or ''}", part.shape, init=part) for k, part in enumerate(parts))

        table = self.words

        leaf_state, inner_state = tree_states(W, b, [U, *right] if right else U, bU)

        def finished(h, c, label):
            """Return the state and the loss of a node."""
            return h, c, vpps.cross_entropy(Wo @ h + bo, label)

        @vpps.cell
        def leaf(word, label):
            return finished(*leaf_state(vpps.lookup(table, word)), label)

        @vpps.cell
        def inner(h_left, c_left, h_right, c_right, label):
            return finished(*inner_state(h_left, c_left, h_right, c_right), label)

        self.leaf, self.inner = leaf, inner
        rule = vpps.SGD(lr=lr) if optimizer == "sgd" else vpps.Adam(lr=lr)
        self.handle = vpps.Handle(model, optimizer=rule, target=target, vps=threads, **options)

    @staticmethod
    def prepare(tree: Tree) -> list[Node]:
        """Convert a tree for the loop below. Done once per tree, as in a data loader, outside the timing."""
        return [Node(*node) for node in zip(tree.words, tree.left, tree.right, tree.labels, strict=True)]

    def graph(self, batch: Sequence[list[Node]]) -> tuple[vpps.Graph, vpps.Expression]:
        """Record a mini-batch; returns it with its loss."""
        graph = vpps.Graph()
        losses = []
        leaf, inner = self.leaf, self.inner
        for tree in batch:
            states = []
            for word, left, right, label in tree:
                if left < 0:
                    h, c, loss = graph.call(leaf, word, label)
                else:
                    h, c, loss = inner(*states[left], *states[right], label)
                states.append((h, c))
                losses.append(loss)
        return graph, vpps.sum(losses) * (1.0 / len(batch))


class VppsBulkTreeLstm(VppsTreeLstm):
    """The Tree-LSTM with graphs as data: trees are arrays from the start, and one call records a mini-batch."""

    distinct: ClassVar[bool] = False
    """True to compute once what leaves of one word share."""

    def __init__(self, *settings: Any, **options: Any) -> None:
        """Take the arguments of VppsTreeLstm."""
        super().__init__(*settings, **options)
        leaf, inner = self.leaf, self.inner

        @vpps.cell
        def leaf_vertex():
            h, c, loss = leaf(vpps.pull("word"), vpps.pull("label"))
            vpps.scatter(h, c)
            vpps.push(loss)

        @vpps.cell
        def inner_vertex():
            (h_left, c_left), (h_right, c_right) = vpps.gather()
            h, c, loss = inner(h_left, c_left, h_right, c_right, vpps.pull("label"))
            vpps.scatter(h, c)
            vpps.push(loss)

        self.cells = [leaf_vertex, inner_vertex]
        self.trees = TreesAsData()

    def prepare(self, tree: Tree) -> int:  # type: ignore[override]
        """Return the tree's number in the set of all trees."""
        return self.trees.add(tree)

    def graph(self, batch: Sequence[int]) -> tuple[vpps.Graph, vpps.Expression]:  # type: ignore[override]
        """Join the trees of a mini-batch; returns their graph with its loss."""
        return self.joined(self.trees.set[batch])

    def joined(self, trees: GraphBatch) -> tuple[vpps.Graph, vpps.Expression]:
        """Return the graph of a mini-batch, or of part of one, with its loss."""
        graph = vpps.Graph()
        inputs = {"word": trees["word"], "label": trees["label"]}
        losses = graph.map(self.cells, **trees.structure, inputs=inputs, distinct=self.distinct)
        return graph, vpps.sum(losses) * (1.0 / trees.whole)


class VppsDistinctTreeLstm(VppsBulkTreeLstm):
    """VppsBulkTreeLstm that computes each distinct word of a mini-batch once."""

    distinct = True


class VppsPerChildTreeLstm(VppsDistinctTreeLstm):
    """VppsDistinctTreeLstm that also computes each word's product with each child's own matrix once."""

    per_child = True


class VppsLstm(Trainer):
    """A chain LSTM with a loss at every token; equations and weights are in `gpu_lstm.py`."""

    def __init__(
        self, weights: dict[str, NDArray[np.float32]], lr: float, vps: int | None, target: str, precision: str
    ) -> None:
        model = vpps.Model(seed=1)
        self.words = model.lookup("words", weights["words"].shape, init=weights["words"])
        W, b, U, Wo, bo = (
            model.parameter(name, weights[name].shape, init=weights[name]) for name in ("W", "b", "U", "Wo", "bo")
        )

        table, loss_of = self.words, lambda h: vpps.cross_entropy(Wo @ h + bo, vpps.pull("label"))

        def finished(c, o):
            h = vpps.sigmoid(o) * vpps.tanh(c)
            vpps.scatter(h, c)
            vpps.push(loss_of(h))

        @vpps.cell
        def first():
            i, _, g, o = vpps.split(W @ vpps.lookup(table, vpps.pull("word")) + b, 4)
            finished(vpps.sigmoid(i) * vpps.tanh(g), o)

        @vpps.cell
        def later():
            ((h, c),) = vpps.gather()
            i, f, g, o = vpps.split(W @ vpps.lookup(table, vpps.pull("word")) + b + U @ h, 4)
            finished(vpps.sigmoid(f) * c + vpps.sigmoid(i) * vpps.tanh(g), o)

        self.cells = [first, later]
        self.handle = vpps.Handle(model, optimizer=vpps.SGD(lr=lr), target=target, vps=vps, precision=precision)
        self._added: list[Any] = []

    def prepare(self, tokens: Any) -> int:
        """Return the sequence's number in the set of all sequences."""
        self._added.append(tokens)
        return len(self._added) - 1

    @cached_property
    def sequences(self) -> GraphSet:
        """Return all sequences: chains whose first vertices have no child."""
        sizes = [len(tokens.words) for tokens in self._added]
        before = np.concatenate([np.arange(-1, n - 1) for n in sizes])
        columns = {
            "word": np.concatenate([tokens.words for tokens in self._added]),
            "label": np.concatenate([tokens.labels for tokens in self._added]),
        }
        return GraphSet(sizes, before[:, None], kind=before >= 0, kinds=("first", "later"), columns=columns)

    def graph(self, batch: Sequence[int]) -> tuple[vpps.Graph, vpps.Expression]:
        """Join the sequences of a mini-batch; returns their graph with its loss."""
        chosen = self.sequences[batch]
        graph = vpps.Graph()
        inputs = {"word": chosen["word"], "label": chosen["label"]}
        losses = graph.map(self.cells, **chosen.structure, inputs=inputs)
        return graph, vpps.sum(losses) * (1.0 / chosen.whole)


class TreesAsData:
    """Collects trees one by one, then keeps them as a vpps.data.GraphSet, as if loaded from a file."""

    def __init__(self) -> None:
        self._added: list[Tree] = []

    def add(self, tree: Tree) -> int:
        """Add a tree; must be called before the set is first used. Returns the tree's number."""
        self._added.append(tree)
        return len(self._added) - 1

    @cached_property
    def set(self) -> GraphSet:
        """Return all trees. Columns: word and label of the vertices, root_label of the graphs."""
        trees = self._added

        def column(name: str) -> NDArray[np.int64]:
            return np.concatenate([getattr(tree, name) for tree in trees])

        left = column("left")
        return GraphSet(
            [len(tree.labels) for tree in trees],
            np.stack([left, column("right")], axis=1),
            kind=left >= 0,
            kinds=("leaf", "inner"),
            columns={"word": column("words"), "label": column("labels")},
            graph_columns={"root_label": [tree.labels[-1] for tree in trees]},
        )


PROGRAMS: dict[str, Callable[..., VppsTreeLstm]] = {
    "vpps-bulk": VppsBulkTreeLstm,
    "vpps-distinct": VppsDistinctTreeLstm,
    "vpps-per-child": VppsPerChildTreeLstm,
    "vpps": VppsTreeLstm,
}
