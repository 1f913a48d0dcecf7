"""Table 2 of the ED-Batch paper, counted."""

from __future__ import annotations

import pytest
from cell_layout import CELLS, figures

pytestmark = pytest.mark.host

# Adds of the memories of children read arguments, which lie anywhere; so do biases that two gates share.
MORE = {"LSTM": 4.0, "Tree-LSTM internal": 1.25}


@pytest.mark.parametrize("name", CELLS)
def test_memory_kernels_are_those_of_the_programs(name: str):
    found = figures(name, batch=8, size=64, times=1)
    kernels, kilobytes = found["memory_kernels"], found["kilobytes"]
    assert kernels["pq_tree"] == kernels["program"][1]
    assert kernels["declared"] >= kernels["program"][0]
    assert kilobytes["pq_tree"] == kilobytes["paper"][1] + MORE.get(name, 0.0)
    assert kernels["vpps"] == 0
    assert kilobytes["unfused"] <= kilobytes["unfused_as_used"]
