"""The CUDA kernel of every network, at the users' size: it compiles, and its weights are kept in registers."""

from __future__ import annotations

import pytest

import vpps
from tests.nvrtc import COMPILE_ALL, needs_nvrtc
from tests.zoo.cases import CASES, Case

# The networks with most weights in registers and most tails. All instructions: tests/kernel/test_nvrtc_versions.py.
SELECTION = ("tree-lstm-2type", "bilstm-char-tagger")
COMPILED = CASES if COMPILE_ALL else SELECTION


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in COMPILED])
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
