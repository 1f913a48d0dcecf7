"""Networks in PyTorch that tag words."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from peers.torch_zoo.bilstm import PackedChains, both_directions, vertex_by_vertex
from peers.torch_zoo.program import TorchProgram

DIRECTIONS = ("forward", "backward")


class BiLstmTagger(TorchProgram):
    """`vpps.zoo.BiLSTMTagger`. Weights of the two directions are kept one behind the other: "bilstm/U" (2, 4H, H)."""

    bilstms: ClassVar[tuple[str, ...]] = ("bilstm",)

    def __init__(self, task: Any, per_node: bool = False) -> None:
        super().__init__(task, per_node)
        for name in self.bilstms:
            for part in "WUb":
                pair = [self.weights.pop(f"{name}/{direction}/{part}").detach() for direction in DIRECTIONS]
                self.weights[f"{name}/{part}"] = torch.stack(pair).requires_grad_()

    def gradients(self, batch: Any) -> tuple[float, dict[str, NDArray[Any]]]:
        loss, found = super().gradients(batch)
        for name in self.bilstms:
            for part in "WUb":
                pair = found.pop(f"{name}/{part}")
                found |= {f"{name}/{d}/{part}": g for d, g in zip(DIRECTIONS, pair, strict=True)}
        return loss, found

    def run(self, name: str, x: Tensor, chains: PackedChains) -> Tensor:
        """States of a BiLSTM in its order of computation, (2, n, H), from inputs in that order."""
        return both_directions(x, *(self.weights[f"{name}/{part}"] for part in "WUb"), chains)

    def one_by_one(self, name: str, x: Tensor, offsets: NDArray[np.int64]) -> Tensor:
        """The same in the batch's order, from inputs in that order."""
        return vertex_by_vertex(x, *(self.weights[f"{name}/{part}"] for part in "WUb"), offsets.tolist())

    def states(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The states of every word in each direction, (n, H), in the batch's order."""
        words = self.column(batch["word"])
        if self.per_node:
            forward, backward = self.one_by_one("bilstm", self.lookup("words", words), batch.offsets)
            return forward, backward
        chains = PackedChains(batch)
        h = self.run("bilstm", self.lookup("words", words[chains.vertices]), chains)
        return h[0].index_select(0, chains.places[0]), h[1].index_select(0, chains.places[1])

    def outputs(self, batch: Any) -> Tensor:
        return self.linear("mlp/output", self.linear("mlp/hidden", torch.cat(self.states(batch), 1)).tanh())

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.outputs(batch), self.column(batch["tag"]), reduction="sum")
