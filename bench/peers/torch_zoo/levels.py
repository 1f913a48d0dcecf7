"""Batching by level in PyTorch: computes all vertices of one level and kind together, across graphs.

The states of all vertices are rows of one memory per state, ordered by level and kind. So a level's results are written
to consecutive rows, once. Autograd would give every read of that memory a gradient of the whole memory's size. Here
reads add their gradients to one memory for gradients, and writes read theirs from it. An engineer writes this program
after profiling the obvious one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Group(NamedTuple):
    """Vertices that are computed together.

    Attributes:
        kind: number of the cell.
        vertices: numbers in the batch, as an int64 tensor: rows of input columns.
        children: (n, arity) positions in the memory, or for lists (edges,) all positions, concatenated. Row 0 of the
            memory is zeros, for missing children.
        owner: for lists, (edges,) the vertex of each edge, from 0 to n - 1; None for tables.
    """

    kind: int
    vertices: Tensor
    children: Tensor
    owner: Tensor | None


class Schedule:
    """A mini-batch by level and kind. Making it is part of every step, as in any program whose graphs differ.

    Attributes:
        groups: groups in order.
        position: (n,) row of every vertex in the memory.
        rows: number of rows in the memory: 1 + n.
    """

    def __init__(self, batch: Any, per_node: bool = False) -> None:
        """Take a `vpps.data.GraphBatch`. per_node: put every vertex into a separate group."""
        levels = batch.levels
        kind = batch.kind
        n = len(levels)
        key = levels.astype(np.int64) if kind is None else levels.astype(np.int64) * 64 + kind
        order = np.argsort(key, kind="stable")
        self.rows = 1 + n
        position = np.empty(n + 1, np.int64)
        position[order] = np.arange(1, n + 1)
        position[n] = 0  # -1 marks missing children
        sorted_key = key[order]
        if per_node:
            cuts = np.arange(n + 1)
        else:
            cuts = np.concatenate([[0], np.flatnonzero(np.diff(sorted_key)) + 1, [n]])
        self.position = torch.from_numpy(position[:n])
        self.groups = list(self._groups(batch, order, cuts.tolist(), position))

    @staticmethod
    def _groups(batch: Any, order: NDArray[np.int64], cuts: list[int], position: NDArray[np.int64]) -> Any:
        children, kind = batch.children, batch.kind
        table = None if isinstance(children, tuple) else position[children[order]]
        vertices = torch.from_numpy(order)
        kinds = [0] * (len(cuts) - 1) if kind is None else kind[order[cuts[:-1]]].tolist()
        if table is None:
            offsets, indices = children
            counts = np.diff(offsets)[order]
            ends = np.concatenate([[0], np.cumsum(counts)])
            edges = np.repeat(offsets[:-1][order] - ends[:-1], counts) + np.arange(ends[-1])
            read = torch.from_numpy(position[indices[edges]])
            owner = torch.from_numpy(np.repeat(np.arange(len(order)), counts))
            for k, a, b in zip(kinds, cuts, cuts[1:], strict=False):
                own = slice(int(ends[a]), int(ends[b]))
                yield Group(k, vertices[a:b], read[own], owner[own] - a)
        else:
            read = torch.from_numpy(table)
            for k, a, b in zip(kinds, cuts, cuts[1:], strict=False):
                yield Group(k, vertices[a:b], read[a:b], None)


class Memory:
    """Rows that levels write and later levels read, with one memory for all their gradients.

    `width` floats per vertex; a cell with two states keeps them side by side. Row 0 is zeros and has no gradient.
    """

    def __init__(self, rows: int, width: int, like: Tensor) -> None:
        self.value = like.new_zeros(rows, width)
        self.grad: Tensor | None = None
        self.end = 1
        # Orders the backward pass: through this token, a read depends on all earlier writes.
        self.token = like.new_zeros((), requires_grad=torch.is_grad_enabled())

    def write(self, rows: Tensor) -> None:
        """Write the next rows, in order."""
        self.token = _Write.apply(rows, self.token, self)  # type: ignore[no-untyped-call]

    def read(self, positions: Tensor) -> Tensor:
        """Return the rows at these positions, (*positions.shape, width)."""
        read, self.token = _Read.apply(self.token, positions, self)  # type: ignore[no-untyped-call]
        return read  # type: ignore[no-any-return]

    def gradient(self) -> Tensor:
        """Return the memory for gradients, initially zeros."""
        if self.grad is None:
            self.grad = torch.zeros_like(self.value)
        return self.grad


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, token: Tensor, memory: Memory) -> Tensor:
        begin = memory.end
        memory.end += len(rows)
        memory.value[begin : memory.end] = rows
        ctx.memory, ctx.rows = memory, slice(begin, memory.end)
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return ctx.memory.gradient()[ctx.rows], grads[0], None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, positions: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        flat = positions.reshape(-1)
        ctx.memory, ctx.positions = memory, flat
        return memory.value.index_select(0, flat).view(*positions.shape, -1), token.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        memory, positions = ctx.memory, ctx.positions
        memory.gradient().index_add_(0, positions, grads[0].reshape(len(positions), -1))
        return grads[1], None, None


Cell = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A cell over n vertices: (vertices (n,), the children's states, owner of each in lists) -> states (n, width).

Children's states have shape (n, arity, width), or (edges, width) for lists.
"""


def run(batch: Any, cells: Sequence[Cell], width: int, like: Tensor, per_node: bool = False) -> Tensor:
    """Return the states of all vertices, (n, width), in the batch's order.

    Args:
        cells: cells by kind.
        like: any weight, for its dtype and device.
    """
    schedule = Schedule(batch, per_node)
    memory = Memory(schedule.rows, width, like)
    for kind, vertices, children, owner in schedule.groups:
        states = memory.read(children) if children.numel() else memory.value[children]
        memory.write(cells[kind](vertices, states, owner))
    return memory.read(schedule.position)


def sum_of_lists(values: Tensor, owner: Tensor, n: int) -> Tensor:
    """Return each list's sum, (n, width), from all lists' elements, (edges, width)."""
    return values.new_zeros(n, values.shape[1]).index_add(0, owner, values)


def softmax_of_lists(scores: Tensor, owner: Tensor, n: int) -> Tensor:
    """Return the softmax within each list, from all scores, (edges,) or (edges, width)."""
    index = owner if scores.dim() == 1 else owner[:, None].expand_as(scores)
    shape = (n, *scores.shape[1:])
    top = scores.new_full(shape, -torch.inf).scatter_reduce(0, index, scores.detach(), "amax")
    shifted = (scores - top.index_select(0, owner)).exp()
    return shifted / shifted.new_zeros(shape).index_add(0, owner, shifted).index_select(0, owner)
