"""The simt tier: handles that name no target run CUDA source under the emulator, which looks for races.

Compiling takes seconds and a launch milliseconds. So the tests of ops, whose models are all different, keep weights in
memory and have a kernel that knows all instructions: one runs them all.
"""

from __future__ import annotations

import zlib

import pytest

import vpps.engine
from tests import comparison
from tests.gpu.conftest import with_default
from vpps.kernel.chip import MEMORY_ONLY
from vpps.kernel.spec import KernelSpec
from vpps.runtime.simt import SimtMachine
from vpps.script.instructions import TABLE

EVERYTHING = frozenset(i.name for i in TABLE) - {"tail"}  # those of a cell come with the cell
END_OF_LAUNCH = frozenset(
    i.name
    for i in TABLE
    if i.name.endswith((".sgd", ".adam")) or i.form in ("SquaresMatrix", "SquaresRows", "Clip", "KeptGradient")
)


@pytest.fixture(autouse=True)
def on_simt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles that name no target run under the emulator; kernels without slots are one kernel."""
    monkeypatch.setenv("VPPS_TARGET", "simt")
    specialise = SimtMachine.specialise

    def widened(self: SimtMachine, spec: KernelSpec) -> None:
        roomy = KernelSpec(EVERYTHING | spec.instructions, spec.chip, spec.tails)
        specialise(self, roomy if spec.chip == MEMORY_ONLY else spec)

    monkeypatch.setattr(SimtMachine, "specialise", widened)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Weights stay in memory, and results are the same for 1 and 3 virtual processors and both schedules.

    Threads run in an order of the test's own.
    """
    monkeypatch.setattr(vpps.engine, "matrices_of", lambda *unused: {})
    monkeypatch.setenv("VPPS_SIMT_SEED", str(zlib.crc32(request.node.nodeid.encode())))
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (1, 3)))


@pytest.fixture
def roomy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels know what the end of a launch may need from the start, so that none is compiled a second time."""
    specialise = SimtMachine.specialise

    def widened(self: SimtMachine, spec: KernelSpec) -> None:
        specialise(self, KernelSpec(spec.instructions | END_OF_LAUNCH, spec.chip, spec.tails))

    monkeypatch.setattr(SimtMachine, "specialise", widened)
