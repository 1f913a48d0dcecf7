"""A binary by its key: found, or made and stored. The only way by which binaries come to be loaded."""

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
    """What a binary is made of.

    Attributes:
        key: see `key_of`.
        suffix: of the binary, such as ".so".
        source: text that `build` compiles; kept beside the binary for whoever wants to read it.
        build: `build(source_path, binary_path)` compiles one into the other or raises. It may return facts, as JSON
            types, which whoever asks for the binary is told.
        source_suffix: of the text.
        label: what it is.
    """

    key: str
    suffix: str
    source: str
    build: Build
    source_suffix: str = ".cpp"
    label: Label = field(default_factory=Label)


NOTICEABLE = 1.0  # seconds: what takes longer says so

# What this process asked for, by the binary's path: one that does not load is made anew.
_requests: dict[Path, BinaryRequest] = {}


def key_of(*parts: str) -> str:
    """Digest of everything a binary depends on."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def cached(key: str, suffix: str, source: str, build: Build, label: Label | None = None) -> Path:
    """Path of the binary for a key, made now if it is not there; to be loaded with `loaded`. See `obtain`."""
    return obtain(BinaryRequest(key, suffix, source, build, label=label or Label())).binary


def obtain(request: BinaryRequest) -> Entry:
    """The entry for a request, made now if it is not there.

    Processes that want the same one at the same time wait for the first.

    Raises:
        CompileError: there is no directory to write to (the message says why), VPPS_CACHE_SIZE is no size; or what
            `build` raises.
    """
    eviction.limit()
    entry = _find(request.key)
    if entry is None:
        # Others wait as far as they can; without a lock they make it twice.
        lock = locks.held(place / (request.key + locks.LOCK) for place in places.usable())
        with _told(f"compiling, once for this machine: {request.label.described}", after=NOTICEABLE), lock:
            entry = _find(request.key) or _make(request)
    _requests[entry.binary] = request
    return entry


def loaded(binary: Path, load: Callable[[Path], T]) -> T:
    """What `load` makes of a binary of the cache. One that is gone or does not load (OSError,
    ImportError) is made anew.

    Raises:
        CompileError: it does not load even when it was made anew. Then it is gone from the cache.
    """
    try:
        return load(binary)
    except (OSError, ImportError) as error:
        request = _requests.get(binary)
        if request is None:  # not of this cache
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
    """A compiled kernel of the cache, loaded. Raises CompileError, see `loaded`."""
    return loaded(binary, lambda path: ctypes.CDLL(str(path)))


def read_binary(binary: Path) -> bytes:
    """The bytes of a binary of the cache. Raises CompileError, see `loaded`."""
    return loaded(binary, Path.read_bytes)


def _find(key: str) -> Entry | None:
    """The entry of a key, wherever it is."""
    found = (entries.look_up(place, key) for place in places.usable(create=False))
    return next(filter(None, found), None)


@contextmanager
def _told(text: str, after: float) -> Iterator[None]:
    """Gives a notice if the block takes longer than so many seconds, in this process or waiting for another one."""
    ends = threading.Lock()
    ends.acquire()

    def wait() -> None:
        if not ends.acquire(timeout=after):
            notice(text)

    try:
        # Not threading.Thread: its start() waits for the thread, and Ctrl-C in that wait comes out as a RuntimeError.
        with suppress(RuntimeError):  # the system gives no more threads
            _thread.start_new_thread(wait, ())
        yield
    finally:
        ends.release()


def _make(request: BinaryRequest) -> Entry:
    """Build and store. Raises CompileError."""
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
    """Build in a place, and store there. Raises OSError: it cannot be written; CompileError."""
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
            entries.discard(folder)  # it cannot be used
        try:
            made.rename(folder)
        except OSError:
            if entries.read(folder) is None:  # else a process without a lock was faster
                raise
    return entry
