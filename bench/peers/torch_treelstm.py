"""Peer: the binary Tree-LSTM in PyTorch, batched by level over the whole mini-batch.

Three programs with one interface:

- "autograd": a good engineer's first version. One fused product per level; autograd does the backward pass.
- "manual": the engineer's fast version. The backward is hand-written: one product per level for the activations'
  gradients, one product per matrix for all weight gradients; with SGD, that product adds straight into the weights.
- "manual-distinct": "manual", but each word's leaf is computed only once, as `graph.map(distinct=True)` does.

In bf16, products run under autocast. Under autocast, PyTorch uses float32 for products that are in place or write to
existing memory, so the programs compute the product first.

All number the nodes breadth-first over the whole batch. The children of a level are then, pair by pair, exactly the
rows of the next level: `h[next level].view(-1, 2 * H)` *is* concat(h_left, h_right), with no copy and no index.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from trees import Tree


class PreparedTree(NamedTuple):
    """A tree in breadth-first order. Made once per tree, as in a data loader, outside the timing."""

    depths: NDArray[np.int64]
    words: NDArray[np.int64]  # -1: inner node
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A mini-batch by levels, roots first. Rows are numbered level by level; inner nodes have a second numbering.

    Level d is rows[d]:rows[d + 1]; its inner nodes are inner[d]:inner[d + 1], and their children are level d + 1.
    """

    rows: list[int]
    inner: list[int]
    inner_rows: Tensor  # each inner node's row
    leaf_rows: Tensor  # each leaf's row
    words: Tensor  # of the leaves
    labels: Tensor  # of all rows

    @classmethod
    def of(cls, trees: Sequence[PreparedTree]) -> Schedule:
        """Merge the trees. Trees keep their order inside a level, so a level's children remain pair by pair."""
        depths, words, labels = (np.concatenate(column) for column in zip(*trees, strict=True))
        order = np.argsort(depths, kind="stable")
        words = words[order]
        is_inner = words < 0
        leaf_rows = np.flatnonzero(~is_inner)
        rows = np.concatenate(([0], np.cumsum(np.bincount(depths))))
        inner = np.concatenate(([0], np.cumsum(is_inner)))[rows]
        return cls(
            rows=rows.tolist(),
            inner=inner.tolist(),
            inner_rows=torch.from_numpy(np.flatnonzero(is_inner)),
            leaf_rows=torch.from_numpy(leaf_rows),
            words=torch.from_numpy(words[leaf_rows]),
            labels=torch.from_numpy(labels[order]),
        )

    def row_order(self) -> NDArray[np.int64]:
        """Return each row's position in the order "inner nodes of its level, then leaves of its level"."""
        rows, inner = np.array(self.rows), np.array(self.inner)
        leaf = rows - inner
        order = np.empty(rows[-1], np.int64)
        order[self.inner_rows.numpy()] = np.arange(inner[-1]) - np.repeat(inner[:-1], np.diff(inner))
        order[self.leaf_rows.numpy()] = np.arange(leaf[-1]) + np.repeat(np.diff(inner) - leaf[:-1], np.diff(leaf))
        return order


