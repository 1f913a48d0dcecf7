"""Tree-FC in vpps; equations and weights are in `tree_fc.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from models import Node, Trainer, TreesAsData, VppsTreeLstm
from numpy.typing import NDArray
from trees import Tree

import vpps


class VppsTreeFc(Trainer):
    """Trains Tree-FC by SGD, recording a call of a cell per node."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], lr: float, threads: int) -> None:
        """Copy the weights. threads: virtual processors."""
        model = vpps.Model(seed=1)
        self.words = model.lookup("words", weights["words"].shape, init=weights["words"])
        W, b, Wo, bo = (
            model.parameter(name, weights[name].shape, init=weights[name]) for name in ("W", "b", "Wo", "bo")
        )

        @vpps.cell
        def inner(left, right):
            return vpps.tanh(W @ vpps.concat([left, right]) + b)

        @vpps.cell
        def root_loss(h, label):
            return vpps.cross_entropy(Wo @ h + bo, label)

        self.inner, self.root_loss = inner, root_loss
        self.handle = vpps.Handle(model, optimizer=vpps.SGD(lr=lr), target="cpu", vps=threads)

    @staticmethod
    def prepare(tree: Tree) -> list[Node]:
        """The tree as the loop below wants it, outside the timing."""
        return VppsTreeLstm.prepare(tree)

    def graph(self, batch: Sequence[list[Node]]) -> tuple[vpps.Graph, vpps.Expression]:
        """Record a mini-batch; returns it with its loss."""
        graph = vpps.Graph()
        losses = []
        for tree in batch:
            states = []
            for word, left, right, _ in tree:
                states.append(graph.lookup(self.words, word) if left < 0 else self.inner(states[left], states[right]))
            losses.append(self.root_loss(states[-1], tree[-1].label))
        return graph, vpps.sum(losses) * (1.0 / len(batch))


class VppsBulkTreeFc(VppsTreeFc):
    """The same with graphs that are data."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], lr: float, threads: int) -> None:
        super().__init__(weights, lr, threads)
        table = self.words

        @vpps.cell
        def leaf(word):
            return vpps.lookup(table, word)

        self.cells = [leaf, self.inner]
        self.trees = TreesAsData()

    def prepare(self, tree: Tree) -> int:  # type: ignore[override]
        """Number of the tree in the set that holds all."""
        return self.trees.add(tree)

    def graph(self, batch: Sequence[int]) -> tuple[vpps.Graph, vpps.Expression]:  # type: ignore[override]
        """Join the trees of a mini-batch; returns their graph with its loss."""
        trees = self.trees.set[batch]
        graph = vpps.Graph()
        h = graph.map(
            self.cells, kind=trees.kind, children=trees.children, inputs={"word": trees["word"]}, levels=trees.levels
        )
        losses = self.root_loss(h[trees.offsets[1:] - 1], trees["root_label"])  # the root is the last node of its tree
        return graph, vpps.sum(losses) * (1.0 / len(trees))


PROGRAMS = {"vpps-bulk": VppsBulkTreeFc, "vpps": VppsTreeFc}
