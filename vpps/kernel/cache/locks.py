"""Locks between processes, and folders to work in: neither outlives its process, however that ends.

Both rest on `flock`, which the operating system gives back when the process is gone. What a killed process leaves
behind is a file or folder without its lock, which `sweep` recognises by that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: processes do not wait for each other, and leftovers go when they are old
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

SCRATCH = "build-"  # prefix of folders to work in
LOCK = ".lock"
PATIENCE = 300.0  # seconds to wait for a lock; the longest compilations take a quarter of that, on a busy machine
PAUSE = 0.02  # seconds between attempts
YOUNG = 60.0  # seconds in which what has no lock may still get one
OLD = 86400.0  # seconds after which what has a lock, or cannot have one, is a leftover all the same


@contextmanager
def held(path: Path, patience: float | None = None) -> Iterator[bool]:
    """Hold the lock that a file stands for, as long as the block runs; the file is made, and removed afterwards.

    Yields:
        Whether it is held. It is not where the file system knows no locks, and where another process kept it for
        longer than the patience (seconds; default `PATIENCE`): whoever waits must be able to do without.

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = _acquire(path, time.monotonic() + (PATIENCE if patience is None else patience))
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # before the lock is given up: whoever gets it sees that it is of a file that is gone
            os.close(descriptor)


def _acquire(path: Path, deadline: float) -> int | None:
    """A descriptor that has the lock; None where there is none to be had."""
    waited = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        got = _try(descriptor)
        if got and _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)
        if got is None:
            path.unlink(missing_ok=True)
            return None
        if not got:
            if time.monotonic() > deadline:
                _log.warning("%s is held for very long by another process; going on without it", path)
                return None
            if not waited:
                _log.info("waiting for another process that holds %s", path)
            waited = True
            time.sleep(PAUSE)


def _try(descriptor: int) -> bool | None:
    """Take the lock of an open file if it is free. None: there are no locks here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new folder within another one, to work in; it is gone afterwards. Raises OSError: it cannot be made."""
    made = Path(tempfile.mkdtemp(dir=folder, prefix=SCRATCH))
    descriptor = None
    try:
        descriptor = os.open(made / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        _try(descriptor)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove locks and scratch folders that killed processes left in a folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = folder / name
        if name.startswith(SCRATCH) and _is_left(path, path / LOCK):
            shutil.rmtree(path, ignore_errors=True)
        elif name.endswith(LOCK) and name != LOCK:
            _remove_lock(path)


def _is_left(path: Path, lock: Path) -> bool:
    """Whether no process works with it any more."""
    try:
        age = time.time() - path.lstat().st_mtime
        if age < YOUNG:
            return False
        if age > OLD:
            return True
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return True  # its process did not come to make the lock, or was removing all
    except OSError:
        return False
    try:
        return _try(descriptor) is True
    finally:
        os.close(descriptor)


def _remove_lock(path: Path) -> None:
    """Remove a lock's file, if nobody holds it."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime < YOUNG:
            return
        descriptor = os.open(path, os.O_RDWR)
        try:
            if _try(descriptor) and _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)
