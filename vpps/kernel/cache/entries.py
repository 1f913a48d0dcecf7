"""Entries of the cache: a folder for each key, with a binary, its source, and a record that says what they are.

    kernels/28df7a.../28df7a....so      the binary
                      28df7a....cpp     the text it was made of, for whoever wants to read it
                      28df7a....json    the record

An entry appears by one renaming of its folder, so that it is complete or absent whenever a process is killed. The time
of the record's last change is the time of the entry's last use.
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

FORMAT = 1  # of records; those of another one are not read
_BEGINNING = b'{\n "format":'  # of all records
_KEY = re.compile("[0-9a-f]{32}")  # of `key_of`


@dataclass(frozen=True, slots=True)
class Label:
    """What an entry is, for whoever looks at the cache.

    Attributes:
        kind: "cpu kernel", "tails", "planner", "recorder", "cubin", "emulator", "emulated kernel", ...
        made_for: what it is for: instruction set, architecture, Python, ...
        compiler: what made it, and its version.
    """

    kind: str = "library"
    made_for: str = ""
    compiler: str = ""

    @property
    def described(self) -> str:
        """Such as "cpu kernel, avx2-16x6"."""
        return ", ".join(filter(None, (self.kind, self.made_for)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A binary of the cache.

    Attributes:
        binary: its path.
        label: what it is.
        facts: what the maker wants to be told when the binary is used again, as JSON types.
    """

    binary: Path
    label: Label
    facts: Mapping[str, Any]

    def write(self, path: Path) -> None:
        """Write the record that says so."""
        record = {"format": FORMAT, "binary": self.binary.name, "label": asdict(self.label), "facts": self.facts}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        sync(path)


def read(folder: Path) -> Entry | None:
    """The entry in a folder; None if there is none that this version can read."""
    try:
        record = json.loads(record_of(folder).read_bytes())
        if record["format"] == FORMAT:
            return Entry(folder / record["binary"], Label(**record["label"]), dict(record["facts"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None


def look_up(place: Path, key: str) -> Entry | None:
    """The entry of a key, marked as used; None if there is none."""
    entry = read(place / key)
    if entry is not None:
        with contextlib.suppress(OSError):  # a file system that cannot be written
            os.utime(record_of(place / key))
    return entry


def discard(folder: Path) -> bool:
    """Remove an entry, as a whole: whoever looks for it finds all of it or nothing. Whether this process did it."""
    with contextlib.suppress(OSError), locks.scratch(folder.parent) as grave:  # within the place: renaming needs that
        folder.rename(grave / "entry")
        return True
    return False


@dataclass(frozen=True, slots=True)
class Usage:
    """How large an entry is, in bytes, and when it was last used, in seconds since 1970."""

    folder: Path
    size: int
    used: float


def usages(place: Path) -> Iterator[Usage]:
    """All entries of a place. Not what vpps did not make: a folder `kernels` within VPPS_CACHE_DIR may be somebody
    else's, too."""
    with contextlib.suppress(OSError):
        for name in filter(_KEY.fullmatch, os.listdir(place)):
            folder = place / name
            with contextlib.suppress(OSError):  # it is no folder, has no record, or goes just now
                with record_of(folder).open("rb") as record:
                    begins_as_ours = record.read(len(_BEGINNING)) == _BEGINNING
                states = {path.name: path.lstat() for path in folder.iterdir()}
                if begins_as_ours and not folder.is_symlink() and all(file.startswith(f"{name}.") for file in states):
                    size = sum(state.st_size for state in states.values())
                    yield Usage(folder, size, states[record_of(folder).name].st_mtime)


def record_of(folder: Path) -> Path:
    """The file of an entry's record."""
    return folder / f"{folder.name}.json"
