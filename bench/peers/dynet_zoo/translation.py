"""Encoder and decoder in DyNet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from peers.dynet_zoo.program import DynetProgram
from peers.dynet_zoo.taggers import Lstm


class EncoderDecoder(DynetProgram):
    """DyNet program of `vpps.zoo.EncoderDecoder`. Outputs are losses, one per target word."""

    columns = ("source", "target", "next")

    def declare(self) -> None:
        self.source, self.target = self.lookup("source_words"), self.lookup("target_words")
        self.encoder, self.decoder = Lstm(self, "encoder"), Lstm(self, "decoder")
        self.attention = self.parameter("attention/W") if self.settings.attention else None
        self.output = self.layer("output")

    def outputs(self, batch: Any) -> Any:
        found: list[Any] = []
        following: list[int] = []
        for first, end in pairwise(batch.offsets):
            chain = batch.order[first:end]  # the set may store the source in reverse
            source, target = ([v for v in chain if batch.kind[v] == side] for side in range(2))
            memory, last = self.encoder.run([self.source[batch["source"][v]] for v in source])
            states, _ = self.decoder.run([self.target[batch["target"][v]] for v in target], last)
            found += states if self.attention is None else self._attended(states, memory)
            following += [batch["next"][v] for v in target]
        logits = self.linear(self.output, self.dynet.concatenate_to_batch(found))
        return self.dynet.pickneglogsoftmax_batch(logits, following)

    def _attended(self, states: list[Any], memory: list[Any]) -> list[Any]:
        """Return h~ of all words in a sentence; they share the products with the sentence's memory."""
        dynet = self.dynet
        keys, queries = dynet.concatenate_cols(memory), dynet.concatenate_cols(states)
        weights = dynet.softmax(dynet.transpose(keys) * queries)  # softmax of each column
        seen = dynet.tanh(self.attention * dynet.concatenate([keys * weights, queries]))
        return [dynet.pick(seen, k, 1) for k in range(len(states))]

    def loss(self, batch: Any) -> Any:
        return self.dynet.sum_batches(self.outputs(batch))
