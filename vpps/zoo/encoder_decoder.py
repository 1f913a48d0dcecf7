"""Translation by an LSTM encoder and an LSTM decoder (Sutskever et al. 2014), optionally with attention (Luong, Pham &
Manning 2015)."""

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
    """One LSTM layer encodes the source; another starts from its last state and decodes the target.

    A pair of sentences is one chain of two kinds of vertices. With attention, each decoder state h attends to all
    encoder states m (section 3.1 of Luong et al., score `dot`, without input feeding):

        a = softmax_k(h · m_k)        h~ = tanh(W [Σ_k a_k m_k; h])

    Args:
        model: the parameters go here: "source_words", "target_words", "encoder/...", "decoder/...", "attention/W",
            "output/...".
        n_source, n_target: `len(vocabulary)` for both languages.
        boundary: index of the target word that marks both the start and the end of a sentence.
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
        """Return (h, c) of the first source word that is read."""
        return self.encoder.begin(vpps.lookup(self.source_words, source))

    @vpps.cell
    def encode(self, source: int, h: vpps.Expression, c: vpps.Expression) -> State:
        """Return (h, c) of any later source word."""
        return self.encoder.step(vpps.lookup(self.source_words, source), h, c)

    @vpps.cell
    def decode(self, target: int, h: vpps.Expression, c: vpps.Expression) -> State:
        """Return (h, c) of a target word."""
        return self.decoder.step(vpps.lookup(self.target_words, target), h, c)

    @vpps.cell
    def look(self, h: vpps.Expression, memory: list[vpps.Expression]) -> vpps.Expression:
        """Return h~ of a target word, from its state and all states of the source."""
        assert self.attention is not None
        return vpps.tanh(self.attention(vpps.concat([attend(h, memory, memory, score=vpps.dot), h])))

    @staticmethod
    def target_vertices(batch: GraphBatch) -> NDArray[np.int64]:
        """Return the vertices of a batch that are target words.

        Raises:
            DataError: the batch's set does not come from `vpps.data.chain_pairs`.
        """
        if batch.kind is None or (batch.kind > 1).any():
            raise DataError("expected a batch of pairs of sentences, from a set that vpps.data.chain_pairs made")
        return np.flatnonzero(batch.kind)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return h (with attention h~) of every target word; the next word is predicted from it.

        Args:
            batch: a batch of a set from `vpps.data.chain_pairs`.
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
        """Return h~ for every h. Each h of sentence k attends to `memory[starts[k] : starts[k] + lengths[k]]`."""
        ends = running_sum(lengths[sentence])
        seen = ragged(starts[sentence], lengths[sentence], ends)
        h_: vpps.Rows = graph.map(self.look, inputs={"h": h, "memory": (ends, memory[seen])})
        return h_

    def labels(self, batch: GraphBatch) -> NDArray[np.int32]:
        """Return the word, or the end mark, that follows each target word."""
        return batch["next"][self.target_vertices(batch)]

    def translate(self, handle: vpps.Handle, batch: GraphBatch, max_length: int = 100) -> list[NDArray[np.int32]]:
        """Translate the sources of a batch greedily, with the most probable next word at every step.

        All unfinished sentences get their next word at once. Each step is a separate small graph that starts from the
        previous step's states, because one growing graph would keep the scores of all earlier words.

        Args:
            batch: a batch of a set from `vpps.data.chain_pairs`; its target words are ignored and may be absent.
            max_length: maximum number of words in a translation.

        Returns:
            Word indices of each sentence, without the boundary.
        """
        of_source = np.setdiff1d(np.arange(batch.n_vertices), self.target_vertices(batch))
        place = np.full(batch.n_vertices + 1, -1)  # the last entry stands for "no child"
        place[of_source] = np.arange(len(of_source))
        before = place[np.asarray(batch.children)[of_source]]
        graph = vpps.Graph()
        states = graph.map(
            [self.begin, self.encode],
            kind=(before[:, 0] >= 0).view(np.int8),
            children=before,
            inputs={"source": batch["source"][of_source]},
        )
        ends = np.setdiff1d(np.arange(len(of_source)), before)  # last source words, with the decoder's initial states
        memory, h, c = handle.forward(graph, [states[0], states[0][ends], states[1][ends]])

        lengths = np.bincount(batch.graph_of_vertex[of_source], minlength=len(batch))
        starts = running_sum(lengths)[:-1]
        translations: list[list[int]] = [[] for _ in range(len(batch))]
        running = np.arange(len(batch))  # unfinished sentences
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
