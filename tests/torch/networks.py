"""Small networks whose middle is in vpps, and the same ones in PyTorch alone: what the tests of this folder run."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
        """The next state."""
        return vpps.tanh(self.W @ x + self.U @ h + self.b)

    def states(self, graph: vpps.Graph, rows: vpps.Rows, words: NDArray[np.int64] | None = None) -> list[Any]:
        """h after each row."""
        h, states = graph.zeros(HIDDEN), []
        for k, x in enumerate(rows):
            h = self.step(h, x)
            states.append(h if words is None else h * graph.lookup(self.words, int(words[k])))
        return states

    def loss(self, graph: vpps.Graph, rows: vpps.Rows) -> vpps.Expression:
        """The squared length of the last state."""
        last = self.states(graph, rows)[-1]
        return vpps.dot(last, last)

    def in_torch(self, weights: Any, x: Any, words: NDArray[np.int64] | None = None, sparse: bool = False) -> Any:
        """The same states, (n, HIDDEN), with the parameters of a module, or others by their names."""
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


class MixedNetwork(ABC):
    """A network whose middle is in vpps, and whose other layers are in PyTorch.

    Attributes:
        model: the middle.
        outer: the other layers.
    """

    model: vpps.Model
    outer: Any

    @abstractmethod
    def mixed_loss(self, net: Any, outer: Any, batch: Any) -> Any:
        """With the middle as a module."""

    @abstractmethod
    def loss_in_torch(self, weights: Mapping[str, Any], outer: Any, batch: Any) -> Any:
        """With the middle's weights by name."""

    @abstractmethod
    def batch(self, rng: np.random.Generator) -> Any:
        """A random mini-batch."""

    def batches(self, n: int) -> Iterator[Any]:
        """The same ones every time."""
        rng = np.random.default_rng(4)
        return (self.batch(rng) for _ in range(n))


class Tagger(MixedNetwork):
    """Linear layer, chain, classifier of each state; the chain multiplies with words of a table, if it has one."""

    def __init__(self, table: bool = False, sparse: bool = False) -> None:
        self.sparse = sparse
        self.chain = Chain(table=table)
        self.model = self.chain.model
        self.outer = torch.nn.ModuleList([torch.nn.Linear(3, INPUT), torch.nn.Linear(HIDDEN, 2)])

    def batch(self, rng: np.random.Generator) -> Any:
        length = int(rng.integers(1, 5))
        words = rng.integers(0, WORDS, length) if self.chain.words is not None else None
        return torch.tensor(rng.normal(size=(length, 3)), dtype=torch.float32), words, int(rng.integers(0, 2))

    def mixed_loss(self, net: Any, outer: Any, batch: Any) -> Any:
        x, words, label = batch
        graph = vpps.Graph()
        states = self.chain.states(graph, graph.rows(outer[0](x), grad=True), words)
        return F.cross_entropy(outer[1](torch.stack(net(graph, states))), torch.full((len(x),), label))

    def loss_in_torch(self, weights: Mapping[str, Any], outer: Any, batch: Any) -> Any:
        x, words, label = batch
        hidden = self.chain.in_torch(weights, outer[0](x), words, sparse=self.sparse)
        return F.cross_entropy(outer[1](hidden), torch.full((len(x),), label))


class TreeClassifier(MixedNetwork):
    """Embedding, `vpps.nn.NaryTreeLSTM` over random trees, classifier of all nodes."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=2)
        self.cells = vpps.nn.NaryTreeLSTM(self.model, INPUT, HIDDEN)
        self.outer = torch.nn.ModuleList([torch.nn.Embedding(WORDS, INPUT), torch.nn.Linear(HIDDEN, 3)])

    def batch(self, rng: np.random.Generator) -> Any:
        """Words of the leaves; then pairs of nodes, children of the next one; labels of all nodes."""
        leaves, merges = int(rng.integers(2, 6)), []
        roots = list(range(leaves))
        while len(roots) > 1:
            at = int(rng.integers(0, len(roots) - 1))
            merges.append((roots[at], roots[at + 1]))
            roots[at : at + 2] = [leaves + len(merges) - 1]
        labels = rng.integers(0, 3, leaves + len(merges))
        return torch.tensor(rng.integers(0, WORDS, leaves)), merges, torch.tensor(labels)

    def mixed_loss(self, net: Any, outer: Any, batch: Any) -> Any:
        words, merges, labels = batch
        graph = vpps.Graph()
        states = [self.cells.leaf(x) for x in graph.rows(outer[0](words), grad=True)]
        for left, right in merges:
            states.append(self.cells.inner(*states[left], *states[right]))
        hidden = torch.stack(net(graph, [h for h, _ in states]))
        return F.cross_entropy(outer[1](hidden), labels)

    def loss_in_torch(self, weights: Mapping[str, Any], outer: Any, batch: Any) -> Any:
        words, merges, labels = batch
        W, leaf, U, b = (weights[f"tree_lstm.{name}"] for name in ("W", "b_leaf", "U", "b"))
        states = []
        for x in outer[0](words):
            i, o, u = (W @ x + leaf).chunk(3)
            c = i.sigmoid() * u.tanh()
            states.append((o.sigmoid() * c.tanh(), c))
        for left, right in merges:
            (h, c), (k, d) = states[left], states[right]
            i, o, u, f, g = (U @ torch.cat([h, k]) + b).chunk(5)
            c = i.sigmoid() * u.tanh() + f.sigmoid() * c + g.sigmoid() * d
            states.append((o.sigmoid() * c.tanh(), c))
        return F.cross_entropy(outer[1](torch.stack([h for h, _ in states])), labels)


class Pooling(MixedNetwork):
    """A GRU of PyTorch's, attention over its states, classifier of the sequence; a batch has several lengths."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=3)
        self.K = self.model.parameter("attention/K", (HIDDEN, INPUT))
        self.query = self.model.parameter("attention/query", (HIDDEN,), init="normal")
        self.outer = torch.nn.ModuleList([torch.nn.GRU(3, INPUT), torch.nn.Linear(INPUT, 2)])

    @vpps.cell
    def pool(self, values: list[vpps.Expression]) -> vpps.Expression:
        """The mean of the values, weighted."""
        weights = vpps.softmax(vpps.each(lambda x: vpps.dot(vpps.tanh(self.K @ x), self.query), values))
        return vpps.sum(vpps.each(lambda weight, value: weight * value, weights, values))

    def batch(self, rng: np.random.Generator) -> Any:
        xs = [torch.tensor(rng.normal(size=(int(rng.integers(1, 5)), 3)), dtype=torch.float32) for _ in range(2)]
        return xs, torch.tensor(rng.integers(0, 2, 2))

    def mixed_loss(self, net: Any, outer: Any, batch: Any) -> Any:
        xs, labels = batch
        graph = vpps.Graph()
        pooled = [self.pool(list(graph.rows(outer[0](x)[0], grad=True))) for x in xs]
        return F.cross_entropy(outer[1](torch.stack(net(graph, pooled))), labels)

    def loss_in_torch(self, weights: Mapping[str, Any], outer: Any, batch: Any) -> Any:
        xs, labels = batch
        pooled = []
        for x in xs:
            states = outer[0](x)[0]
            scores = torch.tanh(states @ weights["attention.K"].T) @ weights["attention.query"]
            pooled.append(scores.softmax(0) @ states)
        return F.cross_entropy(outer[1](torch.stack(pooled)), labels)


MIXED: dict[str, type[MixedNetwork]] = {"tagger": Tagger, "trees": TreeClassifier, "attention": Pooling}
