"""Networks over trees in PyTorch, batched by level."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from peers.torch_zoo.levels import Cell, run, sum_of_lists
from peers.torch_zoo.program import TorchProgram


class TreeProgram(TorchProgram):
    """States of all nodes, and a linear classifier on them or on the roots'."""

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits of states (n, hidden)."""
        return self.linear("output", h)

    @abstractmethod
    def states(self, batch: Any) -> Tensor:
        """Return h of every node, (n, hidden)."""

    def loss(self, batch: Any) -> Tensor:
        h, labels = self.states(batch), self.column(batch["label"])
        if self.settings.root_only:
            roots = torch.from_numpy(batch.roots)
            h, labels = h[roots], labels[roots]
        return F.cross_entropy(self.logits(h), labels, reduction="sum")

    def outputs(self, batch: Any) -> Tensor:
        return self.logits(self.states(batch))


class TreeLstm(TreeProgram):
    """PyTorch program of `vpps.zoo.TreeLSTMSentiment`. A state is c and h side by side."""

    types: ClassVar[tuple[str, ...]] = ("tree_lstm",)
    """Names of the cells at inner nodes, by type of node."""

    def states(self, batch: Any) -> Tensor:
        w, H = self.weights, self.settings.hidden
        words = self.column(batch["word"])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            x = self.lookup("words", words[vertices])
            i, o, u = torch.addmm(w["tree_lstm/b_leaf"], x, w["tree_lstm/W"].t()).chunk(3, 1)
            c = i.sigmoid() * u.tanh()
            return torch.cat([c, o.sigmoid() * c.tanh()], 1)

        def inner(name: str) -> Cell:
            U, b = w[f"{name}/U"].t(), w[f"{name}/b"]

            def compose(_: Tensor, children: Tensor, __: Tensor | None) -> Tensor:
                arity = children.shape[1]
                c, h = children[:, :, :H], children[:, :, H:]
                gates = torch.addmm(b, h.reshape(len(h), -1), U).view(-1, 3 + arity, H)
                i, o, u = gates[:, 0], gates[:, 1], gates[:, 2]
                c = i.sigmoid() * u.tanh() + (gates[:, 3:].sigmoid() * c).sum(1)
                return torch.cat([c, o.sigmoid() * c.tanh()], 1)

            return compose

        cells = [leaf, *map(inner, self.types)]
        return run(batch, cells, 2 * H, w["tree_lstm/U"], self.per_node)[:, H:]


class TwoTypeTreeLstm(TreeLstm):
    """PyTorch program of `vpps.zoo.TwoTypeTreeLSTMSentiment`."""

    types = ("tree_lstm", "tree_lstm_2")


class ChildSumTreeLstm(TreeProgram):
    """PyTorch program of `vpps.zoo.ChildSumTreeLSTMSentiment`. A state is c and h side by side."""

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


class TreeGru(TreeProgram):
    """PyTorch program of `vpps.zoo.TreeGRUSentiment`."""

    def states(self, batch: Any) -> Tensor:
        w, H = self.weights, self.settings.hidden
        words = self.column(batch["word"])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            x = self.lookup("words", words[vertices])
            z, candidate = torch.addmm(w["tree_gru/b_leaf"], x, w["tree_gru/W"].t()).chunk(2, 1)
            return z.sigmoid() * candidate.tanh()

        def inner(_: Tensor, h: Tensor, __: Tensor | None) -> Tensor:
            gates = torch.addmm(w["tree_gru/b_gates"], h.view(len(h), -1), w["tree_gru/U_gates"].t()).sigmoid()
            r, z = gates.chunk(2, 1)
            candidate = torch.addmm(w["tree_gru/b"], (r[:, None] * h).view(len(h), -1), w["tree_gru/U"].t()).tanh()
            return torch.lerp(h.mean(1), candidate, z)

        return run(batch, [leaf, inner], H, w["tree_gru/U"], self.per_node)


class RvNN(TreeProgram):
    """PyTorch program of `vpps.zoo.RvNNSentiment`."""

    def logits(self, h: Tensor) -> Tensor:
        return self.linear("mlp/output", self.linear("mlp/hidden", h).tanh())

    def states(self, batch: Any) -> Tensor:
        words = self.column(batch["word"])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            return self.linear("leaf", self.lookup("words", words[vertices])).tanh()

        def inner(_: Tensor, h: Tensor, __: Tensor | None) -> Tensor:
            return self.linear("inner", h.view(len(h), -1)).tanh()

        return run(batch, [leaf, inner], self.settings.hidden, self.weights["inner/W"], self.per_node)


class MvRnn(TreeProgram):
    """PyTorch program of `vpps.zoo.MVRNNSentiment`.

    A state is the vector and the transposed matrix: the two children's transposes, side by side, are rows that W_M
    multiplies in one product for the whole level.
    """

    sparse = ("words", "matrices")

    def __init__(self, task: Any, per_node: bool = False) -> None:
        super().__init__(task, per_node)
        table = self.weights["matrices"].detach().flatten(1)  # sparse gradients are for tables of vectors
        self.weights["matrices"] = table.requires_grad_()

    def states(self, batch: Any) -> Tensor:
        w, d = self.weights, self.settings.hidden
        words = self.column(batch["word"])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            rows = words[vertices]
            matrices = self.lookup("matrices", rows).view(-1, d, d)
            return torch.cat([self.lookup("words", rows), matrices.transpose(1, 2).flatten(1)], 1)

        def inner(_: Tensor, children: Tensor, __: Tensor | None) -> Tensor:
            n = len(children)
            a, b = children[:, 0, None, :d], children[:, 1, None, :d]
            transposes = children[:, :, d:].unflatten(2, (d, d))
            crossed = torch.cat([a @ transposes[:, 1], b @ transposes[:, 0]], 2).view(n, 2 * d)
            p = (crossed @ w["W"].t()).tanh()
            P = transposes.transpose(1, 2).reshape(n * d, 2 * d) @ w["W_M"].t()
            return torch.cat([p, P.view(n, d * d)], 1)

        return run(batch, [leaf, inner], d + d * d, w["W"], self.per_node)[:, :d]

    def gradients(self, batch: Any) -> tuple[float, dict[str, NDArray[Any]]]:
        loss, gradients = super().gradients(batch)
        d = self.settings.hidden
        return loss, gradients | {"matrices": gradients["matrices"].reshape(-1, d, d)}
