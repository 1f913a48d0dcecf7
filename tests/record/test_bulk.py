"""A map is planned like single calls: same bits on `cpu`, in any order, mixed with calls, with typed edges.

test_bulk_random.py tests random maps, tests/zoo the users' networks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from tests.record.test_packed import forest
from vpps.data import GraphBatch, GraphSet

pytestmark = pytest.mark.cpu

WORDS, H, X, TYPES = 50, 20, 12, 3


class Trees:
    """Leaves and inner nodes of binary trees, recorded in bulk or call by call."""

    def __init__(self) -> None:
        self.model = model = vpps.Model(seed=3)
        words = model.lookup("words", (WORDS, X), init="normal")
        W, U, b = model.parameter("W", (H, X)), model.parameter("U", (2 * H, 2 * H)), model.parameter("b", (H,))

        @vpps.cell
        def leaf(word: Any) -> Any:
            h = vpps.tanh(W @ vpps.lookup(words, word) + b)
            return h, vpps.sigmoid(h)

        @vpps.cell
        def inner(h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> Any:
            gate, update = vpps.split(U @ vpps.concat([h_left, h_right]), 2)
            c = vpps.sigmoid(gate) * c_left + c_right
            return vpps.tanh(update) * c, c

        self.leaf, self.inner, self.product = leaf, inner, vpps.cell(lambda h, c: h * c)

    def bulk(self, graph: vpps.Graph, batch: GraphBatch, **changed: Any) -> tuple[vpps.Rows, vpps.Expression]:
        given = {**batch.structure, "inputs": {"word": batch["word"]}, **changed}
        h, c = graph.map([self.leaf, self.inner], **given)
        return h, vpps.sum(vpps.sum(self.product(h, c)))

    def calls(self, graph: vpps.Graph, batch: GraphBatch) -> tuple[list[vpps.Expression], vpps.Expression]:
        states: list[Any] = []
        for kind, (left, right), word in zip(batch.kind, batch.children, batch["word"].tolist(), strict=True):
            given = (*states[left], *states[right]) if kind else (word,)
            states.append(graph.call(self.inner if kind else self.leaf, *given))
        return [h for h, _ in states], vpps.sum(vpps.sum([self.product(h, c) for h, c in states]))


def test_an_ordinary_cell_has_one_block_for_calls_and_maps() -> None:
    net, batch, graph = Trees(), forest(3)[:3], vpps.Graph()
    losses = [net.calls(graph, batch)[1]]
    blocks = len(graph.blocks)
    for record in (net.bulk, net.calls, net.bulk):
        losses.append(record(graph, batch)[1])  # noqa: PERF401  reads itself
    assert len(graph.blocks) == blocks
    assert_agrees_with_reference(net.model, graph, vpps.sum([x * (0.5 + k) for k, x in enumerate(losses)]))
    alone = vpps.Graph()
    expected = net.calls(alone, batch)[1]
    with vpps.Handle(net.model) as handle:
        assert set(map(float, handle.forward(graph, losses))) == {float(handle.forward(alone, [expected])[0])}


@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
@pytest.mark.parametrize("seed", range(3))
def test_vertices_may_come_in_any_order(seed: int, policy: str) -> None:
    net, batch = Trees(), forest(seed)[:5]
    place = np.random.default_rng(seed).permutation(batch.n_vertices)  # each vertex's place
    children, kind, words = (np.empty_like(a) for a in (batch.children, batch.kind, batch["word"]))
    children[place] = np.where(batch.children < 0, -1, place[batch.children])
    kind[place], words[place] = batch.kind, batch["word"]
    mixed, ordered, single = vpps.Graph(), vpps.Graph(), vpps.Graph()
    rows, loss = net.bulk(mixed, batch, children=children, kind=kind, levels=None, inputs={"word": words})
    expected, _ = net.bulk(ordered, batch)
    calls, same_loss = net.calls(single, batch)
    assert_agrees_with_reference(net.model, mixed, loss, vp_counts=(2,), policy=policy)
    with vpps.Handle(net.model, policy=policy) as handle:
        (h,) = handle.forward(mixed, [rows])
        assert np.array_equal(h[place], handle.forward(ordered, [expected])[0])
        assert np.array_equal(h[place], np.stack(handle.forward(single, calls)))
        value, gradients = handle.gradients(ordered, net.bulk(ordered, batch)[1])
        again, others = handle.gradients(single, same_loss)
        assert value == again
        assert all(np.array_equal(g, others[name]) for name, g in gradients.items())


def test_edges_of_several_types_are_lists_beside_the_children() -> None:
    """Columns of a set's edges, as embeddings, matrices and one-hot vectors."""
    model, rng = vpps.Model(seed=3), np.random.default_rng(1)
    names, matrices = model.lookup("names", (TYPES, X)), model.lookup("matrices", (TYPES, H, H))
    U, R = model.parameter("U", (H, X)), model.parameter("R", (H, X))
    W = [model.parameter(f"W{t}", (H, H)) for t in range(TYPES)]

    @vpps.cell
    def node(x: Any, hs: Any, embedded: Any, matrices: Any, one_hot: Any) -> Any:
        total = U @ x + vpps.sum(vpps.each(lambda h, matrix: matrix @ h, hs, matrices))
        total = total + vpps.sum(vpps.each(lambda h, r: vpps.tanh(R @ r) * h, hs, embedded))
        for t, matrix in enumerate(W):
            total = total + matrix @ vpps.sum(vpps.each(lambda h, types: vpps.pick(types, t) * h, hs, one_hot))  # noqa: B023
        return vpps.tanh(total)

    n, size = 4, 8
    own = [rng.integers(0, v, rng.integers(0, 4)) if v else [] for _ in range(n) for v in range(size)]
    indices = np.concatenate(own).astype(int)
    graphs = GraphSet(
        [size] * n, (np.cumsum([0, *map(len, own)]), indices), columns={"x": rng.normal(size=(n * size, X))},
        edge_columns={"type": rng.integers(0, TYPES, len(indices))},
    )  # fmt: skip
    batch = graphs[rng.permutation(n)]
    types, bulk, single = batch["type"], vpps.Graph(), vpps.Graph()
    x = bulk.rows(batch["x"], grad=True)
    of_edges = {
        "embedded": bulk.lookup(names, np.arange(TYPES))[types],
        "matrices": bulk.lookup(matrices, np.arange(TYPES))[types],
        "one_hot": bulk.rows(np.eye(TYPES)[types]),
    }
    inputs = {name: (batch.child_offsets, rows) for name, rows in of_edges.items()}
    h = bulk.map({"vertex": node}, **batch.structure, inputs={"x": x, **inputs})

    xs = [single.input(row, grad=True) for row in batch["x"]]
    of_types = [[single.lookup(table, t) for t in range(TYPES)] for table in (names, matrices)]
    one_hot = [single.input(np.eye(TYPES)[t]) for t in types]
    offsets, below = batch.children
    states: list[Any] = []
    for v, row in enumerate(xs):
        edges = range(offsets[v], offsets[v + 1])
        lists = [[rows[types[e]] for e in edges] for rows in of_types]
        states.append(single.call(node, row, [states[below[e]] for e in edges], *lists, [one_hot[e] for e in edges]))
    assert_agrees_with_reference(model, bulk, vpps.sum(vpps.sum(h)), vp_counts=(1, 3))
    with vpps.Handle(model) as handle:
        value, gradients = handle.gradients(bulk, vpps.sum(vpps.sum(h)))
        d_x = handle.input_gradient(x)
        expected, others = handle.gradients(single, vpps.sum(vpps.sum(states)))
        assert value == expected
        assert all(np.array_equal(g, others[name]) for name, g in gradients.items())
        assert np.array_equal(d_x, np.stack([handle.input_gradient(row) for row in xs]))


def test_a_chain_of_100_000_steps_is_recorded() -> None:
    n = 100_000
    inputs = {"x": np.ones((n, 2), np.float32)}
    forward = vpps.Graph().map(lambda h, x: vpps.tanh(h) + x, children=np.arange(-1, n - 1), inputs=inputs)
    assert forward.levels.tolist() == list(range(1, n + 1))
    backward = vpps.Graph().map(lambda h, x: vpps.tanh(h) + x, children=[*range(1, n), -1], inputs=inputs)
    assert backward.levels.tolist() == list(range(n, 0, -1))
