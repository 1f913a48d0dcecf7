"""`vpps-profile --roofline`: tables and JSON of a small network, a picture, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.report.roofline.machines import MACHINE, point
from vpps.cli import roofline as module
from vpps.cli.console import exit_codes
from vpps.cli.roofline import roofline

pytestmark = pytest.mark.cpu

NETWORK = """
import numpy as np
import vpps

def build(batch_size):
    model = vpps.Model(seed=1)
    W, b = model.parameter("W", (32, 32)), model.parameter("b", (32,))

    @vpps.cell
    def layer(x):
        return vpps.tanh(W @ x + b)

    def batch():
        graph = vpps.Graph()
        rows = [layer(layer(graph.input(np.ones(32)))) for _ in range(batch_size)]
        return graph, vpps.sum([vpps.sum(row) for row in rows])

    return model, [batch() for _ in range(3)]

def empty(batch_size):
    return vpps.Model(), []
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Calls the command as `vpps-profile` does, on a machine that need not be measured."""
    (tmp_path / "roofline_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "machine_peaks", lambda *_: MACHINE)
    monkeypatch.setattr(module, "BUSY", float("inf"))

    def call(name: str = "roofline_network:build", sizes: tuple[int, ...] = (1, 4), **options: Any) -> Result:
        code = 0
        try:
            with exit_codes("vpps-profile"):
                roofline(name, sizes, options.pop("rest", ()), **options)
        except Exception as error:
            code = getattr(error, "exit_code", None) or 0
            if not code:
                raise
        return Result(code, *capsys.readouterr())

    return call


class TestTable:
    def test_has_floors_and_phases_of_every_batch_size(self, run: Callable[..., Result]) -> None:
        code, out, err = run(batches=2, passes=1)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert "batch size 1, schedule vector: averages of 2 launches" in out
        assert "batch size 4" in out
        firsts = [line.split()[0] for line in out.splitlines() if line]
        for row in ("compute", "weights", "activations", "barriers", "launch", "floor", "measured",
                    "forward", "backward", "gradients", "update", "waiting", "most"):  # fmt: skip
            assert firsts.count(row) == 2, row

    def test_goes_to_a_file_where_asked(self, run: Callable[..., Result], tmp_path: Path) -> None:
        code, out, _ = run(sizes=(1,), batches=1, passes=1, output=tmp_path / "table.txt")
        assert (code, out) == (0, "")
        assert "x the floor" in (tmp_path / "table.txt").read_text()

    def test_of_bf16_has_a_lower_floor(self, run: Callable[..., Result]) -> None:
        """Products take half the time, of half the bytes."""
        points = []
        for precision in ("float32", "bf16"):
            code, out, _ = run(sizes=(4,), batches=1, passes=1, precision=precision, as_json=True)
            assert code == 0
            points.append(json.loads(out)["points"][0])
        exact, rounded = points
        assert (exact["settings"], rounded["settings"]) == ("", "precision=bf16")
        for part in ("compute", "weights"):
            assert 0.3 < rounded["phases"][0]["floor"][part] / exact["phases"][0]["floor"][part] < 0.8, part


class TestConclusion:
    @pytest.mark.host
    def test_is_about_waiting_where_that_is_most(self) -> None:
        measured = point(8, seconds=2e-3)
        of_phases = f"{measured.farthest.name}, " if measured.farthest else ""
        waits = module._conclusion(replace(measured, seconds=0.0125, waiting=0.0085)) or ""
        assert waits.startswith(f"most time above its floor: waiting, 8500 us of 12500; of the phases, {of_phases}")
        works = module._conclusion(replace(measured, waiting=0.0)) or ""
        assert works.startswith(f"most time above its floor: {of_phases}")
        assert module._conclusion(point(8, seconds=None)) is None

    @pytest.mark.host
    def test_says_where_data_is_read_from(self) -> None:
        assert re.match(r"[\d.]+ GB/s from a buffer of \S+ [KM]iB, [\d.]+ GB/s from \S+ [KM]iB", module._rates(MACHINE))


class TestBusyMachine:
    def test_is_told(self, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "BUSY", -1.0)
        code, _, err = run(sizes=(1,), batches=1, passes=1)
        assert code == 0
        assert "others take part of the time" in err


class TestJson:
    def test_tells_what_the_table_does_and_more(self, run: Callable[..., Result]) -> None:
        code, out, _ = run(sizes=(4,), batches=2, passes=2, as_json=True, schedule="paper")
        assert code == 0
        found = json.loads(out)
        assert found["machine"]["flops"] == MACHINE.flops
        (point,) = found["points"]
        assert (point["batch_size"], point["schedule"], point["batches"], point["passes"]) == (4, "paper", 2, 2)
        floor = point["floor"]
        assert set(floor) == {"compute", "weights", "activations", "barriers", "launch", "total"}
        assert floor["compute"] == pytest.approx(point["flops"] / MACHINE.flops)
        phases = {phase["name"]: phase for phase in point["phases"]}
        assert list(phases) == ["forward", "backward", "gradients", "update"]
        # By hand: two layers of four vertices each, their biases, ten operations for a tanh.
        assert phases["forward"]["flops"] >= 8 * (32 * (2 * 32 + 1) + 32 * 10)
        total = sum(phase["floor"]["total"] for phase in phases.values())
        assert floor["total"] == pytest.approx(total + floor["barriers"] + floor["launch"])
        assert point["ratio"] == pytest.approx(point["seconds"] / floor["total"])
        # Medians of two passes are their means, so that parts add up.
        assert point["seconds"] == pytest.approx(sum(p["seconds"] for p in phases.values()) + point["waiting"])
        assert point["gflops_per_second"] == pytest.approx(point["flops"] / point["seconds"] / 1e9)
        for parts in ("by_instruction", "by_cell"):
            assert sum(part["flops"] for part in point[parts].values()) == pytest.approx(point["flops"], abs=10)
        assert {"layer", ""} <= point["by_cell"].keys()


class TestDevice:
    def test_gives_floors_and_measures_nothing(self, run: Callable[..., Result]) -> None:
        code, out, err = run(sizes=(4,), batches=1, device="H200", as_json=True)
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["machine"]["name"] == "H200"
        assert "data sheet" in found["machine"]["source"]
        (point,) = found["points"]
        assert (point["seconds"], point["ratio"], point["step"], point["passes"]) == (None, None, None, 0)
        assert point["floor"]["total"] > point["floor"]["barriers"] > 0

    def test_has_no_measured_columns(self, run: Callable[..., Result]) -> None:
        code, out, _ = run(sizes=(4,), batches=1, device="t4")
        assert code == 0
        assert "by its data sheet" in out
        assert "not measured" in out
        assert "x floor" not in out


class TestCommand:
    """Through the console command itself."""

    def run(self, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "roofline_network.py").write_text(NETWORK)
        command = [sys.executable, "-c", "from vpps.cli.profile import main; main()", "roofline_network:build"]
        return subprocess.run(
            [*command, "--roofline", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
        )

    def test_prints_json_alone(self, tmp_path: Path) -> None:
        ran = self.run(
            tmp_path, "--device", "H200", "--batch-size", "1", "--batch-size", "2", "--batches", "1", "--json"
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert [point["batch_size"] for point in json.loads(ran.stdout)["points"]] == [1, 2]

    def test_refuses_in_one_sentence(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, "--device", "H300")
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith("vpps-profile: --device H300: expected one of T4")
        assert ran.stderr.count("\n") == 1


class TestRefused:
    @pytest.mark.parametrize(
        "options, message",
        [
            ({"name": "no-such-task"}, "'no-such-task' is no task: expected one of"),
            ({"name": "roofline_network:empty"}, "roofline_network:empty gave no batches"),
            ({"target": "cuda"}, "--roofline --target cuda: what a machine gives is measured for target cpu only"),
            ({"device": "H300"}, "--device H300: expected one of T4, A100"),
            ({"device": "T4", "vps": 3}, "--device T4 --vps 3: the device says what runs"),
            ({"device": "T4", "precision": "bf16"}, "--device T4: a GPU's floor is that of float32; leave --precision"),
            ({"precision": "tf32"}, "precision='tf32': target 'cpu' has no tensor cores"),
            ({"precision": "U=bf16"}, "precision={'U': 'bf16'}: there is no parameter 'U'; there are W"),
            ({"vps": 0}, "--vps 0: expected 1 to 1024"),
            ({"schedule": "fast"}, "--schedule fast: expected one of vector, paper"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_in_one_sentence(self, run: Callable[..., Result], options: dict[str, Any], message: str) -> None:
        code, out, err = run(**options)
        assert (code, out) == (1, "")
        assert err.startswith(f"vpps-profile: {message}")
        assert err.count("\n") == 1
