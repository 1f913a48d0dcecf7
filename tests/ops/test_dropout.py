"""Dropout: only seed, step, vertex, dropout op and position determine the mask, and gradients agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import VP_COUNTS, assert_agrees_with_reference
from vpps.reference import Reference, key_of, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression
Array = NDArray[np.float32]
WIDTH = 150


def new_model(seed: int = 3) -> vpps.Model:
    model = vpps.Model(seed=seed)
    model.lookup("E", (6, WIDTH), init="normal")
    model.parameter("W", (WIDTH, WIDTH))
    model.parameter("p", (WIDTH,), init="ones")
    return model


def bare(model: vpps.Model, n: int = 3, rate: float = 0.4) -> tuple[vpps.Graph, E, list[E]]:
    """Record dropout of ones, n times, and a loss that depends on all results."""
    graph = vpps.Graph()
    ys = [vpps.dropout(graph.input(np.ones(WIDTH)) * model["p"], rate) for _ in range(n)]
    return graph, vpps.sum([vpps.sum(y) for y in ys]), ys


def values(handle: vpps.Handle, graph: vpps.Graph, loss: E, wanted: list[E]) -> Array:
    """Return the values of the wanted expressions, with dropout on."""
    handle.gradients(graph, loss, train=True)
    return np.stack([handle.value(e) for e in wanted])


def masks(model: vpps.Model, **options: Any) -> Array:
    with vpps.Handle(model, **options) as handle:
        return values(handle, *bare(model)) != 0


class TestMask:
    @pytest.mark.parametrize("policy", ["sinks-last", "depth"])
    @pytest.mark.parametrize("vps", VP_COUNTS)
    def test_is_that_of_the_reference_for_any_number_of_processors_and_policy(self, vps: int, policy: str) -> None:
        """Masks have equal bits in cells with lists, for rows in an order unlike the calls', and for narrow rows."""
        model = new_model()

        @vpps.cell
        def node(x: E, hs: list[E]) -> tuple[E, E, E]:
            thrown = vpps.each(lambda h: vpps.dropout(h, 0.3), hs)
            wide = vpps.dropout(x, 0.5)
            return vpps.sum(thrown), wide, vpps.dropout(wide[:5], 0.2)

        graph = vpps.Graph()
        one = graph.input(np.ones(WIDTH)) * model["p"]
        calls = [node(one, [one] * n) for n in (2, 0, 5)]
        calls.append(node(calls[2][1], [calls[0][1], one, calls[1][0]]))  # deeper: in a separate stage
        calls.append(node(one, [one]))
        unused = node(one, [one] * 3)  # not needed by the loss: last row, though its call is not the last
        calls.append(node(one, [one] * 2))
        loss = vpps.sum([vpps.sum(e) for call in calls for e in call])
        reference = Reference(graph, weights_of(model), key_of(model))
        with vpps.Handle(model, vps=vps, policy=policy) as handle:
            handle.gradients(graph, loss, train=True)
            for e in [e for call in [*calls, unused] for e in call]:
                np.testing.assert_allclose(handle.value(e), reference.value(e), rtol=1e-6)
                assert np.array_equal(handle.value(e) == 0, reference.value(e) == 0)

    @pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.75, 0.99])
    def test_keeps_as_many_as_the_rate_says(self, rate: float) -> None:
        model = new_model()
        with vpps.Handle(model) as handle:
            y = values(handle, *bare(model, 400, rate))
        n = y.size
        assert abs((y != 0).mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / n)
        np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)

    def test_differs_between_vertices_and_units(self) -> None:
        kept = masks(new_model())
        assert len(np.unique(kept, axis=0)) == len(kept)
        assert len({tuple(column) for column in kept.T}) == 2 ** len(kept)  # nothing repeats along the row

    def test_differs_between_steps_and_seeds(self) -> None:
        model = new_model()
        first = masks(model)
        assert np.array_equal(masks(new_model()), first)
        model.step = 1
        second = masks(model)
        third = masks(new_model(seed=4))
        for a, b in ((first, second), (first, third), (second, third)):
            assert 0.3 < (a != b).mean() < 0.7

    def test_differs_between_dropouts_of_a_cell_and_list_elements(self) -> None:
        model = new_model()

        @vpps.cell
        def node(x: E, hs: list[E]) -> tuple[E, ...]:
            first = vpps.each(lambda h: vpps.dropout(h, 0.5), hs)
            powers = vpps.each(lambda h, y: vpps.dropout(h, 0.5) * y, hs, hs)
            return vpps.dropout(x, 0.5), vpps.dropout(x, 0.5), vpps.sum(first), vpps.sum(powers)

        graph = vpps.Graph()
        one = graph.input(np.ones(WIDTH)) * model["p"]
        scaled = [one * float(4**k) for k in range(3)]
        ys = node(one, scaled)
        with vpps.Handle(model) as handle:
            a, b, sums, _ = values(handle, graph, vpps.sum([vpps.sum(y) for y in ys]), list(ys))
        digits = [(sums / 2).astype(int) // 4**k % 4 for k in range(3)]  # of each element: 0 or 1
        found = [a != 0, b != 0, *(d != 0 for d in digits)]
        for i, x in enumerate(found):
            for y in found[:i]:
                assert 0.3 < (x != y).mean() < 0.7

    def test_of_a_value_of_the_vertex_is_the_same_for_all_list_elements(self) -> None:
        model = new_model()

        @vpps.cell
        def node(x: E, hs: list[E]) -> E:
            return vpps.sum(vpps.each(lambda h: vpps.dropout(x, 0.5) * h, hs))

        graph = vpps.Graph()
        one = graph.input(np.ones(WIDTH)) * model["p"]
        y = node(one, [one] * 4)
        with vpps.Handle(model) as handle:
            (found,) = values(handle, graph, vpps.sum(y), [y])
        assert set(found.tolist()) == {0.0, 8.0}

    def test_drops_an_infinity(self) -> None:
        model = new_model()
        graph = vpps.Graph()
        x = vpps.dropout(graph.input(np.full(WIDTH, np.inf)), 0.5)
        with vpps.Handle(model) as handle:
            handle.gradients(graph, vpps.sum(x * model["p"]), train=True)
            assert set(handle.value(x).tolist()) == {0.0, np.inf}


class TestOnAndOff:
    def test_it_is_on_in_fb_with_the_mask_that_gradients_foretell(self) -> None:
        model = new_model()
        with vpps.Handle(model, vpps.SGD(lr=0.0)) as handle:
            seen = []
            for _ in range(3):
                graph, loss, ys = bare(model)
                foretold = values(handle, graph, loss, ys)
                handle.fb(graph, loss)
                seen.append(np.stack([handle.value(y) for y in ys]))
                assert np.array_equal(foretold, seen[-1])
        assert 0.2 < (seen[0] != seen[1]).mean() < 0.7
        assert 0.2 < (seen[1] != seen[2]).mean() < 0.7

    @pytest.mark.parametrize("how", ["forward", "gradients", "forward-only handle"])
    def test_it_is_off_in_inference(self, how: str) -> None:
        model = new_model()
        graph = vpps.Graph()
        x = graph.lookup(model["E"], 2)  # type: ignore[arg-type]
        y = vpps.dropout(x, 0.5)
        z = vpps.dropout(-x, 0.5)
        with vpps.Handle(model, train=how != "forward-only handle") as handle:
            if how == "gradients":
                _, gradients = handle.gradients(graph, vpps.sum(y))
                assert np.array_equal(gradients["E"][2], np.ones(WIDTH))
            else:
                handle.forward(graph, [y, z])
                assert np.array_equal(handle.value(z), -model["E"].numpy()[2])
            assert np.array_equal(handle.value(y), model["E"].numpy()[2])

    def test_rate_0_is_x_itself(self) -> None:
        model = new_model()
        graph = vpps.Graph()
        x = graph.input(np.ones(4))
        assert vpps.dropout(x, 0) is x
        y = graph.call(vpps.dropout, model["p"], 0.0)
        with vpps.Handle(model) as handle:
            handle.gradients(graph, vpps.sum(y), train=True)
            assert np.array_equal(handle.value(y), np.ones(WIDTH))


def tree_cell(model: vpps.Model) -> Callable[..., E]:
    @vpps.cell(elements={"hs": (WIDTH,)})
    def node(x: E, hs: list[E]) -> E:
        h = vpps.tanh(model["W"] @ vpps.dropout(x, 0.2))
        attended = vpps.each(lambda e: vpps.dropout(e, 0.3) * vpps.dropout(vpps.sum(e * x), 0.5), hs)
        a, b = vpps.split(vpps.dropout(h, 0.1), 2)
        return vpps.dropout(vpps.concat([a, b]) + vpps.mean(attended), 0.4) * vpps.dropout(model["p"], 0.5)

    return node  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", ["sinks-last", "depth", "agenda"])
def test_gradients_agree_with_the_reference(policy: str) -> None:
    model = new_model()
    node = tree_cell(model)
    graph = vpps.Graph()
    words = [graph.lookup(model["E"], i) for i in range(6)]  # type: ignore[arg-type]
    hs = [node(w, []) for w in words]
    inner = [node(words[0], hs[:3]), node(words[1], hs[3:]), node(words[2], [])]
    root = node(vpps.dropout(hs[0], 0.25), inner)
    weights = graph.input(np.linspace(-1, 1, WIDTH))
    loss = vpps.sum([vpps.dot(h, weights) for h in [*hs, *inner, root]]) + vpps.sum(vpps.dropout(root[3:9], 0.5))
    assert_agrees_with_reference(model, graph, loss, [root, *hs], policy=policy, train=True)
    assert_agrees_with_reference(model, graph, loss, [root, *hs], policy=policy)


def train(model: vpps.Model, steps: range, vps: int) -> list[float]:
    node = tree_cell(model)
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.01), vps=vps) as handle:
        for step in steps:
            graph = vpps.Graph()
            x = graph.lookup(model["E"], step % 6)  # type: ignore[arg-type]
            h = node(x, [node(x, []), node(x, [])])
            handle.fb(graph, vpps.sum(vpps.square(h)))
            losses.append(handle.sync_get_latest_loss())
    return losses


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    whole = new_model()
    losses = train(whole, range(6), vps=2)
    model = new_model()
    assert train(model, range(3), vps=3) == losses[:3]
    model.save(tmp_path / "model")
    resumed = vpps.Model.load(tmp_path / "model")
    assert train(resumed, range(3, 6), vps=1) == losses[3:]
    for p in whole:
        assert np.array_equal(p.numpy(), resumed[p.name].numpy())
    assert train(new_model(seed=4), range(2), vps=2) != losses[:2]
