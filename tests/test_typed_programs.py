"""Users' programs run and pass mypy --strict.

mypy checks this file and the documentation's programs together with the package (`tool.mypy` in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import vpps
import vpps.zoo
from vpps.data import GraphBatch, GraphSet, graphs_of_trees, synthetic_treebank
from vpps.nn import LSTM, ChildSumTreeLSTM, Linear, attend
from vpps.zoo.task import Examples, Sized

pytestmark = pytest.mark.cpu

H = 8
E = vpps.Expression
State = tuple[E, E]
Tree = int | tuple[Any, Any]

DATA: list[tuple[Tree, int]] = [(((1, 2), 3), 0), ((4, (5, 6)), 3), ((1, (5, (2, 6))), 1)]


def test_cells_are_decorated_functions_and_graphs_are_built_by_recursion() -> None:
    model = vpps.Model(seed=1)
    words = model.lookup("words", (20, H))
    U, b = model.parameter("U", (4 * H, 2 * H)), model.parameter("b", (4 * H,), init="zeros")
    Wo = model.parameter("Wo", (5, H), init=vpps.init.normal(0.1))

    @vpps.cell
    def node(lc: E, lh: E, rc: E, rh: E) -> State:
        i, f, o, u = vpps.split(U @ vpps.concat([lh, rh]) + b, 4)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * (lc + rc) / 2
        c += np.float32(0.1) * lc - 1
        return c, vpps.sigmoid(o) * vpps.tanh(vpps.clamp(-c, -1.0, 1.0))

    @vpps.cell
    def leaf(word: int) -> State:
        x = vpps.lookup(words, word)
        return x, vpps.dropout(x, 0.1)

    def build(graph: vpps.Graph, tree: Tree) -> State:
        if isinstance(tree, int):
            return graph.call(leaf, tree)
        return node(*build(graph, tree[0]), *build(graph, tree[1]))

    with vpps.Handle(model, vpps.Adam(lr=lambda step: 0.01 / (1 + step)), clip_norm=5.0, vps=1) as handle:
        assert_type(handle, vpps.Handle)
        for _ in range(2):
            graph = vpps.Graph()
            losses = [vpps.cross_entropy(Wo @ build(graph, tree)[1], label) for tree, label in DATA]
            previous: float = handle.fb(graph, vpps.mean(losses))
        graph = vpps.Graph()
        c, h = build(graph, DATA[0][0])
        assert_type(h, vpps.Expression)
        values: NDArray[np.float32] = handle.forward(graph, [vpps.softmax(Wo @ h), graph.lookup(words, 3)])[0]
        assert c.shape == (H,)
        assert values.shape == (5,)
        assert np.isfinite(previous)
        assert len(handle.explain()) > 100
        assert handle.vps == 1


class TreeNet:
    """A net whose cells are methods and which is composed of existing layers."""

    def __init__(self, model: vpps.Model, n_words: int) -> None:
        self.words = model.lookup("words", (n_words, H))
        self.gates = Linear(model, 2 * H, 2 * H, name="gates")
        self.output = vpps.nn.MLP(model, H, H, 5, name="output")

    @vpps.cell
    def leaf(self, word: int) -> State:
        x = vpps.lookup(self.words, word)
        return x, vpps.tanh(x)

    @vpps.cell
    def inner(self, c_left: E, h_left: E, c_right: E, h_right: E) -> State:
        gate, new = vpps.split(self.gates(vpps.concat([h_left, h_right])), 2)
        c = vpps.sigmoid(gate) * new + vpps.maximum(c_left, c_right)
        return c, vpps.tanh(c)

    @vpps.cell
    def node_loss(self, h: E, label: int) -> E:
        return vpps.cross_entropy(self.output(h), label)

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> tuple[vpps.Rows, vpps.Rows]:
        inputs = {"word": batch["word"]}
        return graph.map([self.leaf, self.inner], **batch.structure, inputs=inputs, distinct=True)

    def losses(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        _, h = self.states(graph, batch)
        return self.node_loss(h, batch["label"])


def trees(n: int) -> GraphSet:
    treebank = synthetic_treebank(n, 1)
    return graphs_of_trees(treebank.train)


def test_graphs_are_data_and_cells_are_methods() -> None:
    data = trees(6)
    model = vpps.Model(seed=1)
    net = TreeNet(model, len(data.vocabularies["word"]))
    with vpps.Handle(model, vpps.SGD(lr=0.1), vps=1) as handle:
        for batch in data.batches(3, seed=1, epoch=0):
            graph = vpps.Graph()
            losses = net.losses(graph, batch)
            handle.fb(graph, vpps.sum(losses) * (1 / len(batch)))
        logits = net.output(net.states(graph, batch)[1][batch.roots])
        assert_type(logits, vpps.Rows)
        assert_type(logits + 1, vpps.Rows)
        assert_type(logits[0], vpps.Expression)
        right = vpps.cross_entropy(logits, batch["label"][batch.roots])
        assert_type(right, vpps.Rows)
        gradients: dict[str, Any] = handle.gradients(graph, vpps.sum(right) + vpps.sum(losses))[1]
        assert handle.forward(graph, [vpps.softmax(logits)])[0].shape == (3, 5)
        assert len(gradients) > 3
        assert [row.shape for row in logits] == [(5,)] * 3


def test_vertices_are_called_as_in_cavs_and_children_are_lists() -> None:
    model = vpps.Model(seed=1)
    words = model.lookup("words", (9, H))
    tree = ChildSumTreeLSTM(model, H, H)
    query = model.parameter("query", (H,))

    @vpps.cell
    def node(word: int) -> State:
        hs, cs = vpps.gather()
        return tree.node(vpps.lookup(words, word), hs, cs)

    @vpps.cell
    def first_child() -> None:
        h = vpps.gather(0)
        own = vpps.tanh(vpps.pull("x") + h)
        vpps.scatter(own)

    @vpps.cell(elements={"hs": (H,)})
    def pooled(x: E, hs: list[E]) -> E:
        weighed = vpps.sum(vpps.each(lambda h: vpps.sigmoid(h) * x, hs))
        return weighed + attend(vpps.tanh(query * x), hs, hs, lambda q, k: vpps.dot(q, k))

    graph = vpps.Graph()
    children = np.array([0, 0, 0, 2]), np.array([0, 1])
    h, c = graph.map(node, children=children, inputs={"word": np.array([1, 2, 3])})
    assert_type(h, vpps.Rows)
    pushed = graph.map(first_child, children=np.array([-1, 0, 1]), inputs={"x": c})
    top = pooled(h[2], list(h))
    loss = vpps.sum(top * pushed[2]) + vpps.sum(pooled(top, []))
    with vpps.Handle(model, vps=1, train=False) as handle:
        assert np.isfinite(handle.forward(graph, [loss])[0])


def test_layers_are_composed_and_other_libraries_arrays_are_leaves(tmp_path: Path) -> None:
    model = vpps.Model(seed=1)
    with model.scope("encoder"):
        lstm = LSTM(model, 3, H)
    both = vpps.nn.BiLSTM(model, 3, H)
    out = Linear(model, H, 2)
    graph = vpps.Graph()
    xs = [graph.input(row, grad=True) for row in np.ones((4, 3), np.float32)]
    states: list[vpps.Expression] = lstm.sequence(graph, xs)
    loss = vpps.sum(vpps.square(out(vpps.mean(states)) - 1))
    rows = graph.rows(np.ones((4, 3)))
    projected = out(vpps.concat([rows, rows, vpps.reshape(rows[:, 0:2], 2)]))
    assert both.forward is not lstm
    with vpps.Handle(model, vpps.AdamW(lr=0.1), vps=1, example=(graph, loss)) as handle:
        handle.fb(graph, loss + vpps.sum(vpps.sum(projected)))
        assert handle.input_gradient(xs[0]).shape == (3,)
        assert handle.value(projected).shape == (4, 2)
    path = tmp_path / "model.safetensors"
    model.save(path)
    model.restore(path)
    gold = vpps.reference.Reference(graph, vpps.reference.weights_of(model)).value(loss)
    assert np.isfinite(gold)


class Sentences:
    """A user's own reader: any object with these methods is a set to train on."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, examples: slice | ArrayLike) -> Sentences:
        return Sentences([self.rows[k] for k in np.arange(len(self))[examples]])  # type: ignore[index]

    @property
    def whole(self) -> int:
        return len(self)

    def batches(
        self,
        size: int,
        *,
        seed: int = 1,
        epoch: int = 0,
        shuffle: bool = True,
        world: vpps.distributed.World | None = None,
    ) -> Iterator[Sentences]:
        for start in range(0, len(self), size):
            yield self[start : start + size]


