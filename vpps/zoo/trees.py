"""Sentiment of every phrase in a sentence's tree: Tree-LSTMs, a Tree-GRU, an RvNN and an MV-RNN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.init import Initialiser
from vpps.nn import MLP, ChildSumTreeLSTM, Linear, NaryTreeGRU, NaryTreeLSTM
from vpps.nn.gates import child_matrices, multiply_children
from vpps.nn.recurrent import State
from vpps.record.cell import Cell
from vpps.zoo.classifier import TreeClassifier


class NaryTrees(TreeClassifier):
    """Word embeddings at leaves, a layer for ordered children at inner nodes, and a linear classifier at every node."""

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
        self.declare(model, embedding, hidden, arity, per_child)
        self.output = Linear(model, hidden, n_classes, name="output")

    @abstractmethod
    def declare(self, model: vpps.Model, embedding: int, hidden: int, arity: int, per_child: bool) -> None:
        """Declare the layer for leaves and inner nodes."""


class TreeLSTMSentiment(NaryTrees):
    """Word embeddings at leaves, a Tree-LSTM (Tai, Socher & Manning 2015), and a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "output/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
        arity: maximum number of children of a node.
        per_child: True uses a matrix per child, which is faster on a CPU: see `vpps.nn.NaryTreeLSTM`.
    """

    def declare(self, model: vpps.Model, embedding: int, hidden: int, arity: int, per_child: bool) -> None:
        self.tree_lstm = NaryTreeLSTM(model, embedding, hidden, arity, per_child=per_child)

    @vpps.cell
    def leaf(self, word: int) -> State:
        """Return (h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """Return (h, c) of a phrase, from the states of its parts. A missing part gives zeros."""
        return self.tree_lstm.inner(*chain(*vpps.gather()))


class TwoTypeTreeLSTMSentiment(TreeLSTMSentiment):
    """`TreeLSTMSentiment` with two types of inner nodes and weights for each: ED-Batch's TreeLSTM-2Type (Table 1).

    Types are drawn 50/50 and carry no information. The network tests how a system batches cells that alternate along
    a tree. Types are part of the data (`vpps.data.draw_kinds`); ED-Batch's program draws them in every pass.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "tree_lstm_2/...", "output/...".
        n_words, n_classes, embedding, hidden, arity, per_child: as in `TreeLSTMSentiment`.
    """

    def declare(self, model: vpps.Model, embedding: int, hidden: int, arity: int, per_child: bool) -> None:
        super().declare(model, embedding, hidden, arity, per_child)
        self.second = NaryTreeLSTM(model, 0, hidden, arity, per_child=per_child, name="tree_lstm_2")

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        return self.leaf, self.inner, self.inner_2

    @vpps.cell
    def inner_2(self) -> State:
        """Return (h, c) of a phrase of the second type."""
        return self.second.inner(*chain(*vpps.gather()))


class ChildSumTreeLSTMSentiment(TreeClassifier):
    """`TreeLSTMSentiment` with a child-sum Tree-LSTM (section 3.1), for nodes of any fan-in.

    Args:
        model: the parameters go here: "words", "child_sum/...", "output/...".
        n_words, n_classes, embedding, hidden: as in `TreeLSTMSentiment`.
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
        """Return (h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """Return (h, c) of a phrase, from the states of any number of parts."""
        hs, cs = vpps.gather()
        return self.tree_lstm.inner(hs, cs)


class TreeGRUSentiment(NaryTrees):
    """`TreeLSTMSentiment` with a Tree-GRU (after Kokkinos & Potamianos 2017).

    ED-Batch's program of that name runs a GRU step on each child separately and averages the results, so no node can
    tell "not good" from the sum of its parts. Here gates and candidate see all children, with the same number of
    products: 6 with (H, H) matrices.

    Args:
        model: the parameters go here: "words", "tree_gru/...", "output/...".
        n_words, n_classes, embedding, hidden, arity, per_child: as in `TreeLSTMSentiment`.
    """

    def declare(self, model: vpps.Model, embedding: int, hidden: int, arity: int, per_child: bool) -> None:
        self.tree_gru = NaryTreeGRU(model, embedding, hidden, arity, per_child=per_child)

    @vpps.cell
    def leaf(self, word: int) -> vpps.Expression:
        """Return the state of a word."""
        return self.tree_gru.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> vpps.Expression:
        """Return the state of a phrase, from the states of its parts. A missing part gives zeros."""
        parts: list[vpps.Expression] = vpps.gather()
        return self.tree_gru.inner(*parts)


class RvNNSentiment(TreeClassifier):
    """RvNN of the VPPS paper (section IV-E): tanh(W x + b) at leaves, tanh(Σ_l U_l h_l + b) at inner nodes, and a
    perceptron at classified nodes, as in the paper's TD-RNN.

    The paper unties leaves from inner nodes following Irsoy & Cardie 2014 ("Deep recursive neural networks for
    compositionality in language"), who give parents separate weights for children that are words. Here a product at
    each leaf maps words into the space of phrases, so that parents need only one set of weights.

    Args:
        model: the parameters go here: "words", "leaf/...", "inner/...", "mlp/...".
        n_words, n_classes, embedding, hidden, arity, per_child: as in `TreeLSTMSentiment`.
        mlp: length of the perceptron's hidden layer.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_classes: int = 5,
        *,
        embedding: int = 512,
        hidden: int = 512,
        mlp: int = 256,
        arity: int = 2,
        per_child: bool = False,
    ) -> None:
        self.arity = arity
        self.words = model.lookup("words", (n_words, embedding))
        self.of_word = Linear(model, embedding, hidden, name="leaf")
        with model.scope("inner"):
            init = vpps.init.glorot_uniform
            self.W = child_matrices(model, hidden, hidden, arity, init=init, per_child=per_child, name="W")
            self.b = model.parameter("b", (hidden,), init="zeros")
        self.output = MLP(model, hidden, mlp, n_classes)

    @vpps.cell
    def leaf(self, word: int) -> vpps.Expression:
        """Return the state of a word."""
        return vpps.tanh(self.of_word(vpps.lookup(self.words, word)))

    @vpps.cell
    def inner(self) -> vpps.Expression:
        """Return the state of a phrase, from the states of its parts. A missing part gives zeros."""
        parts: list[vpps.Expression] = vpps.gather()
        return vpps.tanh(multiply_children(self.W, parts) + self.b)


class MVRNNSentiment(TreeClassifier):
    """Matrix-vector recursive network (MV-RNN; Socher et al. 2012) with a linear classifier on every node's vector.

    Each word has a vector for its meaning, and a matrix for its effect on its neighbour. A node with parts (a, A) and
    (b, B) has the vector tanh(W [B a; A b]) and the matrix W_M [A; B] (section 2.2). Word matrices start as identity
    plus noise (section 2.1). W_M starts as the mean of both parts, so that matrices of phrases start near the identity.
    Trees are binary.

    Args:
        model: the parameters go here: "words", "matrices", "W", "W_M", "output/...".
        n_words: rows of the tables, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        hidden: length d of vectors; the matrix of every word is d x d.
    """

    arity = 2

    def __init__(self, model: vpps.Model, n_words: int, n_classes: int = 5, *, hidden: int = 32) -> None:
        d = hidden
        self.words = model.lookup("words", (n_words, d))
        self.matrices = model.lookup("matrices", (n_words, d, d), init=_near(np.eye(d)))
        self.W = model.parameter("W", (d, 2 * d), init="glorot_uniform")
        self.W_M = model.parameter("W_M", (d, 2 * d), init=_near(np.tile(np.eye(d) / 2, 2)))
        self.output = Linear(model, d, n_classes, name="output")

    @vpps.cell
    def leaf(self, word: int) -> tuple[vpps.Expression, vpps.Expression]:
        """Return the vector and the matrix of a word."""
        return vpps.lookup(self.words, word), vpps.lookup(self.matrices, word)

    @vpps.cell
    def inner(self) -> tuple[vpps.Expression, vpps.Expression]:
        """Return the vector and the matrix of a phrase, from those of its two parts."""
        (a, A), (b, B) = vpps.gather()
        return vpps.tanh(self.W @ vpps.concat([B @ a, A @ b])), self.W_M @ vpps.concat([A, B])


def _near(matrix: NDArray[np.float64]) -> Initialiser:
    """Return an initialiser: this matrix, repeated for every row of a table, plus Gaussian noise."""
    return lambda rng, shape: matrix + rng.normal(0.0, 0.01, shape)
