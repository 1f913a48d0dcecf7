"""Networks over trees in PyTorch, batched by level."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peers.torch_zoo.levels import run, sum_of_lists
from peers.torch_zoo.program import TorchProgram


class TreeProgram(TorchProgram):
    """States of all nodes, a linear classifier on them or on the roots'."""

    def states(self, batch: Any) -> Tensor:
        """h of every node, (n, hidden)."""
        raise NotImplementedError

    def loss(self, batch: Any) -> Tensor:
        h, labels = self.states(batch), self.column(batch["label"])
        if self.settings.root_only:
            roots = torch.from_numpy(batch.roots)
            h, labels = h[roots], labels[roots]
        return F.cross_entropy(self.linear("output", h), labels, reduction="sum")

    def outputs(self, batch: Any) -> Tensor:
        return self.linear("output", self.states(batch))


class TreeLstm(TreeProgram):
    """`vpps.zoo.TreeLSTMSentiment`. A state is c and h side by side."""

    def states(self, batch: Any) -> Tensor:
        w, H = self.weights, self.settings.hidden
        words = self.column(batch["word"])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            x = self.lookup("words", words[vertices])
            i, o, u = torch.addmm(w["tree_lstm/b_leaf"], x, w["tree_lstm/W"].t()).chunk(3, 1)
            c = i.sigmoid() * u.tanh()
            return torch.cat([c, o.sigmoid() * c.tanh()], 1)

        def inner(_: Tensor, children: Tensor, __: Tensor | None) -> Tensor:
            arity = children.shape[1]
            c, h = children[:, :, :H], children[:, :, H:]
            gates = torch.addmm(w["tree_lstm/b"], h.reshape(len(h), -1), w["tree_lstm/U"].t()).view(-1, 3 + arity, H)
            i, o, u = gates[:, 0], gates[:, 1], gates[:, 2]
            c = i.sigmoid() * u.tanh() + (gates[:, 3:].sigmoid() * c).sum(1)
            return torch.cat([c, o.sigmoid() * c.tanh()], 1)

        return run(batch, [leaf, inner], 2 * H, w["tree_lstm/U"], self.per_node)[:, H:]


class ChildSumTreeLstm(TreeProgram):
    """`vpps.zoo.ChildSumTreeLSTMSentiment`. A state is c and h side by side."""

    def states(self, batch: Any) -> Tensor:
        w, H = self.weights, self.settings.hidden
        b, bf = w["child_sum/b"].split([3 * H, H])
        words = self.column(batch["word"])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            x = self.lookup("words", words[vertices])
            return finish(torch.addmm(b, x, w["child_sum/W"].t()))

        def inner(vertices: Tensor, children: Tensor, owner: Tensor | None) -> Tensor:
            assert owner is not None
            c, h = children[:, :H], children[:, H:]
            kept = torch.addmm(bf, h, w["child_sum/Uf"].t()).sigmoid() * c
            sums = sum_of_lists(torch.cat([kept, h], 1), owner, len(vertices))
            return finish(torch.addmm(b, sums[:, H:], w["child_sum/U"].t()), sums[:, :H])

        def finish(gates: Tensor, kept: Tensor | float = 0.0) -> Tensor:
            i, o, u = gates.chunk(3, 1)
            c = i.sigmoid() * u.tanh() + kept
            return torch.cat([c, o.sigmoid() * c.tanh()], 1)

        return run(batch, [leaf, inner], 2 * H, w["child_sum/U"], self.per_node)[:, H:]
