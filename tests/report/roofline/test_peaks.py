"""What a machine gives: measured, kept, and measured again where what was kept is of no use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vpps.kernel.host_compiler import tile_of_machine
from vpps.report.roofline import peaks as module
from vpps.report.roofline.peaks import (
    BARRIERS,
    KIB,
    Bandwidth,
    Peaks,
    barriers_script,
    launch_costs,
    machine_peaks,
    measure,
)
from vpps.script.disassemble import instructions

pytestmark = pytest.mark.cpu

KB = 1e3

MACHINE = Peaks(
    name="a round machine",
    isa="avx2",
    n_vps=2,
    flops=1e9,
    flops_of_one=5e8,
    read=Bandwidth((1 * KB, 100 * KB), (4e9, 1e9)),
    triad=Bandwidth((1 * KB, 100 * KB), (2e9, 5e8)),
    barrier=1e-6,
    launch=1e-5,
    load=0.0,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where measurements are kept; compiled code stays in the usual cache."""
    monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(module, "SIZES", (64 * KIB, 256 * KIB))
    monkeypatch.setattr(module, "TIMES", 2)
    return tmp_path


@pytest.fixture
def measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Instead of measuring, notes for how many virtual processors it was to be done."""
    calls: list[int] = []

    def note(n_vps: int, isa: str, progress: object) -> Peaks:
        calls.append(n_vps)
        return MACHINE

    monkeypatch.setattr(module, "measure", note)
    return calls


class TestMeasuring:
    def test_finds_rates_of_everything(self, folder: Path) -> None:
        told: list[str] = []
        found = measure(2, tile_of_machine().isa, told.append)
        assert (found.n_vps, found.isa, found.source) == (2, tile_of_machine().isa, "measured")
        assert min(found.flops, found.flops_of_one) > 1e8
        for curve in (found.read, found.triad):
            assert len(curve.sizes) == len(curve.rates) == 2
            assert curve.rates[0] >= curve.rates[1] > 1e7
        assert found.launch > 0
        assert "multiply-adds" in told
        assert Peaks.from_json(json.loads(json.dumps(found.as_json()))) == found

    def test_one_virtual_processor_waits_at_no_barrier(self) -> None:
        launch, barrier = launch_costs(1)
        assert launch > 0
        assert barrier == 0

    def test_of_barriers_runs_a_script_of_nothing_else(self) -> None:
        script = barriers_script(3, BARRIERS)
        names = [d.instruction.name for d in instructions(script, 7)]
        assert names == ["barrier"] * BARRIERS + ["end"]
        assert script[3] == len(script)


class TestKeeping:
    def test_measures_once_for_a_number_of_virtual_processors(self, measured: list[int]) -> None:
        assert machine_peaks(2, "avx2") == machine_peaks(2, "avx2") == MACHINE
        assert measured == [2]
        machine_peaks(1, "avx2")
        machine_peaks(2, "portable")
        machine_peaks(2, "avx2")
        assert measured == [2, 1, 2]

    def test_goes_on_where_nothing_can_be_kept(
        self, measured: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (folder / "file").touch()
        monkeypatch.setattr(module, "cache_dir", lambda: folder / "file")
        assert machine_peaks(2, "avx2") == MACHINE
        assert "cannot be kept" in caplog.text

    def test_measures_again_where_asked(self, measured: list[int]) -> None:
        for _ in range(2):
            machine_peaks(2, "avx2", remeasure=True)
        assert measured == [2, 2]

    @pytest.mark.parametrize(
        "damage",
        ["", "[]", "{}", "{", '{"version": 0, "machines": {}}', '{"version": 1, "machines": []}', "\x00\xff"],
    )
    def test_measures_again_where_the_file_is_damaged(self, measured: list[int], folder: Path, damage: str) -> None:
        machine_peaks(2, "avx2")
        (folder / module.FILE).write_text(damage, encoding="latin-1")
        assert machine_peaks(2, "avx2") == MACHINE
        assert measured == [2, 2]

    @pytest.mark.parametrize("change", [{"flops": "fast"}, {"read": {"sizes": [], "rates": []}}, {"triad": 3}])
    def test_measures_again_where_an_entry_is_damaged(
        self, measured: list[int], folder: Path, change: dict[str, object]
    ) -> None:
        machine_peaks(2, "avx2")
        contents = json.loads((folder / module.FILE).read_text())
        for entry in contents["machines"].values():
            entry.update(change)
        (folder / module.FILE).write_text(json.dumps(contents))
        machine_peaks(2, "avx2")
        machine_peaks(2, "avx2")
        assert measured == [2, 2]
