"""The network over programs in PyTorch, batched by level."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peers.torch_zoo.levels import run, softmax_of_lists, sum_of_lists
from peers.torch_zoo.program import TorchProgram


class ProgramGru(TorchProgram):
    """`vpps.zoo.ProgramGRU`."""

    sparse = ("types", "names")

    def roots(self, batch: Any) -> Tensor:
        """The state of every graph's root, (graphs, hidden)."""
        w, H = self.weights, self.settings.hidden
        types, names = self.column(batch["type"]), self.column(batch["name"])

        def embedded(vertices: Tensor) -> Tensor:
            return self.lookup("types", types[vertices]) + self.lookup("names", names[vertices])

        def leaf(vertices: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            z, n = F.linear(embedded(vertices), w["gru/W"][H:], w["gru/b"][H:]).chunk(2, 1)
            return (-z).sigmoid() * n.tanh()

        def inner(vertices: Tensor, children: Tensor, owner: Tensor | None) -> Tensor:
            assert owner is not None
            n = len(vertices)
            x = embedded(vertices)
            counts = torch.bincount(owner, minlength=n)
            begins = counts.cumsum(0) - counts
            place = torch.arange(len(owner)) - begins[owner]
            second, others = (place == 1).nonzero()[:, 0], (place > 1).nonzero()[:, 0]
            parts = [
                children.index_select(0, begins),
                x.new_zeros(n, H).index_copy(0, owner[second], children.index_select(0, second)),
                self.pooled(x, children.index_select(0, others), owner[others], n),
            ]
            m = torch.cat(parts, 1) @ w["message/W"].t()
            wx = F.linear(x, w["gru/W"], w["gru/b"])
            r, z = torch.addmm(wx[:, : 2 * H], m, w["gru/U"].t()).sigmoid().chunk(2, 1)
            new = torch.addmm(wx[:, 2 * H :], r * m, w["gru/V"].t()).tanh()
            return torch.lerp(new, m, z)

        h = run(batch, [leaf, inner], H, w["gru/U"], self.per_node)
        return h.index_select(0, torch.from_numpy(batch.roots))

    def pooled(self, x: Tensor, states: Tensor, owner: Tensor, n: int) -> Tensor:
        """Attention over the lists of states, (n, hidden)."""
        if not len(owner):
            return states.new_zeros(n, states.shape[1])
        query = (x @ self.weights["query/W"].t()).index_select(0, owner)
        scores = (query * states).sum(1) * self.settings.hidden**-0.5
        return sum_of_lists(softmax_of_lists(scores, owner, n)[:, None] * states, owner, n)

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.outputs(batch), self.column(batch["label"]), reduction="sum")

    def outputs(self, batch: Any) -> Tensor:
        return self.linear("output", self.roots(batch))
