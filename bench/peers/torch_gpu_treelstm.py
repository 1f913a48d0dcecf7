"""Peers: the binary Tree-LSTM in PyTorch on a GPU (or on a CPU, to check it), training with SGD.

Four programs with one interface:

- "pernode": one node at a time, as define-by-run programs are written; autograd does the backward pass.
- "autograd": batched by level over the whole mini-batch, a product per level; autograd does the backward pass.
- "manual": batched by level with a hand-written backward, which needs a third of the kernels. The elementwise part of a
  level is one function, compiled by torch.compile on request.
- "graphs": "manual" captured into CUDA graphs, replayed: the host only fills in indices. A captured graph has fixed
  sizes, so mini-batches with the same number of levels, rounded up to a multiple of 4, share a graph. Every level is
  padded to its largest size in the run's mini-batches that share it, rounded up to a multiple of 8. A program that sees
  its data for the first time could not know these sizes. `padding` is rows computed over rows needed.

In all of them, products are fused over gates and children, word vectors are gathered once and updated by one index_add,
and nothing in a step waits for the device. In bf16, the first two run under autocast; the others store as autocast
would: everything is bf16 except weights, losses, the gradients of both, and sums of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from trees import Tree

from peers.torch_gpu import Captured, Losses, Uploader
from peers.torch_treelstm import PreparedTree, Schedule, TorchTreeLstm, forward_by_level

MODES = ("pernode", "autograd", "manual", "graphs")
_LEVELS_STEP, _ROWS_STEP = 4, 8  # sizes of captured graphs are rounded up to these


class _GpuTreeLstm:
    """Shared by the programs: weights (see `treelstm.py`), upload and loss."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], lr: float, device: str, bf16: bool) -> None:
        self.device, self.lr = torch.device(device), lr
        self.weights = {name: torch.tensor(array, device=self.device) for name, array in weights.items()}
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # for products
        self.hidden = weights["Wo"].shape[1]
        self._upload = Uploader(self.device)
        self._losses = Losses(self.device)

    def plan(self, batches: Sequence[Sequence[NamedTuple]]) -> None:
        """Look at all mini-batches of the run in advance."""

    def loss(self) -> float:
        """Return the loss of the latest step, before its update; waits for it."""
        return self._losses.latest()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class _AutogradTreeLstm(_GpuTreeLstm):
    def __init__(self, weights: Mapping[str, NDArray[np.float32]], lr: float, device: str, bf16: bool) -> None:
        super().__init__(weights, lr, device, bf16)
        dense = [weight.requires_grad_() for name, weight in self.weights.items() if name != "words"]
        self.optimizer = torch.optim.SGD(dense, lr=lr, fused=True)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype != torch.float32)

    def _learn(self, loss: Tensor, words: Tensor, x: Tensor) -> None:
        """Run backward and the update; x is the word vectors of this step, a leaf of the graph."""
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        assert x.grad is not None
        self.weights["words"].index_add_(0, words, x.grad, alpha=-self.lr)
        self._losses.put(loss.detach())


class PerNode(_AutogradTreeLstm):
    """Computes one node at a time."""

    @staticmethod
    def prepare(tree: Tree) -> Tree:
        """Return the tree unchanged."""
        return tree

    def step(self, batch: Sequence[Tree]) -> None:
        """Train on one mini-batch."""
        w = self.weights
        labels = np.concatenate([tree.labels for tree in batch])
        words = np.concatenate([tree.words for tree in batch])
        words = words[words >= 0]
        labels, words = self._upload([labels, words]).split([len(labels), len(words)])
        x = w["words"].index_select(0, words).requires_grad_()
        vectors = iter(x.split(1))
        hs = []
        with self._autocast():
            for tree in batch:
                states: list[tuple[Tensor, Tensor]] = []
                for left, right in zip(tree.left, tree.right, strict=True):
                    if left < 0:
                        i, o, u = F.linear(next(vectors), w["W"], w["b"]).chunk(3, 1)
                        c = torch.sigmoid(i) * torch.tanh(u)
                    else:
                        (c_left, h_left), (c_right, h_right) = states[left], states[right]
                        gates = F.linear(torch.cat((h_left, h_right), 1), w["U"], w["bU"])
                        i, f_left, f_right, o, u = gates.chunk(5, 1)
                        c = torch.sigmoid(i) * torch.tanh(u)
                        c = c.addcmul(torch.sigmoid(f_left), c_left).addcmul(torch.sigmoid(f_right), c_right)
                    states.append((c, torch.sigmoid(o) * torch.tanh(c)))
                hs += [h for _, h in states]
            logits = F.linear(torch.cat(hs), w["Wo"], w["bo"]).float()
        self._learn(F.cross_entropy(logits, labels, reduction="sum") / len(batch), words, x)


