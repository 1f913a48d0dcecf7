"""Regressions of passes on recurrent cells, found with random cells (`tests.fuzz`): unread results, slices of
concatenations, streams of two rows. All results agree with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.compiler.passes import lazy_batching

pytestmark = pytest.mark.cpu

WIDTH = 8
E = vpps.Expression


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_batching, "CHUNK_ROWS", 2)


class Net:
    """Matrices shared by cells."""

    def __init__(self, seed: int) -> None:
        self.model = vpps.Model(seed=seed)
        self.square = [self.model.parameter(f"W{i}", (WIDTH, WIDTH)) for i in range(4)]
        self.tall = [self.model.parameter(f"V{i}", (2 * WIDTH, WIDTH)) for i in range(2)]


def chains(cell: vpps.Cell[Any], n: int, length: int) -> tuple[vpps.Graph, list[tuple[E, ...]]]:
    """Record chains of a cell (x, before), whose first result is the next call's `before`."""
    graph, rng, found = vpps.Graph(), np.random.default_rng(1), []
    for _ in range(n):
        before = graph.zeros(WIDTH)
        for _ in range(length):
            found.append(graph.call(cell, graph.input(rng.normal(size=WIDTH).astype(np.float32)), before))
            before = found[-1][0]
    return graph, found


def test_an_unread_output_that_another_part_reads_has_a_gradient() -> None:
    net = Net(1)
    W, U, V = net.square[:3]

    @vpps.cell
    def eager(x, before):
        e = W @ x
        return vpps.tanh(e + U @ before), e  # e is never read

    @vpps.cell
    def lazy(x, before):
        gate = vpps.sigmoid(W @ x + U @ before)
        return gate * before + gate, gate, V @ gate  # gate is never read

    for cell, result in ((eager, 0), (lazy, 2)):
        graph, found = chains(cell, 2, 3)
        assert_agrees_with_reference(
            net.model, graph, vpps.sum([vpps.sum(out[result]) for out in found]), [], vp_counts=(2,)
        )


def test_a_residual_past_the_recurrence_reads_all_chunks_of_a_stream() -> None:
    net = Net(1)
    W, U = net.square[:2]

    @vpps.cell
    def cell(x, before):
        e = W @ x
        h = vpps.tanh(e + U @ before)
        return h, h * vpps.sigmoid(e)

    graph, found = chains(cell, 4, 6)
    values = [out[1] for out in found]
    assert_agrees_with_reference(net.model, graph, vpps.sum([vpps.sum(v) for v in values]), values, vp_counts=(2,))


def test_a_slice_of_a_value_of_the_vertex_beside_an_element_has_a_row_per_element() -> None:
    net = Net(1)
    W = net.square[0]

    @vpps.cell
    def cell(x, memory):
        return W @ vpps.sum(vpps.each(lambda m: vpps.concat([x, m])[:WIDTH], memory))

    graph = vpps.Graph()
    xs = [graph.input(np.full(WIDTH, 0.1 * k, np.float32)) for k in range(5)]
    value = cell(xs[0], xs[1:])
    assert_agrees_with_reference(net.model, graph, vpps.sum(value), [value], vp_counts=(2,))


def test_a_recurrence_that_is_eager_and_lazy_alone_does_not_stream() -> None:
    net = Net(1)
    W, V = net.square[0], net.tall[0]

    @vpps.cell
    def cell(x, before):
        e = W @ x
        return e, vpps.tanh(V @ (e + before))

    graph, found = chains(cell, 4, 5)
    assert_agrees_with_reference(
        net.model, graph, vpps.sum([vpps.sum(out[1]) for out in found]), [found[-1][1]], vp_counts=(3,)
    )
