"""Compilers are killed when they are no longer needed, and an interrupted compiler is not a rejected source."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vpps
from tests.processes import TIMEOUT, finish, start
from vpps.kernel import processes
from vpps.kernel.host_compiler import build_cpu

pytestmark = [pytest.mark.host, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Set up an empty cache, and a shell script as the C++ compiler; return the file that the script may write."""

    def make(lines: str) -> Path:
        path, log = tmp_path / "compiler", tmp_path / "log"
        version = 'if [ "$1" = --version ]; then echo 1.0; exit 0; fi'
        path.write_text(f"#!/bin/sh\n{version}\nlog={shlex.quote(str(log))}\n{lines}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", shlex.quote(str(path)))
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("VPPS_RECORDER", "python")
        return log

    return make


ENDLESS = 'sleep 1000 &\necho "$$ $!" >> "$log"\nwait'  # a driver and the compiler that it started


def said(log: Path) -> list[str]:
    """Processes of all compilers that have been started."""
    return log.read_text().split() if log.exists() else []


def started(log: Path, count: int) -> list[str]:
    """Wait until `count` compilers have been started, and return their processes."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        if len(said(log)) >= 2 * count:
            return said(log)
        time.sleep(0.02)
    raise AssertionError(f"no {count} compilers run")


def runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_ended(pids: list[str]) -> None:
    until = time.monotonic() + TIMEOUT
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.02)  # killed, but not yet ended
    assert not any(map(runs, pids))


def leftovers(log: Path) -> list[str]:
    """Scratch folders left in the cache."""
    return [path.name for path in (log.parent / "cache").rglob("*") if path.name.startswith("vpps-build-")]


def test_ctrl_c_ends_all_compilers_and_the_process(compiler: Callable[[str], Path]) -> None:
    log = compiler(ENDLESS)
    process = start("import vpps\nfrom tests.classifier import new\nvpps.Handle(new().model, target='cpu')")
    pids = started(log, 1)
    process.send_signal(signal.SIGINT)  # only to Python
    status, _, err = finish(process)
    assert status == -signal.SIGINT
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert "rejected" not in err
    assert_ended(pids)
    assert leftovers(log) == []


def test_a_compiler_ends_where_its_time_is_over(
    compiler: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = compiler(ENDLESS)
    monkeypatch.setattr(processes, "LIMIT", 0.5)
    with pytest.raises(vpps.CompileError, match="compiler was ended: it had not finished"):
        build_cpu()
    assert_ended(said(log))


def test_a_compiler_keeps_its_temporary_files_where_the_result_is_made(compiler: Callable[[str], Path]) -> None:
    """The temporary folder is removed even if the compiler and this process are killed."""
    log = compiler('for result; do :; done\necho "$TMPDIR $(dirname "$result")" >> "$log"\nexit 1')
    with pytest.raises(vpps.CompileError, match="rejected"):
        build_cpu()
    temporary, folder = log.read_text().split()
    assert temporary == folder


def test_an_interrupted_compiler_is_not_a_rejected_source(compiler: Callable[[str], Path]) -> None:
    """The next call compiles the source."""
    log = compiler('echo >> "$log"\nkill -INT $$\nsleep 10')
    for _ in range(2):
        with pytest.raises(vpps.CompileError, match="was interrupted"):
            build_cpu()
    assert len(log.read_text().splitlines()) == 2


def test_a_compiler_that_another_signal_ends_is_named(compiler: Callable[[str], Path]) -> None:
    compiler("kill -KILL $$")
    with pytest.raises(vpps.CompileError, match="compiler was ended by SIGKILL, as happens where memory runs out"):
        build_cpu()
