"""Sentiment of every phrase of a sentence by Tree-LSTMs (Tai, Socher & Manning 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import vpps
from vpps.nn import ChildSumTreeLSTM, Linear, NaryTreeLSTM
from vpps.nn.lstm import State
from vpps.record.cell import Cell
from vpps.zoo.classifier import TreeClassifier


class TreeLSTMSentiment(TreeClassifier):
    """Word embeddings at the leaves, a Tree-LSTM up the tree, a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "output/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
        arity: the most children that a node may have.
        per_child: a matrix per child, which is faster on a CPU: see `vpps.nn.NaryTreeLSTM`.
    """

    two_types: ClassVar[bool] = False

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_classes: int = 5,
        *,
        embedding: int = 256,
        hidden: int = 256,
        arity: int = 2,
        per_child: bool = False,
    ) -> None:
        self.arity = arity
        self.words = model.lookup("words", (n_words, embedding))
        self.tree_lstm = NaryTreeLSTM(model, embedding, hidden, arity, per_child=per_child)
        if self.two_types:
            self.second = NaryTreeLSTM(model, 0, hidden, arity, per_child=per_child, name="tree_lstm_2")
        self.output = Linear(model, hidden, n_classes, name="output")

    @vpps.cell
    def leaf(self, word: int) -> State:
        """(h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """(h, c) of a phrase, from those of its parts; a missing part reads zeros."""
        return self.tree_lstm.inner(*chain(*vpps.gather()))


class TwoTypeTreeLSTMSentiment(TreeLSTMSentiment):
    """The same, but inner nodes are of two types, each with weights of its own: ED-Batch's TreeLSTM-2Type (Table 1).

    Types are drawn 50/50 and say nothing about the sentence: the network is for measuring how a system batches cells
    that alternate along a tree. They belong to the data (`vpps.data.draw_kinds`), where ED-Batch's program draws in
    every pass.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "tree_lstm_2/...", "output/...".
        n_words, n_classes, embedding, hidden, arity, per_child: as above.
    """

    two_types = True

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        return self.leaf, self.inner, self.inner_2

    @vpps.cell
    def inner_2(self) -> State:
        """(h, c) of a phrase of the second type."""
        return self.second.inner(*chain(*vpps.gather()))


class ChildSumTreeLSTMSentiment(TreeClassifier):
    """Word embeddings at the leaves, a child-sum Tree-LSTM (section 3.1) up trees of any fan-in, a linear classifier.

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

    @vpps.cell
    def leaf(self, word: int) -> State:
        """(h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """(h, c) of a phrase, from those of its parts, however many there are."""
        hs, cs = vpps.gather()
        return self.tree_lstm.inner(hs, cs)
