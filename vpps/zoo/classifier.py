"""Base classes of classifiers: a network computes states, which are classified; the loss is summed over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.errors import DataError
from vpps.nn import MLP, Linear
from vpps.record.cell import Cell
from vpps.zoo.pretrained import Pretrained


class Classifier(Pretrained, ABC):
    """Classifies vertices or graphs by their state. Subclasses compute the states.

    Attributes:
        output: layer from a state to the unnormalised log-probabilities of the classes.
    """

    output: Linear | MLP

    @abstractmethod
    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the hidden states, (hidden,) each, of all vertices or of those that the network selects."""

    def classified(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the state of every classified item: a node, a word or a whole graph."""
        return self.states(graph, batch)

    def labels(self, batch: GraphBatch) -> NDArray[np.int32]:
        """Return the correct classes, in the order of `classified`."""
        return batch["label"]

    @vpps.cell
    def node_loss(self, h: vpps.Expression, label: int) -> vpps.Expression:
        """Return the cross entropy of one classified item, a scalar."""
        return vpps.cross_entropy(self.output(h), label)

    def logits(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the unnormalised log-probabilities of the classes, (n_classes,) for each row of `classified`."""
        return self.output(self.classified(graph, batch))

    def losses(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the cross entropy of each row of `classified`, a scalar."""
        return self.node_loss(self.classified(graph, batch), self.labels(batch))

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        """Return the cross entropy summed over all rows of `classified`, a scalar."""
        return vpps.sum(self.losses(graph, batch))


class TreeClassifier(Classifier):
    """Classifies all nodes of trees, or their roots.

    Attributes:
        arity: maximum number of children of a node; None if children are lists of any length.
        leaf, inner: vertex functions whose first result is the state.
    """

    arity: int | None
    leaf: Cell[Any]
    inner: Cell[Any]

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        """Vertex functions, one per kind of node, in the order of the set's kinds."""
        return self.leaf, self.inner

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the state of every node.

        Args:
            batch: a batch of a set from `vpps.data.read_treebank`: kinds leaf and inner, columns word and label.

        Raises:
            DataError: the set stores children in a form that the network does not accept.
        """
        room = None if isinstance(batch.children, tuple) else batch.children.shape[1]
        if room != self.arity:
            raise DataError(
                "the network takes lists of children: read trees with lists=True"
                if self.arity is None
                else f"the network takes a table of {self.arity} children per node: read trees with lists=False, "
                "like=..."
            )
        return _up(graph, self.cells, batch)

    def logits(self, graph: vpps.Graph, batch: GraphBatch, root_only: bool = False) -> vpps.Rows:
        """Return the unnormalised log-probabilities of the classes at every node, or at every root."""
        h = self.states(graph, batch)
        return self.output(h[batch.roots] if root_only else h)

    def loss(self, graph: vpps.Graph, batch: GraphBatch, root_only: bool = False) -> vpps.Expression:
        """Return the cross entropy summed over all nodes, or over the roots; a scalar."""
        h, labels = self.states(graph, batch), batch["label"]
        if root_only:
            h, labels = h[batch.roots], labels[batch.roots]
        return vpps.sum(self.node_loss(h, labels))


class RootClassifier(Classifier):
    """Classifies whole graphs by the state at their roots.

    Attributes:
        words: embedding table.
        inner: vertex function whose first result is the state.
    """

    words: vpps.Lookup
    inner: Cell[Any]

    @vpps.cell
    def leaf(self, word: int) -> Any:
        """Return the state of a word: its embedding, unless a subclass defines another state."""
        return vpps.lookup(self.words, word)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the state of every root.

        Args:
            batch: a batch of a set from `vpps.data.pyramids_of_trees` or `vpps.data.tournaments`, with kinds leaf and
                inner, vertex column word and graph column label.
        """
        return _up(graph, [self.leaf, self.inner], batch)[batch.roots]


def _up(graph: vpps.Graph, cells: Sequence[Cell[Any]], batch: GraphBatch) -> vpps.Rows:
    """Return the first result of every vertex, computed bottom-up from words at the leaves."""
    states: Any = graph.map(cells, **batch.structure, inputs={"word": batch["word"]}, distinct=True)
    first: vpps.Rows = states[0] if isinstance(states, tuple) else states
    return first
