"""The simt tier: handles without a target run CUDA source under the emulator, which looks for races.

Compiling takes seconds and a launch milliseconds. The tests of ops, whose models all differ, therefore keep weights in
memory and share one kernel with all instructions.
"""

from __future__ import annotations

import zlib

import pytest

from tests import comparison, kernels
from tests.gpu.conftest import with_default
from vpps.runtime.simt import SimtMachine


@pytest.fixture(autouse=True)
def on_simt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run handles without a target under the emulator, with fused cells; one kernel serves weights in memory."""
    monkeypatch.setenv("VPPS_TARGET", "simt")
    monkeypatch.delenv("VPPS_PASSES", raising=False)
    kernels.widen(monkeypatch, SimtMachine, kernels.know_everything_in_memory)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep weights in memory, and compare 3 virtual processors with 2 under schedule "paper".

    Every test has a different thread order. Scripts are not verified here: tests on `cpu` verify the scripts of the
    same graphs, and tests/planner/test_random_graphs.py those for other machines.
    """
    kernels.keep_weights_in_memory(monkeypatch)
    monkeypatch.setenv("VPPS_VERIFY", "0")
    monkeypatch.setenv("VPPS_PASSES", "-fusion")
    monkeypatch.setenv("VPPS_SIMT_SEED", str(zlib.crc32(request.node.nodeid.encode())))
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (3,)))
