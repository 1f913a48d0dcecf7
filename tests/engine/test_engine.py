"""Reconfiguring a handle does not change its results."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.classifier import new
from vpps.engine.configuration import Configuration
from vpps.placement.onchip import ChipOptions


@pytest.mark.simt
@pytest.mark.usefixtures("roomy_kernels")
def test_weights_elsewhere_on_the_chip_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/fuzz/histories.py tests this on cpu."""
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")  # kernels compile sooner
    shapes = [ChipOptions(), ChipOptions(ownership="round-robin", rpw=1)]
    trained = []
    for configurations in ([], [Configuration(onchip=shape) for shape in shapes]):
        net, losses = new(), []
        with vpps.Handle(net.model, vpps.Adam(lr=0.01), target="simt", ema=0.9, clip_norm=1.0) as handle:
            for k in range(8):
                if configurations:
                    handle._configurator.configure(configurations[k % 2])
                handle.fb(*net.batch(k), accumulate=k % 4 == 0)
                losses.append(handle.sync_get_latest_loss())
        trained.append(losses)
    np.testing.assert_allclose(*trained, rtol=1e-4)


@pytest.mark.cpu
class TestExchange:
    def test_values_of_the_latest_call_stay_until_the_next_one(self) -> None:
        net = new()
        with vpps.Handle(net.model) as handle:
            graph, loss = net.batch(0)
            handle.fb(graph, loss)
            handle._configurator.configure(Configuration(vps=1))
            assert handle.value(loss) == handle.sync_get_latest_loss()

    def test_the_machine_before_is_closed_and_nothing_happens_without_a_change(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        net = new()
        with vpps.Handle(net.model, vps=1) as handle:
            handle.fb(*net.batch(0))
            first = handle._engine
            handle._configurator.configure(first.configuration)
            handle.fb(*net.batch(0))
            assert handle._engine is first
            handle._configurator.configure(Configuration(vps=2))
            handle.fb(*net.batch(0))
            assert not first.machine.is_open
            assert handle.vps == 2

    def test_the_most_memory_that_a_call_has_used_is_remembered(self) -> None:
        net = new()
        with vpps.Handle(net.model, vps=1) as handle:
            handle.fb(*net.batch(0, sentences=30))
            handle.sync_get_latest_loss()
            peak = handle.memory.peak
            handle._configurator.configure(Configuration(vps=2))
            handle.fb(*net.batch(0))
            assert handle.memory.peak == peak

    def test_one_that_cannot_be_made_leaves_everything_as_it_was(self) -> None:
        net = new()
        with vpps.Handle(net.model, vps=1) as handle:
            handle.fb(*net.batch(0))
            before = handle._engine
            handle._configurator.configure(Configuration(vps=-1))
            with pytest.raises(vpps.HandleError, match="vps=-1"):
                handle.fb(*net.batch(0))
            handle.fb(*net.batch(0))
            assert handle._engine is before
            assert net.model.step == 2

    def test_a_loss_that_is_not_finite_is_still_reported(self) -> None:
        model = vpps.Model(seed=1)
        w = model.parameter("w", (1,), init=np.array([1e30]))
        with vpps.Handle(model, on_nonfinite="raise") as handle:
            graph = vpps.Graph()
            handle.fb(graph, vpps.sum(vpps.square(w + graph.input([0.0]))))
            handle._configurator.configure(Configuration(vps=1))
            with pytest.raises(vpps.NonFiniteError, match="step 1"):
                handle.fb(graph, vpps.sum(vpps.square(w + graph.input([0.0]))))
