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


def in_order(weights: Tensor) -> Tensor:
    """Convert rows of gates between vpps's order, i f o u, and PyTorch's, i f u o."""
    i, f, o, u = weights.chunk(4)
    return torch.cat([i, f, u, o])


class BiLstmTagger(TorchProgram):
    """PyTorch program of `vpps.zoo.BiLSTMTagger`.

    The weights of the two directions are stacked, "bilstm/U" (2, 4H, H), with gates in PyTorch's order.
    """

    bilstms: ClassVar[tuple[str, ...]] = ("bilstm",)

    def __init__(self, task: Any, per_node: bool = False) -> None:
        super().__init__(task, per_node)
        for name in self.bilstms:
            for part in "WUb":
                pair = [in_order(self.weights.pop(f"{name}/{d}/{part}").detach()) for d in DIRECTIONS]
                self.weights[f"{name}/{part}"] = torch.stack(pair).requires_grad_()

    def gradients(self, batch: Any) -> tuple[float, dict[str, NDArray[Any]]]:
        loss, found = super().gradients(batch)
        for name in self.bilstms:
            for part in "WUb":
                pair = found.pop(f"{name}/{part}")
                found |= {
                    f"{name}/{d}/{part}": in_order(torch.from_numpy(g)).numpy()
                    for d, g in zip(DIRECTIONS, pair, strict=True)
                }
        return loss, found

    def run(self, name: str, x: Tensor, chains: PackedChains) -> Tensor:
        """Return a BiLSTM's states in its order of computation, (2, n, H), from inputs in that order."""
        return both_directions(x, *(self.weights[f"{name}/{part}"] for part in "WUb"), chains)

    def one_by_one(self, name: str, x: Tensor, offsets: NDArray[np.int64]) -> Tensor:
        """Return the states in the batch's order, from inputs in that order."""
        return vertex_by_vertex(x, *(self.weights[f"{name}/{part}"] for part in "WUb"), offsets.tolist())

    def inputs(self, batch: Any) -> Tensor:
        """Return the vector of every word, (n, embedding), in the batch's order."""
        return self.lookup("words", self.column(batch["word"]))

    def states(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the states of every word in each direction, (n, H), in the batch's order."""
        if self.per_node:
            forward, backward = self.one_by_one("bilstm", self.inputs(batch), batch.offsets)
            return forward, backward
        chains = PackedChains(self.chains(batch))
        h = self.run("bilstm", self.ordered_inputs(batch, chains), chains)
        return h[0].index_select(0, chains.places[0]), h[1].index_select(0, chains.places[1])

    def chains(self, batch: Any) -> Any:
        """Return the chains of words."""
        return batch

    def ordered_inputs(self, batch: Any, chains: PackedChains) -> Tensor:
        """Return the words' vectors in the order of computation of each direction, (2, n, embedding)."""
        return self.lookup("words", self.column(batch["word"])[chains.vertices])

    def outputs(self, batch: Any) -> Tensor:
        return self.linear("mlp/output", self.linear("mlp/hidden", torch.cat(self.states(batch), 1)).tanh())

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.outputs(batch), self.column(batch["tag"]), reduction="sum")


class BiLstmCharTagger(BiLstmTagger):
    """PyTorch program of `vpps.zoo.BiLSTMCharTagger`. Reads every distinct rare word of a mini-batch once."""

    sparse = ("words", "characters")
    bilstms = ("spelling", "bilstm")

    def chains(self, batch: Any) -> Any:
        return batch.sentences

    def ordered_inputs(self, batch: Any, chains: PackedChains) -> Tensor:
        return self.inputs(batch)[chains.vertices]

    def inputs(self, batch: Any) -> Tensor:
        words = self.column(batch["word"])
        if not batch.rare.any():
            return self.lookup("words", words)
        rare = torch.from_numpy(batch.rare)
        frequent = self.lookup("words", words[~rare])
        # Rows of the vocabulary's words, then of the rare ones; `row` is each word's row.
        row = torch.where(rare, len(frequent) + torch.from_numpy(batch.spelling), rare.logical_not().cumsum(0) - 1)
        return torch.cat([frequent, self.spelled(batch.spellings)]).index_select(0, row)

    def spelled(self, spellings: Any) -> Tensor:
        """Return the vector of every spelling, (spellings, embedding): the last state of each direction."""
        characters = self.column(spellings["character"])
        last, first = torch.from_numpy(spellings.offsets[1:] - 1), torch.from_numpy(spellings.offsets[:-1])
        if self.per_node:
            h = self.one_by_one("spelling", self.lookup("characters", characters), spellings.offsets)
        else:
            chains = PackedChains(spellings)
            h = self.run("spelling", self.lookup("characters", characters[chains.vertices]), chains)
            last, first = chains.places[0][last], chains.places[1][first]
        return torch.cat([h[0].index_select(0, last), h[1].index_select(0, first)], 1)
