"""Pyramid networks, which compose neighbours repeatedly, in PyTorch: a level of all sentences at once.

A level is ordered by position, and within a position by sentence length, longest first. Then the right neighbours that
the next level reads are the whole level except for its first position. Sentences that end at a level are the last rows
of its first position. Only the left neighbours have to be gathered.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from peers.torch_zoo.program import TorchProgram

State = tuple[Tensor, ...]


class Order(NamedTuple):
    """The words of a mini-batch by position, and the rows that levels read.

    Attributes:
        rows: rows of the words in the batch.
        alive: (longest + 1,) number of sentences longer than t words; finally 0.
        begins: (longest + 1,) offset of position t in the words.
        left: words with a right neighbour, by position.
        place: (sentences,) each sentence's rank by length.
    """

    rows: Tensor
    alive: list[int]
    begins: list[int]
    left: Tensor
    place: Tensor

    @classmethod
    def of(cls, offsets: NDArray[np.int64]) -> Order:
        """Take the offsets of the pyramids' vertices: n (n + 1) / 2 each, beginning with the n words."""
        sizes = np.diff(offsets)
        lengths = ((np.sqrt(8 * sizes + 1) - 1) / 2).round().astype(np.int64)
        by_length = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max())
        alive = np.searchsorted(-lengths[by_length], -np.arange(longest + 1), side="left")
        begins = np.concatenate([[0], np.cumsum(alive)])[:-1]
        positions = np.arange(longest).repeat(alive[:-1])
        slots = np.arange(len(positions)) - begins[positions]
        place = np.empty(len(sizes), np.int64)
        place[by_length] = np.arange(len(sizes))
        return cls(
            torch.from_numpy(offsets[by_length[slots]] + positions),
            alive.tolist(),
            begins.tolist(),
            torch.from_numpy(np.flatnonzero(slots < alive[positions + 1])),
            torch.from_numpy(place),
        )


class PyramidProgram(TorchProgram):
    """An MLP on the tops of pyramids."""

    @abstractmethod
    def leaf(self, words: Tensor) -> State:
        """Return the states of words (n,)."""

    @abstractmethod
    def inner(self, left: State, right: State) -> State:
        """Return the states of neighbouring pairs."""

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.outputs(batch), self.column(batch["label"]), reduction="sum")

    def outputs(self, batch: Any) -> Tensor:
        words = self.column(batch["word"])
        tops = self.one_by_one(batch, words) if self.per_node else self.tops(batch, words)
        return self.linear("mlp/output", self.linear("mlp/hidden", tops).tanh())

    def tops(self, batch: Any, words: Tensor) -> Tensor:
        """Return the tops' h, (sentences, hidden)."""
        order = Order.of(batch.offsets)
        alive, begins = order.alive, order.begins
        state = self.leaf(words[order.rows])
        finished = [state[0][alive[1] : alive[0]]]
        for level in range(1, len(alive) - 1):
            left = order.left[begins[level] - alive[0] :] - begins[level - 1]
            state = self.inner(
                tuple(x.index_select(0, left) for x in state), tuple(x[alive[level - 1] :] for x in state)
            )
            finished.append(state[0][alive[level + 1] : alive[level]])
        return torch.cat(finished[::-1]).index_select(0, order.place)

    def one_by_one(self, batch: Any, words: Tensor) -> Tensor:
        """Return `tops`, computed a vertex at a time."""
        tops = []
        for begin, end in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
            own = words[begin:end]
            states = [self.leaf(word) for word in own[own >= 0].split(1)]
            while len(states) > 1:
                states = [self.inner(left, right) for left, right in pairwise(states)]
            tops.append(states[0][0])
        return torch.cat(tops)


class TdRnn(PyramidProgram):
    """PyTorch program of `vpps.zoo.TDRNNSentiment`."""

    def leaf(self, words: Tensor) -> State:
        return (self.lookup("words", words),)

    def inner(self, left: State, right: State) -> State:
        W_left, W_right = self.weights["composition/W"].t().chunk(2)
        half = torch.addmm(self.weights["composition/b"], left[0], W_left)
        return (torch.addmm(half, right[0], W_right).tanh(),)


class TdLstm(PyramidProgram):
    """PyTorch program of `vpps.zoo.TDLSTMSentiment`. A state is h and c."""

    def leaf(self, words: Tensor) -> State:
        w = self.weights
        x = self.lookup("words", words)
        i, o, u = torch.addmm(w["composition/b_leaf"], x, w["composition/W"].t()).chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def inner(self, left: State, right: State) -> State:
        U_left, U_right = self.weights["composition/U"].t().chunk(2)
        half = torch.addmm(self.weights["composition/b"], left[0], U_left)
        i, o, u, f_left, f_right = torch.addmm(half, right[0], U_right).chunk(5, 1)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * left[1] + f_right.sigmoid() * right[1]
        return o.sigmoid() * c.tanh(), c
