"""The simt tier: handles that name no target run CUDA source under the emulator, which looks for races.

Compiling takes seconds and a launch milliseconds. So the tests of ops, whose models are all different, keep weights in
memory and have a kernel that knows all instructions: one runs them all.
"""

from __future__ import annotations

import zlib

import pytest

from tests import comparison, kernels
from tests.gpu.conftest import with_default
from vpps.runtime.simt import SimtMachine


@pytest.fixture(autouse=True)
def on_simt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that name no target run under the emulator, with fused cells; weights in memory need one kernel."""
    monkeypatch.setenv("VPPS_TARGET", "simt")
    monkeypatch.delenv("VPPS_PASSES", raising=False)
    kernels.widen(monkeypatch, SimtMachine, kernels.know_everything_in_memory)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Weights stay in memory, and results of 3 virtual processors are those of 2 with schedule "paper".

    Threads run in an order of the test's own. Scripts are not verified: on `cpu` those of the same graphs are, and that
    the verifier accepts those of other machines is tests/planner/test_random_graphs.py's to say.
    """
    kernels.keep_weights_in_memory(monkeypatch)
    monkeypatch.setenv("VPPS_VERIFY", "0")
    monkeypatch.setenv("VPPS_PASSES", "-fusion")
    monkeypatch.setenv("VPPS_SIMT_SEED", str(zlib.crc32(request.node.nodeid.encode())))
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (3,)))
