"""What the compiler is expected to spill is not compiled, unless there is nothing else to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import vpps
from tests.kernel.programs import rvnn, tree_lstm
from vpps.engine.ahead import specs
from vpps.kernel import nvrtc
from vpps.kernel.fitting import LEAST, expects_spills, least_of
from vpps.kernel.nvrtc import Cubin
from vpps.kernel.resources import Resources
from vpps.kernel.spec import KernelSpec
from vpps.placement.onchip import known_device
from vpps.placement.update import Update

pytestmark = pytest.mark.host

VERSIONS = [".".join(map(str, version)) for version in LEAST]


def of_tree_lstm(hidden: int) -> Iterator[KernelSpec]:
    """Kernels for a Tree-LSTM on an H200, best first."""
    update = Update(vpps.SGD(lr=0.1), 1, 1, None)
    found = specs(*tree_lstm(hidden), known_device("H200"), 132, update, 0, vpps.ChipOptions(), passes=vpps.Passes())
    return (spec for spec, _, _ in found)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Registers of weights of the kernels that are compiled, by a compiler that spills more than 100."""
    tried: list[int] = []

    def compile_cubin(source: str, arch: str, cached: int = 0) -> Cubin:
        tried.append(cached)
        spilled = 8 * (cached > 100)
        resources = Resources(255, spilled, spilled, spilled, 0, 1000, cached, 1.0, "NVRTC 13.0")
        return Cubin(Path("x.cubin"), Path("x.cu"), resources, ())

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "library_version", lambda: "13.0")
    return tried


def test_versions_in_between_and_others_are_like_the_nearest_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpps.kernel.fitting.LEAST", {(13, 0): 1, (13, 5): 2})
    assert [least_of(v) for v in ("12.9", "13.0", "13.4", "13.5", "13.10", "14.0")] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_fits_is_expected_to_and_512_units_begin_with_a_smaller_arrangement(version: str) -> None:
    """That still holds much. Nothing is expected of kernels without tails."""
    assert not any(expects_spills(next(of_tree_lstm(hidden)), version) for hidden in (128, 256, 384))
    kernels = of_tree_lstm(512)
    best = next(kernels)
    assert expects_spills(best, version)
    assert not expects_spills(replace(best, tails=frozenset()), version)
    assert next(spec for spec in kernels if not expects_spills(spec, version)).chip.registers >= 160


def test_the_last_kernel_is_tried_whatever_is_expected(compiled: list[int]) -> None:
    """It is the only one where everything is forced: 192 registers of weights, 64 sums."""
    tiers = dict.fromkeys(("W", "W^T"), "registers")
    with pytest.raises(vpps.SpillError, match="leaves nothing to give up"):
        vpps.specialize(*rvnn(256), ownership="round-robin", rpw=8, tile=8, tiers=tiers, passes=vpps.Passes())
    assert compiled == [192]


def test_the_first_that_is_not_expected_to_spill_is_compiled_first(compiled: list[int]) -> None:
    expected = next(spec for spec in of_tree_lstm(512) if not expects_spills(spec, "13.0"))
    kernel = vpps.specialize(*tree_lstm(512), passes=vpps.Passes())
    assert compiled[0] == expected.chip.registers
    assert compiled[-1] == kernel.spec.chip.registers <= 100
