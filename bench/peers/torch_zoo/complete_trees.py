"""Tree-FC in PyTorch: in complete trees of one size, a level's children are the rows below, two by two."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peers.torch_zoo.program import TorchProgram


class TreeFc(TorchProgram):
    """PyTorch program of `vpps.zoo.TreeFC`."""

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.outputs(batch), self.column(batch["label"]), reduction="sum")

    def outputs(self, batch: Any) -> Tensor:
        words = self.column(batch["word"]).view(len(batch), -1)
        words = words[:, : (words.shape[1] + 1) // 2]  # leaves come first
        if self.per_node:
            return self.linear("output", torch.cat([self.one_by_one(tree) for tree in words]))
        h = self.lookup("words", words.reshape(-1))
        while len(h) > len(batch):
            h = self.composed(h.view(len(h) // 2, -1))
        return self.linear("output", h)

    def composed(self, pairs: Tensor) -> Tensor:
        """Return the states, from two children's concatenated states."""
        return self.linear("composition", pairs).tanh()

    def one_by_one(self, words: Tensor) -> Tensor:
        """Return the root of one tree, computed a vertex at a time."""
        level = [self.lookup("words", word) for word in words.split(1)]
        while len(level) > 1:
            level = [
                self.composed(torch.cat([left, right], 1)) for left, right in zip(level[::2], level[1::2], strict=True)
            ]
        return level[0]
