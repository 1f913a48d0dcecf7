"""Weights, moments and counters in model and pool are kept consistent through all events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import vpps
from tests.classifier import new, same_bits
from vpps.placement.distribution import Distribution, Pool

pytestmark = pytest.mark.cpu


@contextmanager
def interrupt_next_launch(handle: vpps.Handle, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt the block with Ctrl-C just before a kernel is launched."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with patch.context() as context:
        context.setattr(type(handle._engine.machine), "launch", interrupt)  # by then it may be a different machine
        with pytest.raises(KeyboardInterrupt):
            yield


def test_an_update_that_never_began_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next update gets the interrupted update's number: bias correction and schedules count completed updates."""
    net, witness = new(), new()
    with vpps.Handle(net.model, vpps.Adam()) as handle, vpps.Handle(witness.model, vpps.Adam()) as other:
        net.train(handle, range(2))
        for seed in (2, 2, 3):  # again and again; also right after another launch
            before = handle.sync_get_latest_loss()
            with interrupt_next_launch(handle, monkeypatch):
                handle.fb(*net.batch(77))
            assert handle.sync_get_latest_loss() == before
            handle.fb(*net.batch(seed))
            if seed == 2:
                with interrupt_next_launch(handle, monkeypatch):
                    handle.fb(*net.batch(78))
        witness.train(other, range(2))
        witness.train(other, range(2, 3))
        witness.train(other, range(2, 4))
    assert net.model.step == witness.model.step == 5
    assert same_bits(net.model.numpy(), witness.model.numpy())


def test_an_interrupted_upload_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next upload covers all remaining parameters, although no weight has changed since the previous upload."""
    model = vpps.Model(seed=1)
    a, b = model.parameter("a", (4,), init="normal"), model.parameter("b", (4,), init="normal")

    def value() -> float:
        graph = vpps.Graph()
        return float(handle.forward(graph, [vpps.dot(graph.zeros(4) + a, graph.zeros(4) + b)])[0])

    store = Distribution.store_weights

    def interrupted(self: Distribution, pool: Pool, p: vpps.Parameter, weights: Any) -> None:
        if p is b:
            raise KeyboardInterrupt
        store(self, pool, p, weights)

    with vpps.Handle(model, train=False) as handle:
        expected = value()
        handle._engine._bind(accumulate=False)  # moves all of them, as cells that need another layout do
        with monkeypatch.context() as context:
            context.setattr(Distribution, "store_weights", interrupted)
            with pytest.raises(KeyboardInterrupt):
                value()
        assert value() == expected != 0
