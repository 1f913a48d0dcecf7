"""Tags of characters by a GRU over characters and the words among them (Su et al. 2017)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.nn import GRU, Linear
from vpps.zoo.classifier import Classifier
from vpps.zoo.lattice_lstm import characters_of


class LatticeGRU(Classifier):
    """The deep word-lattice GRU of "Lattice-based recurrent neural network encoders" with gates (DWL-GRU + GO).

    Every edge of the lattice, character or word, is a step of one and the same GRU from the state where it begins. What
    ends at a position is put together by the paper's gating operation, one scalar per edge:

        h_k = GRU(x_k, state where edge k begins)
        h   = Σ_k σ(u · h_k + b) h_k / Σ_k σ(u · h_k + b)

    The paper encodes sentences for translation; here a softmax tags the characters, as in ED-Batch's LatticeGRU.

    Args:
        model: the parameters go here.
        n_characters, n_words: rows of the embedding tables.
        n_tags: tags are 0 to n_tags - 1.
        embedding: length of the vectors of characters and words.
        hidden: length of a state.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_characters: int,
        n_words: int,
        n_tags: int,
        *,
        embedding: int = 256,
        hidden: int = 256,
    ) -> None:
        vectors = vpps.init.uniform((3 / embedding) ** 0.5)  # of length 1, more or less
        self.characters = model.lookup("characters", (n_characters, embedding), init=vectors)
        self.words = model.lookup("words", (n_words, embedding), init=vectors)
        self.gru = GRU(model, embedding, hidden)
        with model.scope("gate"):
            self.u = model.parameter("u", (hidden,), init=vpps.init.normal(1.0))  # states differ little at first
            self.b = model.parameter("b", (), init="zeros")
        self.output = Linear(model, hidden, n_tags, name="output")

    @vpps.cell
    def word(self, word: int) -> None:
        """Scatters the state that a word leads to."""
        vpps.scatter(self.gru.step(vpps.lookup(self.words, word), vpps.gather(0)))

    @vpps.cell
    def character(self, character: int) -> None:
        """Scatters the state after a character, put together with those of the words that end there."""
        own = self.gru.step(vpps.lookup(self.characters, character), vpps.gather(0))
        words = vpps.gather(start=1)
        weight = self.weight(own)
        weights = vpps.each(self.weight, words)
        mixed = weight * own + vpps.sum(vpps.each(lambda w, h: w * h, weights, words))
        vpps.scatter(mixed / (weight + vpps.sum(weights)))

    def weight(self, h: vpps.Expression) -> vpps.Expression:
        """How much a state counts where several meet; a scalar."""
        return vpps.sigmoid(vpps.dot(self.u, h) + self.b)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The state after every character, in order.

        Args:
            batch: of a set that `vpps.data.read_lattices` made: kinds character and word, and columns of those names.
        """
        h = graph.map(
            [self.character, self.word], **batch.structure,
            inputs={"character": batch["character"], "word": batch["word"]}, state=self.gru.hidden_size,
            distinct=True,
        )  # fmt: skip
        tagged: vpps.Rows = h[characters_of(batch)]
        return tagged

    def labels(self, batch: GraphBatch) -> NDArray[np.int32]:
        """The tag of every character."""
        return batch["tag"][characters_of(batch)]
