"""Sentiment of every phrase of a sentence by a constituency Tree-LSTM (Tai, Socher & Manning 2015)."""

from __future__ import annotations

import numpy as np

import vpps
from vpps.data import GraphBatch
from vpps.errors import DataError
from vpps.nn import Linear, NaryTreeLSTM
from vpps.nn.tree_lstm import State


class TreeLSTMSentiment:
    """Word embeddings at the leaves, a Tree-LSTM up the tree, a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "output/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
        arity: the most children that a node may have.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_classes: int = 5,
        *,
        embedding: int = 256,
        hidden: int = 256,
        arity: int = 2,
    ) -> None:
        self.words = model.lookup("words", (n_words, embedding))
        self.tree_lstm = NaryTreeLSTM(model, embedding, hidden, arity)
        self.output = Linear(model, hidden, n_classes, name="output")

    @vpps.cell
    def leaf(self, word: int) -> State:
        """(h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """(h, c) of a phrase, from those of its parts; a missing part reads zeros."""
        hs, cs = zip(*(vpps.gather(k) for k in range(self.tree_lstm.arity)), strict=True)
        return self.tree_lstm.inner(*hs, *cs)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The hidden state h of every node.

        Args:
            batch: of a set that `vpps.data.read_treebank` made: kinds leaf and inner, columns word and label.

        Raises:
            DataError: the set has room for another number of children than the network.
        """
        arity = self.tree_lstm.arity
        if not isinstance(batch.children, np.ndarray) or batch.children.shape[1] != arity:
            raise DataError(
                f"the network takes a table of {arity} children per node: read trees with lists=False, like=..."
            )
        h: vpps.Rows
        h, _ = graph.map([self.leaf, self.inner], **batch.structure, inputs={"word": batch["word"]})
        return h

    @vpps.cell
    def node_loss(self, h: vpps.Expression, label: int) -> vpps.Expression:
        """The cross entropy of one node; a scalar."""
        return vpps.cross_entropy(self.output(h), label)

    def logits(self, graph: vpps.Graph, batch: GraphBatch, root_only: bool = False) -> vpps.Rows:
        """The unnormalised log-probabilities of the classes at every node, or at every root."""
        h = self.states(graph, batch)
        return self.output(h[batch.roots] if root_only else h)

    def loss(self, graph: vpps.Graph, batch: GraphBatch, root_only: bool = False) -> vpps.Expression:
        """The cross entropy summed over all nodes, or over the roots; a scalar."""
        h, labels = self.states(graph, batch), batch["label"]
        if root_only:
            h, labels = h[batch.roots], labels[batch.roots]
        return vpps.sum(self.node_loss(h, labels))
