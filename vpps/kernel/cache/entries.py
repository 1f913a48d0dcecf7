"""Entries of the cache: a folder for each key, with a binary, its source, and a record that describes them.

    kernels/28df7a.../28df7a....so      the binary
                      28df7a....cpp     its source, for readers
                      28df7a....json    the record

One rename of the folder creates an entry, so that it is complete or absent even if a process is killed. The record's
modification time is the time of the entry's last use.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vpps import locks
from vpps.files import sync

FORMAT = 1  # version of records; other versions are ignored
_BEGINNING = b'{\n "format":'  # first bytes of every record
_KEY = re.compile("[0-9a-f]{32}")  # keys from `key_of`


@dataclass(frozen=True, slots=True)
class Label:
    """Description of an entry, for people who inspect the cache.

    Attributes:
        kind: "cpu kernel", "tails", "planner", "recorder", "cubin", "emulator", "emulated kernel", ...
        made_for: its target: instruction set, architecture, Python, ...
        compiler: name and version of its compiler.
    """

    kind: str = "library"
    made_for: str = ""
    compiler: str = ""

    @property
    def described(self) -> str:
        """Kind and target, such as "cpu kernel, avx2-16x6"."""
        return ", ".join(filter(None, (self.kind, self.made_for)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A binary in the cache.

    Attributes:
        binary: path of the binary.
        label: its description.
        facts: JSON values that the build returned; later users of the binary receive them, too.
    """

    binary: Path
    label: Label
    facts: Mapping[str, Any]

    def write(self, path: Path) -> None:
        """Write the record of this entry."""
        record = {"format": FORMAT, "binary": self.binary.name, "label": asdict(self.label), "facts": self.facts}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        sync(path)


def read(folder: Path) -> Entry | None:
    """The entry in a folder; None if there is none or its format is unknown."""
    try:
        record = json.loads(record_of(folder).read_bytes())
        if record["format"] == FORMAT:
            return Entry(folder / record["binary"], Label(**record["label"]), dict(record["facts"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None


def look_up(place: Path, key: str) -> Entry | None:
    """The entry of a key, or None. Marks the entry as used."""
    entry = read(place / key)
    if entry is not None:
        with contextlib.suppress(OSError):  # a read-only file system
            os.utime(record_of(place / key))
    return entry


def discard(folder: Path) -> bool:
    """Remove an entry atomically: other processes see the whole entry or none. Returns True if this process did so."""
    with contextlib.suppress(OSError), locks.scratch(folder.parent) as grave:  # on the same file system, for rename
        folder.rename(grave / "entry")
        return True
    return False


@dataclass(frozen=True, slots=True)
class Usage:
    """Size of an entry in bytes, and the time of its last use in seconds since 1970."""

    folder: Path
    size: int
    used: float


def usages(place: Path) -> Iterator[Usage]:
    """All entries of a place. Ignores files of other programs that also use the folder `kernels` in VPPS_CACHE_DIR."""
    with contextlib.suppress(OSError):
        for name in filter(_KEY.fullmatch, os.listdir(place)):
            folder = place / name
            with contextlib.suppress(OSError):  # not a folder, no record, or just removed
                with record_of(folder).open("rb") as record:
                    begins_as_ours = record.read(len(_BEGINNING)) == _BEGINNING
                states = {path.name: path.lstat() for path in folder.iterdir()}
                if begins_as_ours and not folder.is_symlink() and all(file.startswith(f"{name}.") for file in states):
                    size = sum(state.st_size for state in states.values())
                    yield Usage(folder, size, states[record_of(folder).name].st_mtime)


def record_of(folder: Path) -> Path:
    """Path of an entry's record."""
    return folder / f"{folder.name}.json"
