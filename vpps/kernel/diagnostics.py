"""Shows what a compiler complains of with the numbered lines around it, as `vpps-inspect source` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

SHOWN = 3  # diagnostics that a message quotes
AROUND = 2  # lines of source before and after the one complained of
_OTHERS = 8  # lines of a log that blames no line of the source

_ERROR = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)")

Diagnostic = tuple[int, str]
"""Number of a line, from 1, and what is wrong there."""


def numbered(lines: Iterable[tuple[int, str]], marked: int = 0) -> list[str]:
    """Lines of source with their numbers, one of them marked."""
    return [f"{'>' if n == marked else ' '} {n:5d} | {line}".rstrip() for n, line in lines]


def quoted(errors: list[Diagnostic], source: str) -> str:
    """The first diagnostics, each with the lines around it."""
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
    """What a C++ compiler (GCC, Clang) or linker complains of.

    Args:
        text: the file that held the source; errors in others are shown as they were printed.
    """
    found = [match for line in log.splitlines() if (match := _ERROR.match(line))]
    errors = [(int(m["line"]), m["message"]) for m in found if Path(m["file"]).name == text.name]
    if errors:
        return quoted(list(dict.fromkeys(errors)), source)
    lines = [line for line in log.splitlines() if "error" in line or "undefined" in line]
    return "\n".join(lines[:_OTHERS]) or log[:2000]
