"""Peer: a chain LSTM with a loss at every token in PyTorch, torch.nn.LSTM (cuDNN on a GPU), training with SGD.

cuDNN gets sequences of different lengths packed, so that nothing is padded. If all have the same length, a CUDA graph
("graph") can capture a step: forward, backward and update. Word vectors are gathered once and updated by one index_add.
torch.nn.LSTM's second bias is zero and not trained, as the model has one bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Tokens
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from peers.torch_gpu import Captured, Losses, Uploader


def pack(batch: Sequence[Tokens]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the words and labels by time, longest sequence first, and the number of sequences at each time."""
    batch = sorted(batch, key=lambda tokens: -len(tokens.words))
    lengths = np.array([len(tokens.words) for tokens in batch])
    present = np.arange(lengths[0])[:, None] < lengths
    packed = []
    for column in zip(*batch, strict=True):
        by_sequence = np.zeros((len(batch), lengths[0]), np.int64)
        by_sequence[present.T] = np.concatenate(column)
        packed.append(by_sequence.T[present])
    return packed[0], packed[1], present.sum(1)


class TorchLstm:
    """Trains the model whose equations and weights are in `gpu_lstm.py`."""

    def __init__(
        self, weights: Mapping[str, NDArray[np.float32]], lr: float, device: str, graph: bool, autocast: bool
    ) -> None:
        """Copy the weights. graph: replay CUDA graphs, for sequences of the same length only. autocast: to bf16."""
        self.device, self.lr, self.graph, self.autocast = torch.device(device), lr, graph, autocast
        w = {name: torch.tensor(array, device=self.device) for name, array in weights.items()}
        self.words = w["words"]
        self.lstm = torch.nn.LSTM(weights["W"].shape[1], weights["U"].shape[1], device=self.device)
        with torch.no_grad():
            for parameter, value in zip(self.lstm.parameters(), (w["W"], w["U"], w["b"], 0 * w["b"]), strict=True):
                parameter.copy_(value)
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.output = w["Wo"].requires_grad_(), w["bo"].requires_grad_()
        self.trained = [p for p in self.lstm.parameters() if p.requires_grad] + list(self.output)
        self._upload = Uploader(self.device)
        self._graphs: dict[tuple[int, int], tuple[Tensor, Captured]] = {}
        self._pool = torch.cuda.graph_pool_handle() if graph and device == "cuda" else None
        self._losses = Losses(self.device)

    @staticmethod
    def prepare(tokens: Tokens) -> Tokens:
        """Return the tokens unchanged."""
        return tokens

    def step(self, batch: Sequence[Tokens]) -> None:
        """Train on one mini-batch."""
        words, labels, sizes = pack(batch)
        if not self.graph:
            integers = self._upload([words, labels])
            self._losses.put(self._train(integers, torch.from_numpy(sizes), len(batch)))
            return
        key = len(sizes), len(batch)
        if key not in self._graphs:
            # Labels of -1 are ignored: warm-up runs with this input change no weight.
            nothing = self._upload([np.zeros_like(words), np.full_like(labels, -1)])
            on_host = torch.from_numpy(sizes)
            captured = Captured(lambda: self._train(nothing, on_host, len(batch)), self.device, self._pool)
            self._graphs[key] = nothing, captured
        integers, train = self._graphs[key]
        self._upload([words, labels], integers)
        self._losses.put(train())

    def _train(self, integers: Tensor, sizes: Tensor, batch: int) -> Tensor:
        words, labels = integers.chunk(2)
        x = self.words.index_select(0, words).requires_grad_()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            if len(words) == len(sizes) * batch:  # all of the same length
                y = self.lstm(x.view(len(sizes), batch, -1))[0].flatten(0, 1)
            else:
                y = self.lstm(PackedSequence(x, sizes))[0].data
            logits = F.linear(y, *self.output).float()
        loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=-1) / batch
        x_gradient, *gradients = torch.autograd.grad(loss, [x, *self.trained])
        with torch.no_grad():
            torch._foreach_add_(self.trained, gradients, alpha=-self.lr)
            self.words.index_add_(0, words, x_gradient, alpha=-self.lr)
        return loss.detach()

    def loss(self) -> float:
        """Return the loss of the latest step, before its update; waits for it."""
        return self._losses.latest()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
