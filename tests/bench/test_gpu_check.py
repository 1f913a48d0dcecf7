"""The check that runs on a GPU, without one: what it does with steps that fail, hang, or no longer fit, and that it
loses nothing when it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_check import check, record, running, stages
from gpu_check.stages import STAGES, Step, environment, steps

from vpps.runtime.driver import why_cuda_is_unusable

pytestmark = pytest.mark.host

ROOT = Path(__file__).parents[2]
VERSIONS = {
    "case": "versions", "gpu": {"name": "Some GPU", "cuda": 13000}, "versions": {"driver": "580.1", "nvrtc": "13.0"},
    "machine": {"microarchitecture": "zen"},
}  # fmt: skip
ONE = "print('{\"value\": 1}', flush=True); "
FOREVER = "import time; time.sleep(60)"


def program(name: str, code: str, seconds: float = 1, most: float = 60, needs: str = "") -> Step:
    return Step("peers", name, (sys.executable, "-c", code), seconds, most, needs=needs)


FIRST = program("versions", f"print({json.dumps(VERSIONS)!r})")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the check with some steps besides the first one, and gives its status and its lines."""
    monkeypatch.setattr(running, "GRACE", 1.0)
    out = tmp_path / "out"

    def run(*some: Step, options: tuple[str, ...] = (), out: Path = out) -> tuple[int, list[dict[str, Any]]]:
        monkeypatch.setattr(check, "steps", lambda smallest, cores: [FIRST, *some])
        status = check.main(["--out", str(out), "--cache", str(tmp_path / "cache"), *options])
        return status, list(record.read(out / record.RESULTS))

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


def ends(lines: list[dict[str, Any]]) -> dict[str, str]:
    """States of the steps but the first one."""
    return {
        line["step_name"]: line["state"]
        for line in lines
        if line.get("event") == "end" and line["step_name"] != FIRST.name
    }


def test_results_say_what_they_depend_on(call: Any) -> None:
    status, lines = call(program("a", ONE + "print('no JSON'); print('{\"cut')"))
    assert status == 0
    assert ends(lines) == {"a": "ok"}
    (line,) = [line for line in lines if line.get("value") == 1]
    assert line["stage"] == "peers"
    assert (line["device"], line["driver"], line["cuda"], line["nvrtc"]) == ("Some GPU", "580.1", 13000, "13.0")
    assert line["machine"]["microarchitecture"] == "zen"
    assert set(line["commit"]) == {"id", "dirty"}
    assert line["time"]


def test_the_commit_may_be_told(call: Any) -> None:
    own = 'print(\'{"value": 1, "commit": {"id": null}}\')'
    _, lines = call(program("a", own), options=("--commit", "abc"))
    assert {json.dumps(line["commit"]) for line in lines} == {'"abc"'}


def test_a_step_that_fails_is_named_and_the_next_one_runs(call: Any, tmp_path: Path) -> None:
    status, lines = call(program("bad", ONE + "raise SystemExit('no such thing')"), program("good", ONE))
    assert status == 1
    assert ends(lines) == {"bad": "failed", "good": "ok"}
    (end,) = [line for line in lines if line.get("state") == "failed"]
    assert end["said"] == ["no such thing"]
    assert [line["step_name"] for line in lines if "value" in line] == ["bad", "good"]
    summary = (tmp_path / "out" / record.SUMMARY).read_text().splitlines()
    assert [line.split()[0] for line in summary] == ["ok", "failed", "ok"]
    assert "no such thing" in summary[1]
    assert "bad: no such thing" in (tmp_path / "out" / record.LOG).read_text()


