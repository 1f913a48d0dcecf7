"""The models that the benches train, written on the public API of vpps as a user would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from trees import Tree

import vpps


class Node(NamedTuple):
    """A node in post-order: a leaf has a word, an inner node the places of its children before it."""

    word: int
    left: int
    right: int
    label: int


class VppsTreeLstm:
    """Trains the Tree-LSTM whose equations and weights are in `treelstm.py`."""

    def __init__(
        self,
        weights: Mapping[str, NDArray[np.float32]],
        optimizer: str,
        lr: float,
        threads: int,
        target: str = "cpu",
        timeline: bool = False,
    ) -> None:
        """Copy the weights. optimizer: "sgd" or "adam"; threads: virtual processors; timeline: see vpps.Handle."""
        model = vpps.Model(seed=1)
        self.words = model.lookup("words", weights["words"].shape, init=weights["words"])
        W, b, U, bU, Wo, bo = (
            model.parameter(name, weights[name].shape, init=weights[name]) for name in ("W", "b", "U", "bU", "Wo", "bo")
        )

        @vpps.cell
        def leaf(e):
            i, o, u = vpps.split(W @ e + b, 3)
            c = vpps.sigmoid(i) * vpps.tanh(u)
            return c, vpps.sigmoid(o) * vpps.tanh(c)

        @vpps.cell
        def inner(c_left, h_left, c_right, h_right):
            i, f_left, f_right, o, u = vpps.split(U @ vpps.concat([h_left, h_right]) + bU, 5)
            c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f_left) * c_left + vpps.sigmoid(f_right) * c_right
            return c, vpps.sigmoid(o) * vpps.tanh(c)

        @vpps.cell
        def node_loss(h, label):
            return vpps.cross_entropy(Wo @ h + bo, label)

        self.leaf, self.inner, self.node_loss = leaf, inner, node_loss
        rule = vpps.SGD(lr=lr) if optimizer == "sgd" else vpps.Adam(lr=lr)
        self.handle = vpps.Handle(model, optimizer=rule, target=target, vps=threads, timeline=timeline)

    @staticmethod
    def prepare(tree: Tree) -> list[Node]:
        """The tree as the loop below wants it. Made once per tree, as a data loader would, outside the timing."""
        return [Node(*node) for node in zip(tree.words, tree.left, tree.right, tree.labels, strict=True)]

    def step(self, batch: Sequence[list[Node]]) -> None:
        """Train on one mini-batch; returns while the kernel runs."""
        self.handle.fb(*self.graph(batch))

    def graph(self, batch: Sequence[list[Node]]) -> tuple[vpps.Graph, vpps.Expression]:
        """Record a mini-batch; returns it with its loss."""
        graph = vpps.Graph()
        losses = []
        for tree in batch:
            states = []
            for word, left, right, label in tree:
                if left < 0:
                    state = self.leaf(graph.lookup(self.words, word))
                else:
                    state = self.inner(*states[left], *states[right])
                states.append(state)
                losses.append(self.node_loss(state[1], label))
        return graph, vpps.sum(losses) * (1.0 / len(batch))

    def loss(self) -> float:
        """Loss of the latest step, before its update; waits for it."""
        return self.handle.sync_get_latest_loss()

    def close(self) -> None:
        """Stop the virtual processors."""
        self.handle.close()
