"""Gradients as products of matrices, on a GPU: cuBLAS between two launches, in float32."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.engine.test_gemm import GEMM, KINDS, TRAININGS, Net, assert_trains_as_on_cpu, plan_of, products_of
from vpps.reference import Reference, weights_of
from vpps.runtime.driver import Properties

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("training", TRAININGS)
def test_training_goes_as_on_cpu(training: str, accumulate: bool, gpu: Properties) -> None:
    launches = assert_trains_as_on_cpu(accumulate, training, "cuda", vps=gpu.sms, onchip=GEMM)
    assert launches == ([1, 1, 2] * 2 if accumulate else [2] * 6)


def test_gradients_are_those_of_the_reference() -> None:
    net = Net()
    with vpps.Handle(net.model, onchip=GEMM) as handle:
        for kind in KINDS:
            graph, loss = net.batch(kind)
            expected = Reference(graph, weights_of(net.model)).backward(loss)
            _, found = handle.gradients(graph, loss)
            assert products_of(plan_of(handle)).keys() == ({"U", "V"} if kind == "chain" else {"T", "U", "V"})
            for p in net.model:
                if p.trainable:
                    assert relative_error(found[p.name], expected[p.name]) < 1e-5, (kind, p.name)


def test_a_large_product_has_the_precision_of_float32() -> None:
    """TF32, which keeps 10 bits of each factor, would be off by some 3e-4."""
    model = vpps.Model(seed=2)
    W = model.parameter("W", (512, 768))
    graph = vpps.Graph()
    rng = np.random.default_rng(1)
    losses = [vpps.sum(vpps.tanh(W @ graph.input(rng.normal(size=768)))) for _ in range(600)]
    loss = vpps.sum(losses)
    expected = Reference(graph, weights_of(model)).backward(loss)["W"]
    with vpps.Handle(model, onchip=GEMM) as handle:
        first = handle.gradients(graph, loss)[1]["W"]
        again = handle.gradients(graph, loss)[1]["W"]
        assert products_of(plan_of(handle))["W"].n == 600
    assert relative_error(first, expected) < 1e-5
    assert first.tobytes() == again.tobytes()


def test_many_steps_follow_each_other() -> None:
    """Counters are clean whether or not a step has a second launch."""
    net = Net()
    with vpps.Handle(net.model, vpps.SGD(lr=0.001), clip_norm=1.0, onchip=GEMM) as handle:
        batch = net.batch("all")
        for k in range(300):
            handle.fb(*batch, accumulate=k % 5 == 1)
            if k % 7 == 0:
                handle.forward(batch[0], [batch[1]])
        assert np.isfinite(handle.sync_get_latest_loss())
