"""Networks over character-word lattices in PyTorch, batched by level.

All ops that do not depend on states are computed for all vertices at once, before the levels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peers.torch_zoo.levels import Group, Memory, Schedule, sum_of_lists
from peers.torch_zoo.program import TorchProgram

CHARACTER, WORD, JOINED = range(3)


class LatticeProgram(TorchProgram):
    """States of characters, and a linear classifier on them."""

    sparse = ("characters", "words")
    width: int
    """Floats per vertex in the results of `cell`."""
    joins: bool
    """True if characters that end words are a kind of their own."""

    @abstractmethod
    def cell(self, group: Group, x: Tensor, children: Tensor) -> Tensor:
        """Return the states of a group, (n, width), from the results of `inputs` and all children's states, joined."""

    @abstractmethod
    def inputs(self, kind: int, vectors: Tensor) -> Tensor:
        """Return the part of a kind's computation that depends only on embeddings."""

    def states(self, batch: Any) -> Tensor:
        """Return the states of all characters in order, (n, width)."""
        kind = batch.kind
        if self.joins:
            kind = np.where(np.diff(batch.children[0]) > 1, np.int8(JOINED), kind)
        graphs = SimpleNamespace(levels=batch.levels, kind=kind, children=batch.children)
        schedule = Schedule(graphs, self.per_node)
        memory = Memory(schedule.rows, self.width, next(iter(self.weights.values())))
        numbers = {WORD: self.column(batch["word"])}
        numbers[CHARACTER] = numbers[JOINED] = self.column(batch["character"])
        inputs = {k: self._inputs(k, numbers[k], schedule) for k in sorted({g.kind for g in schedule.groups})}
        for group in schedule.groups:
            memory.write(self.cell(group, next(inputs[group.kind]), memory.read(group.children)))
        characters = torch.from_numpy(np.flatnonzero(batch.kind == CHARACTER))
        return memory.read(schedule.position[characters])

    def _inputs(self, kind: int, numbers: Tensor, schedule: Schedule) -> Iterator[Tensor]:
        """Yield `inputs` for every group of a kind, in order."""
        table = "words" if kind == WORD else "characters"
        groups = [group.vertices for group in schedule.groups if group.kind == kind]
        if self.per_node:
            return (self.inputs(kind, self.lookup(table, numbers[some])) for some in groups)
        found = self.inputs(kind, self.lookup(table, numbers[torch.cat(groups)]))
        return iter(found.split([len(some) for some in groups]))

    def logits(self, batch: Any) -> Tensor:
        return self.linear("output", self.states(batch)[:, : self.settings.hidden])

    def loss(self, batch: Any) -> Tensor:
        tags = self.column(batch["tag"][batch.kind == CHARACTER])
        return F.cross_entropy(self.logits(batch), tags, reduction="sum")

    def outputs(self, batch: Any) -> Tensor:
        return self.logits(batch)


def first_of_lists(owner: Tensor, n: int) -> Tensor:
    """Return the index of each list's first element, (n,); no list is empty."""
    return torch.searchsorted(owner, torch.arange(n, device=owner.device))


class LatticeLstm(LatticeProgram):
    """PyTorch program of `vpps.zoo.LatticeLSTM`. A state is h and c of a character, or U_l c and c of a word."""

    joins = True

    def __init__(self, task: Any, per_node: bool = False) -> None:
        super().__init__(task, per_node)
        self.width = 2 * self.settings.hidden

    def stacked(self, *names: str) -> Tensor:
        """Return the stacked parameters; called once per step."""
        return torch.cat([self.weights[name] for name in names])

    def states(self, batch: Any) -> Tensor:
        self.U = self.stacked("character/U", "character/Uf").t()
        return super().states(batch)

    def inputs(self, kind: int, vectors: Tensor) -> Tensor:
        if kind == WORD:
            return self.linear("word", vectors)
        last = ("character/Wf", "character/bf") if kind == CHARACTER else ("link/W", "link/b")
        return F.linear(vectors, self.stacked("character/W", last[0]), self.stacked("character/b", last[1]))

    def cell(self, group: Group, x: Tensor, children: Tensor) -> Tensor:
        w, H = self.weights, self.settings.hidden
        if group.kind == WORD:
            h, c = children.split(H, 1)
            i, f, u = torch.addmm(x, h, w["word/U"].t()).split(H, 1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            return torch.cat([c @ w["link/U"].t(), c], 1)
        if group.kind == CHARACTER:
            h, c = children.split(H, 1)
            i, o, u, f = torch.addmm(x, h, self.U).split(H, 1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            return torch.cat([o.sigmoid() * c.tanh(), c], 1)
        owner = group.owner
        assert owner is not None
        first = first_of_lists(owner, len(x))  # the character before; this one's candidate replaces it
        i, o, u = torch.addmm(x[:, : 3 * H], children.index_select(0, first)[:, :H], w["character/U"].t()).split(H, 1)
        gates = x[:, 3 * H :].index_select(0, owner) + children[:, :H]
        weights = gates.index_copy(0, first, i).sigmoid().exp()
        memories = children[:, H:].index_copy(0, first, u.tanh())
        c = sum_of_lists(weights * memories, owner, len(x)) / sum_of_lists(weights, owner, len(x))
        return torch.cat([o.sigmoid() * c.tanh(), c], 1)


class LatticeGru(LatticeProgram):
    """PyTorch program of `vpps.zoo.LatticeGRU`."""

    joins = False

    def __init__(self, task: Any, per_node: bool = False) -> None:
        super().__init__(task, per_node)
        self.width = self.settings.hidden

    def inputs(self, kind: int, vectors: Tensor) -> Tensor:
        return self.linear("gru", vectors)

    def gru(self, x: Tensor, h: Tensor) -> Tensor:
        w, H = self.weights, self.settings.hidden
        r, z = torch.addmm(x[:, : 2 * H], h, w["gru/U"].t()).sigmoid().split(H, 1)
        n = torch.addmm(x[:, 2 * H :], r * h, w["gru/V"].t()).tanh()
        return torch.lerp(n, h, z)

    def cell(self, group: Group, x: Tensor, children: Tensor) -> Tensor:
        w, owner, n = self.weights, group.owner, len(x)
        if group.kind == WORD or len(children) == n:
            return self.gru(x, children)
        assert owner is not None
        first = first_of_lists(owner, n)
        states = children.index_copy(0, first, self.gru(x, children.index_select(0, first)))
        weights = torch.addmv(w["gate/b"], states, w["gate/u"]).sigmoid()[:, None]
        return sum_of_lists(weights * states, owner, n) / sum_of_lists(weights, owner, n)
