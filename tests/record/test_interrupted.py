"""Ctrl-C at every point of recording a graph: later recordings are not affected."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import vpps
from tests.interruptions import interrupted
from vpps.ops.operand import in_progress, running
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host


def recording(model: vpps.Model, kind: str) -> vpps.Expression:
    """Record a graph with new cells."""
    W = model["W"]

    @vpps.cell
    def inner(h):
        return vpps.tanh(W @ h)

    @vpps.cell
    def step(h, x):
        return inner(h) + x

    def leaf():
        return vpps.pull()

    def join():
        return inner(vpps.gather(0)) + vpps.gather(1)

    graph = vpps.Graph()
    if kind == "map":
        children = np.array([[-1, -1], [-1, -1], [0, 1]])
        xs = {"x": graph.rows(np.ones((3, 4)))}
        return vpps.sum(graph.map([leaf, join], kind=[0, 0, 1], children=children, inputs=xs)[2])
    h = graph.lookup(model["E"], 1) if kind == "lookup" else graph.call(step, graph.zeros(4), graph.input(np.ones(4)))
    return vpps.sum(step(h, graph.input(np.ones(4))))


def test_callbacks_of_weak_references_are_not_interrupted() -> None:
    """Python would swallow the exception."""
    values: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
    members: weakref.WeakSet[Any] = weakref.WeakSet()

    def work() -> None:
        values["a"] = value = type("Value", (), {})()
        members.add(value)

    work()
    assert all(interrupted(work))


@pytest.mark.parametrize("kind", ["call", "lookup", "map"])
def test_no_recorder_stays_in_use(kind: str) -> None:
    model = vpps.Model(seed=1)
    model.parameter("W", (4, 4))
    model.lookup("E", (3, 4))
    loss = recording(model, kind)
    expected = float(Reference(loss.owner, weights_of(model)).value(loss))
    n = 0
    for came in interrupted(lambda: recording(model, kind), every=3):
        assert came
        assert running.current is None
        assert not in_progress
        n += 1
    assert n > 100
    loss = recording(model, kind)
    assert float(Reference(loss.owner, weights_of(model)).value(loss)) == expected


def test_averages_and_scopes_end() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (4, 4))
    with vpps.Handle(model, ema=0.5) as handle:
        graph = vpps.Graph()
        handle.fb(graph, vpps.sum(vpps.tanh(W @ graph.input(np.ones(4)))))
    weights = W.numpy()

    def work() -> None:
        with model.averaged(), model.scope("inner"):
            assert not np.array_equal(W.numpy(), weights)

    for came in interrupted(work):
        assert came
        assert np.array_equal(W.numpy(), weights)
        assert not model.is_averaged
    assert model.parameter("outer", (2,)).name == "outer"
