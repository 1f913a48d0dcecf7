"""Sentiment of every phrase of a sentence by a matrix-vector recursive network (MV-RNN; Socher et al. 2012).

Each word has a vector, what it means, and a matrix, how it changes what stands beside it. Word matrices begin as the
identity and a little noise (section 2.1 of the paper); so that matrices of phrases do as well, W_M begins as the mean
of both parts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.init import Initialiser
from vpps.nn import Linear
from vpps.zoo.classifier import TreeClassifier

NOISE = 0.01


class MVRNNSentiment(TreeClassifier):
    """A node of parts (a, A) and (b, B) has the vector tanh(W [B a; A b]) and the matrix W_M [A; B] (section 2.2).

    Trees are binary. A linear classifier judges the vector of every node.

    Args:
        model: the parameters go here: "words", "matrices", "W", "W_M", "output/...".
        n_words: rows of the tables, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        hidden: d, the length of vectors; matrices are d x d, one for every word.
    """

    arity = 2

    def __init__(self, model: vpps.Model, n_words: int, n_classes: int = 5, *, hidden: int = 32) -> None:
        d = hidden
        self.words = model.lookup("words", (n_words, d))
        self.matrices = model.lookup("matrices", (n_words, d, d), init=near(np.eye(d)))
        self.W = model.parameter("W", (d, 2 * d), init="glorot_uniform")
        self.W_M = model.parameter("W_M", (d, 2 * d), init=near(np.tile(np.eye(d) / 2, 2)))
        self.output = Linear(model, d, n_classes, name="output")

    @vpps.cell
    def leaf(self, word: int) -> tuple[vpps.Expression, vpps.Expression]:
        """Vector and matrix of a word."""
        return vpps.lookup(self.words, word), vpps.lookup(self.matrices, word)

    @vpps.cell
    def inner(self) -> tuple[vpps.Expression, vpps.Expression]:
        """Vector and matrix of a phrase, from those of its two parts."""
        (a, A), (b, B) = vpps.gather()
        return vpps.tanh(self.W @ vpps.concat([B @ a, A @ b])), self.W_M @ vpps.concat([A, B])


def near(matrix: NDArray[np.float64]) -> Initialiser:
    """An initialiser: this matrix, or one of them per row of a table, and Gaussian noise."""
    return lambda rng, shape: matrix + rng.normal(0.0, NOISE, shape)
