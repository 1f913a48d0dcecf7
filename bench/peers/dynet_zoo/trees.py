"""Networks over trees in DyNet with its automatic batching."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from peers.dynet_zoo.program import DynetProgram, Gates, Graphs

State = tuple[Any, ...]
"""State of a node that its parent reads; its first item goes to the classifier."""


class TreeProgram(DynetProgram):
    """A state for every node, and a linear classifier on all nodes or on the roots."""

    columns = ("word", "label")

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.arity = self.task.network.arity
        self.output = self.layer("output")

    @abstractmethod
    def leaf(self, word: int) -> State:
        """Return the state of a word."""

    @abstractmethod
    def inner(self, kind: int, children: list[State]) -> State:
        """Return a node's state from its children's states; there can be fewer children than the arity."""

    def logits(self, h: Any) -> Any:
        """Return the nodes' logits, from their h."""
        return self.linear(self.output, h)

    def states(self, batch: Graphs) -> list[Any]:
        """Return h of every node."""
        words, kind, children = batch["word"], batch.kind, batch.children
        states: list[State] = [()] * len(words)
        for v in batch.order:
            below = children[v]
            states[v] = self.inner(kind[v], [states[k] for k in below]) if below else self.leaf(words[v])
        return [state[0] for state in states]

    def loss(self, batch: Graphs) -> Any:
        h, labels = self.states(batch), batch["label"]
        if self.settings.root_only:
            h, labels = [h[v] for v in batch.roots], [labels[v] for v in batch.roots]
        return self.cross_entropy(self.logits(self.dynet.concatenate_to_batch(h)), labels)

    def outputs(self, batch: Graphs) -> Any:
        return self.logits(self.dynet.concatenate_to_batch(self.states(batch)))

    def filled(self, hs: list[Any]) -> list[Any]:
        """Pad to the arity with zeros for missing children."""
        missing = self.arity - len(hs)
        return hs + [self.dynet.zeros(self.settings.hidden)] * missing if missing else hs


class TreeLstm(TreeProgram):
    """DyNet program of `vpps.zoo.TreeLSTMSentiment`. A state is (h, c)."""

    types: ClassVar[tuple[str, ...]] = ("tree_lstm",)
    """Names of the cells at inner nodes, by type of node."""

    def declare(self) -> None:
        super().declare()
        self.of_word = Gates(self, 3, "tree_lstm/b_leaf", ("tree_lstm/W", 1))
        self.of_parts = [Gates(self, 3 + self.arity, f"{t}/b", (f"{t}/U", self.arity)) for t in self.types]

    def leaf(self, word: int) -> State:
        i, o, u = self.of_word(self.words[word])
        return self.memorised(o, [self.written(i, u)])

    def inner(self, kind: int, children: list[State]) -> State:
        i, o, u, *f = self.of_parts[kind - 1](*self.filled([h for h, _ in children]))
        logistic, product = self.dynet.logistic, self.dynet.cmult
        kept = [product(logistic(gate), c) for gate, (_, c) in zip(f, children, strict=False)]
        return self.memorised(o, [self.written(i, u), *kept])

    def written(self, i: Any, u: Any) -> Any:
        """Return the gates' addition to the memory."""
        return self.dynet.cmult(self.dynet.logistic(i), self.dynet.tanh(u))

    def memorised(self, o: Any, terms: list[Any]) -> State:
        """Return (h, c) from the terms whose sum is c."""
        c = terms[0] if len(terms) == 1 else self.dynet.esum(terms)
        return self.dynet.cmult(self.dynet.logistic(o), self.dynet.tanh(c)), c


class TwoTypeTreeLstm(TreeLstm):
    """DyNet program of `vpps.zoo.TwoTypeTreeLSTMSentiment`."""

    types = ("tree_lstm", "tree_lstm_2")


class ChildSumTreeLstm(TreeLstm):
    """DyNet program of `vpps.zoo.ChildSumTreeLSTMSentiment`."""

    def declare(self) -> None:
        TreeProgram.declare(self)
        H = self.settings.hidden
        b = self.weights["child_sum/b"]
        self.derive("child_sum/b_iou", "child_sum/b", b[: 3 * H])
        self.derive("child_sum/b_f", "child_sum/b", b[3 * H :])
        self.of_word = Gates(self, 3, "child_sum/b_iou", ("child_sum/W", 1))
        self.of_sum = Gates(self, 3, None, ("child_sum/U", 1))
        biases = [bias for bias, _ in self.of_word.parts]  # shared by leaves and inner nodes
        self.of_sum.parts = [(b, matrices) for b, (_, matrices) in zip(biases, self.of_sum.parts, strict=True)]
        self.forget = Gates(self, 1, "child_sum/b_f", ("child_sum/Uf", 1))

    def inner(self, kind: int, children: list[State]) -> State:
        i, o, u = self.of_sum(self.dynet.esum([h for h, _ in children]))
        logistic, product = self.dynet.logistic, self.dynet.cmult
        kept = [product(logistic(self.forget(h)[0]), c) for h, c in children]
        return self.memorised(o, [self.written(i, u), *kept])


class TreeGru(TreeProgram):
    """DyNet program of `vpps.zoo.TreeGRUSentiment`."""

    def declare(self) -> None:
        super().declare()
        self.of_word = Gates(self, 2, "tree_gru/b_leaf", ("tree_gru/W", 1))
        self.gates = Gates(self, 2, "tree_gru/b_gates", ("tree_gru/U_gates", self.arity))
        self.candidate = Gates(self, 1, "tree_gru/b", ("tree_gru/U", self.arity))

    def leaf(self, word: int) -> State:
        z, candidate = self.of_word(self.words[word])
        return (self.dynet.cmult(self.dynet.logistic(z), self.dynet.tanh(candidate)),)

    def inner(self, kind: int, children: list[State]) -> State:
        hs = self.filled([h for (h,) in children])
        logistic, product = self.dynet.logistic, self.dynet.cmult
        r, z = map(logistic, self.gates(*hs))
        candidate = self.dynet.tanh(self.candidate(*[product(r, h) for h in hs])[0])
        mean = self.dynet.esum(hs) * (1.0 / self.arity)
        return (mean + product(z, candidate - mean),)


class RvNN(TreeProgram):
    """DyNet program of `vpps.zoo.RvNNSentiment`."""

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.arity = self.task.network.arity
        self.of_word = self.layer("leaf")
        self.of_parts = Gates(self, 1, "inner/b", ("inner/W", self.arity))
        self.hidden, self.output = self.layer("mlp/hidden"), self.layer("mlp/output")

    def leaf(self, word: int) -> State:
        return (self.dynet.tanh(self.linear(self.of_word, self.words[word])),)

    def inner(self, kind: int, children: list[State]) -> State:
        return (self.dynet.tanh(self.of_parts(*self.filled([h for (h,) in children]))[0]),)

    def logits(self, h: Any) -> Any:
        return self.linear(self.output, self.dynet.tanh(self.linear(self.hidden, h)))


class MvRnn(TreeProgram):
    """DyNet program of `vpps.zoo.MVRNNSentiment`. A state is the vector and the matrix."""

    def declare(self) -> None:
        super().declare()
        self.matrices = self.lookup("matrices")
        self.vector = Gates(self, 1, None, ("W", 2))
        self.matrix = Gates(self, 1, None, ("W_M", 2))

    def leaf(self, word: int) -> State:
        return self.words[word], self.matrices[word]

    def inner(self, kind: int, children: list[State]) -> State:
        (a, A), (b, B) = children
        return self.dynet.tanh(self.vector(B * a, A * b)[0]), self.matrix(A, B)[0]
