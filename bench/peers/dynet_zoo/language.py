"""Language models in DyNet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from peers.dynet_zoo.program import DynetProgram
from peers.dynet_zoo.taggers import Lstm


class LstmLanguageModel(DynetProgram):
    """The network `vpps.zoo.LSTMLanguageModel`. Outputs are losses, one per word."""

    columns = ("word", "next")

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.lstm = Lstm(self, "lstm")
        self.output = self.layer("output")

    def outputs(self, batch: Any) -> Any:
        xs = [self.words[word] for word in batch["word"]]
        states = [h for first, end in pairwise(batch.offsets) for h in self.lstm(xs[first:end])]
        logits = self.linear(self.output, self.dynet.concatenate_to_batch(states))
        return self.dynet.pickneglogsoftmax_batch(logits, batch["next"])

    def loss(self, batch: Any) -> Any:
        return self.dynet.sum_batches(self.outputs(batch))
