"""The files of a run: results (a line of JSON each, written to disk at once), a log, a summary, and kernels.

Written lines survive however a run ends. A line that was cut off in the middle is ignored.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS, LOG, SUMMARY, KERNELS = "results.jsonl", "log.txt", "summary.txt", "kernels.tar.gz"
MOST_KERNELS = 15 << 20  # bytes of KERNELS: transfers between machines are limited


class Lines:
    """A file that lines are appended to. Every line is on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if before and not before.endswith(b"\n"):
            os.write(self._file, b"\n")

    def write(self, line: str) -> None:
        """Append a line, given without its newline."""
        data = memoryview(f"{line}\n".encode(errors="replace"))
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Close the opened file."""
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a results file."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if (found := parsed(line)) is not None:
            yield found


def parsed(line: str) -> dict[str, Any] | None:
    """Parse a line into a JSON object; None if it is not one."""
    if not line.startswith("{"):
        return None
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found


def results_of(given: Path) -> Path:
    """Return the results file that `--continue` names, directly or through its folder. Exits if there is none."""
    path = given / RESULTS if given.is_dir() else given
    if not path.is_file():
        raise SystemExit(f"--continue {given}: there is no {path}")
    return path


def states(lines: Iterator[dict[str, Any]]) -> dict[str, str]:
    """Return each step's outcome according to the lines; "begun" for a step without an end."""
    found: dict[str, str] = {}
    for line in lines:
        if line.get("event") == "begin":
            found[line["step_name"]] = "begun"
        elif line.get("event") == "end":
            found[line["step_name"]] = line["state"]
    return found


def replace(path: Path, text: str) -> None:
    """Write a file atomically: readers see either the old content or the new."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def keep_kernels(cache: Path, path: Path) -> str:
    """Pack the compiled GPU kernels for a machine without them; this is fast, as the run has no time left. If no file
    is written, returns the reason. Never leaves a partial file."""
    cubins = sorted((cache / "kernels").glob("*/*.cubin"))
    if not cubins:
        return "nothing was compiled"
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with tarfile.open(unfinished, "w:gz", compresslevel=1) as archive:
            for cubin in cubins:
                archive.add(cubin.parent, f"kernels/{cubin.parent.name}")
                if unfinished.stat().st_size > MOST_KERNELS:
                    return f"the compiled kernels are more than {MOST_KERNELS >> 20} MiB, and stay in {cache}"
        unfinished.replace(path)
        return ""
    finally:
        unfinished.unlink(missing_ok=True)


def bring_kernels(path: Path, cache: Path) -> None:
    """Unpack the kernels that `keep_kernels` packed, if there are any."""
    if path.is_file():
        with tarfile.open(path) as archive:
            archive.extractall(cache, filter="data")
