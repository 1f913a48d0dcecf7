"""A map is planned as calls one by one would be: models of many kinds, the same bits on `cpu`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from tests.record.bulk_models import NETWORKS, Network
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

networks = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def computed(handle: vpps.Handle, values: Sequence[Any]) -> list[Any]:
    return [handle.value(v) if isinstance(v, vpps.Rows) else np.stack([handle.value(e) for e in v]) for v in values]


@networks
@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
@pytest.mark.parametrize("n", [1, 6])
def test_a_map_gives_the_bits_of_calls_one_by_one(network: Network, policy: str, n: int) -> None:
    model, cells, p = network.make()
    data = network.data(np.random.default_rng(n), n)
    bulk, single = vpps.Graph(), vpps.Graph()
    rows = network.bulk(bulk, cells, p, data)
    calls = network.calls(single, cells, p, data)
    assert len(bulk) == len(single)
    with vpps.Handle(model, policy=policy) as handle:
        loss, gradients = handle.gradients(bulk, rows.loss)
        values = computed(handle, rows.values)
        d_inputs = None if rows.inputs is None else handle.input_gradient(rows.inputs)
        expected_loss, expected = handle.gradients(single, calls.loss)
        assert loss == expected_loss
        for name, gradient in gradients.items():
            assert gradient.tobytes() == expected[name].tobytes(), name
        for value, one_by_one in zip(values, computed(handle, calls.values), strict=True):
            assert value.tobytes() == one_by_one.tobytes()
        if d_inputs is not None:
            assert d_inputs.tobytes() == np.stack([handle.input_gradient(x) for x in calls.inputs]).tobytes()
        inferred = handle.forward(bulk, [rows.loss, *rows.values])
        assert inferred[0] == loss
        for value, again in zip(values, inferred[1:], strict=True):
            assert value.tobytes() == again.tobytes()


@networks
def test_a_map_agrees_with_the_reference(network: Network) -> None:
    model, cells, p = network.make()
    graph = vpps.Graph()
    rows = network.bulk(graph, cells, p, network.data(np.random.default_rng(2), 3))
    some = [v for values in rows.values for v in values[:: max(1, len(values) // 5)]]
    assert_agrees_with_reference(model, graph, rows.loss, some, vp_counts=(1, 3))
    reference = Reference(graph, weights_of(model))
    for values in rows.values:
        assert np.array_equal(reference.value(values), np.stack([reference.value(v) for v in values]))


def test_an_ordinary_cell_has_one_block_for_calls_and_maps() -> None:
    network = NETWORKS["two kinds"]
    model, cells, p = network.make()
    data = network.data(np.random.default_rng(0), 3)
    graph = vpps.Graph()
    first = network.calls(graph, cells, p, data)
    blocks = len(graph.blocks)
    second = network.bulk(graph, cells, p, data)
    third = network.calls(graph, cells, p, data)
    again = network.bulk(graph, cells, p, data)
    assert len(graph.blocks) == blocks
    loss = vpps.sum([first.loss, second.loss * 2.0, third.loss, again.loss * 0.5])
    assert_agrees_with_reference(model, graph, loss, vp_counts=(1, 2))
    alone = vpps.Graph()
    expected = network.calls(alone, cells, p, data)
    with vpps.Handle(model) as handle:
        losses = handle.forward(graph, [first.loss, second.loss, third.loss, again.loss])
        assert set(map(float, losses)) == {float(handle.forward(alone, [expected.loss])[0])}


def test_dropout_in_a_map_has_the_masks_of_calls_one_by_one() -> None:
    model = vpps.Model(seed=2)
    W = model.parameter("W", (16, 16))

    @vpps.cell
    def step(h: Any, x: Any) -> Any:
        return vpps.tanh(W @ vpps.dropout(h + x, 0.5))

    x = np.random.default_rng(0).normal(size=(9, 16))
    bulk, single = vpps.Graph(), vpps.Graph()
    h = bulk.map(step, children=np.arange(-1, 8), inputs={"x": bulk.rows(x)})
    leaves = [single.input(row) for row in x]
    hs = [single.zeros(16)]
    for leaf in leaves:
        hs.append(step(hs[-1], leaf))
    with vpps.Handle(model) as handle:
        for train in (False, True):
            found = handle.gradients(bulk, vpps.dot(h[8], h[8]), train=train)
            expected = handle.gradients(single, vpps.dot(hs[-1], hs[-1]), train=train)
            assert found[0] == expected[0]
            assert np.array_equal(found[1]["W"], expected[1]["W"])


@pytest.mark.parametrize("seed", range(3))
def test_vertices_may_come_in_any_order(seed: int) -> None:
    network = NETWORKS["two kinds"]
    model, cells, p = network.make()
    rng = np.random.default_rng(seed)
    data = network.data(rng, 5)
    place = rng.permutation(len(data.kind))  # of each vertex
    mixed = SimpleNamespace(
        children=np.empty_like(data.children),
        **{k: np.empty_like(getattr(data, k)) for k in ("kind", "words", "labels")},
    )
    mixed.children[place] = np.where(data.children < 0, -1, place[data.children])
    for name in ("kind", "words", "labels"):
        getattr(mixed, name)[place] = getattr(data, name)
    graph, ordered = vpps.Graph(), vpps.Graph()
    rows, expected = network.bulk(graph, cells, p, mixed), network.bulk(ordered, cells, p, data)
    assert_agrees_with_reference(model, graph, rows.loss, vp_counts=(2,), policy="depth")
    with vpps.Handle(model) as handle:
        (h,) = handle.forward(graph, [rows.values[1]])
        assert np.array_equal(h[place], handle.forward(ordered, [expected.values[1]])[0])


def test_levels_that_are_given_change_nothing() -> None:
    network = NETWORKS["two kinds"]
    _, cells, _ = network.make()
    data = network.data(np.random.default_rng(1), 6)
    levels = np.zeros(len(data.kind), np.int32)
    for v, lower in enumerate(data.children):
        levels[v] = 0 if lower[0] < 0 else levels[lower].max() + 1
    graph, expected = vpps.Graph(), vpps.Graph()
    kinds = [cells["leaf"], cells["inner"]]
    inputs = {"word": data.words}
    c, _ = graph.map(kinds, kind=data.kind, children=data.children, inputs=inputs, levels=levels)
    d, _ = expected.map(kinds, kind=data.kind, children=data.children, inputs=inputs)
    assert np.array_equal(c.levels, d.levels)
    assert np.array_equal(c.levels, levels)


def test_a_chain_of_100_000_steps_is_recorded() -> None:
    n = 100_000
    inputs = {"x": np.ones((n, 2), np.float32)}
    forward = vpps.Graph().map(lambda h, x: vpps.tanh(h) + x, children=np.arange(-1, n - 1), inputs=inputs)
    assert forward.levels.tolist() == list(range(1, n + 1))
    backward = vpps.Graph().map(lambda h, x: vpps.tanh(h) + x, children=[*range(1, n), -1], inputs=inputs)
    assert backward.levels.tolist() == list(range(n, 0, -1))
