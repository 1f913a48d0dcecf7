"""The check that runs on a GPU, without one: what it does with parts that fail, hang, or no longer fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import pytest
from gpu_check import Outcome, Part, check, destination, environment_of, parts, run

from vpps.runtime.driver import why_cuda_is_unusable

pytestmark = pytest.mark.host

ROOT = Path(__file__).parents[2]
ENVIRONMENT = dict(os.environ)


def program(name: str, code: str, most: float = 60) -> Part:
    return Part(name, [sys.executable, "-c", code], most)


def test_lines_of_json_are_results() -> None:
    outcome = run(program("p", 'print("first"); print(\'{"value": 3}\'); print(\'{"cut\')'), 60, ENVIRONMENT)
    assert (outcome.state, outcome.results, outcome.output) == ("ok", [{"value": 3}], "")


def test_a_failure_leaves_its_last_words() -> None:
    outcome = run(program("p", 'print(\'{"value": 3}\'); raise SystemExit("no such thing")'), 60, ENVIRONMENT)
    assert (outcome.state, outcome.results) == ("failed", [{"value": 3}])
    assert outcome.output.strip() == "no such thing"


def is_running(pid: int) -> bool:
    """Whether there is such a process, which has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("most, left", [(3, 60), (60, 3)])
def test_what_hangs_is_ended_with_what_it_started(tmp_path: Path, most: float, left: float) -> None:
    pid = tmp_path / "pid"
    code = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(pid)!r}).write_text(str(child.pid))
print('{{"value": 1}}', flush=True)
time.sleep(60)
"""
    begun = time.monotonic()
    outcome = run(program("p", code, most), left, ENVIRONMENT)
    assert outcome.state == "timeout"
    assert outcome.results == [{"value": 1}]
    assert time.monotonic() - begun < 20
    while is_running(int(pid.read_text())):  # a busy system takes a moment to end it
        assert time.monotonic() - begun < 30
        time.sleep(0.01)


def test_tests_are_counted_and_failures_named(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('no')\n")
    junit = tmp_path / "it.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", str(file)]
    outcome = run(Part("tests", command, 60, junit), 60, ENVIRONMENT)
    assert outcome.state == "failed"
    (counts,) = outcome.results
    assert (counts["tests"], counts["failures"], counts["errors"], counts["skipped"]) == (3, 1, 0, 1)
    (failed,) = counts["failed"]
    assert failed["test"].endswith("test_it.test_b")
    assert failed["message"] == "assert 1 == 2"
    assert "1 failed" in outcome.output


def test_parts_that_no_longer_fit_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "SMALLEST", 1)
    path = tmp_path / "deep" / "report.json"
    report = {"device": {"name": "none"}}
    wanted = [program("first", "print('{}')"), program("slow", "import time; time.sleep(60)"), program("late", "")]
    assert not check(wanted, 5, ENVIRONMENT, report, path)
    written = json.loads(path.read_text())
    assert [p["state"] for p in written["parts"]] == ["ok", "timeout", "not run"]
    assert [p["part"] for p in written["parts"]] == ["first", "slow", "late"]
    assert written["device"] == {"name": "none"}


def test_parts_are_those_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name, path: f"/cuda/{name}")
    found = parts(list(gpu_check.KINDS), True, tmp_path, ENVIRONMENT)
    names = [part.name for part in found]
    assert names[: len(gpu_check.FIRST)] == [f"tests/gpu/{name}" for name in gpu_check.FIRST]
    assert "compute-sanitizer racecheck" in names
    assert "gpu_check.py" not in names
    assert [p.name for p in parts(["sanitizer"], True, tmp_path, ENVIRONMENT)] == [
        "compute-sanitizer memcheck", "compute-sanitizer racecheck",
    ]  # fmt: skip
    path, _, name = gpu_check.SMALL_CASE.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_reports_go_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUT", raising=False)
    assert destination(None, "check", "NVIDIA H200").parent == ROOT / "bench" / "results" / "h200"
    monkeypatch.setenv("OUT", str(tmp_path))
    assert destination(None, "night", "NVIDIA H200").name.endswith("-night.json")
    assert destination(None, "check", "NVIDIA H200").parent == tmp_path
    assert destination(tmp_path / "x.json", "check", "NVIDIA H200") == tmp_path / "x.json"


def test_parts_find_the_checkout_and_no_wheels_are_an_error(tmp_path: Path) -> None:
    assert environment_of(None, tmp_path)["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    with pytest.raises(SystemExit, match="no wheels"):
        environment_of(tmp_path, tmp_path)


@pytest.mark.skipif(why_cuda_is_unusable() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [ROOT / "scripts" / "gpu_check", "--out", tmp_path / "report.json"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no GPU to check: " in done.stderr
    assert "target='cuda'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_unknown_parts_are_refused() -> None:
    command = [ROOT / "scripts" / "gpu_check", "--only", "tests,benchmarks"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--only benchmarks: expected some of tests,sanitizer,micro,benches" in done.stderr


def test_outcomes_begin_empty() -> None:
    assert Outcome("p", "not run") == Outcome("p", "not run", 0.0, [], "")
