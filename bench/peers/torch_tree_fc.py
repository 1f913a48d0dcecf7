"""Peer: Tree-FC in PyTorch, batched by level over the whole mini-batch; equations and weights are in `tree_fc.py`.

Two programs with the interface and the numbering of `torch_treelstm.py`: nodes are numbered breadth-first over the
whole batch, so that the children of a level are, pair by pair, the rows of the next one. Trees come as data with their
nodes in any order, and are sorted into levels. In complete trees, all leaves are on the last level. So every level is a
slice, and only the embeddings are gathered or scattered.

- "autograd": one product per level; autograd does the backward pass;
- "manual": a hand-written backward, in place; one product for all weight gradients adds straight into the weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from trees import Tree

from peers.torch_treelstm import LevelBatched, PreparedTree, Schedule


class TorchTreeFc(LevelBatched):
    """Trains Tree-FC by SGD."""

    recurrent = "W"

    @staticmethod
    def prepare(tree: Tree) -> PreparedTree:
        """Bring one tree into breadth-first order. Raises ValueError if it is not complete."""
        prepared = LevelBatched.prepare(tree)
        if (prepared.words >= 0).sum() != (prepared.depths == prepared.depths[-1]).sum():
            raise ValueError("this program takes complete trees: all leaves on the last level")
        return prepared

    def _autograd_loss(self, s: Schedule) -> Tensor:
        w = self.weights
        h = F.embedding(s.words, w["words"], sparse=True)
        for _ in range(len(s.rows) - 2):
            h = torch.tanh(F.linear(h.view(len(h) // 2, -1), w["W"], w["b"]))
        logits = F.linear(h, w["Wo"], w["bo"])
        return F.cross_entropy(logits, s.labels[: len(h)], reduction="sum") / len(h)

    @torch.no_grad()
    def _manual_step(self, s: Schedule) -> None:
        w = self.weights
        hidden = w["Wo"].shape[1]
        batch, inner, rows = s.rows[1], s.inner[-1], s.rows[-1]
        levels = list(zip(s.rows[:-2], s.rows[1:-1], s.rows[2:], strict=True))  # rows of a level, then of its children
        W_t = self._transposed(inner)

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
