"""Runs one step in its own process, passes its output on line by line, and stops it in time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

GRACE = 5.0  # seconds from SIGINT to SIGKILL
KEPT = 30  # last output lines of a failed step


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step.

    Attributes:
        state: "ok", "failed", or "ended" (out of time).
        status: exit status of its process; negative: the signal that ended it.
        said: the last lines of its errors, or of all its output, unless all went well.
    """

    state: str
    seconds: float
    status: int
    said: list[str]


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float,
    take: Callable[[str, bool], None],
) -> Outcome:  # fmt: skip
    """Run a command for at most `seconds`.

    Args:
        take: called with each line, and with True if it came from stdout; several threads call it, one at a time.
    """
    begun = time.monotonic()
    errors: deque[str] = deque(maxlen=KEPT)
    prints: deque[str] = deque(maxlen=KEPT)
    turn = threading.Lock()

    def follow(pipe: IO[str], printed: bool) -> None:
        for line in pipe:
            with turn:
                (prints if printed else errors).append(line.rstrip("\n")[:500])
                take(line.rstrip("\n"), printed)

    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    threads = [
        threading.Thread(target=follow, args=arguments, daemon=True)
        for arguments in ((process.stdout, True), (process.stderr, False))
    ]
    for thread in threads:
        thread.start()
    in_time = True
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        end(process)
        for thread in threads:
            thread.join(GRACE)
    state = "ended" if not in_time else "failed" if process.returncode else "ok"
    said = [] if state == "ok" else [*(errors or prints)]
    return Outcome(state, round(time.monotonic() - begun, 1), process.returncode, said)


def end(process: subprocess.Popen[str]) -> None:
    """Ask a process and its children to end; then kill them."""
    try:
        if process.poll() is None:
            _signal(process, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # all its processes have ended
