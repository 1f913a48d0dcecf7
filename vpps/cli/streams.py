"""Entry point of all programs: handles standard streams that are closed, full or limited to ASCII."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

READER_GONE = 141
"""Exit code when the reader of the output is gone: 128 + SIGPIPE, as shells report it."""


def run_program(name: str, app: Callable[[], Any]) -> None:
    """Run a command app as the program `name`, then exit.

    If standard output rejects a write, the program ends: silently with exit code 141 if its reader is gone (`| head`),
    else with exit code 1 and a message. Output that standard error rejects is dropped, and so is output to a stream
    that was closed from the start. Characters outside the encoding are written as escapes.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # otherwise the next opened file, such as a checkpoint, would receive the output of compilers
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # opens as the lowest free descriptor
    sys.stderr = _stream(sys.stderr, sys.__stderr__, _Messages)
    sys.stdout = _stream(sys.stdout, sys.__stdout__, lambda descriptor: _Output(descriptor, name))
    try:
        app()
    finally:
        sys.stdout.flush()


class _Messages(io.FileIO):
    """Standard error. A failed write is dropped because there is no place to report it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:  # for buffered output, which Python flushes at exit
                os.dup2(nowhere.fileno(), self.fileno())
            self.lost(error)
            return len(data)

    def lost(self, error: OSError) -> None:
        """Handle a failed write."""


class _Output(_Messages):
    """Standard output. A failed write exits instead of raising an OSError, which a caller might take for its own."""

    def __init__(self, descriptor: int, program: str) -> None:
        super().__init__(descriptor)
        self._program = program

    def lost(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise SystemExit(READER_GONE)
        print(f"{self._program}: standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1)


def _stream(given: TextIO | None, ours: TextIO | None, raw: Callable[[int], _Messages]) -> TextIO:
    """Return a standard stream that handles failed writes as `raw` does. Keep a stream that a caller substituted."""
    if given is None:
        return open(os.devnull, "w", encoding="utf-8")
    if given is not ours or not isinstance(given, io.TextIOWrapper):
        return given
    return io.TextIOWrapper(
        io.BufferedWriter(raw(given.fileno())), given.encoding, "backslashreplace",
        line_buffering=given.line_buffering or given.write_through,
    )  # fmt: skip
