"""Translation by an LSTM that reads a sentence and another that writes its translation (Sutskever et al. 2014), with
attention as an option (Luong, Pham & Manning 2015)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.errors import DataError
from vpps.nn import LSTM, Linear, attend
from vpps.nn.recurrent import State
from vpps.record.ranges import ragged, running_sum
from vpps.zoo.classifier import Classifier


class EncoderDecoder(Classifier):
    """One layer of LSTM along the source, another along the target that begins with the former's last state.

    A pair of sentences is one chain of two kinds of vertices. With attention, each of the decoder's states h looks at
    all states m of the encoder (section 3.1 of Luong et al., score `dot`; what was attended to is not fed back):

        a = softmax_k(h · m_k)        h~ = tanh(W [Σ_k a_k m_k; h])

    Args:
        model: the parameters go here: "source_words", "target_words", "encoder/...", "decoder/...", "attention/W",
            "output/...".
        n_source, n_target: `len(vocabulary)` of both languages.
        boundary: number of the target word that stands before the first word and after the last.
        embedding: length of a word vector.
        hidden: length of a state.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_source: int,
        n_target: int,
        boundary: int,
        *,
        embedding: int = 256,
        hidden: int = 256,
        attention: bool = False,
    ) -> None:
        self.boundary = boundary
        self.source_words = model.lookup("source_words", (n_source, embedding))
        self.target_words = model.lookup("target_words", (n_target, embedding))
        self.encoder = LSTM(model, embedding, hidden, name="encoder")
        self.decoder = LSTM(model, embedding, hidden, name="decoder")
        self.attention = Linear(model, 2 * hidden, hidden, bias=False, name="attention") if attention else None
        self.output = Linear(model, hidden, n_target, name="output")

    @vpps.cell
    def begin(self, source: int) -> State:
        """(h, c) of the source word that is read first."""
        return self.encoder.begin(vpps.lookup(self.source_words, source))

    @vpps.cell
    def encode(self, source: int, h: vpps.Expression, c: vpps.Expression) -> State:
        """(h, c) of any other source word."""
        return self.encoder.step(vpps.lookup(self.source_words, source), h, c)

    @vpps.cell
    def decode(self, target: int, h: vpps.Expression, c: vpps.Expression) -> State:
        """(h, c) of a target word."""
        return self.decoder.step(vpps.lookup(self.target_words, target), h, c)

    @vpps.cell
    def look(self, h: vpps.Expression, memory: list[vpps.Expression]) -> vpps.Expression:
        """h~ of a target word, from its state and all those of the source."""
        assert self.attention is not None
        return vpps.tanh(self.attention(vpps.concat([attend(h, memory, memory, score=vpps.dot), h])))

    @staticmethod
    def target_vertices(batch: GraphBatch) -> NDArray[np.int64]:
        """Which vertices of a batch are target words.

        Raises:
            DataError: the batch is not of a set that `vpps.data.chain_pairs` made.
        """
        if batch.kind is None or (batch.kind > 1).any():
            raise DataError("expected a batch of pairs of sentences, from a set that vpps.data.chain_pairs made")
        return np.flatnonzero(batch.kind)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """What the words that follow are predicted from: h, with attention h~, of every target word.

        Args:
            batch: of a set that `vpps.data.chain_pairs` made.
        """
        children, of_target = np.asarray(batch.children), self.target_vertices(batch)
        kind = (children[:, 0] >= 0).astype(np.int8)
        kind[of_target] = 2
        h, _ = graph.map(
            [self.begin, self.encode, self.decode], **batch.structure | {"kind": kind},
            inputs={"source": batch["source"], "target": batch["target"]}, distinct=True,
        )  # fmt: skip
        if self.attention is None:
            return h[of_target]
        sentence = batch.graph_of_vertex[of_target]
        lengths = np.diff(batch.offsets) - np.bincount(sentence, minlength=len(batch))
        return self.attended(graph, h[of_target], h, batch.offsets[:-1], lengths, sentence)

    def attended(
        self,
        graph: vpps.Graph,
        h: vpps.Rows,
        memory: vpps.Rows,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        sentence: NDArray[np.int64],
    ) -> vpps.Rows:
        """h~ of every h, which looks at rows `starts[k]` to `starts[k] + lengths[k]` of `memory`, k its sentence."""
        ends = running_sum(lengths[sentence])
        seen = ragged(starts[sentence], lengths[sentence], ends)
        h_: vpps.Rows = graph.map(self.look, inputs={"h": h, "memory": (ends, memory[seen])})
        return h_

    def labels(self, batch: GraphBatch) -> NDArray[np.int32]:
        """The word, or the end, that follows every target word."""
        return batch["next"][self.target_vertices(batch)]

    def translate(self, handle: vpps.Handle, batch: GraphBatch, max_length: int = 100) -> list[NDArray[np.int32]]:
        """Translations of the sources of a batch, each word the most probable one after those before it.

        All sentences get their next words at once, until they have ended. A step is a small graph of its own, which
        takes up the states of the step before: a graph that grew by a word would keep the scores of all words so far.

        Args:
            batch: of `vpps.data.chain_pairs`; target words are not looked at, and need not be there.
            max_length: a translation that has not ended by then ends there, in words.

        Returns:
            For each sentence numbers of words, without the boundary.
        """
        of_source = np.setdiff1d(np.arange(batch.n_vertices), self.target_vertices(batch))
        place = np.full(batch.n_vertices + 1, -1)  # the last one is that of no child
        place[of_source] = np.arange(len(of_source))
        before = place[np.asarray(batch.children)[of_source]]
        graph = vpps.Graph()
        states = graph.map(
            [self.begin, self.encode],
            kind=(before[:, 0] >= 0).view(np.int8),
            children=before,
            inputs={"source": batch["source"][of_source]},
        )
        ends = np.setdiff1d(np.arange(len(of_source)), before)  # the states that the decoder begins with
        memory, h, c = handle.forward(graph, [states[0], states[0][ends], states[1][ends]])

        lengths = np.bincount(batch.graph_of_vertex[of_source], minlength=len(batch))
        starts = running_sum(lengths)[:-1]
        translations: list[list[int]] = [[] for _ in range(len(batch))]
        running = np.arange(len(batch))  # the sentences that have not ended
        words = np.full(len(batch), self.boundary)
        for _ in range(max_length):
            graph = vpps.Graph()
            new: Any = self.decode(words, graph.rows(h), graph.rows(c))
            seen = new[0]
            if self.attention is not None:
                seen = self.attended(graph, seen, graph.rows(memory), starts, lengths, running)
            best, h, c = handle.forward(graph, [vpps.argmax(self.output(seen)), *new])
            going_on = best != self.boundary
            running, words, h, c = running[going_on], best[going_on].astype(np.int64), h[going_on], c[going_on]
            if not len(running):
                break
            for sentence, word in zip(running.tolist(), words.tolist(), strict=True):
                translations[sentence].append(word)
        return [np.array(translation, np.int32) for translation in translations]
