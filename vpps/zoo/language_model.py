"""A word-level language model: an LSTM that predicts each next word of a text (Zaremba, Sutskever & Vinyals 2014)."""

from __future__ import annotations

from typing import Any

import numpy as np

import vpps
from vpps.data import GraphBatch
from vpps.errors import DataError
from vpps.nn import LSTM, Linear
from vpps.nn.lstm import State


class LSTMLanguageModel:
    """Word embeddings, one layer of LSTM along the text, a linear layer to the words of the vocabulary.

    On windows of one length it is Cavs's Fixed-LSTM, on sentences its Var-LSTM (Xu et al. 2018, section 5): the model
    is the same, the graphs differ. The state is zero at the beginning of each.

    Args:
        model: the parameters go here: "words", "lstm/...", "output/...".
        n_words: `len(vocabulary)`.
        embedding: length of a word vector.
        hidden: length of the state.
    """

    def __init__(self, model: vpps.Model, n_words: int, *, embedding: int = 256, hidden: int = 256) -> None:
        self.words = model.lookup("words", (n_words, embedding))
        self.lstm = LSTM(model, embedding, hidden)
        self.output = Linear(model, hidden, n_words, name="output")

    @vpps.cell
    def begin(self, word: int) -> State:
        """(h, c) of the first word."""
        return self.lstm.begin(vpps.lookup(self.words, word))

    @vpps.cell
    def step(self, word: int, h: vpps.Expression, c: vpps.Expression) -> State:
        """(h, c) of any other, from those of the word before."""
        return self.lstm.step(vpps.lookup(self.words, word), h, c)

    @vpps.cell
    def word_loss(self, h: vpps.Expression, following: int) -> vpps.Expression:
        """Minus the logarithm of the probability of the word that follows; a scalar."""
        return vpps.cross_entropy(self.output(h), following)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The state h after every word.

        Args:
            batch: of a set that `vpps.data.read_text` or `read_stream` made: columns word and next.

        Raises:
            DataError: the graphs are no chains.
        """
        children = batch.children
        if not isinstance(children, np.ndarray) or children.shape[1] != 1:
            raise DataError("a language model reads chains: every word has one child at most, the word before it")
        kind = (children[:, 0] >= 0).view(np.int8)
        inputs = {"word": batch["word"]}
        h: vpps.Rows
        h, _ = graph.map(
            [self.begin, self.step], kind=kind, children=children, levels=batch.levels, inputs=inputs, distinct=True
        )
        return h

    def logits(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The unnormalised log-probabilities of the words that may follow, (n_words,) for every word."""
        return self.output(self.states(graph, batch))

    def losses(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The cross entropy of every word, a scalar each; the exponential of their mean is the perplexity."""
        losses: Any = self.word_loss(self.states(graph, batch), batch["next"])
        return losses  # type: ignore[no-any-return]

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        """The cross entropy summed over all words; a scalar."""
        return vpps.sum(self.losses(graph, batch))
