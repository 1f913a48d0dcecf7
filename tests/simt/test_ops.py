"""Ops of the CUDA kernel agree with their references, race-free: weights in memory, both schedules."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.ops.test_on_targets import *  # noqa: F403

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("in_memory")]


def test_weight_gradients_of_very_many_rows_keep_their_digits() -> None:
    """Fewer rows than elsewhere: an emulated product takes its time."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", (3, 2))
    graph = vpps.Graph()
    x = graph.input([0.1, 0.7])
    loss = vpps.sum(vpps.sum([W @ x for _ in range(2000)])) * 1e-3
    with vpps.Handle(model, vps=1) as handle:
        _, gradients = handle.gradients(graph, loss)
    assert np.allclose(gradients["W"], np.tile([0.2, 1.4], (3, 1)), rtol=1e-5)


@pytest.mark.parametrize("width", [1, 100])
def test_sums_of_very_many_rows_keep_their_digits(width: int) -> None:
    model = vpps.Model(seed=1)
    graph = vpps.Graph()
    x = graph.input(np.full(width, 0.7, np.float32))
    total = vpps.sum([x for _ in range(20_000)])
    with vpps.Handle(model, vps=1) as handle:
        (value,) = handle.forward(graph, [total])
    assert np.allclose(value, 20_000 * float(np.float32(0.7)), rtol=2e-6)
