"""vpps.zoo's Tree-FC network in vpps; equations and weights are in `tree_fc.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from models import Node, Trainer, TreesAsData, VppsTreeLstm
from numpy.typing import NDArray
from trees import Tree

import vpps
from vpps.zoo import TreeFC

PARAMETERS = {
    "words": "words",
    "W": "composition/W",
    "b": "composition/b",
    "Wo": "output/W",
    "bo": "output/b",
}
"""The bench's names of the network's parameters."""


class VppsTreeFc(Trainer):
    """Trains Tree-FC by SGD, recording a call of a cell per node."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], lr: float, threads: int) -> None:
        """Copy the weights. threads: virtual processors."""
        model = vpps.Model(seed=1)
        (n_words, hidden), n_classes = weights["words"].shape, len(weights["bo"])
        self.network = TreeFC(model, n_words, n_classes, hidden=hidden)
        for name, parameter in PARAMETERS.items():
            model[parameter].assign(weights[name])
        self.handle = vpps.Handle(model, optimizer=vpps.SGD(lr=lr), target="cpu", vps=threads)

    @staticmethod
    def prepare(tree: Tree) -> list[Node]:
        """Convert the tree for the loop below, outside the timing."""
        return VppsTreeLstm.prepare(tree)

    def graph(self, batch: Sequence[list[Node]]) -> tuple[vpps.Graph, vpps.Expression]:
        """Record a mini-batch; returns it with its loss."""
        graph = vpps.Graph()
        table, inner, root_loss = self.network.words, self.network.inner, self.network.node_loss
        losses = []
        for tree in batch:
            states = []
            for word, left, right, _ in tree:
                states.append(graph.lookup(table, word) if left < 0 else inner(states[left], states[right]))
            losses.append(root_loss(states[-1], tree[-1].label))
        return graph, vpps.sum(losses) * (1.0 / len(batch))


class VppsBulkTreeFc(VppsTreeFc):
    """The program VppsTreeFc with graphs as data."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], lr: float, threads: int) -> None:
        super().__init__(weights, lr, threads)
        self.cells = [self.network.leaf, self.network.inner]
        self.trees = TreesAsData()

    def prepare(self, tree: Tree) -> int:  # type: ignore[override]
        """Return the tree's number in the set of all trees."""
        return self.trees.add(tree)

    def graph(self, batch: Sequence[int]) -> tuple[vpps.Graph, vpps.Expression]:  # type: ignore[override]
        """Join the trees of a mini-batch; returns their graph with its loss."""
        trees = self.trees.set[batch]
        graph = vpps.Graph()
        h = graph.map(
            self.cells, kind=trees.kind, children=trees.children, inputs={"word": trees["word"]}, levels=trees.levels
        )
        roots = h[trees.offsets[1:] - 1]  # the last nodes of their trees
        losses = self.network.node_loss(roots, trees["root_label"])
        return graph, vpps.sum(losses) * (1.0 / len(trees))


PROGRAMS = {"vpps-bulk": VppsBulkTreeFc, "vpps": VppsTreeFc}
