"""The CUDA kernel of every network, at the size that users get: it compiles, and its weights stay in registers."""

from __future__ import annotations

import pytest

import vpps
from tests.nvrtc import needs_nvrtc
from tests.zoo.cases import Case, every_case


@pytest.mark.nvrtc
@needs_nvrtc
@every_case
def test_compiles_clean_for_an_h100(case: Case) -> None:
    task = case.make_full_size()
    graph = vpps.Graph()
    batch = task.train[:2]
    kernel = vpps.specialize(
        task.model, example=(graph, task.loss(graph, batch)), arch="sm_90", sms=132, passes=vpps.Passes()
    )
    found = kernel.resources
    assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
    assert found.registers <= 255
