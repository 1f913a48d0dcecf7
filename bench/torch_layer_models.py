"""The programs that `torch_layer.py` compares: encoder, tree layer and classifier, each in PyTorch or in vpps.

Import it after threads and cores are set: it imports torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from models import Trainer, TreesAsData, tree_states
from numpy.typing import NDArray
from peers.torch_treelstm import LevelBatched, PreparedTree, Schedule, TreeLayer, states_by_level, transposed
from torch import Tensor, nn
from trees import Tree

import vpps

TREE_LAYER = ("W", "b", "U", "bU")
Weights = Mapping[str, NDArray[np.float32]]


class Settings(NamedTuple):
    """Settings of all programs.

    Attributes:
        at: vertices with a loss: "nodes" or "roots".
        threads: vpps's virtual processors; PyTorch's threads if there is no vpps.
        torch_threads: threads of PyTorch's operators if there are virtual processors.
    """

    lr: float
    at: str
    threads: int
    torch_threads: int


class LabelledStates(NamedTuple):
    """h of the vertices that have a loss, their labels, and the number of trees."""

    h: Tensor
    labels: Tensor
    trees: int


class VppsAlone(Trainer):
    """The whole network in vpps."""

    def __init__(self, weights: Weights, settings: Settings) -> None:
        """Copy the weights into a model."""
        model = vpps.Model(seed=1)
        words = model.lookup("words", weights["words"].shape, init=weights["words"])
        p = {name: model.parameter(name, w.shape, init=w) for name, w in weights.items() if name != "words"}
        leaf_state, inner_state = tree_states(*(p[name] for name in TREE_LAYER))
        self.at_nodes = settings.at == "nodes"

        def loss(h, labels):
            return vpps.cross_entropy(p["Wo"] @ h + p["bo"], labels)

        def finish(h, c):
            """If every node has a loss, the loss is part of the cells."""
            vpps.scatter(h, c)
            vpps.push(loss(h, vpps.pull("label")) if self.at_nodes else h)

        @vpps.cell
        def leaf():
            finish(*leaf_state(vpps.tanh(p["We"] @ vpps.lookup(words, vpps.pull("word")) + p["be"])))

        @vpps.cell
        def inner():
            (h_left, c_left), (h_right, c_right) = vpps.gather()
            finish(*inner_state(h_left, c_left, h_right, c_right))

        self.cells, self._loss_of = [leaf, inner], loss
        self.trees = TreesAsData()
        self.handle = vpps.Handle(model, vpps.Adam(lr=settings.lr), target="cpu", vps=settings.threads)

    def prepare(self, tree: Tree) -> int:
        """Return the tree's number in the set of all trees."""
        return self.trees.add(tree)

    def graph(self, batch: Sequence[int]) -> tuple[vpps.Graph, vpps.Expression]:
        """Join the trees of a mini-batch; returns their graph with its loss."""
        trees = self.trees.set[batch]
        graph = vpps.Graph()
        inputs = {"word": trees["word"]} | ({"label": trees["label"]} if self.at_nodes else {})
        results = graph.map(self.cells, **trees.structure, inputs=inputs)
        losses = results if self.at_nodes else self._loss_of(results[trees.roots], trees["label"][trees.roots])
        return graph, vpps.sum(losses) * (1.0 / len(trees))


class Network(ABC):
    """Encoder and classifier in PyTorch, with a tree layer between them."""

    def __init__(self, weights: Weights, settings: Settings) -> None:
        """Copy the weights of encoder and classifier."""
        self.settings, self.threads = settings, settings.threads
        self.embedding = nn.Embedding(*weights["words"].shape, sparse=True)
        self.linear = _linear(weights["We"], weights["be"])
        self.classifier = _linear(weights["Wo"], weights["bo"])
        with torch.no_grad():
            self.embedding.weight.copy_(torch.from_numpy(weights["words"]))
        self._loss = torch.tensor(math.nan)

    def train_with(self, *layer: Tensor) -> None:
        """Make the optimizers of encoder, classifier and those parameters of the tree layer that PyTorch updates."""
        lr = self.settings.lr
        self.dense = [*self.linear.parameters(), *self.classifier.parameters(), *layer]
        self.optimizers = [
            torch.optim.Adam(self.dense, lr=lr, fused=True),
            torch.optim.SparseAdam(self.embedding.parameters(), lr=lr),
        ]

    @abstractmethod
    def prepare(self, tree: Tree) -> Any:
        """Convert a tree for `states`. Done once per tree, as in a data loader, outside the timing."""

    @abstractmethod
    def states(self, batch: Sequence[Any]) -> LabelledStates:
        """Run encoder and tree layer on a mini-batch."""

    def encode(self, words: Tensor) -> Tensor:
        """Return the leaves' vectors."""
        return torch.tanh(self.linear(self.embedding(words)))

    def step(self, batch: Sequence[Any]) -> None:
        """Train on one mini-batch."""
        torch.set_num_threads(self.threads)  # a setting of the process, which other contenders share
        h, labels, trees = self.states(batch)
        loss = F.cross_entropy(self.classifier(h), labels, reduction="sum") / trees
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for weight in self.dense:  # U in a batch of one-word trees: if unused, its gradient is zero, as in vpps
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        for optimizer in self.optimizers:
            optimizer.step()
        self._loss = loss.detach()

    def loss(self) -> float:
        """Return the loss of the latest step, before its update."""
        return self._loss.item()

    def close(self) -> None:  # noqa: B027
        """Free memory that Python does not manage."""