class Autograd(_AutogradTreeLstm):
    """Levels counted from the roots: the children of a level are, pair by pair, the rows of the next one."""

    @staticmethod
    def prepare(tree: Tree) -> PreparedTree:
        """Bring one tree into breadth-first order."""
        return TorchTreeLstm.prepare(tree)

    def step(self, batch: Sequence[PreparedTree]) -> None:
        """Train on one mini-batch."""
        s = Schedule.of(batch)
        parts = [s.words.numpy(), s.labels.numpy(), s.row_order()]
        words, labels, order = self._upload(parts).split([len(part) for part in parts])
        x = self.weights["words"].index_select(0, words).requires_grad_()
        with self._autocast():
            logits = forward_by_level(self.weights, x, s, order).float()
        self._learn(F.cross_entropy(logits, labels, reduction="sum") / len(batch), words, x)


class Nodes(NamedTuple):
    """A tree with n nodes in post-order. Made once per tree, as a data loader would, outside the timing."""

    heights: NDArray[np.int64]
    words: NDArray[np.int64]  # -1: inner node
    labels: NDArray[np.int64]
    children: NDArray[np.int64]  # [n, 2], -1: leaf


class Layout(NamedTuple):
    """A mini-batch by levels counted from the leaves: the number of rows of each, and the integers of the step.

    integers: words of the leaves; labels of all rows, -1 in padding; rows of inner nodes' children, pair by pair; place
    of every row in those pairs, one past their end for roots and padding; number of trees.
    """

    sizes: list[int]
    integers: list[NDArray[np.int64]]


def level_sizes(batch: Sequence[Nodes]) -> NDArray[np.int64]:
    """Return the rows of every level, leaves first."""
    return np.bincount(np.concatenate([tree.heights for tree in batch]))


def lay_out(batch: Sequence[Nodes], capacity: Sequence[int] | None = None) -> Layout:
    """Order the rows by level, each level padded to its capacity."""
    heights, words, labels, children = (np.concatenate(column) for column in zip(*batch, strict=True))
    nodes = [len(tree.heights) for tree in batch]
    children = children + np.repeat(np.cumsum([0, *nodes[:-1]]), nodes)[:, None]
    order = np.argsort(heights, kind="stable")
    sizes = np.bincount(heights)
    capacities = sizes if capacity is None else np.array(capacity)
    begins = np.cumsum(capacities) - capacities
    # The place of a node: its level's first row plus the number of earlier nodes of its level.
    rows = np.empty(len(heights), np.int64)
    rows[order] = np.arange(len(order)) + np.repeat((begins[: len(sizes)] - (np.cumsum(sizes) - sizes)), sizes)

    total, leaves = int(capacities.sum()), int(capacities[0])
    inner = heights > 0
    all_words, all_labels = np.zeros(leaves, np.int64), np.full(total, -1)
    all_children = np.zeros((total - leaves, 2), np.int64)  # padding reads row 0, and no row reads padding
    all_words[rows[~inner]] = words[~inner]
    all_labels[rows] = labels
    pairs = rows[children[inner]]
    all_children[rows[inner] - leaves] = pairs
    places = np.full(total, 2 * (total - leaves))
    places[pairs] = 2 * (rows[inner] - leaves)[:, None] + np.arange(2)
    return Layout(
        capacities.tolist(), [all_words, all_labels, all_children.ravel(), places, np.array([len(batch)], np.int64)]
    )


