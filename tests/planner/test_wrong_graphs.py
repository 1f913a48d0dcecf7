"""Wrong graphs are reported before anything runs, in the user's terms; any number of cells is allowed."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new
from tests.comparison import relative_error
from vpps.placement.distribution import Distribution
from vpps.planner.planner import Planner
from vpps.record import vertices
from vpps.record.vertices import ARGS
from vpps.reference import Reference, weights_of


def planner_of(model: vpps.Model) -> Planner:
    return Planner(Distribution(model, 2, 32, 0, train=True), "sinks-last")


@pytest.mark.cpu
def test_a_graph_grows_after_an_error_whoever_holds_its_traceback() -> None:
    graph, loss = new().batch(1)
    for plan in (lambda p: p.plan_training(graph, loss, None, 0), lambda p: p.plan_forward(graph, [loss])):
        with pytest.raises(vpps.ModelError, match=r"'Classifier.read' uses .* belongs to another model") as caught:
            plan(planner_of(new().model))
        assert caught.tb is not None
        assert type(vpps.tanh(loss)) is vpps.Expression


@pytest.mark.cpu
class TestValue:
    """A value without a vertex cannot be recorded: these tests damage the recording."""

    @pytest.mark.parametrize("value", [-1, 10**6])
    def test_is_missed_by_its_reader(self, value: int) -> None:
        net = new()
        graph = vpps.Graph()
        loss = vpps.sum(net.logits(graph, [1, 2]))
        rows = next(block for cell, block in graph.blocks.items() if cell.name == "Classifier.read").rows
        (rows if type(rows) is list else memoryview(rows).cast("B").cast("q"))[ARGS] = value
        message = rf"graph {graph.number} of \d+ vertices: a vertex of cell 'Classifier.read' reads a value that the "
        with pytest.raises(vpps.ScriptError, match=message + "graph does not have; please report this"):
            planner_of(net.model).plan_training(graph, loss, None, 0)

    def test_is_missed_by_who_asks_for_it(self) -> None:
        net = new()
        graph, loss = net.batch(1)
        loss.ref = 10**6
        with pytest.raises(vpps.ScriptError, match="the request is for a value that the graph does not have"):
            planner_of(net.model).plan_forward(graph, [loss])


@pytest.mark.cpu
def test_a_graph_may_have_more_than_a_thousand_cells() -> None:
    """Chains of cells, and recurrences with two alternating cells."""
    model, graph = vpps.Model(seed=1), vpps.Graph()
    values = [graph.lookup(model.lookup("E", (7, 4)), 3)]
    for k in range(515):
        turns = vpps.cell(lambda x, k=k: x * (1 + 1 / (k + 1))), vpps.cell(lambda x, k=k: x - k / 1000)
        for call in range(3 if k % 50 == 0 else 2):
            values.append(graph.call(turns[call % 2], values[-1]))
        values.append(vpps.tanh(values[-1]))
    assert len(graph.blocks) > 1024
    loss = vpps.sum(vpps.sum(values))
    reference = Reference(graph, weights_of(model))
    with vpps.Handle(model, vps=2, passes=vpps.Passes(fusion=False), verify=False) as handle:
        value, gradients = handle.gradients(graph, loss)
    assert value == pytest.approx(float(reference.value(loss)), rel=1e-5)
    assert relative_error(gradients["E"], reference.backward(loss)["E"]) <= 1e-4


@pytest.mark.cpu
@pytest.mark.parametrize("compiled", [False, True])
def test_threads_that_record_at_the_same_time_are_refused_or_right(compiled: bool, monkeypatch: Any) -> None:
    """The second thread records each time the first advances by one line in vpps."""
    net, refused, found = new(), 0, [None]

    def record(k: int) -> vpps.Expression:
        row = graph.rows(np.full((1, 3), k, np.float32))[0]
        return vpps.sum([vpps.sum(net.logits(graph, [k])), vpps.sum(graph.input([k, 1.0])), vpps.sum(row) * (k + 2)])

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        left -= event == "line" and "/vpps/" in frame.f_code.co_filename
        if left:
            return trace
        sys.settrace(None)
        other = threading.Thread(target=lambda: found.append(record(2)))
        other.start()
        return other.join()

    with vpps.Handle(net.model, train=False, target="cpu", vps=1, verify=False) as handle:
        if not compiled:
            monkeypatch.setattr(vertices, "new_tape", vertices.Tape)
        graph, line = vpps.Graph(), 0
        expected = handle.forward(graph, [record(1), record(2)])
        while found:
            graph, found, line = vpps.Graph(), [], line + 1
            left = line
            sys.settrace(trace)
            try:
                mine = record(1)
            finally:
                sys.settrace(None)
            try:
                assert handle.forward(graph, [mine, *found]) == expected[: 1 + len(found)]
            except vpps.GraphError:
                refused += 1
    assert 3 < refused < line / 2, line
