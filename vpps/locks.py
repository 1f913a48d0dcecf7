"""Locks between processes, and scratch folders. Neither outlives its process, even if the process is killed.

Both use `flock`: the operating system releases the lock when the process ends. A killed process leaves a file or folder
whose lock is free; `sweep` removes these.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_log = logging.getLogger(__name__)

SCRATCH = "vpps-build-"  # prefix of scratch folders
LOCK = ".lock"
_OUR_SCRATCH = re.compile(re.escape(SCRATCH) + "[0-9a-f]{16}")
_OUR_LOCK = re.compile("([a-z]+-)?[0-9a-f]{32}" + re.escape(LOCK))  # named after a cache key; others are users' files
PATIENCE = 300.0  # seconds to wait for a lock; the longest compilations take a quarter of that, on a busy machine
PAUSE = 0.02  # seconds between attempts
YOUNG = 60.0  # seconds in which a process may still take the lock of its new file
OLD = 86400.0  # seconds after which a file is a leftover even if it is locked or cannot be locked


@contextmanager
def held(paths: Iterable[Path]) -> Iterator[bool]:
    """Hold the lock of a file while the block runs. The file is created, and removed afterwards.

    Args:
        paths: candidate paths of the file; the first one that can be created is used.

    Yields:
        True if the lock is held. It is False if no file can be created, if the file system has no locks, or if another
        process held the lock for longer than `PATIENCE`: callers must be able to continue without it.
    """
    deadline, file = time.monotonic() + PATIENCE, None
    for path in paths:
        with contextlib.suppress(OSError):
            file = _acquire(path, deadline)
            break
    try:
        yield file is not None
    finally:
        if file is not None:
            with contextlib.suppress(OSError):  # before the release: the next holder then sees that the file is gone
                os.unlink(file.name)
            file.close()


def _acquire(path: Path, deadline: float) -> BinaryIO | None:
    """Return an open file that holds the lock, or None if the lock is unavailable. Raises OSError: no file can be made.

    The result is a file, not a descriptor: Ctrl-C may lose the result, and a lost descriptor would never release its
    lock.
    """
    waited = False
    while True:
        file = open(path, "ab", opener=private)  # noqa: SIM115 - the caller closes it
        got = try_lock(file.fileno())
        if got and _is_at(file.fileno(), path):
            return file
        file.close()
        if got is None:
            path.unlink(missing_ok=True)
            return None
        if not got:
            if time.monotonic() > deadline:
                _log.warning("another process holds %s for very long; going on without it", path)
                return None
            if not waited:
                _log.info("waiting for another process that holds %s", path)
            waited = True
            time.sleep(PAUSE)


def private(path: str, flags: int) -> int:
    """Open a file, as an opener for `open`; only its user can read and write a new file."""
    return os.open(path, flags, 0o600)


def try_lock(descriptor: int) -> bool | None:
    """Take the lock of an open file if it is free. Return None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if the open file is still the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a new scratch folder in `folder`, and remove it afterwards. Raises OSError: it cannot be created."""
    made = folder / (SCRATCH + os.urandom(8).hex())  # named before it exists: Ctrl-C may come anytime
    try:
        made.mkdir(mode=0o700)
        with open(made / LOCK, "ab", opener=private) as lock:
            try_lock(lock.fileno())
            yield made
    finally:
        _remove_folder(made)


def sweep(folder: Path) -> None:
    """Remove the locks and scratch folders of killed processes from a folder. Leave its other files alone."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = folder / name
        if _OUR_SCRATCH.fullmatch(name) and is_left(path, path / LOCK):
            _remove_folder(path)
        elif _OUR_LOCK.fullmatch(name):
            _remove_lock(path)


def is_left(path: Path, lock: Path) -> bool:
    """Return True if no process uses a path any more, judging by its age and its lock."""
    try:
        age = time.time() - path.lstat().st_mtime
        if age < YOUNG:
            return False
        if age > OLD:
            return True
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return True  # its process ended before it made the lock, or while it removed the folder
    except OSError:
        return False
    try:
        return try_lock(descriptor) is True
    finally:
        os.close(descriptor)


def _remove_lock(path: Path) -> None:
    """Remove a lock's file if it is empty and no process holds the lock. Another process may remove it first."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if not os.fstat(descriptor).st_size and try_lock(descriptor) and _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _remove_folder(path: Path) -> None:
    """Remove a folder as far as possible. Raises KeyboardInterrupt: the folder is removed in part."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:  # rmtree ignores errors, but after Ctrl-C at a certain point it closes a descriptor twice
        raise KeyboardInterrupt from None
