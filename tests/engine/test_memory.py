"""A handle reports the memory that it really uses, and training in the steady state takes no more."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

import vpps
from tests.classifier import new
from vpps.compiler.encoded_cell import EncodedCell
from vpps.nn import NaryTreeLSTM

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_parts_are_exact(precision: str) -> None:
    model = vpps.Model(seed=1)
    table = model.lookup("E", (10, 8))
    W = model.parameter("W", (8, 8))
    b = model.parameter("b", (8,))
    model.parameter("frozen", (5,), trainable=False)
    graph = vpps.Graph()
    loss = vpps.sum(vpps.tanh(W @ graph.lookup(table, 3) + b))
    with vpps.Handle(model, vpps.Adam(), vps=1, precision=precision) as handle:
        assert handle.memory == vpps.engine.memory.MemoryUse()
        handle.fb(graph, loss)
        panel = handle._engine.machine.panel
        use = handle.memory
        assert handle._engine.plan is not None
        assert handle._engine.planner is not None
        assert use.weights == 4 * (
            80 + 2 * panel * 8 + 8 + 5
        )  # W and its transpose in one panel each, or half a panel for both
        assert use.gradients == 4 * (panel * 8 + 8)
        assert use.moments == 2 * 4 * (80 + panel * 8 + 8)
        assert use.script == handle._engine.plan.script.nbytes
        assert use.batch == 4 * (handle._engine.plan.pool_floats - handle._engine.planner.distribution.end)
        assert use.peak == 4 * handle._engine.plan.pool_floats <= use.pool == handle._engine.machine.pool.nbytes
        handle.forward(graph, [loss])
        inference = handle.memory
        assert (inference.weights, inference.peak) == (use.weights, use.peak)
        assert 0 < inference.batch < use.batch
    assert handle.memory.pool == 0  # closed handle
    assert handle.memory.peak == use.peak
    with vpps.Handle(model, vps=1, train=False, precision=precision) as handle:
        handle.forward(graph, [loss])
        use = handle.memory
        assert use.weights == 4 * (80 + panel * (8 if precision == "float32" else 12) + 8 + 5)
        assert (use.gradients, use.moments) == (0, 0)


def test_averages_and_accumulated_gradients_of_tables_are_counted() -> None:
    model = vpps.Model(seed=1)
    table = model.lookup("words", (10, 8))
    graph = vpps.Graph()
    loss = vpps.sum(graph.lookup(table, 3))
    with vpps.Handle(model, vps=1, ema=0.9) as handle:
        handle.fb(graph, loss)
        assert (handle.memory.averages, handle.memory.gradients) == (4 * 80, 0)
        handle.fb(graph, loss, accumulate=True)
        assert (handle.memory.averages, handle.memory.gradients) == (4 * 80, 4 * 80)
        handle.fb(graph, loss)


def test_a_pool_that_has_held_the_largest_batch_serves_all_others() -> None:
    """Neither the pool nor anything else grows over 50 batches of any size."""
    net = new()
    batches = [net.batch(seed, sentences=int(n)) for seed, n in enumerate(np.random.default_rng(1).integers(1, 60, 50))]
    with vpps.Handle(net.model, vps=2, verify=False) as handle:
        handle.fb(*net.batch(99, sentences=90))
        for batch in batches:
            handle.fb(*batch)
        handle.sync_get_latest_loss()
        pool, use = handle._engine.machine.pool, handle.memory
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for batch in batches:
                handle.fb(*batch)
            handle.sync_get_latest_loss()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert handle._engine.machine.pool is pool
        assert (handle.memory.pool, handle.memory.peak) == (use.pool, use.peak)
        assert after - before < 2**20
        assert peak - before < 4 * 2**20, "a plan and its temporaries"


@pytest.mark.parametrize("train", [True, False])
def test_values_that_were_not_asked_for_are_refused_not_garbage(train: bool) -> None:
    net = new()
    with vpps.Handle(net.model, train=train) as handle:
        graph = vpps.Graph()
        states = [graph.zeros(20)]
        for word in range(8):
            states.append(net.read(states[-1], word))
        last = handle.forward(graph, [states[-1]])[0]
        for state in states[:-1]:
            with pytest.raises(vpps.GraphError, match=r"forward, or not kept: ask for it there, forward\(graph"):
                handle.value(state)
        assert np.array_equal(handle.value(states[-1]), last)
        first, again = handle.forward(graph, [states[1], states[-1]])
        assert np.array_equal(again, last)
        assert np.array_equal(handle.value(states[1]), first)


def pyramid(n_words: int) -> tuple[vpps.Model, vpps.Graph, vpps.Expression]:
    """A pyramid of neighbours; every state except those at the edges is read twice."""
    model = vpps.Model(seed=1)
    table = model.lookup("words", (5, 64))
    composition = NaryTreeLSTM(model, 64, 64)
    graph = vpps.Graph()
    states = [composition.leaf(graph.lookup(table, k % 5)) for k in range(n_words)]
    while len(states) > 1:
        states = [composition.inner(*left, *right) for left, right in pairwise(states)]
    return model, graph, vpps.sum(states[0][0])


@pytest.mark.parametrize("vps", [1, 2, 3])
def test_gradients_that_are_handed_back_give_way(vps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of three levels of a pyramid exist at a time; weight gradients are bit-identical."""
    n = 20
    model, graph, loss = pyramid(n)

    def trained() -> tuple[int, dict[str, bytes]]:
        with vpps.Handle(model, vps=vps) as handle:
            _, gradients = handle.gradients(graph, loss)
            return handle.memory.batch, {name: g.tobytes() for name, g in gradients.items()}

    batch, gradients = trained()
    monkeypatch.setattr(EncodedCell, "_read_by_steps", lambda self: set())
    kept_to_the_end, expected = trained()
    assert gradients == expected
    vertices, levels = n * (n - 1) // 2, (n - 1) + (n - 2) + (n - 3)
    assert kept_to_the_end - batch >= 0.9 * (vertices - levels) * 4 * 64 * 4  # of both h and c
