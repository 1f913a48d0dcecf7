"""Runs compilers as processes, and kills them when they are no longer needed.

A compiler driver starts other processes, so the whole process group is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence

from vpps.errors import CompileError

LIMIT = 900.0  # seconds; 12 times the longest compilation on a busy machine
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

NO_MORE = (errno.EAGAIN, errno.ENOMEM)
"""Error numbers of a system that cannot start more processes."""

# There is no lock, because a fork may happen at any time. Each step here is atomic.
_running: weakref.WeakSet[subprocess.Popen[str]] = weakref.WeakSet()


def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a compiler and wait for it.

    Returns:
        Exit code and standard error.

    Raises:
        CompileError: the compiler was interrupted or killed by another signal, or took longer than `LIMIT`.
    """
    process = None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="replace", env=environment, process_group=0,
        )  # fmt: skip
        _running.add(process)
        _, diagnostics = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        slow = f"{command[0]} was ended: it had not finished after {LIMIT:g} s; set CXX to another compiler"
        raise CompileError(slow) from None
    except OSError as error:
        if error.errno in NO_MORE:
            raise CompileError(no_more(command[0], error.strerror)) from None
        raise
    finally:  # mainly for Ctrl-C: if only the driver dies, its compiler keeps running
        if process is not None:
            _kill(process)
            process.wait()
    if process.returncode < 0:
        number = -process.returncode
        if number in _INTERRUPTS:
            raise CompileError(f"{command[0]} was interrupted")
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        full = ", as happens where memory runs out" if number == signal.SIGKILL else ""
        raise CompileError(f"{command[0]} was ended by {name}{full}")
    return process.returncode, diagnostics


def no_more(what: str, why: object) -> str:
    """Message, with a remedy, for a system that cannot start more threads or processes."""
    return f"{what} cannot be started ({why}): raise the limits of processes and memory (ulimit -u, ulimit -v)"


@atexit.register
def _end() -> None:
    """Kill the compilers of other threads when this process exits."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its group, unless it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


os.register_at_fork(after_in_child=_running.clear)  # running compilers belong to the parent
