"""Tree-LSTM and LSTM written as papers do, gate by gate and matrix by matrix: what the cell compiler is to make fast.

The vertex function is all there is of a vertex, its loss included, in Cavs's own calls: gather, pull, scatter, push.
Nothing is moved out of the recurrence by hand.

    Tree-LSTM, inner node:  g = U_g_left hl + U_g_right hr + b_g    for the gates g = i, f_left, f_right, o, u
    LSTM, step:             g = W_g x + U_g h + b_g                 for the gates g = i, f, o, u
    both:                   h, c as in treelstm.py; loss: cross_entropy(Wo h + bo, label) at every vertex
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from models import Trainer

import vpps
from vpps.data import GraphSet

LEAF_GATES = ("i", "o", "u")
TREE_GATES = ("i", "f_left", "f_right", "o", "u")
CHAIN_GATES = ("i", "f", "o", "u")


class Gatewise(Trainer):
    """What both have in common: a model, graphs that are data, and steps."""

    def __init__(self, graphs: GraphSet, words: int, classes: int, hidden: int) -> None:
        """The parameters of what follows a vertex's state. graphs: with columns word and label."""
        self.model = vpps.Model(seed=1)
        self.graphs, self.hidden = graphs, hidden
        self.words = self.model.lookup("words", (words, hidden))
        self.Wo, self.bo = self.model.parameter("Wo", (classes, hidden)), self.model.parameter("bo", (classes,))
        self.cells: list[Callable[[], None]]

    def biases(self, gates: Sequence[str], prefix: str) -> dict[str, vpps.Parameter]:
        """A vector per gate."""
        return {gate: self.model.parameter(f"{prefix}_{gate}", (self.hidden,)) for gate in gates}

    def matrices(self, gates: Sequence[str], prefix: str) -> dict[str, vpps.Parameter]:
        """A square matrix per gate."""
        return {gate: self.model.parameter(f"{prefix}_{gate}", (self.hidden, self.hidden)) for gate in gates}

    def finish(self, c: vpps.Expression, o: vpps.Expression) -> None:
        """The end of every vertex function: state to the parents, loss to the outside."""
        h = vpps.sigmoid(o) * vpps.tanh(c)
        vpps.scatter(h, c)
        vpps.push(vpps.cross_entropy(self.Wo @ h + self.bo, vpps.pull("label")))

    def open(self, threads: int, schedule: str, passes: vpps.Passes) -> None:
        """Make the handle, when all parameters are there."""
        rule = vpps.SGD(lr=0.05)
        self.handle = vpps.Handle(self.model, rule, target="cpu", vps=threads, schedule=schedule, passes=passes)

    def graph(self, batch: Sequence[int]) -> tuple[vpps.Graph, vpps.Expression]:
        """Join the graphs of a mini-batch; returns that graph with its loss."""
        graphs = self.graphs[batch]
        graph = vpps.Graph()
        inputs = {name: graphs[name] for name in ("word", "label")}
        losses = graph.map(self.cells, kind=graphs.kind, children=graphs.children, inputs=inputs, levels=graphs.levels)
        return graph, vpps.sum(losses) * (1.0 / len(graphs))

    @property
    def barriers(self) -> int:
        """Of the latest step."""
        plan = self.handle._engine.plan
        assert plan is not None
        return plan.n_barriers


class GatewiseTreeLstm(Gatewise):
    """Leaves and inner nodes, two kinds of vertices."""

    def __init__(
        self, graphs: GraphSet, words: int, classes: int, hidden: int, threads: int, schedule: str, passes: vpps.Passes
    ) -> None:
        super().__init__(graphs, words, classes, hidden)
        table = self.words
        W, b = self.matrices(LEAF_GATES, "W"), self.biases(LEAF_GATES, "b_leaf")
        left, right = self.matrices(TREE_GATES, "U_left"), self.matrices(TREE_GATES, "U_right")
        b_inner = self.biases(TREE_GATES, "b_inner")

        @vpps.cell
        def leaf():
            x = vpps.lookup(table, vpps.pull("word"))
            i, o, u = (W[g] @ x + b[g] for g in LEAF_GATES)
            self.finish(vpps.sigmoid(i) * vpps.tanh(u), o)

        @vpps.cell
        def inner():
            (hl, cl), (hr, cr) = vpps.gather()
            i, fl, fr, o, u = (left[g] @ hl + right[g] @ hr + b_inner[g] for g in TREE_GATES)
            self.finish(vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(fl) * cl + vpps.sigmoid(fr) * cr, o)

        self.cells = [leaf, inner]
        self.open(threads, schedule, passes)


class GatewiseLstm(Gatewise):
    """The steps of sequences that are all of one length (Cavs's Fixed-LSTM)."""

    def __init__(
        self, graphs: GraphSet, words: int, classes: int, hidden: int, threads: int, schedule: str, passes: vpps.Passes
    ) -> None:
        super().__init__(graphs, words, classes, hidden)
        table = self.words
        W, U, b = self.matrices(CHAIN_GATES, "W"), self.matrices(CHAIN_GATES, "U"), self.biases(CHAIN_GATES, "b")

        @vpps.cell
        def advance():
            h, c = vpps.gather(0)
            x = vpps.lookup(table, vpps.pull("word"))
            i, f, o, u = (W[g] @ x + U[g] @ h + b[g] for g in CHAIN_GATES)
            self.finish(vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * c, o)

        self.cells = [advance]
        self.open(threads, schedule, passes)


def random_sequences(number: int, steps: int, words: int, classes: int) -> GraphSet:
    """Chains of one length with random words and labels."""
    random = np.random.default_rng(1)
    n = number * steps
    before = np.tile(np.arange(-1, steps - 1), number)
    columns = {"word": random.integers(0, words, n), "label": random.integers(0, classes, n)}
    return GraphSet([steps] * number, before[:, None], kinds=("step",), columns=columns)
