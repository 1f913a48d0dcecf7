"""Starts a module as several ranks through a launcher, and kills all processes that hang."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes import ROOT

TIMEOUT = 120
"""Seconds; only hanging programs reach it."""

GLOO = pytest.mark.frameworks("torch")
LAUNCHERS = ["mpiexec", "openmpi", pytest.param("torchrun", marks=GLOO)]

OPEN_MPI = "VPPS_TEST_OPENMPI"
"""An environment (`python -m venv`) with openmpi, mpi4py and vpps's dependencies: it would conflict with MPICH."""


class ProgramResult(NamedTuple):
    """The end of a program: the launcher's exit status, all ranks' output, seconds since the start."""

    status: int
    out: str
    err: str
    seconds: float


def missing(launcher: str) -> str:
    """Return why the launcher cannot be used here; "" if it can."""
    if launcher == "torchrun":
        return "" if importlib.util.find_spec("torch") else "PyTorch is not installed: scripts/test --torch tests it"
    if launcher == "openmpi":
        return "" if os.environ.get(OPEN_MPI) else f"{OPEN_MPI} names no environment with Open MPI"
    if not importlib.util.find_spec("mpi4py") or not _mpiexec().exists():
        return "mpi4py or MPICH is not installed: pip install 'vpps[mpi]'"
    return ""


def start(launcher: str, ranks: int, module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start the launcher in a new process group and session, with piped output. Skips the test without a launcher."""
    if why := missing(launcher):
        pytest.skip(why)
    python = sys.executable
    if launcher == "torchrun":
        command = [python, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", "-m"]
    elif launcher == "openmpi":
        bin = Path(os.environ[OPEN_MPI]) / "bin"
        command = [f"{bin}/mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), f"{bin}/python", "-m"]
    else:
        command = [str(_mpiexec()), "-n", str(ranks), python, "-m"]
    return subprocess.Popen(
        [*command, module, *map(str, arguments)],
        cwd=ROOT,
        # The comparing process has verified scripts of these kinds.
        env={**os.environ, "OMP_NUM_THREADS": "1", "VPPS_VERIFY": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = TIMEOUT) -> ProgramResult:
    """Wait for the end; a process that hangs is killed, and fails the test."""
    begun = time.monotonic()
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process)
        out, err = process.communicate()
        raise AssertionError(f"ranks hang\n{out}\n{err}") from None
    return ProgramResult(process.returncode, out, err, time.monotonic() - begun)


def end(process: subprocess.Popen[str]) -> None:
    """Kill the launcher and its ranks, which may be in separate process groups."""
    for pid in [*descendants(process.pid), process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def descendants(pid: int) -> list[int]:
    """Return all direct and indirect children of a process."""
    found, parents = [], [pid]
    while parents:
        parent = parents.pop()
        try:
            of_tasks = [(task / "children").read_text() for task in Path(f"/proc/{parent}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        children = [int(child) for line in of_tasks for child in line.split()]
        found += children
        parents += children
    return found


def run(launcher: str, ranks: int, module: str, *arguments: object) -> str:
    """Return the output of a program's ranks; the program must succeed."""
    ended = finish(start(launcher, ranks, module, *arguments))
    assert ended.status == 0, f"exit status {ended.status}\n{ended.out}\n{ended.err}"
    return ended.out


def _mpiexec() -> Path:
    """Return the path of mpiexec in the environment's MPICH."""
    return Path(sys.executable).with_name("mpiexec")
