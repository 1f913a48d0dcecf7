"""A handle frees short-lived programs of every origin; its results remain bit-identical."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.engine import programs
from vpps.graph import graph as module
from vpps.ops.operand import Recent

pytestmark = [pytest.mark.cpu, pytest.mark.simt]
X = np.array([1.0, -2.0], np.float32)
STEPS = 40
OWN = 1000  # sizes unique to these tests: others that hold equal programs would keep ours alive
UNFUSED = vpps.Passes(fusion=False)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LEAST", 8)
    monkeypatch.setattr(Recent, "MOST", 4)
    monkeypatch.setattr(module, "_bare_programs", Recent())


class Net:
    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.U = self.model.parameter("U", (2, 2))

    @vpps.cell
    def static(self, x: Any, *, n: int) -> Any:
        return vpps.tanh(self.U @ x) * vpps.mean(vpps.concat([x] * n))

    @vpps.cell
    def other(self, x: Any, *, n: int) -> Any:
        return vpps.tanh(self.U @ x) - vpps.mean(vpps.concat([x] * n))

    def loss(self, kind: str, k: int) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        return graph, vpps.sum(KINDS[kind](self, graph, graph.input(X), k) + self.U @ graph.input(X))


KINDS: dict[str, Callable[[Net, vpps.Graph, vpps.Expression, int], Any]] = {
    "same": lambda net, g, x, k: vpps.cell(lambda x: vpps.tanh(net.U @ x))(x),
    "static": lambda net, g, x, k: net.static(x, n=k + 1),
    "recurrence": lambda net, g, x, k: net.static(net.other(net.static(x, n=k + 1), n=k + 1), n=k + 1),
    "closure": lambda net, g, x, k: vpps.cell(lambda x: vpps.tanh(net.U @ x) * vpps.sum(vpps.concat([x] * (k + 1))))(x),
    "vectors": lambda net, g, x, k: vpps.mean(g.input(np.ones(k + OWN))) * x,
    "matrices": lambda net, g, x, k: vpps.sum(vpps.tanh(net.U @ g.input(np.ones((2, k + 2))))) * x,
    "map": lambda net, g, x, k: vpps.sum(g.map(lambda r: vpps.mean(r), inputs={"r": np.ones((2, k + OWN))})) * x,
    "many": lambda net, g, x, k: vpps.mean(vpps.stack([x] * (k + 1))) * x,
}


@pytest.mark.parametrize("kind, target", [*((kind, "cpu") for kind in KINDS), ("static", "simt"), ("map", "simt")])
def test_programs_that_come_and_go(kind: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for least in (8, 1 << 20):
        monkeypatch.setattr(programs, "LEAST", least)
        net, met = Net(), weakref.WeakSet[Any]()
        objects: list[int] = []
        early = net.loss(kind, STEPS)  # launched long after it was recorded
        policy = vpps.learn_policy(early[0]) if kind == "recurrence" else None
        with vpps.Handle(net.model, vpps.Adam(lr=0.1), target=target, vps=2, policy=policy, passes=UNFUSED) as handle:
            for k in range(STEPS + 1):
                graph, loss = net.loss(kind, k) if k < STEPS else early
                met.update(graph.blocks)
                handle.fb(graph, loss)
                if k % (STEPS // 2) == 0:
                    gc.collect()
                    objects.append(len(gc.get_objects()))
            assert kind != "same" or objects[2] - objects[1] < STEPS // 4
            del graph, loss, early
            found.append((handle.sync_get_latest_loss(), net.model.numpy()["U"].tobytes(), handle.skipped))
            gc.collect()
            assert (len(met) < STEPS) == (least == 8 or kind == "same")
        gc.collect()
        assert len(met) < 16  # the latest programs of Net's cells, of bare ops and in the history
        assert net.model.cell_history is not None
        assert len(net.model.cell_history.cells) < 4
    assert found[0] == found[1]


def test_programs_that_come_back_are_kept() -> None:
    net, planners = Net(), []
    with vpps.Handle(net.model, train=False, target="cpu", vps=1, passes=UNFUSED) as handle:
        for k in range(200):
            graph, loss = net.loss("static", k % 20)
            handle.forward(graph, [loss])
            planners.append(handle._engine.planner)
    assert len(set(planners[:100])) > 2
    assert len(set(planners[100:])) == 1


def test_handles_in_threads_record_the_same_cells() -> None:
    net = Net()
    expected = np.tanh(net.model.numpy()["U"] @ X)

    def evaluate(start: int) -> None:
        with vpps.Handle(net.model, train=False, target="cpu", vps=1, passes=UNFUSED) as handle:
            for k in range(start, start + 60):
                graph = vpps.Graph()
                (value,) = handle.forward(graph, [net.static(graph.input(X), n=k)])
                np.testing.assert_allclose(value, expected * X.mean(), rtol=1e-5)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(evaluate, (1, 1, 30)))
