"""The GPU check without a GPU: steps that fail, hang, or exceed the remaining time. Nothing is lost if it is ended."""

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
    """Run the check with further steps after the first one; returns its status and its lines."""
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
    """Return the states of all steps but the first."""
    return {
        line["step_name"]: line["state"]
        for line in lines
        if line.get("event") == "end" and line["step_name"] != FIRST.name
    }


def kernel_of(tmp_path: Path) -> Path:
    cubin = tmp_path / "cache" / "kernels" / "key" / "key.cubin"
    cubin.parent.mkdir(parents=True)
    cubin.write_text("a kernel")
    return cubin


def is_running(pid: int) -> bool:
    """Return True if the process exists and has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_step_that_fails_hangs_or_does_not_fit_is_named_and_the_next_one_runs(call: Any, tmp_path: Path) -> None:
    """One step ignores SIGINT: it is killed with its children."""
    pid = tmp_path / "pid"
    stuck = f"""
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(pid)!r}).write_text(str(child.pid))
print('{{"value": 1}}', flush=True)
time.sleep(60)
"""
    status, lines = call(
        program("bad", ONE + "raise SystemExit('no such thing')"), program("stuck", stuck, most=2),
        program("where", FOREVER, most=1), program("long", ONE, seconds=500), program("a", ONE, needs="no-such-tool"),
        program("good", ONE + "print('no JSON'); print('{\"cut')"), options=("--minutes", "1.5"),
    )  # fmt: skip
    assert status == 1
    assert ends(lines) == {"bad": "failed", "stuck": "hung", "where": "hung", "good": "ok"}
    said = {line["step_name"]: line["said"] for line in lines if line.get("said")}
    assert said["bad"] == ["no such thing"]
    assert said["where"][-1] == "KeyboardInterrupt"
    assert [line["step_name"] for line in lines if "value" in line] == ["bad", "stuck", "good"]
    line = lines[-2]
    assert (line["device"], line["driver"], line["cuda"], line["nvrtc"]) == ("Some GPU", "580.1", 13000, "13.0")
    assert line["machine"]["microarchitecture"] == "zen"
    assert set(line["commit"]) == {"id", "dirty"}
    assert line["time"]
    summary = (tmp_path / "out" / record.SUMMARY).read_text()
    assert "not begun      0.0 s  peers: long: takes about 500 s" in summary
    assert "not here       0.0 s  peers: a: no-such-tool is not on" in summary
    assert "no such thing" in summary.splitlines()[1]
    assert "bad: no such thing" in (tmp_path / "out" / record.LOG).read_text()
    limit = time.monotonic() + 50
    while is_running(int(pid.read_text())):  # on a busy system, ending takes a moment
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_the_end_of_the_minutes_is_no_fault_of_a_step_and_the_commit_may_be_told(call: Any) -> None:
    own = 'print(\'{"value": 1, "commit": {"id": null}}\'); '
    options = ("--minutes", str((check.RESERVE + 2) / 60), "--commit", "abc")
    status, lines = call(program("slow", own + FOREVER, seconds=0), options=options)
    assert status == 0
    assert ends(lines) == {"slow": "out of time"}
    assert {json.dumps(line["commit"]) for line in lines} == {'"abc"'}


def test_the_rest_is_taken_up_and_what_failed_comes_last(call: Any, tmp_path: Path) -> None:
    later = tmp_path / "later"
    bad, good = program("bad", "raise SystemExit(1)"), program("good", ONE)
    _, before = call(bad, good, program("long", ONE, seconds=1e6))
    cubin = kernel_of(tmp_path)
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
    monkeypatch.setattr(tarfile.TarFile, "add", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    kernel_of(tmp_path)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_is_ended_loses_nothing(call: Any, tmp_path: Path, number: signal.Signals) -> None:
    """A truncated line does not disturb the continuing run either."""
    out = tmp_path / "stopped"
    values = {"bench": str(ROOT / "bench"), "versions": FIRST.command[2], "code": ONE + FOREVER, "out": str(out)}
    process = subprocess.Popen([sys.executable, "-c", DRIVER.format(**values)], stderr=subprocess.DEVNULL)
    results, limit = out / record.RESULTS, time.monotonic() + 60
    while not results.exists() or not any("value" in line for line in record.read(results)):
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=60) == (-number if number == signal.SIGKILL else 130)
    lines = list(record.read(results))
    assert ends(lines) == ({} if number == signal.SIGKILL else {"a": "interrupted"})
    assert [line["step_name"] for line in lines if "value" in line] == ["a"]
    with results.open("a") as file:
        file.write('{"stage": "peers", "st')
    status, lines = call(program("a", ONE), program("b", ONE), options=("--continue", str(out)), out=out)
    assert status == 0
    assert sorted(line["step_name"] for line in lines if "value" in line) == ["a", "a", "b"]
    assert ends(lines) == {"a": "ok", "b": "ok"}


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
        (["--only", "peers,benchmarks"], ["--only benchmarks: expected some of contact,products,timelines,peers"]),
        (["--data", "/no/such/folder"], ["--data /no/such/folder: there is no such folder"]),
        (["--help"], [f"  {stage:10} {what[:30]}" for stage, what in STAGES.items()]),
    ],
)
def test_options_are_explained(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(arguments)
    said = "".join(capsys.readouterr())
    assert all(some in said for some in words)


def test_steps_are_those_of_the_checkout_in_the_order_of_stages(tmp_path: Path) -> None:
    for smallest in (False, True):
        every = steps(smallest, 16)
        names = [step.name for step in every]
        assert len(set(names)) == len(names)
        assert list(dict.fromkeys(step.stage for step in every)) == list(STAGES)
        assert every[0].name == "versions"
        assert all(Path(step.command[1]).exists() for step in every if step.command[1].endswith(".py"))
    files = [step.name for step in steps(False, 16) if step.stage == "tests"]
    assert files == [f"tests/gpu/{file.name}" for file in stages.test_files()]
    for minutes, some in ((0.5, ["contact"]), (6, ["contact", "products", "timelines", "peers"])):
        assert sum(step.seconds for step in steps(False, 16) if step.stage in some) + check.RESERVE <= 60 * minutes
    found = environment(tmp_path, tmp_path / "cache")
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert (found["VPPS_DATA"], found["VPPS_CACHE_DIR"]) == (str(tmp_path), str(tmp_path / "cache"))
