"""Who waited for whom, where a script is launched twice."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.engine.timeline import PRODUCTS
from vpps.report.critical import releases

pytestmark = pytest.mark.simt


def test_waits_of_a_second_launch_are_ended_by_its_own_signals() -> None:
    """Counters begin at zero again there."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", (8, 8))
    graph = vpps.Graph()
    loss = vpps.sum([vpps.sum(vpps.tanh(W @ graph.input([0.1 * k] * 8))) for k in range(4)])
    options = vpps.ChipOptions(gradients="gemm")
    with vpps.Handle(model, target="simt", vps=2, clip_norm=1.0, onchip=options) as handle, handle.trace() as trace:
        handle.fb(graph, loss)
    (timeline,) = trace.timelines
    assert timeline.plan.continuation is not None
    records = timeline.records
    (gap,) = {(idle.start, idle.end) for idle in timeline.idle() if idle.why == PRODUCTS and idle.vp == 0}
    found = list(releases(timeline))
    assert len(found) == np.count_nonzero(timeline.forms == "Wait")
    later = [records["start"][wait] >= gap[1] for wait, _ in found]
    assert later == [records["start"][signal] >= gap[1] for _, signal in found]
    assert any(later)
    assert not all(later)