class LevelBatched(ABC):
    """Base class of the programs for trees."""

    recurrent: ClassVar[str]
    """Name of the matrix that multiplies children."""

    def __init__(
        self,
        weights: Mapping[str, NDArray[np.float32]],
        mode: str,
        optimizer: str,
        lr: float,
        threads: int,
        precision: str = "float32",
    ) -> None:
        """Copy the weights. mode: "autograd", "manual" or "manual-distinct"; optimizer: "sgd" or "adam"."""
        torch.set_num_threads(threads)
        self.precision = precision
        self.mode, self.optimizer, self.lr = mode, optimizer, lr
        self.weights = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in weights.items()}
        matrix, words = self.weights[self.recurrent], self.weights["words"]
        self._copy = torch.empty_like(matrix.t(), memory_format=torch.contiguous_format)
        dense = [weight for weight in self.weights.values() if weight is not words]
        if mode.startswith("manual"):  # gradients are written in place
            for weight in dense:
                weight.grad = torch.zeros_like(weight)
        # Embedding rows that a batch does not use are not changed, nor are their moments, as in vpps.
        self.optimizers: list[torch.optim.Optimizer]
        if optimizer == "sgd":
            self.optimizers = [torch.optim.SGD(dense, lr=lr, fused=True), torch.optim.SGD([words], lr=lr)]
        else:
            self.optimizers = [torch.optim.Adam(dense, lr=lr, fused=True), torch.optim.SparseAdam([words], lr=lr)]
        self._loss = torch.tensor(math.nan)

    @staticmethod
    def prepare(tree: Tree) -> PreparedTree:
        """Bring one tree into breadth-first order."""
        order, depths = [len(tree.labels) - 1], [0]
        for node, depth in zip(order, depths, strict=False):  # the lists grow during the loop
            if tree.left[node] >= 0:
                order += tree.left[node], tree.right[node]
                depths += depth + 1, depth + 1
        return PreparedTree(np.array(depths), np.array(tree.words)[order], np.array(tree.labels)[order])

    def step(self, batch: Sequence[PreparedTree]) -> None:
        """Train on one mini-batch."""
        self.run(self.graph(batch))

    @staticmethod
    def graph(batch: Sequence[PreparedTree]) -> Schedule:
        """Do the host's work for a mini-batch, before any computation."""
        return Schedule.of(batch)

    def run(self, schedule: Schedule) -> None:
        """Run the rest of a step."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            if self.mode.startswith("manual"):
                self._manual_step(schedule)
                return
            loss = self._autograd_loss(schedule)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for weight in self.weights.values():  # U in a batch of one-word trees: unused means a zero gradient, as in vpps
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        for optimizer in self.optimizers:
            optimizer.step()
        self._loss = loss.detach()

    @abstractmethod
    def _autograd_loss(self, s: Schedule) -> Tensor:
        """Return the loss of the forward pass."""

    @abstractmethod
    def _manual_step(self, s: Schedule) -> None:
        """Run forward, a hand-written backward, and the update."""

    def _transposed(self, inner: int) -> Tensor:
        """Call `transposed` on the recurrent matrix."""
        return transposed(self.weights[self.recurrent], inner, self._copy)

    def _update(self, matrix: str, bias: str, d_out: Tensor, x: Tensor) -> None:
        """Compute weight gradients of out = x @ matrix.T + bias: applied at once for SGD, stored in .grad for Adam."""
        m, b = self.weights[matrix], self.weights[bias]
        if self.optimizer == "sgd":
            if self.precision == "bf16":
                m.sub_(d_out.t() @ x, alpha=self.lr)
            else:
                m.addmm_(d_out.t(), x, alpha=-self.lr)
            b.sub_(d_out.sum(0), alpha=self.lr)
        elif self.precision == "bf16":
            m.grad.copy_(d_out.t() @ x)
            torch.sum(d_out, 0, out=b.grad)
        else:
            torch.mm(d_out.t(), x, out=m.grad)
            torch.sum(d_out, 0, out=b.grad)

    def loss(self) -> float:
        """Return the loss of the latest step, before its update."""
        return self._loss.item()

    def close(self) -> None:  # noqa: B027
        """Do nothing: there is nothing to release."""


def transposed(matrix: Tensor, inner: int, copy: Tensor) -> Tensor:
    """Return the transposed recurrent matrix, in the best layout for that many inner nodes. MKL multiplies 16 to 64
    rows by a plain matrix up to twice as fast as by a transposed one; copying the matrix costs a few such products."""
    return copy.copy_(matrix.t()) if inner > 200 else matrix.t()


def forward_by_level(w: Mapping[str, Tensor], x: Tensor, s: Schedule, row_order: Tensor) -> Tensor:
    """Return the logits of all rows, from the arguments of `states_by_level`; autograd does the backward pass."""
    return F.linear(states_by_level(w, x, s, row_order), w["Wo"], w["bo"])


def states_by_level(w: Mapping[str, Tensor], x: Tensor, s: Schedule, row_order: Tensor) -> Tensor:
    """Return h of all rows.

    Args:
        x: vectors of the leaves' words.
        row_order: `Schedule.row_order` on the device of the weights.
    """
    hidden = len(w["bU"]) // 5
    gates = F.linear(x, w["W"], w["b"])
    i, o = torch.sigmoid(gates[:, : 2 * hidden]).chunk(2, 1)
    leaf_c = i * torch.tanh(gates[:, 2 * hidden :])
    leaf_h = o * torch.tanh(leaf_c)
    # Each level has its inner nodes first, then its leaves; one index operation brings them into row order.
    sizes = np.diff(s.rows).tolist()
    leaves = (np.diff(s.rows) - np.diff(s.inner)).tolist()
    leaf_cs, leaf_hs = leaf_c.split(leaves), leaf_h.split(leaves)
    c, h = leaf_cs[-1], leaf_hs[-1]  # the deepest level has leaves only
    order = row_order.split(sizes)
    hs = [h]
    for level in reversed(range(len(sizes) - 1)):
        gates = F.linear(h.view(-1, 2 * hidden), w["U"], w["bU"])
        i, f_left, f_right, o = torch.sigmoid(gates[:, : 4 * hidden]).chunk(4, 1)
        c_left, c_right = c.view(-1, 2 * hidden).chunk(2, 1)
        c = torch.addcmul(i * torch.tanh(gates[:, 4 * hidden :]), f_left, c_left).addcmul(f_right, c_right)
        h = o * torch.tanh(c)
        if leaves[level]:
            c = torch.cat((c, leaf_cs[level])).index_select(0, order[level])
            h = torch.cat((h, leaf_hs[level])).index_select(0, order[level])
        hs.append(h)
    return torch.cat(hs[::-1])


class TorchTreeLstm(LevelBatched):
    """Trains the Tree-LSTM whose equations and weights are in `treelstm.py`."""

    recurrent = "U"

    def _autograd_loss(self, s: Schedule) -> Tensor:
        w = self.weights
        x = F.embedding(s.words, w["words"], sparse=True)
        logits = forward_by_level(w, x, s, torch.from_numpy(s.row_order()))
        return F.cross_entropy(logits, s.labels, reduction="sum") / s.rows[1]

    @torch.no_grad()
    def _manual_step(self, s: Schedule) -> None:
        w = self.weights
        batch, rows = s.rows[1], s.rows[-1]
        words, leaf_of = s.words, None
        if self.mode == "manual-distinct":
            words, leaf_of = map(torch.from_numpy, np.unique(s.words.numpy(), return_inverse=True))
        x = w["words"].index_select(0, words)
        layer = TreeLayer(w, x, s, self._transposed(s.inner[-1]), leaf_of)
        h = layer.h
        log_p = F.log_softmax(torch.addmm(w["bo"], h, w["Wo"].t()).float(), 1)
        self._loss = F.nll_loss(log_p, s.labels, reduction="sum") / batch

        d_logits = log_p.exp_()
        d_logits.scatter_add_(1, s.labels[:, None], d_logits.new_full((rows, 1), -1.0)).mul_(1.0 / batch)
        layer.backward((d_logits @ w["Wo"]).float())

        d_x = (layer.d_leaf_gates @ w["W"]).float()
        self._update("W", "b", layer.d_leaf_gates, x)
        self._update("U", "bU", layer.d_gates, layer.children_h)
        self._update("Wo", "bo", d_logits, h)
        if self.optimizer == "sgd":
            w["words"].index_add_(0, words, d_x, alpha=-self.lr)
        else:
            w["words"].grad = torch.sparse_coo_tensor(words[None], d_x, w["words"].shape, check_invariants=False)
            for optimizer in self.optimizers:
                optimizer.step()


class TreeLayer:
    """The states of a mini-batch's trees, with a hand-written backward that leaves the last products to the caller.

    Attributes:
        h: (rows, H), the layer's result.
        children_h: (inner nodes, 2 H), the vectors that U multiplies; a view of h.
        d_leaf_gates, d_gates: after `backward`, gradients with respect to W x + b (leaves, 3 H) and U children_h + bU.
    """

    d_leaf_gates: Tensor
    d_gates: Tensor

    def __init__(
        self, w: Mapping[str, Tensor], x: Tensor, s: Schedule, U_t: Tensor, leaf_of: Tensor | None = None
    ) -> None:
        """Run forward. Activated gates are kept for backward.

        Args:
            x: (leaves, embedding).
            U_t: U transposed.
            leaf_of: (leaves,) row of x per leaf, if leaves share rows.
        """
        self.w, self.s, self.leaf_of = w, s, leaf_of
        self.hidden = hidden = U_t.shape[0] // 2
        batch, rows, inner = s.rows[1], s.rows[-1], s.inner[-1]
        # All leaves, then level by level from the deepest. Row j of children_h and pair_c is the two children of inner
        # node j.
        c, h = torch.empty(rows, hidden), torch.empty(rows, hidden)
        pair_c, children_h = c[batch:].view(-1, 2, hidden), h[batch:].view(-1, 2 * hidden)
        leaf_gates = torch.addmm(w["b"], x, w["W"].t()).float().view(-1, 3, hidden)
        leaf_gates[:, :2].sigmoid_()
        leaf_gates[:, 2].tanh_()
        i, o, u = leaf_gates.unbind(1)
        leaf_c = i * u
        leaf_tanh_c = leaf_c.tanh()
        leaf_h = o * leaf_tanh_c
        c.index_copy_(0, s.leaf_rows, leaf_c if leaf_of is None else leaf_c.index_select(0, leaf_of))
        h.index_copy_(0, s.leaf_rows, leaf_h if leaf_of is None else leaf_h.index_select(0, leaf_of))
        gates, tanh_c = torch.empty(inner, 5, hidden), torch.empty(inner, hidden)
        flat_gates, sigmoids = gates.view(-1, 5 * hidden), gates[:, :4]
        forward = self._levels(
            s.inner_rows, children_h, *pair_c.unbind(1), flat_gates, sigmoids, *gates.unbind(1), tanh_c
        )
        for own, level_h, c_left, c_right, out, sigmoid, i, f_left, f_right, o, u, tc in reversed(forward):
            if torch.is_autocast_enabled("cpu"):
                out.copy_(torch.addmm(w["bU"], level_h, U_t))
            else:
                torch.addmm(w["bU"], level_h, U_t, out=out)
            sigmoid.sigmoid_()
            u.tanh_()
            own_c = (i * u).addcmul_(f_left, c_left).addcmul_(f_right, c_right)
            torch.tanh(own_c, out=tc)
            c.index_copy_(0, own, own_c)
            h.index_copy_(0, own, o * tc)
        self.h, self.children_h, self.pair_c = h, children_h, pair_c
        self.leaf_gates, self.leaf_tanh_c, self.gates, self.tanh_c = leaf_gates, leaf_tanh_c, gates, tanh_c

    def backward(self, d_h: Tensor) -> None:
        """Run backward, roots first, from the gradient with respect to h, which is overwritten. Every child has one
        parent, which writes (c) or adds to (h) the child's row of the gradient."""
        s, hidden, gates = self.s, self.hidden, self.gates
        batch = s.rows[1]
        d_c = torch.empty_like(d_h)
        d_c[:batch] = 0.0  # the roots have no parent
        pair_d_c, pair_d_h = d_c[batch:].view(-1, 2, hidden), d_h[batch:].view(-1, 2 * hidden)
        d_gates, h_by_c = _local_gradients(gates, self.pair_c, self.tanh_c)
        self.d_gates = d_gates.view(-1, 5 * hidden)
        backward = self._levels(s.inner_rows, pair_d_h, pair_d_c, gates[:, 1:3], d_gates, self.d_gates, h_by_c)
        for own, children_d_h, children_d_c, forget, local, flat_local, by_c in backward:
            own_d_h = d_h.index_select(0, own)
            own_d_c = d_c.index_select(0, own).addcmul_(own_d_h, by_c)
            _chain(local, own_d_c, own_d_h)
            if torch.is_autocast_enabled("cpu"):
                children_d_h.add_(flat_local @ self.w["U"])
            else:
                children_d_h.addmm_(flat_local, self.w["U"])
            torch.mul(forget, own_d_c[:, None], out=children_d_c)
        leaf_d_gates, h_by_c = _local_gradients(self.leaf_gates, None, self.leaf_tanh_c)
        leaf_d_h, leaf_d_c = d_h.index_select(0, s.leaf_rows), d_c.index_select(0, s.leaf_rows)
        if self.leaf_of is not None:
            leaf_d_h, leaf_d_c = (torch.zeros_like(h_by_c).index_add_(0, self.leaf_of, d) for d in (leaf_d_h, leaf_d_c))
        leaf_d_c.addcmul_(leaf_d_h, h_by_c)
        _chain(leaf_d_gates, leaf_d_c, leaf_d_h)
        self.d_leaf_gates = leaf_d_gates.view(-1, 3 * hidden)

    def _levels(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Split tensors that have a row per inner node by level, roots first: cheaper than slicing inside the loops."""
        sizes = np.diff(self.s.inner)[:-1].tolist()  # number of inner nodes in each level that has any
        return list(zip(*(t.split(sizes) for t in tensors), strict=True))


def _local_gradients(gates: Tensor, children_c: Tensor | None, tanh_c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors that do not depend on the gradient from above, for all nodes at once: (d c / d gate, but d h /
    d gate for o; d h / d c) from the activated gates [node, (i, [f_left, f_right,] o, u), unit]."""
    local = torch.empty_like(gates)
    sigmoids, i, o, u = gates[:, :-1], gates[:, 0], gates[:, -2], gates[:, -1]
    torch.addcmul(sigmoids, sigmoids, sigmoids, value=-1.0, out=local[:, :-1])
    torch.addcmul(gates.new_ones(()), u, u, value=-1.0, out=local[:, -1]).mul_(i)
    local[:, 0].mul_(u)
    if children_c is not None:
        local[:, 1:3].mul_(children_c)
    local[:, -2].mul_(tanh_c)
    return local, torch.addcmul(o, o * tanh_c, tanh_c, value=-1.0)


def _chain(local: Tensor, d_c: Tensor, d_h: Tensor) -> None:
    """Turn local gradients into the loss's gradients with respect to the gates, in place."""
    local[:, :-2].mul_(d_c[:, None])
    local[:, -2].mul_(d_h)
    local[:, -1].mul_(d_c)
