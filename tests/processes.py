"""Runs Python code in a separate process, for tests of signals, forks, imports and exits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMEOUT = 120  # seconds; only hanging processes take that long


# A shell's background processes ignore Ctrl-C, and ours would inherit that.
HEED_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(code: str, environment: Mapping[str, str] | None = None, stdin: bool = False) -> subprocess.Popen[str]:
    """Start a process that runs the code in the checkout's root; its output and, on request, its input are piped."""
    return subprocess.Popen(
        [sys.executable, "-c", HEED_CTRL_C + textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = TIMEOUT) -> tuple[int, str, str]:
    """Return exit code, output and error output after the process ends; a hanging one is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the process hangs\n{out}\n{err}") from None
    return process.returncode, out, err


def run(code: str, environment: Mapping[str, str] | None = None, timeout: float = TIMEOUT) -> str:
    """Return the output of a process that runs the code and succeeds."""
    status, out, err = finish(start(code, environment), timeout)
    assert status == 0, f"exit status {status}\n{out}\n{err}"
    return out
