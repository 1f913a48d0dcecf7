"""Writing files so that a crash leaves the old one or the new one, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vpps import locks

_NAMED = 55  # characters of a file's name in that of its replacement: a name of 250 leaves no room for more


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the path of an empty file to write to; it takes the place of `path` when the block ends without an error.

    A link is written through. What was there gives its mode, and its owner as far as that is allowed. What killed
    processes left of earlier attempts goes.

    Raises:
        OSError: the folder is missing or not writable, the disk is full, or `path` is a folder or device; it is as it
            was.
    """
    path = Path(os.path.realpath(path))
    replaced = _status(path)
    beginning = f".{path.name[:_NAMED]}."
    _sweep(path.parent, beginning)
    new = path.with_name(f"{beginning}{os.urandom(8).hex()}.tmp")  # a name first: Ctrl-C may come once it is there
    try:
        with open(new, "xb", opener=None if replaced is None else locks.private) as lock:
            locks.try_lock(lock.fileno())
            yield new
            if replaced is not None:
                _inherit(new, replaced)
            with open(new, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(new, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # it may have taken its place already, and Ctrl-C have come since
            os.unlink(new)
        raise


def sync_folder(folder: Path) -> None:
    """Bring to the disk what names a folder has, as far as its file system can: a power failure forgets them else."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _status(path: Path) -> os.stat_result | None:
    """Of a file to replace; None where there is none. Raises OSError: it is something else."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no file but a device or pipe, which is not replaced", str(path))
    return status


def _inherit(new: Path, replaced: os.stat_result) -> None:
    """Mode and owner of the file replaced. A group that may not be given passes its rights to nobody else."""
    for owner in (replaced.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.chown(new, owner, replaced.st_gid)
            break
    mode = stat.S_IMODE(replaced.st_mode)
    if os.stat(new).st_gid != replaced.st_gid:
        mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    os.chmod(new, mode)


def _sweep(folder: Path, beginning: str) -> None:
    """Remove what killed processes left in place of a file: full copies, whose locks are gone."""
    left = re.compile(re.escape(beginning) + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            file = folder / name
            if left.fullmatch(name) and locks.is_left(file, file):
                file.unlink(missing_ok=True)