class Manual(_GpuTreeLstm):
    """Levels counted from the leaves, with a hand-written backward. Each level is contiguous; children are looked up by
    index."""

    def __init__(
        self, weights: Mapping[str, NDArray[np.float32]], lr: float, device: str, bf16: bool, compiled: bool
    ) -> None:
        super().__init__(weights, lr, device, bf16)
        if compiled:
            # Views are compiled for the tensors they belong to, more often than the default limit allows. Beyond the
            # limit, functions would silently run uncompiled.
            torch._dynamo.config.recompile_limit = 64
            torch._dynamo.config.fail_on_recompile_limit_hit = True
        cells = _leaf_forward, _leaf_backward, _inner_forward, _inner_backward
        self._cells: list[Callable[..., None]] = [torch.compile(f, dynamic=True) if compiled else f for f in cells]

    @staticmethod
    def prepare(tree: Tree) -> Nodes:
        """Return heights and children as arrays."""
        heights: list[int] = []
        for left, right in zip(tree.left, tree.right, strict=True):
            heights.append(0 if left < 0 else 1 + max(heights[left], heights[right]))
        children = np.stack((tree.left, tree.right), 1)
        return Nodes(np.array(heights), np.array(tree.words), np.array(tree.labels), children)

    def step(self, batch: Sequence[Nodes]) -> None:
        """Train on one mini-batch."""
        sizes, integers = lay_out(batch)
        self._losses.put(self._train(sizes, self._upload(integers)))

    @torch.no_grad()
    def _train(self, sizes: Sequence[int], integers: Tensor) -> Tensor:
        masters, hidden = self.weights, self.hidden
        w = {name: weight.to(self.dtype) for name, weight in masters.items() if name != "words"}
        empty = partial(torch.empty, dtype=self.dtype, device=self.device)
        leaf_forward, leaf_backward, inner_forward, inner_backward = self._cells
        rows, leaves = sum(sizes), sizes[0]
        inner = rows - leaves
        words, labels, children, places, trees = integers.split([leaves, rows, 2 * inner, rows, 1])
        begins = np.cumsum([0, *sizes]).tolist()
        levels = [(slice(b, e), slice(b - leaves, e - leaves)) for b, e in pairwise(begins[1:])]

        # Forward: row j of pair_h and pair_c is the two children of inner node j.
        c, h = (empty(rows, hidden) for _ in range(2))
        pair_c, pair_h = (empty(2 * inner, hidden) for _ in range(2))
        gates = empty(inner, 5 * hidden)
        x = masters["words"].index_select(0, words).to(self.dtype)
        leaf_gates = torch.addmm(w["b"], x, w["W"].t())
        leaf_forward(leaf_gates, c[:leaves], h[:leaves])
        flat_h, flat_c = pair_h.view(inner, 2 * hidden), pair_c.view(inner, 2 * hidden)
        for own, node in levels:
            pair = slice(2 * node.start, 2 * node.stop)
            torch.index_select(h, 0, children[pair], out=pair_h[pair])
            torch.index_select(c, 0, children[pair], out=pair_c[pair])
            torch.addmm(w["bU"], flat_h[node], w["U"].t(), out=gates[node])
            inner_forward(gates[node], flat_c[node], c[own], h[own])
        log_p = F.log_softmax(torch.addmm(w["bo"], h, w["Wo"].t()).float(), 1)
        scale = (labels >= 0) / trees  # factor for a row's loss: 0 in padding
        labels = labels.clamp(min=0)[:, None]
        loss = -(log_p.gather(1, labels)[:, 0] * scale).sum()

        # Backward, top level first: the children's gradients are also stored pair by pair, followed by a row of zeros.
        d_logits = log_p.exp_()
        d_logits.scatter_add_(1, labels, d_logits.new_full((), -1.0).expand(rows, 1)).mul_(scale[:, None])
        d_logits = d_logits.to(self.dtype)
        d_h = d_logits @ w["Wo"]
        d_pair_h, d_pair_c = (empty(2 * inner + 1, hidden) for _ in range(2))
        d_pair_h[-1:].zero_()
        d_pair_c[-1:].zero_()
        flat_d_h, flat_d_c = d_pair_h[:-1].view(inner, 2 * hidden), d_pair_c[:-1].view(inner, 2 * hidden)
        d_gates = torch.empty_like(gates)
        for own, node in reversed(levels):
            from_parent = d_pair_h.index_select(0, places[own]), d_pair_c.index_select(0, places[own])
            inner_backward(gates[node], flat_c[node], c[own], d_h[own], *from_parent, d_gates[node], flat_d_c[node])
            torch.mm(d_gates[node], w["U"], out=flat_d_h[node])
        from_parent = d_pair_h.index_select(0, places[:leaves]), d_pair_c.index_select(0, places[:leaves])
        d_leaf_gates = torch.empty_like(leaf_gates)
        leaf_backward(leaf_gates, c[:leaves], d_h[:leaves], *from_parent, d_leaf_gates)

        d_x = d_leaf_gates @ w["W"]
        for matrix, bias, d_out, operand in (
            ("W", "b", d_leaf_gates, x), ("U", "bU", d_gates, flat_h), ("Wo", "bo", d_logits, h),
        ):  # fmt: skip
            if self.dtype == torch.float32:
                masters[matrix].addmm_(d_out.t(), operand, alpha=-self.lr)
            else:
                masters[matrix].add_(d_out.t() @ operand, alpha=-self.lr)
            masters[bias].sub_(d_out.sum(0, dtype=torch.float32), alpha=self.lr)
        masters["words"].index_add_(0, words, d_x.float(), alpha=-self.lr)
        return loss


