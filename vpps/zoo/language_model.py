"""Word-level language model: an LSTM that predicts each next word of a text (Zaremba, Sutskever & Vinyals 2014)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.nn import LSTM, Linear
from vpps.nn.recurrent import State, map_chains
from vpps.zoo.classifier import Classifier


class LSTMLanguageModel(Classifier):
    """Word embeddings, one LSTM layer along the text, and a linear layer to the words of the vocabulary.

    On windows of equal length, this is Cavs's Fixed-LSTM; on sentences, its Var-LSTM (Xu et al. 2018, section 5). Only
    the graphs differ. The state is zero at the start of each graph.

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

    @property
    def stack(self) -> list[Any]:
        """The layers, for `vpps.export_onnx`."""
        return [self.words, self.lstm, self.output]

    @vpps.cell
    def begin(self, word: int) -> State:
        """Return (h, c) of the first word."""
        return self.lstm.begin(vpps.lookup(self.words, word))

    @vpps.cell
    def step(self, word: int, h: vpps.Expression, c: vpps.Expression) -> State:
        """Return (h, c) of any later word, from (h, c) of the previous word."""
        return self.lstm.step(vpps.lookup(self.words, word), h, c)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the state h after every word.

        Args:
            batch: a batch of a set from `vpps.data.read_text` or `read_stream`: columns word and next.

        Raises:
            DataError: the graphs are not chains.
        """
        return map_chains(graph, batch, self.begin, self.step, word=batch["word"])

    def labels(self, batch: GraphBatch) -> NDArray[np.int32]:
        """Return the word that follows each word. The perplexity is the exponential of the mean of all `losses`."""
        return batch["next"]
