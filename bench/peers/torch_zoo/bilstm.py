"""`vpps.nn.BiLSTM` in PyTorch: a level at a time for all chains of a batch and both directions, with a hand-written
backward; or `nn.LSTM`'s kernels, if they are faster.

On one core `nn.LSTM` on packed sequences was the fastest of four programs in training with one sentence and in
inference with up to four: it does little work in Python, but its backward adds to its weights' gradients at every step.
In all other cases, this program was the fastest, followed by `nn.LSTM` on padded sequences, then levels with autograd.
Gates are in PyTorch's order, i f u o.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor


class PackedChains:
    """The order of `nn.utils.rnn.PackedSequence`, for both directions: level by level, longer chains first. So level k
    reads the first rows of level k - 1.

    Attributes:
        sizes: vertices per level; the same in both directions.
        vertices: (2, n) numbers in the batch, in the order of computation.
        places: (2, n) row of every vertex in that order.
        before: (n - sizes[0],) row of the preceding vertex, for all but the first level.
    """

    def __init__(self, chains: Any) -> None:
        """Take a `vpps.data.GraphBatch` of chains."""
        lengths = np.diff(chains.offsets)
        rank = np.empty(len(lengths), np.int64)
        rank[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))
        n = chains.n_vertices
        step = np.arange(n) - chains.offsets[:-1].repeat(lengths)
        sizes = np.bincount(step)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.stack([starts[s] + rank.repeat(lengths) for s in (step, lengths.repeat(lengths) - 1 - step)])
        vertices = np.empty_like(places)
        np.put_along_axis(vertices, places, np.arange(n)[None], axis=1)
        self.sizes: list[int] = sizes.tolist()
        self.vertices, self.places = torch.from_numpy(vertices), torch.from_numpy(places)
        self.before = torch.from_numpy(np.arange(sizes[0], n) - sizes[:-1].repeat(sizes[1:]))


class Recurrence(torch.autograd.Function):
    """The states of both directions, from the results of W x + b: (2, n, 4H) -> (2, n, H).

    The gates overwrite the memory of W x + b, whose own backward does not read it.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, U: Tensor, chains: PackedChains) -> Tensor:
        H = U.shape[2]
        gates, across = a.detach(), U.transpose(1, 2)
        h, c, squashed = (a.new_empty(*a.shape[:2], H) for _ in range(3))
        lower = begin = 0
        for size in chains.sizes:
            rows, read = slice(begin, begin + size), slice(lower, lower + size)
            g, own = gates[:, rows], c[:, rows]
            if begin:
                g.baddbmm_(h[:, read], across)
            g[:, :, : 2 * H].sigmoid_()
            g[:, :, 2 * H : 3 * H].tanh_()
            g[:, :, 3 * H :].sigmoid_()
            i, f, u, o = g.split(H, 2)
            torch.mul(i, u, out=own)
            if begin:
                own.addcmul_(f, c[:, read])
            torch.tanh(own, out=squashed[:, rows])
            torch.mul(o, squashed[:, rows], out=h[:, rows])
            lower, begin = begin, begin + size
        ctx.chains, ctx.kept = chains, (gates, h, c, squashed, U)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, h, c, squashed, U = ctx.kept
        chains, H = ctx.chains, U.shape[2]
        i, f, u, o = gates.split(H, 2)
        # Factors outside the recurrence, for all words at once: each gate's effect on c, the last gate's effect on h.
        slopes = torch.empty_like(gates).view(*gates.shape[:2], 4, H)
        torch.mul(u, i * (1 - i), out=slopes[:, :, 0])
        slopes[:, : chains.sizes[0], 1] = 0
        later = slice(chains.sizes[0], None)
        kept = f[:, later] * (1 - f[:, later])
        torch.mul(c.index_select(1, chains.before), kept, out=slopes[:, later, 1])
        torch.mul(i, 1 - u * u, out=slopes[:, :, 2])
        torch.mul(squashed, o * (1 - o), out=slopes[:, :, 3])
        c_of_h = o * (1 - squashed * squashed)
        dh, dc = grads[0].clone(), torch.empty_like(c)
        d_gates = slopes  # each slope is multiplied in place
        end, carried = h.shape[1], None
        for level in range(len(chains.sizes) - 1, -1, -1):
            size = chains.sizes[level]
            rows = slice(end - size, end)
            own, above = dc[:, rows], dh[:, rows]
            torch.mul(above, c_of_h[:, rows], out=own)
            if carried is not None:
                own[:, : carried.shape[1]] += carried
            d = d_gates[:, rows]
            d[:, :, :3] *= own[:, :, None]
            d[:, :, 3] *= above
            end -= size
            if level:
                read = slice(end - chains.sizes[level - 1], end - chains.sizes[level - 1] + size)
                dh[:, read].baddbmm_(d.flatten(2), U)
                carried = own * f[:, rows]
        da = d_gates.flatten(2)
        dU = torch.bmm(da[:, later].transpose(1, 2), h.index_select(1, chains.before))
        return da, dU, None


def both_directions(x: Tensor, W: Tensor, U: Tensor, b: Tensor, chains: PackedChains) -> Tensor:
    """Return the states h, (2, n, H), in the order of computation, from inputs in that order.

    Args:
        x: (2, n, input).
        W, U, b: stacked weights of the forward and the backward LSTM.
    """
    if chains.sizes[0] <= (1 if torch.is_grad_enabled() else 4):
        return torch_lstm(x, W, U, b, chains)
    h: Tensor = Recurrence.apply(torch.baddbmm(b[:, None], x, W.transpose(1, 2)), U, chains)  # type: ignore[no-untyped-call]
    return h


def torch_lstm(x: Tensor, W: Tensor, U: Tensor, b: Tensor, chains: PackedChains) -> Tensor:
    """Return the states by the kernels of `nn.LSTM`; both directions are in the order of the first direction."""
    begin = x.new_zeros(2, chains.sizes[0], U.shape[2])
    no_bias = b.new_zeros(b.shape[1])
    weights = [w for pair in zip(W.unbind(), U.unbind(), b.unbind(), strict=True) for w in (*pair, no_bias)]
    h = torch.lstm(
        x[0], torch.tensor(chains.sizes), (begin, begin), weights, True, 1, 0.0, torch.is_grad_enabled(), True
    )[0]
    forward, backward = h.chunk(2, 1)
    return torch.stack([forward, backward.index_select(0, chains.places[0][chains.vertices[1]])])


def vertex_by_vertex(x: Tensor, W: Tensor, U: Tensor, b: Tensor, offsets: list[int]) -> Tensor:
    """Return the states, (2, n, H), of both directions, in the batch's order, computed one at a time.

    Args:
        x: (n, input), in the batch's order.
        W, U, b: as in `both_directions`.
        offsets: offsets of the chains.
    """
    found: list[list[Tensor]] = []
    for direction in range(2):
        states: list[Tensor] = [x] * len(x)
        for first, end in pairwise(offsets):
            h = c = None
            for v in range(first, end) if direction == 0 else range(end - 1, first - 1, -1):
                a = torch.addmv(b[direction], W[direction], x[v])
                i, f, u, o = (a if h is None else torch.addmv(a, U[direction], h)).chunk(4)
                new = i.sigmoid() * u.tanh()
                c = new if c is None else new + f.sigmoid() * c
                h = states[v] = o.sigmoid() * c.tanh()
        found.append(states)
    return torch.stack([torch.stack(states) for states in found])