def is_running(pid: int) -> bool:
    """Whether there is such a process, which has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_step_that_hangs_is_ended_with_what_it_started(call: Any, tmp_path: Path) -> None:
    """Even one that SIGINT does not reach."""
    pid = tmp_path / "pid"
    code = f"""
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(pid)!r}).write_text(str(child.pid))
print('{{"value": 1}}', flush=True)
time.sleep(60)
"""
    begun = time.monotonic()
    status, lines = call(program("stuck", code, most=2), program("next", ONE))
    assert status == 1
    assert ends(lines) == {"stuck": "hung", "next": "ok"}
    assert [line["step_name"] for line in lines if "value" in line] == ["stuck", "next"]
    assert time.monotonic() - begun < 40
    while is_running(int(pid.read_text())):  # a busy system takes a moment to end it
        assert time.monotonic() - begun < 50
        time.sleep(0.01)


def test_a_step_that_is_ended_may_say_where_it_was(call: Any) -> None:
    _, lines = call(program("stuck", FOREVER, most=1))
    (end,) = [line for line in lines if line.get("state") == "hung"]
    assert end["said"][-1] == "KeyboardInterrupt"


def test_what_does_not_fit_is_not_begun_and_what_fits_is(call: Any, tmp_path: Path) -> None:
    minutes = ("--minutes", str((check.RESERVE + 30) / 60))
    status, lines = call(program("long", ONE, seconds=500), program("short", ONE), options=minutes)
    assert status == 0
    assert ends(lines) == {"short": "ok"}
    assert "not begun      0.0 s  peers: long: takes about 500 s" in (tmp_path / "out" / record.SUMMARY).read_text()


def test_the_end_of_the_minutes_is_no_fault_of_a_step(call: Any) -> None:
    minutes = ("--minutes", str((check.RESERVE + 2) / 60))
    status, lines = call(program("slow", ONE + FOREVER, seconds=0), options=minutes)
    assert status == 0
    assert ends(lines) == {"slow": "out of time"}


def test_a_tool_that_is_not_there_is_named(call: Any, tmp_path: Path) -> None:
    status, lines = call(program("a", ONE, needs="no-such-tool"))
    assert status == 0
    assert ends(lines) == {}
    assert "not here       0.0 s  peers: a: no-such-tool is not on" in (tmp_path / "out" / record.SUMMARY).read_text()


def test_the_rest_is_taken_up_and_what_failed_comes_last(call: Any, tmp_path: Path) -> None:
    later = tmp_path / "later"
    bad, good = program("bad", "raise SystemExit(1)"), program("good", ONE)
    _, before = call(bad, good, program("long", ONE, seconds=1e6))
    cubin = tmp_path / "cache" / "kernels" / "key" / "key.cubin"
    cubin.parent.mkdir(parents=True)
    cubin.write_text("a kernel")
    assert record.keep_kernels(tmp_path / "cache", tmp_path / "out" / record.KERNELS) == ""
    cubin.unlink()
    status, lines = call(bad, good, program("long", ONE), options=("--continue", str(tmp_path / "out")), out=later)
    assert status == 1
    assert lines[: len(before)] == before
    assert [line["step_name"] for line in lines[len(before) :] if "event" in line] == [
        "versions", "versions", "long", "long", "bad", "bad",
    ]  # fmt: skip
    assert cubin.read_text() == "a kernel"
    with pytest.raises(SystemExit, match="has results already"):
        call(bad)
    with pytest.raises(SystemExit, match="there is no"):
        call(bad, options=("--continue", str(tmp_path / "elsewhere")))


def test_packing_kernels_that_is_interrupted_leaves_nothing_half_done(
    call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(archive: tarfile.TarFile, *names: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(tarfile.TarFile, "add", interrupted)
    cubin = tmp_path / "cache" / "kernels" / "key" / "key.cubin"
    cubin.parent.mkdir(parents=True)
    cubin.write_text("a kernel")
    assert call(program("a", ONE))[0] == 130
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["log.txt", "results.jsonl", "summary.txt"]
    assert "kernels.tar.gz: interrupted" in (tmp_path / "out" / record.LOG).read_text()


DRIVER = """
import sys
sys.path.insert(0, {bench!r})
from gpu_check import check
from gpu_check.stages import Step
check.steps = lambda smallest, cores: [
    Step("contact", "versions", (sys.executable, "-c", {versions!r}), 1, 60),
    Step("peers", "a", (sys.executable, "-c", {code!r}), 1, 60),
    Step("peers", "b", (sys.executable, "-c", {code!r}), 1, 60),
]
sys.exit(check.main(["--out", {out!r}, "--cache", {out!r}]))
"""


def begun(out: Path) -> subprocess.Popen[bytes]:
    """A check whose first step has printed a line and is not about to end."""
    values = {"bench": str(ROOT / "bench"), "versions": FIRST.command[2], "code": ONE + FOREVER, "out": str(out)}
    process = subprocess.Popen([sys.executable, "-c", DRIVER.format(**values)], stderr=subprocess.DEVNULL)
    results, limit = out / record.RESULTS, time.monotonic() + 60
    while not results.exists() or not any("value" in line for line in record.read(results)):
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_sigkill_loses_nothing(call: Any, tmp_path: Path) -> None:
    """Nor does half a line confuse whoever continues."""
    out = tmp_path / "killed"
    process = begun(out)
    process.kill()
    process.wait()
    with (out / record.RESULTS).open("a") as file:
        file.write('{"stage": "peers", "st')
    some = program("a", ONE), program("b", ONE)
    status, lines = call(*some, options=("--continue", str(out)), out=out)
    assert status == 0
    assert [line["step_name"] for line in lines if "value" in line] == ["a", "b", "a"]
    assert ends(lines) == {"a": "ok", "b": "ok"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "stopped"
    process = begun(out)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    lines = list(record.read(out / record.RESULTS))
    assert ends(lines) == {"a": "interrupted"}
    assert [line["step_name"] for line in lines if "value" in line] == ["a"]


@pytest.mark.skipif(why_cuda_is_unusable() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [ROOT / "scripts" / "gpu_check", "--out", tmp_path, "--cache", tmp_path]
    done = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no GPU to check: target='cuda'" in done.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--only", "peers,benchmarks"], "--only benchmarks: expected some of contact,precisions,peers,tests"),
        (["--data", "/no/such/folder"], "--data /no/such/folder: there is no such folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        check.main(arguments)
    assert words in capsys.readouterr().err


def test_help_says_what_each_stage_tells(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"  {stage:10} {what[:30]}" in said for stage, what in STAGES.items())


def test_steps_are_those_of_the_checkout_in_the_order_of_stages() -> None:
    for smallest in (False, True):
        every = steps(smallest, 16)
        names = [step.name for step in every]
        assert len(set(names)) == len(names)
        assert list(dict.fromkeys(step.stage for step in every)) == list(STAGES)
        assert every[0].name == "versions"
        assert all(Path(step.command[1]).exists() for step in every if step.command[1].endswith(".py"))
    files = [step.name for step in steps(False, 16) if step.stage == "tests"]
    assert files == [f"tests/gpu/{file.name}" for file in stages.test_files()]
    assert sum(step.seconds for step in steps(False, 16) if step.stage == "contact") <= 30


def test_steps_find_the_checkout_and_the_data(tmp_path: Path) -> None:
    found = environment(tmp_path, tmp_path / "cache")
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert found["VPPS_DATA"] == str(tmp_path)
    assert found["VPPS_CACHE_DIR"] == str(tmp_path / "cache")
