"""The Tree-FC network in DyNet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from peers.dynet_zoo.program import DynetProgram, Gates, Graphs


class TreeFc(DynetProgram):
    """DyNet program of `vpps.zoo.TreeFC`."""

    columns = ("word", "label")

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.composition = Gates(self, 1, "composition/b", ("composition/W", 2))
        self.output = self.layer("output")

    def loss(self, batch: Graphs) -> Any:
        return self.cross_entropy(self.outputs(batch), batch["label"])

    def outputs(self, batch: Graphs) -> Any:
        tanh, composition, table = self.dynet.tanh, self.composition, self.words
        roots = []
        for begin, end in pairwise(batch.offsets):
            level = [table[word] for word in batch["word"][begin:end] if word >= 0]
            while len(level) > 1:
                level = [tanh(composition(left, right)[0]) for left, right in zip(level[::2], level[1::2], strict=True)]
            roots.append(level[0])
        return self.linear(self.output, self.dynet.concatenate_to_batch(roots))
