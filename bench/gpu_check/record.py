"""The files of a run: results, a line of JSON each, on the disk as soon as they are written; a log; a summary; kernels.

However a run ends, the lines that were written stay. A line that was cut off in the middle is none.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS, LOG, SUMMARY, KERNELS = "results.jsonl", "log.txt", "summary.txt", "kernels.tar.gz"
MOST_KERNELS = 15 << 20  # bytes of KERNELS: what travels between machines is limited


class Lines:
    """A file that lines are appended to. Every line is on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if before and not before.endswith(b"\n"):
            os.write(self._file, b"\n")

    def write(self, line: str) -> None:
        """Append a line, given without its end."""
        data = memoryview(f"{line}\n".encode(errors="replace"))
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Of no more use."""
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of results."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if (found := parsed(line)) is not None:
            yield found


def parsed(line: str) -> dict[str, Any] | None:
    """The JSON object that a line is; None of any other line."""
    if not line.startswith("{"):
        return None
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found


def results_of(given: Path) -> Path:
    """The file of results that `--continue` names, itself or by its folder. Exits where there is none."""
    path = given / RESULTS if given.is_dir() else given
    if not path.is_file():
        raise SystemExit(f"--continue {given}: there is no {path}")
    return path


def states(lines: Iterator[dict[str, Any]]) -> dict[str, str]:
    """What became of each step, as far as the lines know; "begun" of one that has no end."""
    found: dict[str, str] = {}
    for line in lines:
        if line.get("event") == "begin":
            found[line["step_name"]] = "begun"
        elif line.get("event") == "end":
            found[line["step_name"]] = line["state"]
    return found


def replace(path: Path, text: str) -> None:
    """Write a file in one go: it is the old one or the new one, whatever happens."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def keep_kernels(cache: Path, path: Path) -> str:
    """Pack what was compiled for GPUs, for a machine that has none of it, quickly: the run has no time left. Says why
    where there is no file then; none is left half done."""
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
    """Unpack what `keep_kernels` packed, if it is there."""
    if path.is_file():
        with tarfile.open(path) as archive:
            archive.extractall(cache, filter="data")