def test_a_reader_of_ones_own_is_a_set_to_train_on() -> None:
    """docs/programs/calc.py is a user's own task."""
    examples: Examples[Sentences] = Sentences([[k, k + 1] for k in range(5)])
    sized: Sized = examples[0:2]
    assert (sized.whole, [batch.whole for batch in examples.batches(3)]) == (2, [3, 2])


def test_networks_of_the_zoo_are_used_and_looked_into() -> None:
    data = trees(4)
    model = vpps.Model(seed=1)
    net = vpps.zoo.TreeLSTMSentiment(model, len(data.vocabularies["word"]), embedding=H, hidden=H)
    batch = data[0:2]
    graph = vpps.Graph()
    loss: vpps.Expression = net.loss(graph, batch)
    with vpps.Handle(model, vps=1, timeline=True) as handle:
        with handle.trace() as trace:
            handle.fb(graph, loss)
        inspection: vpps.report.Inspection = handle.inspect(graph, loss)
        assert str(trace.summary())
        assert str(inspection.plan)
        assert graph.draw(4).svg()
    assert vpps.data.GraphSet is GraphSet


def test_gradients_are_dense_unless_sparse_ones_are_asked_for() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (3,))
    with vpps.Handle(model, vps=1) as handle:
        graph = vpps.Graph()
        x = graph.input(np.ones(3))
        loss, dense = handle.gradients(graph, vpps.dot(W, x))
        assert_type(loss, float)
        assert_type(dense, dict[str, NDArray[np.float32]])
        _, either = handle.gradients(graph, vpps.dot(W, x), sparse=True)
        assert_type(either, dict[str, NDArray[np.float32] | vpps.RowGradients])
        assert dense["W"].tolist() == [1.0] * 3
