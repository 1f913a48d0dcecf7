"""Sentiment of every phrase of a sentence by a child-sum Tree-LSTM (Tai, Socher & Manning 2015, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import vpps
from vpps.nn import ChildSumTreeLSTM, Linear
from vpps.nn.tree_lstm import State
from vpps.record.cell import Cell
from vpps.zoo.tree_classifier import TreeClassifier


class ChildSumTreeLSTMSentiment(TreeClassifier):
    """Word embeddings at the leaves, a Tree-LSTM up trees of any fan-in, a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "child_sum/...", "output/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
    """

    arity = None

    def __init__(
        self, model: vpps.Model, n_words: int, n_classes: int = 5, *, embedding: int = 256, hidden: int = 256
    ) -> None:
        self.words = model.lookup("words", (n_words, embedding))
        self.tree_lstm = ChildSumTreeLSTM(model, embedding, hidden, inner_inputs=False)
        self.output = Linear(model, hidden, n_classes, name="output")

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        return self.leaf, self.inner

    @vpps.cell
    def leaf(self, word: int) -> State:
        """(h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """(h, c) of a phrase, from those of its parts, however many there are."""
        hs, cs = vpps.gather()
        return self.tree_lstm.inner(hs, cs)
