"""What the entry points of all programs share: standard streams that may be closed, full or ASCII alone."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

READER_GONE = 141
"""Exit code of a program whose output nobody reads any more: 128 + SIGPIPE, what shells say of one that this ends."""


def run_program(name: str, app: Callable[[], Any]) -> None:
    """Run an app of commands, which exits, as the program `name`.

    Where standard output takes no more the program ends: silently and with exit code 141 where its reader has gone
    (`| head`), else with 1 and a sentence. What standard error does not take is lost, and so is what would go to
    either where it was closed from the beginning. Characters that the encoding does not have are written as escapes.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # else the next file to be opened, a checkpoint say, would be what compilers print to
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stderr = _stream(sys.stderr, sys.__stderr__, _Messages)
    sys.stdout = _stream(sys.stdout, sys.__stdout__, lambda descriptor: _Output(descriptor, name))
    try:
        app()
    finally:
        sys.stdout.flush()


class _Messages(io.FileIO):
    """Standard error: there is nowhere to say that it takes no more."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:  # what is in buffers will be flushed when Python exits
                os.dup2(nowhere.fileno(), self.fileno())
            self.lost(error)
            return len(data)

    def lost(self, error: OSError) -> None:
        """What to do when a write has failed."""


class _Output(_Messages):
    """Standard output: where it is lost there is no use in going on. No error, so that nobody takes it for theirs."""

    def __init__(self, descriptor: int, program: str) -> None:
        super().__init__(descriptor)
        self._program = program

    def lost(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise SystemExit(READER_GONE)
        print(f"{self._program}: standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1)


def _stream(given: TextIO | None, ours: TextIO | None, raw: Callable[[int], _Messages]) -> TextIO:
    """A standard stream that bears what `raw` bears; one that a caller has put in its place stays."""
    if given is None:
        return open(os.devnull, "w", encoding="utf-8")
    if given is not ours or not isinstance(given, io.TextIOWrapper):
        return given
    return io.TextIOWrapper(
        io.BufferedWriter(raw(given.fileno())), given.encoding, "backslashreplace",
        line_buffering=given.line_buffering or given.write_through,
    )  # fmt: skip
