"""Locks between processes, and folders to work in: neither outlives its process, however that ends.

Both rest on `flock`, which the operating system gives back when the process is gone. What a killed process leaves
behind is a file or folder without its lock, which `sweep` recognises by that.
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

SCRATCH = "vpps-build-"  # prefix of folders to work in
LOCK = ".lock"
_OUR_SCRATCH = re.compile(re.escape(SCRATCH) + "[0-9a-f]{16}")
_OUR_LOCK = re.compile("([a-z]+-)?[0-9a-f]{32}" + re.escape(LOCK))  # of a key (kernel/cache); else a user's file
PATIENCE = 300.0  # seconds to wait for a lock; the longest compilations take a quarter of that, on a busy machine
PAUSE = 0.02  # seconds between attempts
YOUNG = 60.0  # seconds in which what has no lock may still get one
OLD = 86400.0  # seconds after which what has a lock, or cannot have one, is a leftover all the same


@contextmanager
def held(paths: Iterable[Path]) -> Iterator[bool]:
    """Hold the lock that a file stands for, as long as the block runs; the file is made, and removed afterwards.

    Args:
        paths: of the file; the first one that can be made.

    Yields:
        Whether it is held. It is not where no file can be made, where the file system knows no locks, and where another
        process kept it for longer than `PATIENCE`: whoever waits must be able to do without.
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
            with contextlib.suppress(OSError):  # before the lock goes: whoever gets it sees that its file is gone
                os.unlink(file.name)
            file.close()


def _acquire(path: Path, deadline: float) -> BinaryIO | None:
    """A file that has the lock; None if there is none to be had. Raises OSError: it cannot be made.

    A file, not a descriptor: Ctrl-C may come before anybody has the result, and a lost descriptor would keep its lock
    from this process, too.
    """
    waited = False
    while True:
        file = open(path, "ab", opener=private)  # noqa: SIM115 - whoever asks for the lock closes it
        got = try_lock(file.fileno())
        if got and _is_at(file.fileno(), path):
            return file
        file.close()
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


def private(path: str, flags: int) -> int:
    """Opens a file, for `open`, that is the user's alone if it is new."""
    return os.open(path, flags, 0o600)


def try_lock(descriptor: int) -> bool | None:
    """Take the lock of an open file if it is free. None: there are no locks here."""
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
    made = folder / (SCRATCH + os.urandom(8).hex())  # a name first: Ctrl-C may come once it is there
    try:
        made.mkdir(mode=0o700)
        with open(made / LOCK, "ab", opener=private) as lock:
            try_lock(lock.fileno())
            yield made
    finally:
        _remove_folder(made)


def sweep(folder: Path) -> None:
    """Remove locks and scratch folders that killed processes left in a folder, where others may keep files, too."""
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
        return try_lock(descriptor) is True
    finally:
        os.close(descriptor)


def _remove_lock(path: Path) -> None:
    """Remove a lock's file, if it is empty and nobody holds it; other processes may remove it, too."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if not os.fstat(descriptor).st_size and try_lock(descriptor) and _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)


def _remove_folder(path: Path) -> None:
    """Remove a folder as far as it can be. Raises KeyboardInterrupt: it is removed in part."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:  # they are ignored; but where Ctrl-C comes at a certain point it closes a descriptor twice
        raise KeyboardInterrupt from None
