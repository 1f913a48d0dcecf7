"""Accumulated gradients: equal to one large batch's sum, applied once, and kept through all other calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from tests.runtime.test_cpu import stop_next_launch
from vpps.ops.philox import launch_key
from vpps.placement.distribution import Distribution, HeldGradients
from vpps.reference import Reference, key_of, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression


def test_an_update_asks_for_its_rate_once() -> None:
    net, asked = new(), list[int]()
    before = net.model.numpy()
    with vpps.Handle(net.model, vpps.SGD(lr=lambda update: asked.append(update) or 0.1)) as handle:  # type: ignore[func-returns-value]
        for k in range(3):
            handle.fb(*net.batch(k), accumulate=True)
            assert handle.accumulated == k + 1
        assert all(np.array_equal(net.model[name].numpy(), w) for name, w in before.items())
        assert (net.model.step, asked) == (0, [])
        handle.fb(*net.batch(4))
        assert (net.model.step, asked, handle.accumulated) == (1, [1], 0)


def test_losses_are_those_of_the_calls() -> None:
    net = new()
    with vpps.Handle(net.model) as handle:
        expected = [handle.gradients(*net.batch(k))[0] for k in range(3)]
        handle.fb(*net.batch(0), accumulate=True)
        assert handle.sync_get_latest_loss() == expected[0]
        assert handle.fb(*net.batch(1), accumulate=True) == expected[0]
        assert handle.fb(*net.batch(2)) == expected[1]
        assert handle.sync_get_latest_loss() == expected[2]


def test_dropout_has_another_mask_in_every_call() -> None:
    model = vpps.Model(seed=5)
    p = model.parameter("p", (200,), init="ones")

    def batch() -> tuple[vpps.Graph, E, E]:
        graph = vpps.Graph()
        y = vpps.dropout(graph.input(np.ones(200)) * p, 0.5)
        return graph, vpps.sum(y), y

    masks = []
    with vpps.Handle(model, vpps.SGD(lr=0.0)) as handle:
        for call in range(3):
            assert key_of(model) == launch_key(5, 1, call)
            graph, loss, y = batch()
            reference = Reference(graph, weights_of(model), key_of(model))
            handle.gradients(graph, loss, train=True)  # predicts the update
            assert np.array_equal(handle.value(y), reference.value(y))
            handle.fb(graph, loss, accumulate=call < 2)
            masks.append(handle.value(y))
            assert np.array_equal(masks[-1], reference.value(y))
        assert key_of(model) == launch_key(5, 2)
    assert len(np.unique(masks, axis=0)) == 3


def test_given_gradients_are_read_at_once() -> None:
    """Later changes to their arrays, such as zeros from a PyTorch optimizer, have no effect."""
    results = []
    for overwrite in (False, True):
        net = new()
        given: list[Any] = [np.ones((20, 6), np.float32), np.array([2, 3]), np.ones((2, 6), np.float32)]
        with vpps.Handle(net.model, vpps.SGD(lr=1.0)) as handle:
            handle.apply({"W": given[0], "words": tuple(given[1:])}, accumulate=True)
            for array in given if overwrite else ():
                array[...] = 0
            handle.apply({"words": vpps.RowGradients(np.array([3]), np.ones((1, 6), np.float32))})
        results.append(net.model.numpy())
    assert same_bits(*results)


def test_a_kernel_that_stopped_takes_the_sum_with_it() -> None:
    net = new()
    with vpps.Handle(net.model) as handle:
        handle.fb(*net.batch(0), accumulate=True)
        stop_next_launch(handle)
        handle.fb(*net.batch(1), accumulate=True)
        with pytest.raises(vpps.KernelError, match="the accumulated gradients are discarded"):
            handle.sync_get_latest_loss()
        assert handle.accumulated == 0
        handle.fb(*net.batch(2))
    assert net.model.step == 1


def test_memory_for_tables_is_taken_when_it_is_first_needed() -> None:
    model = vpps.Model(seed=1)
    table = model.lookup("E", (10_000, 10))

    def batch() -> tuple[vpps.Graph, E]:
        graph = vpps.Graph()
        return graph, vpps.sum(graph.lookup(table, 1))

    with vpps.Handle(model, pool_limit=600_000) as handle:
        handle.fb(*batch())
        with pytest.raises(vpps.CapacityError, match="pool_limit"):
            handle.fb(*batch(), accumulate=True)
        handle.fb(*batch())  # the handle still works
        assert handle.accumulated == 0
    assert model.step == 2
    with vpps.Handle(model, pool_limit=1_000_000) as handle:
        handle.fb(*batch(), accumulate=True)
        handle.fb(*batch())


@pytest.mark.parametrize("rows", [[], [0], [11], [0, 1, 2], [3, 7, 8], list(range(12))])
def test_the_verifier_knows_which_gradients_hold_something(rows: list[int]) -> None:
    """One array holds all gradients; only gradients that are not held are left unwritten."""
    model = new().model
    model["bo"].trainable = False
    distribution = Distribution(model, 2, 32, 1, train=True, accumulates=True)
    held = HeldGradients(frozenset([model["U"]]), {model["words"]: np.array(rows, np.int64)} if rows else {})
    placed, empty = distribution.spans(held)
    holds = np.zeros(distribution.end, int)
    for start, stop in placed:
        holds[start:stop] += 1
    assert holds.max() == 1
    for start, stop in empty:
        holds[start:stop] -= 1
    assert holds.min() == 0
    for p, place in distribution.places.items():
        written = holds[place.gradient : place.gradient + place.floats]
        if p.name == "words":
            by_row = written.reshape(12, 6)
            assert np.flatnonzero(by_row.all(axis=1)).tolist() == np.flatnonzero(by_row.any(axis=1)).tolist() == rows
        elif p.trainable:
            assert (written == (p.name == "U")).all(), p.name
        assert holds[place.weights : place.weights + place.floats].all()
