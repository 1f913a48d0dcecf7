"""The call cache records the same as the slow path."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.record.arrays import BlockArrays

pytestmark = pytest.mark.host

E = vpps.Expression


@vpps.cell
def node(x: E, hs: list[E], cs: list[E], k: int) -> tuple[E, E]:
    """A cell with every kind of argument."""
    h = x + vpps.sum(vpps.each(lambda h, c: h * c, hs, cs))
    return h, vpps.cross_entropy(h, k)


def everything_recorded(graph: vpps.Graph) -> list[Any]:
    """Return the content of all blocks."""
    found = []
    for b in map(BlockArrays, graph.blocks.values()):
        arrays = [b.calls, *b.values, b.levels, b.args, b.ints, *(a for xs in b.lists for a in (xs.ends, xs.elements))]
        found.append((b.cell.name, [a.tolist() for a in arrays]))
    return found


def record_tree(graph: vpps.Graph) -> E:
    """Record nodes with zero to three children, twice each, and inputs, sums, a constant, and an op on a parameter."""
    xs = [graph.input(np.full(3, k)) for k in range(4)]
    states: list[E] = []
    losses = []
    for k in range(12):
        children = states[-(k % 4) :] if k % 4 else []
        h, loss = node(xs[k % 4], children, tuple(children), k % 3)
        states.append(h * 0.5 + xs[0])
        losses.append(loss)
    return vpps.sum(losses) + vpps.mean(losses)


@pytest.mark.parametrize("recorder", ["python", "compiled"])
def test_calls_like_earlier_ones_do_not_ask_the_graph(
    recorder: str, use_recorder: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise recording is slow, which no other test would notice."""
    use_recorder(recorder)
    graph = vpps.Graph()
    record_tree(graph)
    x = graph.zeros(3)
    before = len(graph)
    monkeypatch.setattr(vpps.Graph, "call_cell", None)
    monkeypatch.setattr(vpps.Graph, "apply", None)
    h, loss = node(x, [x], [x], 1)
    node(x, [], [], 2)
    node(h, (h, h), [x, x], 2)
    assert vpps.sum([loss, loss]).shape == ()
    assert (loss + loss).shape == ()
    assert len(graph) == before + 5


@pytest.mark.parametrize("recorder", ["python", "compiled"])
def test_calls_that_differ_do_what_they_do_as_first_calls(recorder: str, use_recorder: Callable[[str], None]) -> None:
    """Error messages are the same, and nothing is recorded."""
    use_recorder(recorder)
    differ: list[tuple[Callable[[E, E], tuple[Any, ...]], type[Exception] | None]] = [
        (lambda x, y: (y, [y], [y], 1), None), (lambda x, y: (x, [x], [x, x], 1), vpps.ShapeError),
        (lambda x, y: (x, [x, y], [x, x], 1), vpps.ShapeError), (lambda x, y: (x, [x, 1], [x, x], 1), vpps.DtypeError),
        (lambda x, y: (x, x, [x], 1), vpps.VppsError), (lambda x, y: (np.zeros(3), [x], [x], 1), vpps.DtypeError),
        (lambda x, y: (x, [x], [x], 1.0), vpps.DtypeError), (lambda x, y: (x, [x], [x], 3), vpps.IndexRangeError),
        (lambda x, y: (x, [x], [x], -1), vpps.IndexRangeError), (lambda x, y: (x, [x], [x], True), vpps.DtypeError),
        (lambda x, y: (x, [x], [x]), vpps.TraceError),
    ]  # fmt: skip
    for arguments, error in differ:
        said = set()
        for earlier in (0, 2):
            graph = vpps.Graph()
            x, y = graph.zeros(3), graph.zeros(2)
            for _ in range(earlier):
                node(x, [x], [x], 1)
            before = len(graph)
            if error is None:
                assert [e.shape for e in node(*arguments(x, y))] == [(2,), ()]
                continue
            with pytest.raises(error) as caught:
                node(*arguments(x, y))
            assert len(graph) == before
            said.add(re.sub(r"\b(graph|call)\s\d+", r"\1", str(caught.value)))
        assert len(said) <= 1, said


def test_empty_lists_follow_the_first_call_that_had_them() -> None:
    """Empty lists have no shape, and keep the program that they had first."""

    @vpps.cell
    def total(xs: list[E]) -> E:
        return vpps.sum(xs)

    graph = vpps.Graph()
    x, y = graph.zeros(3), graph.zeros(2)
    total([x])
    first = graph.call(total, [])
    shapes = [(total([y])).shape, graph.call(total, []).shape, total([x]).shape, graph.call(total, []).shape]
    assert first.shape == (3,)
    assert shapes == [(2,), (3,), (3,), (3,)]


def test_graphs_with_lists_are_freed_with_their_last_expression() -> None:
    graph = vpps.Graph()
    result = record_tree(graph)
    alive = weakref.ref(graph)
    gc.collect()
    gc.disable()
    try:
        del graph, result
        assert alive() is None, "a reference cycle keeps the graph until a garbage collection"
    finally:
        gc.enable()


def test_the_first_sum_of_a_graph_is_quick_where_another_graph_had_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most graphs have only one sum, with thousands of losses."""
    x = vpps.Graph().zeros(3)
    vpps.sum([x, x])
    graph = vpps.Graph()
    x = graph.zeros(3)
    with monkeypatch.context() as patch:
        patch.setattr(vpps.Graph, "call_cell", None)
        assert vpps.sum([x, x]).shape == (3,)
    graph = vpps.Graph()
    x, y = graph.zeros(3), graph.zeros(2)
    with pytest.raises(vpps.ShapeError, match=r"sum.*elements of a list argument have shapes \(3,\) and \(2,\)"):
        vpps.sum([x, y])
    assert len(graph.blocks) == 2, "a block without vertices was left behind"
    with pytest.raises(vpps.GraphError, match="two graphs"):
        vpps.sum([x, vpps.Graph().zeros(3)])
