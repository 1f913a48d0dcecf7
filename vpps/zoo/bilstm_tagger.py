"""Named entities by a bidirectional LSTM over the words of a sentence (Huang, Xu & Yu 2015, arXiv:1508.01991)."""

from __future__ import annotations

from typing import Any

import vpps
from vpps.nn import MLP, BiLSTM


class BiLSTMTagger:
    """Word embeddings, an LSTM in each direction, and for every word an MLP and softmax over the tags.

    The BI-LSTM of the paper (section 2.2) with a hidden layer before the softmax, as in DyNet's benchmark
    "bilstm-tagger" and the VPPS paper (section IV-E).

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

    @vpps.cell
    def word_logits(self, forward: vpps.Expression, backward: vpps.Expression) -> vpps.Expression:
        """The unnormalised log-probabilities of the tags of one word; (n_tags,)."""
        return self.mlp(vpps.concat([forward, backward]))

    @vpps.cell
    def word_loss(self, forward: vpps.Expression, backward: vpps.Expression, tag: int) -> vpps.Expression:
        """The cross entropy of one word; a scalar."""
        return vpps.cross_entropy(self.word_logits(forward, backward), tag)

    def states(self, graph: vpps.Graph, batch: Any) -> tuple[vpps.Rows, vpps.Rows]:
        """The states of every word in the forward and in the backward direction; (hidden,) each.

        Args:
            batch: of a set that `vpps.data.read_tagged` made: chains, columns word and tag.
        """
        return self.bilstm(graph, batch, batch["word"])

    def logits(self, graph: vpps.Graph, batch: Any) -> vpps.Rows:
        """The unnormalised log-probabilities of the tags of every word."""
        logits: Any = self.word_logits(*self.states(graph, batch))
        return logits  # type: ignore[no-any-return]

    def loss(self, graph: vpps.Graph, batch: Any) -> vpps.Expression:
        """The cross entropy summed over all words; a scalar."""
        return vpps.sum(self.word_loss(*self.states(graph, batch), batch["tag"]))
