"""Recording is fast for calls that resemble earlier calls, and still notices differences."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.record.arrays import BlockArrays

pytestmark = pytest.mark.host


def new() -> tuple[vpps.Model, vpps.Lookup, vpps.Graph]:
    model = vpps.Model(seed=1)
    return model, model.lookup("words", (9, 4)), vpps.Graph()


def test_a_graph_is_freed_with_its_last_expression() -> None:
    _model, table, graph = new()
    x = graph.lookup(table, 1)
    y = vpps.sum(graph.zeros(4) + x * 0.5) * 2
    alive = weakref.ref(graph)
    gc.disable()
    try:
        del graph, x
        assert alive() is not None
        del y
        assert alive() is None, "a reference cycle keeps the graph until a garbage collection"
    finally:
        gc.enable()


def test_another_shape_makes_another_program_and_the_first_still_fits() -> None:
    _model, table, graph = new()

    @vpps.cell
    def double(a: vpps.Expression) -> vpps.Expression:
        return a + a

    x = graph.lookup(table, 1)
    y = vpps.concat([x, x])
    shapes = [double(e).shape for e in (x, y, x, y, y, x)]
    assert shapes == [(4,), (8,), (4,), (8,), (8,), (4,)]
    sums = [(e + e).shape for e in (x, y, x)]
    assert sums == [(4,), (8,), (4,)]
    assert sorted(len(b) for b in graph.blocks.values() if b.cell.name == "double") == [3, 3]


def test_ints_of_other_types_are_taken() -> None:
    _model, table, graph = new()
    for row in (3, np.int64(4), np.uint8(5)):
        graph.lookup(table, row)  # type: ignore[arg-type]
    (block,) = graph.blocks.values()
    assert BlockArrays(block).ints.tolist() == [[3], [4], [5]]


def test_ops_whose_operands_change_kind_are_told_apart() -> None:
    """The call cache records an op if its operands resemble the latest operands; these operands never do."""
    model, table, graph = new()
    p, q = model.parameter("p", (4,)), model.parameter("q", (4,))
    x = graph.lookup(table, 1)
    for _ in range(2):
        _ = [x - p, p - x, x - q, q - x, x - x]
        parts = [vpps.concat(xs) for xs in ([x, x], [x, p], [p, x], [x, p, x], [x])]
        assert [e.shape for e in parts] == [(8,), (8,), (8,), (12,), (4,)]
        assert [(x * 2).shape, (x + np.float32(1)).shape, vpps.pick(x, 1).shape] == [(4,), (4,), ()]
        vpps.pick(x, np.int64(2))  # type: ignore[arg-type]
    for op in ("concat", "sub"):
        assert [len(b) for b in graph.blocks.values() if b.cell.name.startswith(op)] == [2, 2, 2, 2, 2]
    (picked,) = (b for b in graph.blocks.values() if b.cell.name == "pick")
    assert BlockArrays(picked).ints.tolist() == [[1], [2], [1], [2]]


def test_inputs_of_a_shape_share_a_block() -> None:
    graph = vpps.Graph()
    for k in range(3):
        graph.input(np.full(2, k))
        graph.input(np.full(2, k), grad=True)
        graph.input(float(k))
    data = [np.concatenate(b.data).tolist() for b in graph.blocks.values()]
    assert data == [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [0, 1, 2]]
    assert [BlockArrays(b).calls.tolist() for b in graph.blocks.values()] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize("copier", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_graph_is_neither_pickled_nor_copied(copier: Callable[[Any], Any]) -> None:
    """Objects that contain it are not copied either."""
    graph = vpps.Graph()
    for what in (graph, [graph.input(1.0)], [graph.rows([1.0])]):
        if what is graph or copier is not copy.copy:
            with pytest.raises(vpps.GraphError, match=r"cannot be pickled or copied: .*GraphSet"):
                copier(what)
