"""Chooses the cache's directory: the configured one or, if that is untrusted or not writable, the user's folder in the
system's temporary directory.

Binaries are code that this process runs. A directory is trusted if the user owns it and nobody else can write to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vpps.config import CACHE_DIR, cache_dir

_log = logging.getLogger(__name__)

ADVICE = f"set {CACHE_DIR.name} to a directory of your own"
ENTRIES = "kernels"  # folder for the entries in a cache directory
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_told: set[tuple[Path, str]] = set()


def configured() -> Path:
    """Absolute path of the configured directory, because the library loader searches bare names elsewhere."""
    return cache_dir().absolute()


def usable(create: bool = True) -> Iterator[Path]:
    """Trusted folders for entries, best first. The first rejection of each folder is logged as a warning.

    Args:
        create: create missing folders; if False, skip them.
    """
    roots = [configured()]
    with contextlib.suppress(OSError):  # no temporary directory
        roots.append(Path(tempfile.gettempdir()).absolute() / f"vpps-{os.getuid()}")
    for root in roots:
        folder = root / ENTRIES
        if not create and not os.path.isdir(folder):
            continue
        try:
            for directory in (*reversed(folder.parents), folder):
                if not directory.exists():
                    directory.mkdir(mode=0o700, exist_ok=True)
            reason = why_refused(root) or why_refused(folder)
        except OSError as error:
            reason = f"it cannot be created ({error})"
        if reason is None:
            yield folder
        else:
            tell(root, reason)


def why_refused(directory: Path) -> str | None:
    """Reason not to trust a directory with binaries, and the remedy; None if the directory is trusted.

    Raises:
        OSError: its status cannot be read.
    """
    status, link = directory.stat(), directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "it is no directory"
    if status.st_uid != os.getuid() or link.st_uid not in (0, os.getuid()):
        return f"it belongs to another user (number {status.st_uid}, you are {os.getuid()})"
    if status.st_mode & _OTHERS_WRITE:
        return (
            f"it is writable by other users (mode {stat.S_IMODE(status.st_mode):o}), who could plant a binary there; "
            f"run chmod -R go-w {directory}"
        )
    return None


def tell(directory: Path, reason: str) -> None:
    """Warn once per process that a directory is not used for compiled kernels."""
    if (directory, reason) in _told:
        return
    _told.add((directory, reason))
    named = f"{CACHE_DIR.name}={CACHE_DIR.get()}" if directory == configured() and CACHE_DIR.get() else directory
    _log.warning(
        "%s is not used to keep compiled kernels: %s; until then, or until you %s, they are in a temporary directory",
        named,
        reason,
        ADVICE,
    )
