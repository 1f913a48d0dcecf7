"""A handle that goes on in another configuration computes what it would have computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.session.test_accumulate import new
from vpps.engine.configuration import Configuration
from vpps.placement.onchip import ChipOptions


def trained(configurations: list[Configuration], target: str = "cpu", **options: Any) -> tuple[list[float], Any]:
    """Losses of steps and the model, a configuration after the other; some calls accumulate."""
    net = new()
    losses = []
    with vpps.Handle(net.model, vpps.Adam(lr=0.01), target=target, ema=0.9, clip_norm=1.0, **options) as handle:
        for k in range(8):
            if configurations:
                handle._configurator.configure(
                    configurations[k % len(configurations)], records=target == "cpu" and k % 2 == 1
                )
            handle.fb(*net.batch(k, k + 1), accumulate=k % 4 == 0)
            losses.append(handle.sync_get_latest_loss())
    return losses, net.model


CPU = [
    Configuration(vps=1),
    Configuration(vps=3, policy="depth"),
    Configuration(vps=2, schedule="paper"),
    Configuration(vps=2, passes=vpps.Passes(fusion=False)),
]


@pytest.mark.cpu
@pytest.mark.parametrize("step", [1, 2, 3])
def test_losses_weights_and_moments_are_the_same_to_the_bit(step: int) -> None:
    losses, model = trained([])
    others, other = trained(CPU[::step])
    assert losses == others
    for p in model:
        assert np.array_equal(p.numpy(), other[p.name].numpy()), p.name
        assert np.array_equal(p.average(), other[p.name].average()), p.name
    for name, moments in model.optimizer_state.moments.items():
        for parameter, moment in moments.items():
            assert np.array_equal(moment, other.optimizer_state.moments[name][parameter])


@pytest.mark.simt
@pytest.mark.usefixtures("roomy_kernels")
def test_slots_of_another_shape_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")  # kernels compile sooner
    losses, _ = trained([], "simt")
    shapes = [ChipOptions(ownership="round-robin", rpw=rpw) for rpw in (1, 2)]
    others, _ = trained([Configuration(onchip=shape) for shape in shapes], "simt")
    np.testing.assert_allclose(others, losses, rtol=1e-4)


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
            handle.fb(*net.batch(0, 1, 2, 3, 4, 5))
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
