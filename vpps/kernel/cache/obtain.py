"""A binary by its key: found, or made and stored. The only way by which binaries come to be loaded."""

from __future__ import annotations

import _thread
import ctypes
import hashlib
import logging
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
from vpps.kernel.cache import entries, eviction, places
from vpps.kernel.cache.entries import Contents, DamagedError, Entry, Label, Record

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


_ATTEMPTS = 5  # to load what other processes may be removing
NOTICEABLE = 1.0  # seconds: what takes longer says so

# What this process asked for, by the binary's path: one that is damaged or gone when it is loaded is made anew.
_requests: dict[Path, BinaryRequest] = {}


def key_of(*parts: str) -> str:
    """Digest of everything a binary depends on."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def cached(
    key: str, suffix: str, source: str, build: Build, source_suffix: str = ".cpp", label: Label | None = None
) -> Path:
    """Path of the binary for a key, made now if it is not there; to be loaded with `loaded`. See `obtain`."""
    return obtain(BinaryRequest(key, suffix, source, build, source_suffix, label or Label())).binary


def obtain(request: BinaryRequest) -> Entry:
    """The entry for a request, made now if it is not there or damaged.

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
            entry = _find(request.key, tell=True) or _make(request)
    _requests[entry.binary] = request
    return entry


def loaded(binary: Path, load: Callable[[Path], T]) -> T:
    """What `load` makes of a binary of the cache. One that is damaged, gone, or does not load is made anew.

    Args:
        binary: its path, as `cached` gave it.
        load: loads it; raises OSError or ImportError if it cannot be.

    Raises:
        CompileError: it does not load even when it was made anew. Then it is gone from the cache.
    """
    request = _requests.get(binary)
    if request is None:  # not of this cache
        try:
            return load(binary)
        except (OSError, ImportError) as error:
            raise CompileError(f"{binary} cannot be loaded ({error}); install vpps again") from error
    made_anew = False
    failure: Exception = CompileError("it goes as soon as it is there")
    for _ in range(_ATTEMPTS):
        sound = _is_sound(binary, request.key)  # no more than a look at its times, as it was compared when it was found
        if sound:
            try:
                return load(binary)
            except (OSError, ImportError) as error:
                failure = error
        if sound and _is_sound(binary, request.key):
            entries.discard(binary.parent)
            if made_anew:
                raise _unloadable(binary, failure) from failure
            made_anew = True
        _log.info("%s is made anew: it cannot be loaded (%s)", binary, failure)
        binary = obtain(request).binary
    raise _unloadable(binary, failure) from failure


def _is_sound(binary: Path, key: str) -> bool:
    """Whether a binary is there and as it was stored."""
    try:
        return entries.look_up(binary.parent.parent, key) is not None
    except DamagedError:
        return False


def load_library(binary: Path) -> ctypes.CDLL:
    """A compiled kernel of the cache, loaded. Raises CompileError, see `loaded`."""
    return loaded(binary, lambda path: ctypes.CDLL(str(path)))


def read_binary(binary: Path) -> bytes:
    """The bytes of a binary of the cache. Raises CompileError, see `loaded`."""
    return loaded(binary, Path.read_bytes)


def keep_facts(binary: Path, facts: Mapping[str, Any]) -> None:
    """Keep other facts beside a binary, where that can be written: next time they are found there."""
    try:
        entry = entries.read(binary.parent)
        if entry is not None:
            entries.set_facts(entry, facts)
    except (OSError, DamagedError) as error:
        _log.info("%s: what was found out about it is not kept (%s)", binary, error)


def _unloadable(binary: Path, error: Exception) -> CompileError:
    if places.allows_execution(binary.parent.parent):
        remedy = "try again, and if that does not help set CXX to another compiler"
    else:
        remedy = f"its file system is mounted noexec: {places.ADVICE} on another one"
    return CompileError(f"the compiled kernel cannot be loaded and was removed from the cache ({error}); {remedy}")


def _find(key: str, tell: bool = False) -> Entry | None:
    """The sound entry of a key, wherever it is."""
    for place in places.usable(create=False):
        try:
            entry = entries.look_up(place, key)
        except DamagedError as error:
            if tell:
                _log.warning("the compiled kernel %s in %s is damaged: %s; it is made anew", key, place, error)
            continue
        if entry is not None:
            return _moved(entry)
    return None


def _moved(entry: Entry) -> Entry:
    """The entry in the best place, if that can be written by now."""
    for place in places.usable():
        if entry.folder.parent == place:
            break
        try:
            files = {name: (entry.folder / name).read_bytes() for name in entry.record.files}
            return entries.publish(place, entry.record, files)
        except OSError as error:
            _log.info("%s stays where it is: %s", entry.folder, error)
    return entry


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
    what = request.label.described
    _log.info("compiling: %s", what)
    files, record = _built(request)
    _log.info("compiled in %.1f s: %s", record.seconds, what)
    failure = "there is no temporary directory either"
    for place in places.usable():
        try:
            entry = entries.publish(place, record, files)
        except OSError as error:
            failure = str(error)
            places.tell(place.parent, f"it cannot be written ({error})")
            continue
        eviction.make_room(place, keep=entry.folder)
        eviction.sweep_temporary()
        return entry
    raise CompileError(f"a compiled kernel can be kept nowhere ({failure}); {places.ADVICE}")


def _built(request: BinaryRequest) -> tuple[dict[str, bytes], Record]:
    """Files and record of an entry to be. Raises CompileError, or what `build` raises."""
    failure: OSError | str = "there is no directory that can be written"
    for place in places.for_building():
        try:
            with locks.scratch(place) as work:
                text = work / f"{request.key}{request.source_suffix}"
                text.write_text(request.source, encoding="utf-8")
                binary = work / f"{request.key}{request.suffix}"
                start = time.perf_counter()
                facts = request.build(text, binary)
                seconds = time.perf_counter() - start
                if not binary.is_file():
                    raise CompileError(f"{request.label.kind}: nothing was written to {binary.name}")
                files = {path.name: path.read_bytes() for path in (binary, text)}
        except OSError as error:
            failure = error
            _log.warning("nothing can be compiled in %s: %s; another directory is tried", place, error)
            continue
        contents = {name: Contents.of(data) for name, data in files.items()}
        record = Record(
            request.key, binary.name, request.label, time.time(), round(seconds, 3), contents, dict(facts or {})
        )
        return files, record
    raise CompileError(f"nothing can be compiled, as it can be written nowhere ({failure}); {places.ADVICE}")
