"""Compilers as processes: each is ended, with what it has started, when nobody waits for it any more."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence

from vpps.errors import CompileError

own_groups = True
"""Whether a compiler gets a process group of its own. Not in a process that is itself ended as a group."""

_JOIN = 5.0  # seconds in which a thread whose compiler was killed removes what it left
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

# No locks: a fork may happen at any time, and each step here is atomic.
_running: set[subprocess.Popen[str]] = set()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ending = False


class EndedError(CompileError):
    """A compiler was ended before it was done, on purpose: it says nothing of the source."""


def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a compiler to its end.

    Returns:
        Exit code, and what it says on standard error.

    Raises:
        EndedError: it was interrupted, or this process ends.
        CompileError: a signal of another kind ended it.
    """
    if _refused():
        raise EndedError("this process ends")
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace", env=environment, process_group=0 if own_groups else None,
    )  # fmt: skip
    _running.add(process)
    try:
        if _refused():  # in the meantime
            _kill(process)
        _, complaints = process.communicate()
    except BaseException:  # Ctrl-C, above all: a driver that is killed alone leaves the compiler that it has started
        _kill(process)
        process.wait()
        raise
    finally:
        _running.discard(process)
    if process.returncode < 0:
        number = -process.returncode
        if number in _INTERRUPTS or _ending:
            raise EndedError(f"{command[0]} was interrupted")
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        full = ", as happens where memory runs out" if number == signal.SIGKILL else ""
        raise CompileError(f"{command[0]} was ended by {name}{full}")
    return process.returncode, complaints


def in_background(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread, started, that compiles. It does not keep this process from ending: its compiler is killed then."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return thread


def _refused() -> bool:
    """Whether this thread must compile nothing more. What runs at the exit of the process may."""
    return _ending and threading.current_thread() in _threads


def _end() -> None:
    """At the end of this process. Threads are waited for, as they remove their locks and folders."""
    global _ending
    _ending = True
    for process in list(_running):
        _kill(process)
    for thread in list(_threads):
        thread.join(_JOIN)


def _forget() -> None:
    """In a forked child: compilers and threads are the parent's."""
    _running.clear()
    _threads.clear()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.returncode is not None:
        return
    try:
        if own_groups:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        process.kill()


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
