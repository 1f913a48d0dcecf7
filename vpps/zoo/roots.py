"""Classifiers of whole graphs by the state at the root, computed by repeatedly combining neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.nn import MLP, Linear, NaryTreeLSTM
from vpps.nn.gates import child_matrices, multiply_children
from vpps.nn.recurrent import State
from vpps.zoo.classifier import RootClassifier


def _mean_of_both(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return initial [W_left W_right]: half the identity each, plus noise, as in Socher et al. 2013 ("Parsing with
    compositional vector grammars"). Repeated products with random matrices would lose the words.
    """
    noise = rng.uniform(-0.01, 0.01, shape)
    return noise + 0.5 * np.tile(np.eye(shape[0]), 2)


class TDRNNSentiment(RootClassifier):
    """Time-delay network for the sentiment of a sentence (VPPS, section IV-E: TD-RNN).

        level 0:    the embeddings of the n words
        level k:    n - k states h_i = tanh(W_left l + W_right r + b), for neighbours l, r of level k - 1
        level n-1:  a single h, from which a multi-layer perceptron predicts the sentence's class

    All levels share one composition. The paper multiplies neighbours by left and right weights and adds them; it names
    no nonlinearity. Without one, the network would be linear in the words, so this class uses the composition that the
    paper cites: tanh and a bias, as in the RNN of Socher et al. 2013. A convolution of width 2 repeats until one vertex
    is left. Such a network is a time-delay network (Waibel et al. 1989, Peddinti et al. 2015).

    Args:
        model: the parameters go here: "words", "composition/...", "mlp/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        hidden: length of word vectors and of all other states.
        mlp: length of the MLP's hidden layer.
    """

    def __init__(
        self, model: vpps.Model, n_words: int, n_classes: int = 5, *, hidden: int = 512, mlp: int = 256
    ) -> None:
        self.words = model.lookup("words", (n_words, hidden))
        self.composition = Linear(model, 2 * hidden, hidden, init=_mean_of_both, name="composition")
        self.output = MLP(model, hidden, mlp, n_classes)

    @vpps.cell
    def inner(self) -> vpps.Expression:
        """Combine two neighbours into one vector."""
        return vpps.tanh(self.composition(vpps.concat([vpps.gather(0), vpps.gather(1)])))


class TDLSTMSentiment(RootClassifier):
    """`TDRNNSentiment` with an LSTM as the composition (VPPS, section IV-E: TD-LSTM). A vertex has a state (h, c).

    The paper replaces "the transformations with two vanilla RNNs" of the TD-RNN by LSTMs and gives no equations. An
    LSTM that composes two states is the binary Tree-LSTM (Tai, Socher & Manning 2015, section 3.2: a forget gate per
    child). All levels share it.

    Args:
        model, n_words, n_classes, mlp: as in `TDRNNSentiment`.
        embedding: length of a word vector.
        hidden: length of h and of c.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_classes: int = 5,
        *,
        embedding: int = 256,
        hidden: int = 256,
        mlp: int = 256,
    ) -> None:
        self.words = model.lookup("words", (n_words, embedding))
        self.composition = NaryTreeLSTM(model, embedding, hidden, name="composition")
        self.output = MLP(model, hidden, mlp, n_classes)

    @vpps.cell
    def leaf(self, word: int) -> State:
        """Return (h, c) of a word."""
        return self.composition.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """Combine two neighbours into one (h, c)."""
        return self.composition.inner(*vpps.gather(0), *vpps.gather(1))


class TreeFC(RootClassifier):
    """Tree-FC: h = tanh(W [h_left, h_right] + b) up complete binary trees (Looks et al. 2017, the Fold benchmark), and
    a linear classifier at the root.

    It is the simplest recursive network, for benchmarks: trees of equal size have the same shape, and all inner
    vertices compute the same function. Fold leaves the nonlinearity to the user; tanh keeps repeated results bounded.

    Args:
        model: the parameters go here: "words", "composition/...", "output/...".
        n_words, n_classes, hidden: as in `TDRNNSentiment`.
        per_child: True uses a matrix per child, which is faster on a CPU: see `vpps.nn.NaryTreeLSTM`.
    """

    def __init__(
        self, model: vpps.Model, n_words: int, n_classes: int, *, hidden: int = 512, per_child: bool = False
    ) -> None:
        self.words = model.lookup("words", (n_words, hidden))
        with model.scope("composition"):
            init = vpps.init.glorot_uniform
            self.W = child_matrices(model, hidden, hidden, 2, init=init, per_child=per_child, name="W")
            self.b = model.parameter("b", (hidden,), init="zeros")
        self.output = Linear(model, hidden, n_classes, name="output")

    @vpps.cell
    def inner(self, left: vpps.Expression, right: vpps.Expression) -> vpps.Expression:
        """Return the state of a vertex, from its children's states."""
        return vpps.tanh(multiply_children(self.W, [left, right]) + self.b)
