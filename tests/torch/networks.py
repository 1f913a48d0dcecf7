"""Small networks in vpps and in plain PyTorch, for the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

import vpps

HIDDEN, INPUT, WORDS = 6, 4, 11


class Chain:
    """A recurrent net over vectors: h_t = tanh(W x_t + U h_{t-1} + b), times a word's embedding if there is a table."""

    def __init__(self, seed: int = 1, table: bool = False) -> None:
        self.model = vpps.Model(seed=seed)
        with self.model.scope("chain"):
            self.W = self.model.parameter("W", (HIDDEN, INPUT))
            self.U = self.model.parameter("U", (HIDDEN, HIDDEN))
            self.b = self.model.parameter("b", (HIDDEN,), init="normal")
        self.words = self.model.lookup("words", (WORDS, HIDDEN)) if table else None

    @vpps.cell
    def step(self, h: vpps.Expression, x: vpps.Expression) -> vpps.Expression:
        """Return the next state."""
        return vpps.tanh(self.W @ x + self.U @ h + self.b)

    def states(self, graph: vpps.Graph, rows: vpps.Rows, words: NDArray[np.int64] | None = None) -> list[Any]:
        """Return h after each row."""
        h, states = graph.zeros(HIDDEN), []
        for k, x in enumerate(rows):
            h = self.step(h, x)
            states.append(h if words is None else h * graph.lookup(self.words, int(words[k])))
        return states

    def loss(self, graph: vpps.Graph, rows: vpps.Rows) -> vpps.Expression:
        """Return the squared length of the last state."""
        last = self.states(graph, rows)[-1]
        return vpps.dot(last, last)

    def by_module(self, net: Any, x: Any, words: NDArray[np.int64] | None = None) -> Any:
        """Return the states of a tensor's rows, (n, HIDDEN)."""
        graph = vpps.Graph()
        return torch.stack(net(graph, self.states(graph, graph.rows(x, grad=torch.is_tensor(x)), words)))

    def loss_by_module(self, net: Any, x: Any, at_once: bool = True) -> Any:
        """Return the loss over a tensor's rows, with or without its gradients."""
        graph = vpps.Graph()
        loss = self.loss(graph, graph.rows(x, grad=torch.is_tensor(x)))
        return net.loss(graph, loss) if at_once else net(graph, loss)

    def in_torch(self, weights: Any, x: Any, words: NDArray[np.int64] | None = None, sparse: bool = False) -> Any:
        """Return the states in PyTorch, (n, HIDDEN), with a module's parameters, or with given parameters by name."""
        if not isinstance(weights, Mapping):
            weights = dict(weights.named_parameters())
        W, U, b = (weights[f"chain.{name}"] for name in "WUb")
        h, states = torch.zeros(HIDDEN), []
        for k in range(len(x)):
            h = torch.tanh(W @ x[k] + U @ h + b)
            states.append(h)
        if words is None:
            return torch.stack(states)
        return torch.stack(states) * F.embedding(torch.tensor(words), weights["words"], sparse=sparse)


class Tagger:
    """A linear layer, a chain times table words, and a classifier on each state: a network whose middle is in vpps.

    Attributes:
        outer: the layers in PyTorch.
    """

    def __init__(self, sparse: bool = False) -> None:
        self.sparse = sparse
        self.chain = Chain(table=True)
        self.outer = torch.nn.ModuleList([torch.nn.Linear(3, INPUT), torch.nn.Linear(HIDDEN, 2)])

    def batches(self, n: int) -> Iterator[Any]:
        """Yield the same batches every time."""
        rng = np.random.default_rng(4)
        for _ in range(n):
            length = int(rng.integers(1, 5))
            x = torch.tensor(rng.normal(size=(length, 3)), dtype=torch.float32)
            yield x, rng.integers(0, WORDS, length), torch.full((length,), int(rng.integers(0, 2)))

    def mixed_loss(self, net: Any, outer: Any, batch: Any) -> Any:
        """Return the loss, with the chain as a module."""
        x, words, labels = batch
        return F.cross_entropy(outer[1](self.chain.by_module(net, outer[0](x), words)), labels)

    def loss_in_torch(self, weights: Mapping[str, Any], outer: Any, batch: Any) -> Any:
        """Return the loss, with the chain's weights given by name."""
        x, words, labels = batch
        return F.cross_entropy(outer[1](self.chain.in_torch(weights, outer[0](x), words, self.sparse)), labels)
