"""Recurrent cells in parts: the split, immediate execution of eager parts, and unchanged results."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from vpps.compiler.passes import Passes
from vpps.compiler.passes.lazy_batching import Batching, CellPart, split
from vpps.record.trace import TracedCell
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

WHOLE = Passes(lazy_batching=False)


def computed(part: CellPart) -> list[str]:
    """Return the ops that a part computes, in order."""
    from vpps.compiler.prepare import live_nodes

    live = live_nodes(part.cell.nodes, part.cell.outputs)
    sources = ("argument", "parameter", "index", "slice", "lookup", "concat")
    return [n.op.name for n, is_live in zip(part.cell.nodes, live, strict=True) if is_live and n.op.name not in sources]


def traced(graph: vpps.Graph, name: str) -> TracedCell:
    return next(cell for cell in graph.blocks if cell.name == name)


class Reader:
    """A recurrent net with a loss at every step, all in a single cell."""

    def __init__(self, hidden: int = 24) -> None:
        self.model = vpps.Model(seed=2)
        self.words = self.model.lookup("words", (9, 10))
        self.W = self.model.parameter("W", (hidden, 10))
        self.U = self.model.parameter("U", (hidden, hidden))
        self.b = self.model.parameter("b", (hidden,), init="normal")
        self.Wo = self.model.parameter("Wo", (4, hidden))
        self.hidden = hidden

    @vpps.cell
    def step(self, h: vpps.Expression, word: int, label: int) -> tuple[vpps.Expression, vpps.Expression]:
        h = vpps.tanh(self.W @ vpps.lookup(self.words, word) + self.U @ h + self.b)
        return h, vpps.cross_entropy(self.Wo @ h, label)

    def batch(self, seed: int, sentences: int = 5) -> tuple[vpps.Graph, vpps.Expression]:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        for _ in range(sentences):
            h = graph.zeros(self.hidden)
            for _ in range(rng.integers(2, 7)):
                h, loss = self.step(h, int(rng.integers(9)), int(rng.integers(4)))
                losses.append(loss)
        return graph, vpps.sum(losses)


def test_a_cell_falls_into_eager_level_and_lazy_parts() -> None:
    graph, _ = Reader().batch(0)
    eager, level, lazy = split(traced(graph, "Reader.step"), frozenset({0}), frozenset({0}))
    assert (eager.batching, level.batching, lazy.batching) == tuple(Batching)
    assert computed(eager) == ["affine"]
    assert computed(level) == ["affine", "add", "add", "tanh"]
    assert computed(lazy) == ["affine", "cross_entropy"]
    assert (eager.outputs, level.outputs, lazy.outputs) == ((-1,), (0,), (1,))
    assert (eager.ints, level.ints, lazy.ints) == ((0,), (), (1,))
    assert [c.batching for c in lazy.crossings] == [Batching.LEVEL]
    assert not lazy.crossings[0].alone  # the next step also reads the state
    assert level.crossings[0].alone


def test_what_is_all_level_stays_whole() -> None:
    graph, _ = Reader().batch(0)
    cell = traced(graph, "Reader.step")
    assert split(cell, frozenset({0}), frozenset({0, 1})) != ()
    model = vpps.Model()
    U = model.parameter("U", (8, 8))

    @vpps.cell
    def step(h):
        return vpps.tanh(U @ h)

    graph = vpps.Graph()
    step(step(graph.zeros(8)))
    assert split(traced(graph, "step"), frozenset({0}), frozenset({0})) == ()


def flipped(x: vpps.Expression) -> vpps.Expression:
    """Transpose a vector twice: from a column to a row."""
    (n,) = x.shape
    return vpps.reshape(vpps.reshape(x, (n, 1)).T, n)


@pytest.mark.parametrize("passes", [Passes(), WHOLE], ids=["all", "whole"])
@pytest.mark.parametrize("crosses", ["sum of a list", "slices of a product", "product", "a table's row", "twice"])
def test_transposes_that_are_views_do_not_cross(crosses: str, passes: Passes) -> None:
    """Gradients of crossing views were once lost: for list elements, the matrix, or the slices' source."""
    model = vpps.Model(seed=4)
    table = model.lookup("table", (7, 6), init="normal")
    W, V = model.parameter("W", (6, 6)), model.parameter("V", (12, 6))

    @vpps.cell(elements={"ys": (6,)})
    def step(h: vpps.Expression, x: vpps.Expression, ys: list[vpps.Expression], row: int) -> vpps.Expression:
        match crosses:
            case "sum of a list":
                return vpps.tanh(flipped(vpps.sum(ys)) + h)
            case "slices of a product":
                a, b = vpps.split(V @ x, 2)
                return vpps.tanh(flipped(a) + h) * flipped(b)
            case "product":
                return vpps.tanh(flipped(W @ x) + h)
            case "a table's row":
                return vpps.tanh(flipped(vpps.lookup(table, row)) * x + h)
        m = vpps.reshape(vpps.tanh(x), (3, 2)).T
        return vpps.tanh(vpps.reshape(m.T @ m, 9)[:6] + h)

    graph = vpps.Graph()
    h, rows = graph.zeros(6), [graph.lookup(table, k) for k in range(5)]
    for k in range(4):
        h = step(h, rows[k], rows[: k + 1], k)
    if crosses != "slices of a product":
        h = W @ h  # every matrix has a gradient
    loss = vpps.dot(h, graph.input(np.arange(6.0)))
    reference = Reference(graph, weights_of(model))
    expected = reference.backward(loss)
    with vpps.Handle(model, passes=passes) as handle:
        got, gradients = handle.gradients(graph, loss)
    assert abs(got - reference.value(loss)) < 1e-5
    for name, gradient in gradients.items():
        assert relative_error(gradient, expected[name]) < 1e-4, name


def test_groups_run_their_parts() -> None:
    net = Reader()
    graph, loss = net.batch(1, sentences=4)
    results = []
    for groups in (1, 2):
        with vpps.Handle(net.model, vps=2, target="simt", onchip=vpps.ChipOptions(groups=groups)) as handle:
            value, gradients = handle.gradients(graph, loss)
            (again,) = handle.forward(graph, [loss])
            assert again == np.float32(value)
            results.append(gradients)
    for name, gradient in results[0].items():
        assert relative_error(results[1][name], gradient) < 1e-5, name
