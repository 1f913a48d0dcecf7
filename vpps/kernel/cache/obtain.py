"""Finds a binary by its key, or builds and stores it. All binaries are loaded through this module."""

from __future__ import annotations

import _thread
import ctypes
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from vpps import locks
from vpps.config import notice
from vpps.errors import CompileError
from vpps.files import sync
from vpps.kernel.cache import entries, eviction, places
from vpps.kernel.cache.entries import Entry, Label

_log = logging.getLogger(__name__)

T = TypeVar("T")
Build = Callable[[Path, Path], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class BinaryRequest:
    """A request for a binary.

    Attributes:
        key: see `key_of`.
        suffix: suffix of the binary, such as ".so".
        source: text that `build` compiles; stored next to the binary for readers.
        build: `build(source_path, binary_path)` compiles the source or raises. It may return facts, as JSON types,
            which later users of the binary receive, too.
        source_suffix: suffix of the source file.
        label: description of the binary.
    """

    key: str
    suffix: str
    source: str
    build: Build
    source_suffix: str = ".cpp"
    label: Label = field(default_factory=Label)


NOTICEABLE = 1.0  # seconds; longer compilations are announced

# This process's requests, keyed by the binary's path, to rebuild a binary that does not load.
_requests: dict[Path, BinaryRequest] = {}


def key_of(*parts: str) -> str:
    """Digest of everything a binary depends on."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def cached(key: str, suffix: str, source: str, build: Build, label: Label | None = None) -> Path:
    """Path of the binary for a key, built if it is missing. Load it with `loaded`. See `obtain`."""
    return obtain(BinaryRequest(key, suffix, source, build, label=label or Label())).binary


def obtain(request: BinaryRequest) -> Entry:
    """The entry for a request, built if it is missing.

    Processes that request the same entry at the same time wait for the first.

    Raises:
        CompileError: no directory can be written (the message says why), or VPPS_CACHE_SIZE is not a size. Errors that
            `build` raises are propagated.
    """
    eviction.limit()
    entry = _find(request.key)
    if entry is None:
        # Other processes wait if locks work; otherwise several processes build the binary.
        lock = locks.held(place / (request.key + locks.LOCK) for place in places.usable())
        with _announced(f"compiling, once for this machine: {request.label.described}", after=NOTICEABLE), lock:
            entry = _find(request.key) or _make(request)
    _requests[entry.binary] = request
    return entry


def loaded(binary: Path, load: Callable[[Path], T]) -> T:
    """Return `load(binary)` for a cached binary. If it is missing or does not load (OSError, ImportError), rebuild it
    once.

    Raises:
        CompileError: the rebuilt binary does not load either. It is removed from the cache.
    """
    try:
        return load(binary)
    except (OSError, ImportError) as error:
        request = _requests.get(binary)
        if request is None:  # not a binary of this cache
            raise CompileError(f"{binary} cannot be loaded ({error}); install vpps again") from error
        _log.info("%s is made anew: it cannot be loaded (%s)", binary, error)
    entries.discard(binary.parent)
    binary = obtain(request).binary
    try:
        return load(binary)
    except (OSError, ImportError) as error:
        entries.discard(binary.parent)
        raise CompileError(
            f"the compiled kernel cannot be loaded and was removed from the cache ({error}): try again, and if that "
            f"does not help set CXX to another compiler, or, if its file system is mounted noexec, {places.ADVICE}"
        ) from error


def load_library(binary: Path) -> ctypes.CDLL:
    """Load a compiled kernel from the cache. Raises CompileError, see `loaded`."""
    return loaded(binary, lambda path: ctypes.CDLL(str(path)))


def read_binary(binary: Path) -> bytes:
    """The bytes of a binary in the cache. Raises CompileError, see `loaded`."""
    return loaded(binary, Path.read_bytes)


def _find(key: str) -> Entry | None:
    """The entry of a key in any usable place; None if there is none."""
    found = (entries.look_up(place, key) for place in places.usable(create=False))
    return next(filter(None, found), None)


@contextmanager
def _announced(text: str, after: float) -> Iterator[None]:
    """Give a notice if the block takes longer than `after` seconds, even if it only waits for another process."""
    ends = threading.Lock()
    ends.acquire()

    def wait() -> None:
        if not ends.acquire(timeout=after):
            notice(text)

    try:
        # Not threading.Thread: its start() waits for the thread, and turns Ctrl-C in that wait into a RuntimeError.
        with suppress(RuntimeError):  # the system cannot start more threads
            _thread.start_new_thread(wait, ())
        yield
    finally:
        ends.release()


def _make(request: BinaryRequest) -> Entry:
    """Build and store an entry. Raises CompileError."""
    failure: OSError | str = "there is no directory for it"
    for place in places.usable():
        try:
            entry = _stored(request, place)
        except OSError as error:
            failure = error
            places.tell(place.parent, f"it cannot be written ({error})")
            continue
        eviction.make_room(place, keep=entry.binary.parent)
        return entry
    raise CompileError(f"a compiled kernel can be kept nowhere ({failure}); {places.ADVICE}")


def _stored(request: BinaryRequest, place: Path) -> Entry:
    """Build and store an entry in a place. Raises OSError if the place cannot be written, and errors from the build."""
    folder, what = place / request.key, request.label.described
    with locks.scratch(place) as work:
        text, binary = (work / (request.key + suffix) for suffix in (request.source_suffix, request.suffix))
        text.write_text(request.source, encoding="utf-8")
        _log.info("compiling: %s", what)
        start = time.perf_counter()
        entry = Entry(folder / binary.name, request.label, request.build(text, binary) or {})
        _log.info("compiled in %.1f s: %s", time.perf_counter() - start, what)
        made = work / "entry"
        made.mkdir(mode=0o700)
        for path in (text, binary):
            sync(path)
            path.rename(made / path.name)
        entry.write(made / entries.record_of(folder).name)
        if os.path.lexists(folder) and entries.read(folder) is None:
            entries.discard(folder)  # unusable
        try:
            made.rename(folder)
        except OSError:
            if entries.read(folder) is None:  # otherwise a process without a lock was first
                raise
    return entry