class Graphs(Manual):
    """`Manual` in CUDA graphs, by padded sizes. On a CPU: padded, without graphs."""

    def __init__(
        self, weights: Mapping[str, NDArray[np.float32]], lr: float, device: str, bf16: bool, compiled: bool
    ) -> None:
        super().__init__(weights, lr, device, bf16, compiled)
        self._capacities: dict[int, list[int]] = {}  # by rounded number of levels
        self._graphs: dict[int, tuple[Tensor, Captured]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.padding = math.nan

    def plan(self, batches: Sequence[Sequence[Nodes]]) -> None:
        """Choose capacities, and capture a graph for each."""
        needed = computed = 0
        by_key: dict[int, list[NDArray[np.int64]]] = {}
        for batch in batches:
            sizes = level_sizes(batch)
            by_key.setdefault(_rounded(len(sizes), _LEVELS_STEP), []).append(sizes)
        for key, found in by_key.items():
            largest = np.max([np.pad(sizes, (0, key - len(sizes))) for sizes in found], 0)
            self._capacities[key] = [max(_ROWS_STEP, _rounded(size, _ROWS_STEP)) for size in largest.tolist()]
            needed += sum(int(sizes.sum()) for sizes in found)
            computed += len(found) * sum(self._capacities[key])
        self.padding = computed / needed
        for key, capacity in self._capacities.items():
            rows, leaves = sum(capacity), capacity[0]
            # Only padding: labels are -1, so that warm-up runs change no weight.
            places = np.full(rows, 2 * (rows - leaves))
            nothing = [np.zeros(leaves, np.int64), np.full(rows, -1), np.zeros(2 * (rows - leaves), np.int64), places]
            integers = self._upload([*nothing, np.ones(1, np.int64)])
            train = Captured(lambda c=capacity, i=integers: self._train(c, i), self.device, self._pool)
            self._graphs[key] = integers, train

    def step(self, batch: Sequence[Nodes]) -> None:
        """Train on one of the planned mini-batches."""
        key = _rounded(int(max(tree.heights[-1] for tree in batch)) + 1, _LEVELS_STEP)
        integers, train = self._graphs[key]
        self._upload(lay_out(batch, self._capacities[key]).integers, integers)
        self._losses.put(train())


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


# ---- elementwise parts of a level, each a single kernel if compiled; the last arguments receive results


def _leaf_forward(gates: Tensor, c: Tensor, h: Tensor) -> None:
    i, o, u = gates.chunk(3, 1)
    own = torch.sigmoid(i) * torch.tanh(u)
    c.copy_(own)
    h.copy_(torch.sigmoid(o) * torch.tanh(own))


def _inner_forward(gates: Tensor, children_c: Tensor, c: Tensor, h: Tensor) -> None:
    i, f_left, f_right, o, u = gates.chunk(5, 1)
    c_left, c_right = children_c.chunk(2, 1)
    own = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * c_left + torch.sigmoid(f_right) * c_right
    c.copy_(own)
    h.copy_(torch.sigmoid(o) * torch.tanh(own))


def _leaf_backward(gates: Tensor, c: Tensor, d_h: Tensor, more_d_h: Tensor, d_c: Tensor, d_gates: Tensor) -> None:
    i, o, u = gates.chunk(3, 1)
    i, o, u, t = torch.sigmoid(i), torch.sigmoid(o), torch.tanh(u), torch.tanh(c)
    d_h = d_h + more_d_h
    d_c = d_c + d_h * o * (1 - t * t)
    d_gates.copy_(torch.cat((d_c * u * i * (1 - i), d_h * t * o * (1 - o), d_c * i * (1 - u * u)), 1))


def _inner_backward(
    gates: Tensor, children_c: Tensor, c: Tensor, d_h: Tensor, more_d_h: Tensor, d_c: Tensor,
    d_gates: Tensor, d_children_c: Tensor,
) -> None:  # fmt: skip
    i, f_left, f_right, o, u = gates.chunk(5, 1)
    c_left, c_right = children_c.chunk(2, 1)
    i, f_left, f_right, o = torch.sigmoid(i), torch.sigmoid(f_left), torch.sigmoid(f_right), torch.sigmoid(o)
    u, t = torch.tanh(u), torch.tanh(c)
    d_h = d_h + more_d_h
    d_c = d_c + d_h * o * (1 - t * t)
    d_i, d_o, d_u = d_c * u * i * (1 - i), d_h * t * o * (1 - o), d_c * i * (1 - u * u)
    d_left, d_right = d_c * c_left * f_left * (1 - f_left), d_c * c_right * f_right * (1 - f_right)
    d_gates.copy_(torch.cat((d_i, d_left, d_right, d_o, d_u), 1))
    d_children_c.copy_(torch.cat((d_c * f_left, d_c * f_right), 1))


def make(
    mode: str, weights: Mapping[str, NDArray[np.float32]], lr: float, device: str, compiled: bool, bf16: bool
) -> PerNode | Autograd | Manual:
    """Return the program for one of MODES, starting from a copy of the weights."""
    if mode == "pernode":
        return PerNode(weights, lr, device, bf16)
    if mode == "autograd":
        return Autograd(weights, lr, device, bf16)
    return (Graphs if mode == "graphs" else Manual)(weights, lr, device, bf16, compiled)
