"""Language models in PyTorch: one LSTM over all sequences, one product with the output layer over all words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peers.torch_zoo.lstm import LstmProgram


class LstmLanguageModel(LstmProgram):
    """PyTorch program of `vpps.zoo.LSTMLanguageModel`."""

    def losses(self, batch: Any, reduction: str) -> Tensor:
        """Return the cross entropy of the words: (n,), or their sum."""
        x = self.lookup("words", self.column(batch["word"]))
        h, _ = self.run_lstm("lstm", x, np.diff(batch.offsets))
        following = self.column(batch["next"])
        if not self.per_node:
            return F.cross_entropy(self.linear("output", h), following, reduction=reduction)
        each = torch.stack(
            [F.cross_entropy(self.linear("output", row), word) for row, word in zip(h, following, strict=True)]
        )
        return each.sum() if reduction == "sum" else each

    def loss(self, batch: Any) -> Tensor:
        return self.losses(batch, "sum")

    def outputs(self, batch: Any) -> Tensor:
        return self.losses(batch, "none")
