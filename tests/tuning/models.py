"""A small recurrent model, its batches, and a workload made of both."""

from __future__ import annotations

import numpy as np

import vpps
from vpps.graph.graph import Graph
from vpps.ops.operand import Expression

H = 64


class Chain:
    """A recurrence over `length` steps for every example."""

    def __init__(self, name: str = "W", seed: int = 3) -> None:
        self.model = vpps.Model(seed=seed)
        self.W = self.model.parameter(name, (H, H))
        self.table = self.model.lookup("table", (7, H))

    @vpps.cell
    def first(self, word: int) -> Expression:
        return vpps.tanh(self.W @ vpps.lookup(self.table, word))

    @vpps.cell
    def step(self, h: Expression) -> Expression:
        return vpps.tanh(self.W @ h)

    def batch(self, examples: int = 2, length: int = 3) -> tuple[Graph, Expression]:
        """Return a graph and its loss."""
        graph = vpps.Graph()
        losses = []
        for k in range(examples):
            h = graph.call(self.first, k % 7)
            for _ in range(length):
                h = self.step(h)
            losses.append(vpps.mse(h, graph.input(np.full(H, 0.1 * k))))
        return graph, vpps.mean(losses)

    def batches(self, n: int = 3) -> list[tuple[Graph, Expression]]:
        """Return graphs of different sizes, the last one the largest."""
        return [self.batch(2, 2 + k) for k in range(n)]


def build(batch_size: int) -> tuple[vpps.Model, list[tuple[Graph, Expression]]]:
    """Return a workload for command lines."""
    chain = Chain()
    return chain.model, [chain.batch(batch_size, 2), chain.batch(batch_size, 3)]
