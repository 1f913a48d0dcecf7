"""The users' case comes first: a Tree-LSTM with fused cells and its weights in registers."""

from __future__ import annotations

import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.gpu.test_slots import FEW, SMALL, Sentiment
from tests.training import ReferenceTraining
from vpps.reference import Reference, weights_of
from vpps.runtime.driver import Properties

pytestmark = pytest.mark.gpu


ROOM = 64  # multiprocessors whose shared memory holds the weights of 256 units


def assert_fused(handle: vpps.Handle) -> None:
    """Assert that the kernel contains the cells' code, and that U has a window if there is room."""
    spec, onchip = handle._engine.machine.spec, handle._engine.arrangement.onchip
    assert spec is not None
    assert spec.tails
    assert onchip is not None
    held = onchip.of("tree_lstm/U")
    if held.rows <= 5 * SMALL or handle.vps >= ROOM:
        assert held.tier == "shared"


@pytest.mark.parametrize("hidden", [SMALL, 256])
def test_gradients_updates_and_inference(hidden: int, gpu: Properties) -> None:
    net = Sentiment(hidden, hidden)
    graph, loss = net.batch(1)
    reference = Reference(graph, weights_of(net.model))
    expected = reference.backward(loss)
    witness = ReferenceTraining(net.model, vpps.SGD(lr=0.1))
    vps = min(FEW, gpu.sms) if hidden == SMALL else gpu.sms
    with vpps.Handle(net.model, vpps.SGD(lr=0.1), vps=vps) as handle:
        value, gradients = handle.gradients(graph, loss)
        assert_fused(handle)
        assert value == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
        for p in net.model:
            assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name
        for k in range(4):
            handle.fb(*net.batch(k))
            last = witness.fb(*net.batch(k))
        assert handle.sync_get_latest_loss() == pytest.approx(last, rel=FORWARD_TOLERANCE)
        for p in net.model:
            assert relative_error(p.numpy(), witness.weights[p.name]) < 1e-5, p.name
        graph, loss = net.batch(9)
        trained = float(Reference(graph, weights_of(net.model)).value(loss))
        assert handle.forward(graph, [loss])[0] == pytest.approx(trained, rel=FORWARD_TOLERANCE)
        assert_fused(handle)


def test_inference_alone(gpu: Properties) -> None:
    """A kernel that only evaluates."""
    net = Sentiment(256, 256)
    graph, loss = net.batch(1)
    with vpps.Handle(net.model, train=False) as handle:
        found = handle.forward(graph, [loss])[0]
        assert_fused(handle)
    assert found == pytest.approx(float(Reference(graph, weights_of(net.model)).value(loss)), rel=FORWARD_TOLERANCE)
