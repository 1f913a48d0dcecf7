"""Networks over trees in DyNet, which batches their operations by itself."""

from __future__ import annotations

from typing import Any

from peers.dynet_zoo.program import DynetProgram, Gates, Graphs


class TreeProgram(DynetProgram):
    """States of all nodes, a linear classifier on them or on the roots'."""

    columns = ("word", "label")

    def states(self, batch: Graphs) -> list[Any]:
        """h of every node."""
        raise NotImplementedError

    def loss(self, batch: Graphs) -> Any:
        h, labels = self.states(batch), batch["label"]
        if self.settings.root_only:
            h, labels = [h[v] for v in batch.roots], [labels[v] for v in batch.roots]
        return self.cross_entropy(self.linear(self.output, self.dynet.concatenate_to_batch(h)), labels)

    def outputs(self, batch: Graphs) -> Any:
        return self.linear(self.output, self.dynet.concatenate_to_batch(self.states(batch)))


class TreeLstm(TreeProgram):
    """`vpps.zoo.TreeLSTMSentiment`."""

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.arity = self.task.network.tree_lstm.arity
        self.leaf = Gates(self, 3, "tree_lstm/b_leaf", ("tree_lstm/W", 1))
        self.inner = Gates(self, 3 + self.arity, "tree_lstm/b", ("tree_lstm/U", self.arity))
        self.output = self.layer("output")

    def states(self, batch: Graphs) -> list[Any]:
        logistic, tanh, product, total = self.dynet.logistic, self.dynet.tanh, self.dynet.cmult, self.dynet.esum
        words, children, arity = batch["word"], batch.children, self.arity
        hs: list[Any] = [None] * len(words)
        cs: list[Any] = [None] * len(words)
        nothing = None
        for v in batch.order:
            below = children[v]
            if not below:
                i, o, u = self.leaf(self.words[words[v]])
                c = product(logistic(i), tanh(u))
            else:
                h = [hs[k] for k in below]
                if len(h) < arity:
                    if nothing is None:
                        nothing = self.dynet.zeros(self.settings.hidden)
                    h += [nothing] * (arity - len(h))
                i, o, u, *f = self.inner(*h)
                kept = [product(logistic(gate), cs[k]) for gate, k in zip(f, below, strict=False)]
                c = total([product(logistic(i), tanh(u)), *kept])
            hs[v], cs[v] = product(logistic(o), tanh(c)), c
        return hs
