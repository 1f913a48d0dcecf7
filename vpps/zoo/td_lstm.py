"""Sentiment of a sentence by neighbours that become one, again and again, through an LSTM (VPPS, IV-E: TD-LSTM).

    level 0:    (h, c) of the n words, from their embeddings
    level k:    (h, c) from those of neighbours of level k - 1; n - k of them
    level n-1:  a single h, from which a multi-layer perceptron predicts the sentence's class

The paper replaces "the transformations with two vanilla RNNs" of the TD-RNN by LSTMs and gives no equations. An LSTM
that composes two states is the binary Tree-LSTM (Tai, Socher & Manning 2015, section 3.2: a forget gate per child), so
all levels share one.
"""

from __future__ import annotations

import vpps
from vpps.nn import MLP, NaryTreeLSTM
from vpps.nn.lstm import State
from vpps.zoo.classifier import RootClassifier


class TDLSTMSentiment(RootClassifier):
    """Word embeddings, a pyramid of LSTM compositions over them, an MLP at its top.

    Args:
        model: the parameters go here: "words", "composition/...", "mlp/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of the h and of the c of a vertex.
        mlp: length of the MLP's hidden layer.
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
        """(h, c) of a word."""
        return self.composition.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> State:
        """(h, c) of two neighbours together."""
        return self.composition.inner(*vpps.gather(0), *vpps.gather(1))
