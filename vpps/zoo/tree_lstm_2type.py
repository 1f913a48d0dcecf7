"""A Tree-LSTM whose inner nodes are of two types, each with weights of its own: ED-Batch's TreeLSTM-2Type (Table 1).

Types are drawn 50/50 and say nothing about the sentence: the network is for measuring how a system batches cells that
alternate along a tree. They belong to the data (`vpps.data.draw_kinds`), where ED-Batch's program draws in every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import vpps
from vpps.nn import Linear, NaryTreeLSTM
from vpps.nn.tree_lstm import State
from vpps.record.cell import Cell
from vpps.zoo.tree_classifier import TreeClassifier


class TwoTypeTreeLSTMSentiment(TreeClassifier):
    """Word embeddings at the leaves, one of two Tree-LSTM cells at inner nodes, a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "tree_lstm_2/...", "output/...".
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
        self.arity = arity
        self.words = model.lookup("words", (n_words, embedding))
        self.first = NaryTreeLSTM(model, embedding, hidden, arity)
        self.second = NaryTreeLSTM(model, 0, hidden, arity, name="tree_lstm_2")
        self.output = Linear(model, hidden, n_classes, name="output")

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        return self.leaf, self.inner_1, self.inner_2

    @vpps.cell
    def leaf(self, word: int) -> State:
        """(h, c) of a word."""
        return self.first.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner_1(self) -> State:
        """(h, c) of a phrase of the first type, from those of its parts."""
        hs, cs = zip(*vpps.gather(), strict=True)
        return self.first.inner(*hs, *cs)

    @vpps.cell
    def inner_2(self) -> State:
        """(h, c) of a phrase of the second type."""
        hs, cs = zip(*vpps.gather(), strict=True)
        return self.second.inner(*hs, *cs)
