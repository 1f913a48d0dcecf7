"""Sentiment of a sentence by a time-delay network: neighbours become one, again and again (VPPS, section IV-E: TD-RNN).

    level 0:    the embeddings of the n words
    level k:    h_i = tanh(W_left l + W_right r + b)    of neighbours l, r of level k - 1; n - k of them
    level n-1:  a single h, from which a multi-layer perceptron predicts the sentence's class

All levels share one composition. The paper says that neighbours are multiplied by left and right weights and added; it
names no nonlinearity. Without one the network would be linear in the words, so this follows the composition that it
refers to: tanh and a bias, as in the RNN of Socher et al. 2013. The network is a convolution of width 2 that is
repeated until one vertex is left, hence a time-delay network (Waibel et al. 1989, Peddinti et al. 2015).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.nn import MLP, Linear
from vpps.zoo.classifier import RootClassifier


def mean_of_both(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Initial [W_left W_right]: half the identity each, and noise, as Socher et al. 2013 begin ("Parsing with
    compositional vector grammars"). Random matrices, multiplied as often as there are words, keep nothing of them.
    """
    noise = rng.uniform(-0.01, 0.01, shape)
    return noise + 0.5 * np.tile(np.eye(shape[0]), 2)


class TDRNNSentiment(RootClassifier):
    """Word embeddings, a pyramid of compositions over them, an MLP at its top.

    Args:
        model: the parameters go here: "words", "composition/...", "mlp/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        hidden: length of a word vector, and of the state of every other vertex.
        mlp: length of the MLP's hidden layer.
    """

    def __init__(
        self, model: vpps.Model, n_words: int, n_classes: int = 5, *, hidden: int = 512, mlp: int = 256
    ) -> None:
        self.words = model.lookup("words", (n_words, hidden))
        self.composition = Linear(model, 2 * hidden, hidden, init=mean_of_both, name="composition")
        self.output = MLP(model, hidden, mlp, n_classes)

    @vpps.cell
    def leaf(self, word: int) -> vpps.Expression:
        """The embedding of a word."""
        return vpps.lookup(self.words, word)

    @vpps.cell
    def inner(self) -> vpps.Expression:
        """Two neighbours as one vector."""
        return vpps.tanh(self.composition(vpps.concat([vpps.gather(0), vpps.gather(1)])))
