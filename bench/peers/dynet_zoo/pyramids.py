"""Pyramid networks, which compose neighbours repeatedly, in DyNet."""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any

from peers.dynet_zoo.program import DynetProgram, Gates, Graphs


class PyramidProgram(DynetProgram):
    """An MLP on the tops of pyramids."""

    columns = ("word", "label")

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.hidden, self.output = self.layer("mlp/hidden"), self.layer("mlp/output")

    @abstractmethod
    def leaf(self, word: int) -> Any:
        """Return the state of a word."""

    @abstractmethod
    def inner(self, left: Any, right: Any) -> Any:
        """Return the state of two neighbours."""

    def top(self, state: Any) -> Any:
        """Return the h of a state."""
        return state

    def loss(self, batch: Graphs) -> Any:
        return self.cross_entropy(self.outputs(batch), batch["label"])

    def outputs(self, batch: Graphs) -> Any:
        tops = []
        words = batch["word"]
        for begin, end in pairwise(batch.offsets):
            level = [self.leaf(word) for word in words[begin:end] if word >= 0]
            while len(level) > 1:
                level = [self.inner(left, right) for left, right in pairwise(level)]
            tops.append(self.top(level[0]))
        h = self.dynet.concatenate_to_batch(tops)
        return self.linear(self.output, self.dynet.tanh(self.linear(self.hidden, h)))


class TdRnn(PyramidProgram):
    """DyNet program of `vpps.zoo.TDRNNSentiment`."""

    def declare(self) -> None:
        super().declare()
        self.composition = Gates(self, 1, "composition/b", ("composition/W", 2))

    def leaf(self, word: int) -> Any:
        return self.words[word]

    def inner(self, left: Any, right: Any) -> Any:
        return self.dynet.tanh(self.composition(left, right)[0])


class TdLstm(PyramidProgram):
    """DyNet program of `vpps.zoo.TDLSTMSentiment`. A state is (h, c)."""

    def declare(self) -> None:
        super().declare()
        self.first = Gates(self, 3, "composition/b_leaf", ("composition/W", 1))
        self.composition = Gates(self, 5, "composition/b", ("composition/U", 2))

    def leaf(self, word: int) -> Any:
        logistic, tanh, product = self.dynet.logistic, self.dynet.tanh, self.dynet.cmult
        i, o, u = self.first(self.words[word])
        c = product(logistic(i), tanh(u))
        return product(logistic(o), tanh(c)), c

    def inner(self, left: Any, right: Any) -> Any:
        logistic, tanh, product = self.dynet.logistic, self.dynet.tanh, self.dynet.cmult
        (h_left, c_left), (h_right, c_right) = left, right
        i, o, u, f_left, f_right = self.composition(h_left, h_right)
        c = self.dynet.esum(
            [product(logistic(i), tanh(u)), product(logistic(f_left), c_left), product(logistic(f_right), c_right)]
        )
        return product(logistic(o), tanh(c)), c

    def top(self, state: Any) -> Any:
        return state[0]
