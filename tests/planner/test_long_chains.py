"""Graphs as deep as they are long: planning has no recursion, and a level's cost does not grow with earlier levels."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vpps
from vpps.compiler.encoded_cell import EncodedCell

pytestmark = pytest.mark.cpu

STEPS = 3000  # more than Python's recursion limit


def test_levels_are_planned_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (8, 8))
    asked = 0
    original = EncodedCell.may_follow

    def counting(self: EncodedCell, other: EncodedCell, group: int, backward: bool) -> bool:
        nonlocal asked
        asked += 1
        return original(self, other, group, backward)

    monkeypatch.setattr(EncodedCell, "may_follow", counting)

    @vpps.cell
    def step(h):
        return vpps.tanh(W @ h)

    graph = vpps.Graph()
    h = graph.input(np.ones(8, np.float32))
    for _ in range(STEPS):
        h = step(h)
    # One virtual processor: every level can follow the previous level without a barrier.
    with vpps.Handle(model, vpps.SGD(lr=0.1), target="cpu", vps=1) as handle:
        handle.fb(graph, vpps.sum(h))
        assert math.isfinite(handle.sync_get_latest_loss())
    assert asked < 10 * STEPS
