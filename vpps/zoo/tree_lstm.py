"""Sentiment of every phrase of a sentence by a constituency Tree-LSTM (Tai, Socher & Manning 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import vpps
from vpps.nn import Linear, NaryTreeLSTM
from vpps.nn.tree_lstm import State
from vpps.record.cell import Cell
from vpps.zoo.tree_classifier import TreeClassifier


class TreeLSTMSentiment(TreeClassifier):
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
        self.arity = arity
        self.words = model.lookup("words", (n_words, embedding))
        self.tree_lstm = NaryTreeLSTM(model, embedding, hidden, arity)
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
        """(h, c) of a phrase, from those of its parts; a missing part reads zeros."""
        hs, cs = zip(*vpps.gather(), strict=True)
        return self.tree_lstm.inner(*hs, *cs)
