"""Peer: Tree-FC in PyTorch, batched by level over the whole mini-batch; equations and weights are in `tree_fc.py`.

Two programs with one interface, as in `torch_treelstm.py`, with its numbering: nodes breadth-first over the whole
batch, so that the children of a level are, pair by pair, the rows of the next one. Trees come as data, and any order
of their nodes is brought into levels; what these programs know beforehand is that complete trees have leaves on their
last level only, so that every level is a slice and nothing is gathered or scattered but the embeddings.

- "autograd": one product per level, autograd does the backward;
- "manual": the backward by hand, in place; one product for all weight gradients, which adds straight into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from trees import Tree

from peers.torch_treelstm import PreparedTree, Schedule, TorchTreeLstm

# From how many rows on a copy of the transposed matrix pays: MKL multiplies by it up to twice as fast
# (torch_treelstm.py).
ROWS_FOR_COPY = 200


class TorchTreeFc:
    """Trains Tree-FC by SGD."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], mode: str, lr: float, threads: int) -> None:
        """Copy the weights. mode: "autograd" or "manual"."""
        torch.set_num_threads(threads)
        self.mode, self.lr = mode, lr
        self.weights = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in weights.items()}
        self.W_t = torch.empty_like(self.weights["W"].t(), memory_format=torch.contiguous_format)
        words = self.weights["words"]
        dense = [weight for weight in self.weights.values() if weight is not words]
        self.optimizers = [torch.optim.SGD(dense, lr=lr, fused=True), torch.optim.SGD([words], lr=lr)]
        self._loss = torch.tensor(math.nan)

    @staticmethod
    def prepare(tree: Tree) -> PreparedTree:
        """Bring one tree into breadth-first order. Raises ValueError for one that is not complete."""
        prepared = TorchTreeLstm.prepare(tree)
        if (prepared.words >= 0).sum() != (prepared.depths == prepared.depths[-1]).sum():
            raise ValueError("this program takes complete trees: all leaves on the last level")
        return prepared

    def step(self, batch: Sequence[PreparedTree]) -> None:
        """Train on one mini-batch."""
        self.run(self.graph(batch))

    @staticmethod
    def graph(batch: Sequence[PreparedTree]) -> Schedule:
        """What the host does for a mini-batch before anything is computed."""
        return Schedule.of(batch)

    def run(self, schedule: Schedule) -> None:
        """The rest of a step."""
        if self.mode == "autograd":
            self._autograd_step(schedule)
        else:
            self._manual_step(schedule)

    def loss(self) -> float:
        """Loss of the latest step, before its update."""
        return self._loss.item()

    def close(self) -> None:
        """Nothing to release."""

    def _autograd_step(self, s: Schedule) -> None:
        w = self.weights
        h = F.embedding(s.words, w["words"], sparse=True)
        for _ in range(len(s.rows) - 2):
            h = torch.tanh(F.linear(h.view(len(h) // 2, -1), w["W"], w["b"]))
        logits = F.linear(h, w["Wo"], w["bo"])
        loss = F.cross_entropy(logits, s.labels[: len(h)], reduction="sum") / len(h)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self._loss = loss.detach()

    @torch.no_grad()
    def _manual_step(self, s: Schedule) -> None:
        w = self.weights
        hidden = w["Wo"].shape[1]
        batch, inner, rows = s.rows[1], s.inner[-1], s.rows[-1]
        levels = list(zip(s.rows[:-2], s.rows[1:-1], s.rows[2:], strict=True))  # own rows, and those of the children
        W_t = self.W_t.copy_(w["W"].t()) if inner > ROWS_FOR_COPY else w["W"].t()

        h = torch.empty(rows, hidden)
        torch.index_select(w["words"], 0, s.words, out=h[inner:])
        for start, children, stop in reversed(levels):
            own = h[start:children]
            torch.addmm(w["b"], h[children:stop].view(-1, 2 * hidden), W_t, out=own)
            own.tanh_()
        labels = s.labels[:batch]
        log_p = F.log_softmax(torch.addmm(w["bo"], h[:batch], w["Wo"].t()), 1)
        self._loss = F.nll_loss(log_p, labels, reduction="sum") / batch

        d_logits = log_p.exp_()
        d_logits.scatter_add_(1, labels[:, None], d_logits.new_full((batch, 1), -1.0)).mul_(1.0 / batch)
        d_h = torch.empty(rows, hidden)
        torch.mm(d_logits, w["Wo"], out=d_h[:batch])
        for start, children, stop in levels:
            own = d_h[start:children]
            torch.ops.aten.tanh_backward.grad_input(own, h[start:children], grad_input=own)
            torch.mm(own, w["W"], out=d_h[children:stop].view(-1, 2 * hidden))

        self._update("W", "b", d_h[:inner], h[batch:].view(-1, 2 * hidden))
        self._update("Wo", "bo", d_logits, h[:batch])
        w["words"].index_add_(0, s.words, d_h[inner:], alpha=-self.lr)

    def _update(self, matrix: str, bias: str, d_out: Tensor, x: Tensor) -> None:
        """Step of out = x @ matrix.T + bias, its gradient added straight into the weights."""
        self.weights[matrix].addmm_(d_out.t(), x, alpha=-self.lr)
        self.weights[bias].sub_(d_out.sum(0), alpha=self.lr)
