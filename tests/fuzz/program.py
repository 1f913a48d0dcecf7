"""Programs: a case's text, its execution, and its printed form."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

WIDTH = 150
LINES = 30
_numbers = count()


class Finding(Exception):
    """Raised for a failing case.

    Attributes:
        program: lines that show the failure, and fail as long as it exists.
    """

    def __init__(self, message: str, program: list[str]) -> None:
        super().__init__(message)
        self.program = program


def execute(lines: list[str], **names: Any) -> dict[str, Any]:
    """Execute the lines and return their definitions. Tracebacks and `inspect` find their text."""
    name = f"<case {next(_numbers)}>"
    text = "\n".join(lines) + "\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        exec(compile(text, name, "exec"), names)
    finally:
        linecache.cache.pop(name, None)
    return names


def packed(lines: list[str]) -> list[str]:
    """Return the program in fewer lines: simple statements with the same indentation share lines."""
    found: list[str] = []
    for line in lines:
        before = found[-1] if found else ""
        indent, text = _split(line)
        if (
            before and _split(before)[0] == indent and len(before) + len(text) + 2 <= WIDTH
            and not _is_compound(before.strip()) and not _is_compound(text)
        ):  # fmt: skip
            found[-1] = f"{before}; {text}"
        else:
            found.append(line)
    return found


def _split(line: str) -> tuple[str, str]:
    text = line.lstrip()
    return line[: len(line) - len(text)], text


def _is_compound(text: str) -> bool:
    return text.startswith(
        ("@", "def ", "for ", "with ", "if ", "else", "try", "except", "finally", "#", "import ", "from ")
    )


def outcome(lines: list[str], folder: Path) -> str:
    """Run the program in a separate process; returns its last output line, or a note that it finds nothing."""
    path = folder / "case.py"
    path.write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "VPPS_TUNING": "0"}
    try:
        done = subprocess.run(
            [sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        return "runs for more than two minutes"
    if done.returncode == 0:
        return "finds nothing in a process of its own"
    said = done.stderr.strip().splitlines()
    return f"ends with {done.returncode}: {said[-1] if said else 'no word'}"


def sort_of(error: BaseException) -> str:
    """Return a key for findings that probably have the same cause: the text without numbers and names."""
    text = str(error) if isinstance(error, Finding) else f"{type(error).__name__}: {error}"
    return re.sub(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?|'[^']*'|\"[^\"]*\"|\b[EWUTLBp]\d_\d+|\(.*\)", "#", text)[
        :160
    ]
