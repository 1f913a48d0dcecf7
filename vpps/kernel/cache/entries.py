"""Entries of the cache: a folder for each key, with a binary, its source, and a record that says what they are.

    kernels/28df7a.../28df7a....so      the binary
                      28df7a....cpp     the text it was made of, for whoever wants to read it
                      28df7a....json    the record: what it is for, when and by what it was made, digests of all files

An entry appears by one renaming of its folder, so that it is complete or absent whenever a process is killed. What
happens to it afterwards - a disk that loses bits, a copy cut short - the digests tell: they are compared before a
binary is used. The time of the record's last change is the time of the entry's last use.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vpps import locks
from vpps.kernel.cache import places

FORMAT = 1  # of records; those of another one are not read
RECORD = ".json"
_KEY = re.compile("[0-9a-f]{32}")  # of `key_of`
_ATTEMPTS = 5  # to put an entry in its place, where other processes put theirs

# Files that were compared with their digests, and how they looked on the disk then: once per process is enough.
_sound: dict[Path, tuple[int, ...]] = {}


class DamagedError(Exception):
    """An entry is not what was stored; the message says how that shows."""


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
class Contents:
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Contents:
        """Of these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class Record:
    """What is written beside a binary.

    Attributes:
        key: of the entry.
        binary: name of its file.
        label: see there.
        created: seconds since 1970.
        seconds: what it took to make.
        files: contents by name, of all files but this one.
        facts: what the maker wants to be told when the binary is used again, as JSON types.
    """

    key: str
    binary: str
    label: Label
    created: float
    seconds: float
    files: Mapping[str, Contents]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_text(self) -> str:
        """As JSON, with a digest of it."""
        value = {"format": FORMAT, **asdict(self)}
        return json.dumps({**value, "sha256": _digest(value)}, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Record:
        """From what `as_text` gave. Raises DamagedError."""
        try:
            value = json.loads(text)
            if value.pop("sha256") != _digest(value):
                raise DamagedError("its record was changed")
            if value.pop("format") != FORMAT:
                raise DamagedError("its record has another format")
            label = Label(**value.pop("label"))
            files = {name: Contents(**contents) for name, contents in value.pop("files").items()}
            return cls(**value, label=label, files=files)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedError("its record is illegible") from error


@dataclass(frozen=True, slots=True)
class Entry:
    """A binary of the cache.

    Attributes:
        binary: its path.
        record: what is known of it.
    """

    binary: Path
    record: Record

    @property
    def folder(self) -> Path:
        return self.binary.parent


def look_up(place: Path, key: str) -> Entry | None:
    """The entry of a key, compared with its digests and marked as used; None if there is none.

    Raises:
        DamagedError: there is one, and it must not be used.
    """
    folder = place / key
    entry = read(folder)
    if entry is None:
        return None
    try:
        for path in (folder, _record_of(folder)):
            _check_owner(path.name, path.stat())
        check(entry)
    except FileNotFoundError:
        if not folder.exists():  # another process makes room
            return None
        raise DamagedError("a file of it is missing") from None
    with contextlib.suppress(OSError):  # a file system that cannot be written
        os.utime(_record_of(folder))
    return entry


def read(folder: Path) -> Entry | None:
    """The entry in a folder as its record describes it; None if there is none. Raises DamagedError."""
    try:
        text = _record_of(folder).read_text(encoding="utf-8")
    except FileNotFoundError:
        if os.path.lexists(folder):
            raise DamagedError("it has no record") from None
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"its record cannot be read ({error})") from error
    record = Record.from_text(text)
    if record.key != folder.name or record.binary not in record.files:
        raise DamagedError("its record is of another entry")
    return Entry(folder / record.binary, record)


def _check_owner(name: str, status: os.stat_result) -> None:
    """Raises DamagedError: somebody else may have written it."""
    reason = places.why_planted(status)
    if reason is not None:
        raise DamagedError(f"{name} {reason}")


def check(entry: Entry) -> None:
    """Compare the files of an entry with their digests, unless this process did and they were not touched since.

    Raises:
        FileNotFoundError: one is missing.
        DamagedError: one is not what was stored, or cannot be read.
    """
    for name, contents in entry.record.files.items():
        path = entry.folder / name
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                _check_owner(name, state)
                looks = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                if _sound.get(path) == looks:
                    continue
                found = Contents.of(file.read())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DamagedError(f"{name} cannot be read ({error})") from error
        if found.size != contents.size:
            raise DamagedError(f"{name} has {found.size} bytes, {contents.size} were written")
        if found.sha256 != contents.sha256:
            raise DamagedError(f"{name} has other contents than were written")
        _sound[path] = looks


def publish(place: Path, record: Record, files: Mapping[str, bytes]) -> Entry:
    """Store an entry. One that is there is replaced, unless it is sound: then another process was faster.

    Raises:
        OSError: it cannot be written; nothing was changed then, or what was there is gone.
    """
    folder = place / record.key
    with locks.scratch(place) as work:
        made = work / "entry"
        made.mkdir(mode=0o700)
        for name, data in (*files.items(), (record.key + RECORD, record.as_text().encode())):
            _write(made / name, data)
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(DamagedError):
                if (present := look_up(place, record.key)) is not None:
                    return present
            discard(folder)
            try:
                made.rename(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                return Entry(folder / record.binary, record)
    raise OSError(errno.EBUSY, "other processes keep replacing it", str(folder))


def set_facts(entry: Entry, facts: Mapping[str, Any]) -> None:
    """Give an entry other facts. Raises OSError: they cannot be written, and are as they were."""
    with locks.scratch(entry.folder.parent) as work:
        written = work / "record"
        _write(written, replace(entry.record, facts=facts).as_text().encode())
        written.replace(_record_of(entry.folder))


def discard(folder: Path) -> bool:
    """Remove an entry, as a whole: whoever looks for it finds all of it or nothing. Whether this process did it."""
    with contextlib.suppress(OSError), locks.scratch(folder.parent) as grave:  # within the place: renaming needs that
        folder.rename(grave / "entry")
        return True
    return False


def folders(place: Path) -> Iterator[Path]:
    """Those that may hold an entry; `usage` tells whether they do."""
    with contextlib.suppress(OSError):
        yield from [place / name for name in os.listdir(place) if _KEY.fullmatch(name)]


@dataclass(frozen=True, slots=True)
class Usage:
    """How large an entry is, in bytes, and when it was last used, in seconds since 1970."""

    folder: Path
    size: int
    used: float


def usage(folder: Path) -> Usage | None:
    """The size of an entry; None if it is gone, or something that vpps did not make: a folder `kernels` within
    VPPS_CACHE_DIR may be somebody else's, too."""
    record = folder.name + RECORD
    try:
        with os.scandir(folder) as files:
            states = {file.name: file.stat(follow_symlinks=False) for file in files}
        is_ours = not folder.is_symlink() and all(name.startswith(f"{folder.name}.") for name in states)
        if not is_ours or record not in states or not places.is_record(folder / record):
            return None
    except OSError:
        return None
    return Usage(folder, sum(s.st_size for s in states.values()), states[record].st_mtime)


def _record_of(folder: Path) -> Path:
    return folder / (folder.name + RECORD)


def _write(path: Path, data: bytes) -> None:
    """To the disk: else a power failure may leave a file that has its name but not its contents."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
