"""Named-entity taggers: a bidirectional LSTM over words, and a variant that reads rare words by character."""

from __future__ import annotations

from typing import Any

import numpy as np

import vpps
from vpps.data import SpelledBatch
from vpps.errors import ModelError
from vpps.nn import MLP, BiLSTM
from vpps.zoo.pretrained import Pretrained


class BiLSTMTagger(Pretrained):
    """Word embeddings, an LSTM in each direction, and for every word an MLP with softmax over the tags.

    This is the BI-LSTM of Huang, Xu & Yu 2015 (arXiv:1508.01991, section 2.2) with a hidden layer before the softmax,
    as in DyNet's benchmark "bilstm-tagger" and the VPPS paper (section IV-E).

    Args:
        model: the parameters go here: "words", "bilstm/...", "mlp/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_tags: tags are 0 to n_tags - 1.
        embedding: length of a word vector.
        hidden: length of the state in each direction.
        mlp: units of the hidden layer.
    """

    def __init__(
        self, model: vpps.Model, n_words: int, n_tags: int, *, embedding: int = 256, hidden: int = 256, mlp: int = 256
    ) -> None:
        self.words = model.lookup("words", (n_words, embedding))
        self.bilstm = BiLSTM(model, embedding, hidden, table=self.words)
        self.mlp = MLP(model, 2 * hidden, mlp, n_tags)

    @property
    def stack(self) -> list[Any]:
        """The layers, for `vpps.export_onnx`."""
        return [self.bilstm, self.mlp]

    @vpps.cell
    def word_logits(self, forward: vpps.Expression, backward: vpps.Expression) -> vpps.Expression:
        """Return the unnormalised log-probabilities of one word's tags, (n_tags,)."""
        return self.mlp(vpps.concat([forward, backward]))

    @vpps.cell
    def word_loss(self, forward: vpps.Expression, backward: vpps.Expression, tag: int) -> vpps.Expression:
        """Return the cross entropy of one word, a scalar."""
        return vpps.cross_entropy(self.word_logits(forward, backward), tag)

    def states(self, graph: vpps.Graph, batch: Any) -> tuple[vpps.Rows, vpps.Rows]:
        """Return the forward and the backward state of every word, (hidden,) each.

        Args:
            batch: a batch of a set from `vpps.data.read_tagged`: chains, columns word and tag.
        """
        return self.bilstm(graph, batch, batch["word"])

    def logits(self, graph: vpps.Graph, batch: Any) -> vpps.Rows:
        """Return the unnormalised log-probabilities of the tags of every word."""
        logits: Any = self.word_logits(*self.states(graph, batch))
        return logits  # type: ignore[no-any-return]

    def loss(self, graph: vpps.Graph, batch: Any) -> vpps.Expression:
        """Return the cross entropy summed over all words, a scalar."""
        return vpps.sum(self.word_loss(*self.states(graph, batch), batch["tag"]))


class BiLSTMCharTagger(BiLSTMTagger):
    """`BiLSTMTagger` in which a BiLSTM over characters computes the vectors of rare words.

    The vector of a rare word concatenates the last states of both directions over its characters. This is DyNet's
    benchmark "bilstm-tagger-withchar", used in the VPPS paper (section IV-E; rare words occur fewer than 5 times,
    character vectors have length 64). Each distinct rare word is read once per mini-batch.

    Args:
        model: the parameters go here: "words", "characters", "spelling/...", "bilstm/...", "mlp/...".
        n_words, n_characters: rows of the embedding tables.
        n_tags: tags are 0 to n_tags - 1.
        embedding: length of a word vector. It must be even, because each direction over characters contributes half.
        characters: length of a character vector.
        hidden: length of the state in each direction over the words.
        mlp: units of the hidden layer.

    Raises:
        ModelError: `embedding` is odd.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_characters: int,
        n_tags: int,
        *,
        embedding: int = 256,
        characters: int = 64,
        hidden: int = 256,
        mlp: int = 256,
    ) -> None:
        if embedding % 2:
            raise ModelError(f"embedding={embedding}: choose an even length; each direction over characters gives half")
        self.words = model.lookup("words", (n_words, embedding))
        self.characters = model.lookup("characters", (n_characters, characters))
        self.spelling = BiLSTM(model, characters, embedding // 2, table=self.characters, name="spelling")
        self.bilstm = BiLSTM(model, embedding, hidden)
        self.mlp = MLP(model, 2 * hidden, mlp, n_tags)

    @property
    def stack(self) -> list[Any]:
        raise ModelError("export_onnx: BiLSTMCharTagger is no stack of layers, as words become vectors in two ways")

    @vpps.cell
    def frequent(self, word: int) -> vpps.Expression:
        """Return the vector of a word in the vocabulary."""
        return vpps.lookup(self.words, word)

    @vpps.cell
    def rare(self, forward: vpps.Expression, backward: vpps.Expression) -> vpps.Expression:
        """Return the vector of a rare word, from the last states over its characters."""
        return vpps.concat([forward, backward])

    def word_vectors(self, graph: vpps.Graph, batch: SpelledBatch) -> vpps.Rows:
        """Return the vector of every word, (embedding,)."""
        words = batch["word"]
        vectors: vpps.Rows
        if not batch.rare.any():
            vectors = graph.map(self.frequent, inputs={"word": words}, examples=batch.sentences.examples)
            return vectors
        ends = batch.spellings.offsets
        forward, backward = self.spelling(graph, batch.spellings, batch.spellings["character"])
        inputs = {
            "word": words,
            "forward": forward[ends[1:] - 1][batch.spelling],
            "backward": backward[ends[:-1]][batch.spelling],
        }
        kind = batch.rare.view(np.int8)
        cells, examples = [self.frequent, self.rare], batch.sentences.examples
        vectors = graph.map(cells, kind=kind, inputs=inputs, examples=examples)
        return vectors

    def states(self, graph: vpps.Graph, batch: SpelledBatch) -> tuple[vpps.Rows, vpps.Rows]:
        """Return the forward and the backward state of every word, (hidden,) each.

        Args:
            batch: a batch of `vpps.data.SpelledSentences`.
        """
        return self.bilstm(graph, batch.sentences, self.word_vectors(graph, batch))
