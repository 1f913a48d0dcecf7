"""Weights, moments and counters of model and pool stay in step, whatever comes between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import vpps
from tests.classifier import new, same_bits

pytestmark = pytest.mark.cpu


@contextmanager
def interrupt_next_launch(handle: vpps.Handle, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The block meets Ctrl-C just before a kernel is launched."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with patch.context() as context:
        context.setattr(type(handle._engine.machine), "launch", interrupt)  # it may be another one by then
        with pytest.raises(KeyboardInterrupt):
            yield


def test_an_update_that_never_began_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update after it has its number: bias correction and schedules count updates that were made."""
    net, witness = new(), new()
    with vpps.Handle(net.model, vpps.Adam()) as handle, vpps.Handle(witness.model, vpps.Adam()) as other:
        net.train(handle, range(2))
        for seed in (2, 2, 3):  # again and again; at once after another launch, too
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
