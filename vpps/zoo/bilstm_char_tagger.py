"""Named entities by a bidirectional LSTM over words, the rare ones of which are read character by character."""

from __future__ import annotations

import numpy as np

import vpps
from vpps.data import SpelledBatch
from vpps.errors import ModelError
from vpps.nn import MLP, BiLSTM
from vpps.zoo.bilstm_tagger import BiLSTMTagger


class BiLSTMCharTagger(BiLSTMTagger):
    """`vpps.zoo.BiLSTMTagger`, but the vector of a rare word is what a BiLSTM makes of its characters.

    The vector of a rare word is the last state of each direction over its characters, one behind the other: DyNet's
    benchmark "bilstm-tagger-withchar", which the VPPS paper takes (section IV-E; words that occur fewer than 5 times,
    character vectors of 64). In a mini-batch every distinct rare word is read once.

    Args:
        model: the parameters go here: "words", "characters", "spelling/...", "bilstm/...", "mlp/...".
        n_words, n_characters: rows of the embedding tables.
        n_tags: tags are 0 to n_tags - 1.
        embedding: length of a word vector; even, as half of it is one direction's state over the characters.
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
            raise ModelError(f"embedding={embedding}: choose an even length: each direction over characters gives half")
        self.words = model.lookup("words", (n_words, embedding))
        self.characters = model.lookup("characters", (n_characters, characters))
        self.spelling = BiLSTM(model, characters, embedding // 2, table=self.characters, name="spelling")
        self.bilstm = BiLSTM(model, embedding, hidden)
        self.mlp = MLP(model, 2 * hidden, mlp, n_tags)

    @vpps.cell
    def frequent(self, word: int) -> vpps.Expression:
        """The vector of a word of the vocabulary."""
        return vpps.lookup(self.words, word)

    @vpps.cell
    def rare(self, forward: vpps.Expression, backward: vpps.Expression) -> vpps.Expression:
        """The vector of any other, from the last states over its characters."""
        return vpps.concat([forward, backward])

    def word_vectors(self, graph: vpps.Graph, batch: SpelledBatch) -> vpps.Rows:
        """The vector of every word; (embedding,)."""
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
        """The states of every word in the forward and in the backward direction; (hidden,) each.

        Args:
            batch: of `vpps.data.SpelledSentences`.
        """
        return self.bilstm(graph, batch.sentences, self.word_vectors(graph, batch))
