"""Encoder and decoder in PyTorch: each LSTM runs over all of its words, and the output layer over all target words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from peers.torch_zoo.lstm import LstmProgram


class EncoderDecoder(LstmProgram):
    """PyTorch program of `vpps.zoo.EncoderDecoder`."""

    sparse = ("source_words", "target_words")
    lstms = ("encoder", "decoder")

    def states(self, batch: Any) -> Tensor:
        """Return the states that predict target words, (target words, hidden)."""
        kind, n = batch.kind, len(batch)
        # Order along the chains: the set can store the source in reverse.
        order = np.lexsort((batch.levels, kind, batch.graph_of_vertex))
        of_source, of_target = order[kind[order] == 0], order[kind[order] == 1]
        lengths, target_lengths = (
            np.bincount(batch.graph_of_vertex[which], minlength=n) for which in (of_source, of_target)
        )
        memory, end = self.run_lstm("encoder", self._words("source", batch, of_source), lengths, end=True)
        h, _ = self.run_lstm("decoder", self._words("target", batch, of_target), target_lengths, end)
        if not self.settings.attention:
            return h
        if self.per_node:
            return self._attend_one_by_one(h, memory, lengths, target_lengths)
        return self._attend(h, memory, lengths, target_lengths)

    def _words(self, side: str, batch: Any, vertices: NDArray[np.int64]) -> Tensor:
        return self.lookup(f"{side}_words", self.column(batch[side][vertices]))

    def _attend(self, h: Tensor, memory: Tensor, lengths: NDArray[np.int64], targets: NDArray[np.int64]) -> Tensor:
        keys = pad_sequence(memory.split(lengths.tolist()), batch_first=True)  # (sentences, longest, hidden)
        queries = pad_sequence(h.split(targets.tolist()), batch_first=True)
        absent = torch.from_numpy(np.arange(keys.shape[1]) >= lengths[:, None])
        scores = torch.bmm(queries, keys.transpose(1, 2)).masked_fill(absent[:, None], -torch.inf)
        context = torch.bmm(scores.softmax(2), keys)
        present = np.flatnonzero(np.arange(queries.shape[1]) < targets[:, None])
        seen = context.reshape(-1, context.shape[2]).index_select(0, torch.from_numpy(present))
        return self.linear("attention", torch.cat([seen, h], 1)).tanh()

    def _attend_one_by_one(
        self, h: Tensor, memory: Tensor, lengths: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> Tensor:
        found = []
        for queries, keys in zip(h.split(targets.tolist()), memory.split(lengths.tolist()), strict=True):
            for query in queries:
                weights = torch.mv(keys, query).softmax(0)
                context = torch.mv(keys.t(), weights)
                found.append(torch.mv(self.weights["attention/W"], torch.cat([context, query])).tanh())
        return torch.stack(found)

    def losses(self, batch: Any, reduction: str) -> Tensor:
        """Return the cross entropy of the target words: (n,), or their sum."""
        states, following = self.states(batch), self.column(batch["next"][batch.kind == 1])
        if not self.per_node:
            return F.cross_entropy(self.linear("output", states), following, reduction=reduction)
        each = torch.stack(
            [F.cross_entropy(self.linear("output", row), word) for row, word in zip(states, following, strict=True)]
        )
        return each.sum() if reduction == "sum" else each

    def loss(self, batch: Any) -> Tensor:
        return self.losses(batch, "sum")

    def outputs(self, batch: Any) -> Tensor:
        return self.losses(batch, "none")