class Mixed(Network):
    """The network with its tree layer in vpps."""

    def __init__(self, weights: Weights, settings: Settings, inside: bool) -> None:
        """Copy the weights. inside: True if vpps updates its own weights; otherwise PyTorch updates all."""
        super().__init__(weights, settings)
        from vpps.torch import Module

        self.threads = settings.torch_threads
        model = vpps.Model(seed=1)
        leaf, inner = tree_states(*(model.parameter(n, weights[n].shape, init=weights[n]) for n in TREE_LAYER))
        self.cells = [vpps.cell(leaf), vpps.cell(inner)]
        self.trees = TreesAsData()
        rule = vpps.Adam(lr=settings.lr) if inside else None
        self.layer = Module(model, rule, target="cpu", vps=settings.threads)
        self.train_with(*[] if inside else self.layer.parameters())

    def prepare(self, tree: Tree) -> int:
        """Return the tree's number in the set of all trees."""
        return self.trees.add(tree)

    def states(self, batch: Sequence[int]) -> LabelledStates:
        trees = self.trees.set[batch]
        is_leaf = trees.kind == 0
        vectors = self.encode(_indices(trees["word"][is_leaf]))
        graph = vpps.Graph()
        x = graph.rows(vectors, grad=True)[np.cumsum(is_leaf) - 1]  # in vertex order; inner nodes get arbitrary rows
        h, _ = graph.map(self.cells, **trees.structure, inputs={"x": x})
        labels = trees["label"]
        if self.settings.at == "roots":
            h, labels = h[trees.roots], labels[trees.roots]
        return LabelledStates(self.layer(graph, h), _indices(labels), len(trees))

    def close(self) -> None:
        """Stop the virtual processors."""
        self.layer.handle.close()


class Outside(Network):
    """PyTorch's part of a `Mixed` step: no tree layer runs between encoder and classifier."""

    def __init__(self, weights: Weights, settings: Settings) -> None:
        """Copy the weights of encoder and classifier."""
        super().__init__(weights, settings)
        self.threads = settings.torch_threads
        self.train_with()

    def prepare(self, tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the leaves' words, and the labels."""
        words = np.array(tree.words)
        return words[words >= 0], np.array(tree.labels if self.settings.at == "nodes" else tree.labels[-1:])

    def states(self, batch: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> LabelledStates:
        words, labels = (torch.from_numpy(np.concatenate(column)) for column in zip(*batch, strict=True))
        h = _Ones.apply(self.encode(words), len(labels))  # type: ignore[no-untyped-call]
        return LabelledStates(h, labels, len(batch))


class _Ones(torch.autograd.Function):
    """Replaces a layer: returns ones, and ones as gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:
        ctx.shape = x.shape
        return x.new_ones(n, x.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].new_ones(ctx.shape), None


class TorchAlone(Network):
    """The network in PyTorch with a tree layer batched by level."""

    def __init__(self, weights: Weights, settings: Settings, manual: bool) -> None:
        """Copy the weights. manual: True for a hand-written backward, otherwise autograd's."""
        super().__init__(weights, settings)
        self.manual = manual
        self.layer = {name: nn.Parameter(torch.tensor(weights[name])) for name in TREE_LAYER}
        self.train_with(*self.layer.values())
        self._U_t = torch.empty_like(self.layer["U"].t(), memory_format=torch.contiguous_format)

    def prepare(self, tree: Tree) -> PreparedTree:
        """Return the tree in breadth-first order."""
        return LevelBatched.prepare(tree)

    def states(self, batch: Sequence[PreparedTree]) -> LabelledStates:
        s = Schedule.of(batch)
        x = self.encode(s.words)
        if self.manual:
            h = _LevelBatchedLayer.apply(x, *self.layer.values(), s, self._U_t)  # type: ignore[no-untyped-call]
        else:
            h = states_by_level(self.layer, x, s, torch.from_numpy(s.row_order()))
        n = len(h) if self.settings.at == "nodes" else len(batch)  # roots come first
        return LabelledStates(h[:n], s.labels[:n], len(batch))


class _LevelBatchedLayer(torch.autograd.Function):
    """The layer `TreeLayer`, with the products for the gradients of weights and inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor, U: Tensor, bU: Tensor, s: Schedule, U_t: Tensor) -> Tensor:
        w = dict(zip(TREE_LAYER, (W, b, U, bU), strict=True))
        ctx.x, ctx.W, ctx.layer = x, W, TreeLayer(w, x, s, transposed(U, s.inner[-1], U_t))
        return ctx.layer.h.detach()  # type: ignore[no-any-return]  # h itself and ctx would refer to each other

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        layer = ctx.layer
        layer.backward(grads[0].clone())
        d_leaf, d_inner = layer.d_leaf_gates, layer.d_gates
        return (
            d_leaf @ ctx.W, d_leaf.t() @ ctx.x, d_leaf.sum(0), d_inner.t() @ layer.children_h, d_inner.sum(0),
            None, None,
        )  # fmt: skip


def _indices(column: NDArray[np.integer[Any]]) -> Tensor:
    """Convert int32 indices for PyTorch."""
    return torch.from_numpy(column.astype(np.int64))


def _linear(matrix: NDArray[np.float32], bias: NDArray[np.float32]) -> nn.Linear:
    """Return a layer with a copy of these weights."""
    linear = nn.Linear(*matrix.shape[::-1])
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(matrix))
        linear.bias.copy_(torch.from_numpy(bias))
    return linear


PROGRAMS: dict[str, Callable[[Weights, Settings], Any]] = {
    "vpps": VppsAlone,
    "mixed": lambda weights, settings: Mixed(weights, settings, inside=True),
    "mixed-torch-adam": lambda weights, settings: Mixed(weights, settings, inside=False),
    "outside": Outside,
    "torch-manual": lambda weights, settings: TorchAlone(weights, settings, manual=True),
    "torch-autograd": lambda weights, settings: TorchAlone(weights, settings, manual=False),
}
