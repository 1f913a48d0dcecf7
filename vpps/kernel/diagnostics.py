"""Shows compiler errors with the numbered source lines around them, as `vpps-inspect source` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

SHOWN = 3  # number of diagnostics that a message quotes
AROUND = 2  # lines of source before and after the line of an error
_OTHERS = 8  # number of lines quoted from a log without line numbers

_ERROR = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)")

Diagnostic = tuple[int, str]
"""Line number, from 1, and the error message."""


def numbered(lines: Iterable[tuple[int, str]], marked: int = 0) -> list[str]:
    """Source lines with their numbers; `marked` is the number of the line to mark."""
    return [f"{'>' if n == marked else ' '} {n:5d} | {line}".rstrip() for n, line in lines]


def quoted(errors: list[Diagnostic], source: str) -> str:
    """The first diagnostics, each with the source lines around it."""
    lines = source.splitlines()
    shown = []
    for number, message in errors[:SHOWN]:
        first, last = max(1, number - AROUND), min(len(lines), number + AROUND)
        around = numbered(((n, lines[n - 1]) for n in range(first, last + 1)), number)
        shown.append("\n".join([f"line {number}: {message}", *around]))
    if len(errors) > SHOWN:
        shown.append(f"and {len(errors) - SHOWN} more")
    return "\n".join(shown)


def of_log(log: str, source: str, text: Path) -> str:
    """Format the errors in the log of a C++ compiler (GCC, Clang) or linker.

    Args:
        text: path of the source; errors in other files are shown as they were printed.
    """
    found = [match for line in log.splitlines() if (match := _ERROR.match(line))]
    errors = [(int(m["line"]), m["message"]) for m in found if Path(m["file"]).name == text.name]
    if errors:
        return quoted(list(dict.fromkeys(errors)), source)
    lines = [line for line in log.splitlines() if "error" in line or "undefined" in line]
    return "\n".join(lines[:_OTHERS]) or log[:2000]
