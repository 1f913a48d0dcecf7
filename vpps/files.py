"""Writes files atomically: after a crash, a path holds either the complete old file or the complete new one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vpps import locks

MOST_OF_HEADER = 100_000_000  # bytes; the safetensors format's limit
_MOST_LINKS = 40  # Linux's limit
_NAMED = 55  # characters of a file's name that are kept in its replacement's name: a name can have 250 characters


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of an empty file to write to. It replaces `path` when the block ends without an error.

    A link is followed, unless another user made it (`followed`). The new file keeps the mode of the old one, and its
    owner as far as the system allows. Files that killed processes left behind are removed.

    Raises:
        OSError: the folder is missing or not writable, the disk is full, or `path` is a folder, a device, or a link
            that another user made. `path` is unchanged.
    """
    path = followed(path)
    replaced = _status(path)
    beginning = f".{path.name[:_NAMED]}."
    _sweep(path.parent, beginning)
    new = path.with_name(f"{beginning}{os.urandom(8).hex()}.tmp")  # named before it exists: Ctrl-C may come anytime
    try:
        with open(new, "xb", opener=None if replaced is None else locks.private) as lock:
            locks.try_lock(lock.fileno())
            yield new
            if replaced is not None:
                _inherit(new, replaced)
            sync(new)
            os.replace(new, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # Ctrl-C may come after `new` has replaced `path`
            os.unlink(new)
        raise


def followed(path: Path) -> Path:
    """Return the path with its links resolved, for writing.

    A link that another user could have planted is refused: in a folder such as /tmp anybody can put a link in the
    place of a file that you are about to write. A link is followed if it is yours or root's, or if it belongs to the
    owner of a folder that nobody else can write to.

    Raises:
        PermissionError: another user could have planted a link in the path.
        OSError: the path has more than 40 links, such as a loop of links.
    """
    rest, at, n_links = [*reversed((Path.cwd() / path).parts)], Path("/"), 0
    while rest:
        part = at / rest.pop()
        if part.name == "..":
            at = at.parent
        elif not part.is_symlink():
            at = part
        else:
            n_links += 1
            if n_links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            owner, folder = part.lstat().st_uid, at.stat()
            is_shared = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if owner not in (0, os.getuid()) and (is_shared or owner != folder.st_uid):
                raise PermissionError(
                    errno.EPERM, f"a link that another user (uid {owner}) made; write to its target", str(part)
                )
            rest += reversed(Path(os.readlink(part)).parts)  # an absolute target begins with "/", which replaces `at`
    return at


class HeaderError(ValueError):
    """A file does not begin with a safetensors header, or its length differs from the length in the header."""


def read_header(file: BinaryIO) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Read and check the header of a safetensors file, before the tensors.

    Returns:
        The header as JSON, and each tensor's byte range in the file. The ranges neither overlap nor leave gaps.

    Raises:
        HeaderError: the header is invalid, or is not parsed because it is larger than MOST_OF_HEADER.
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    begin = 8 + int.from_bytes(file.read(8), "little")
    if size < 8:
        raise HeaderError("it has fewer than 8 bytes")
    if begin > size:
        raise HeaderError("it does not begin with the header of a safetensors file")
    if begin > MOST_OF_HEADER:
        raise HeaderError(f"its header has {begin} bytes; the limit is {MOST_OF_HEADER}")
    try:
        header = json.loads(file.read(begin - 8), object_pairs_hook=_each_once)
        metadata = header.get("__metadata__", {})
        if not all(isinstance(x, str) for x in metadata.values()):
            raise ValueError("metadata")
        spans = {name: tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"}
        end = 0
        for first, last in sorted(spans.values()):
            if type(first) is not int or type(last) is not int or first != end or last < first:
                raise HeaderError("the bytes of its arrays do not follow one another")
            end = last
    except HeaderError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f": {error}" if isinstance(error, _TwiceError) else ""
        raise HeaderError(f"it does not begin with the header of a safetensors file{why}") from None
    if begin + end != size:
        raise HeaderError(f"it should have {begin + end} bytes and has {size}")
    return header, {name: (begin + first, begin + last) for name, (first, last) in spans.items()}


class _TwiceError(ValueError):
    """A key appears twice: readers differ in which of its values they use."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError("a name appears twice")
    return found


def sync(path: Path) -> None:
    """Flush a file to disk: otherwise, a power failure could leave the file's name without its contents."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to disk, if its file system can: otherwise, a power failure could lose them."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file to replace, or None if there is none. Raises OSError if `path` is not a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a device or pipe, not a file: it is not replaced", str(path))
    return status


def _inherit(new: Path, replaced: os.stat_result) -> None:
    """Copy the mode of the replaced file, and its owner as far as the system allows."""
    with contextlib.suppress(PermissionError):
        os.chown(new, replaced.st_uid, replaced.st_gid)
    os.chmod(new, stat.S_IMODE(replaced.st_mode))


def _sweep(folder: Path, beginning: str) -> None:
    """Remove the temporary copies that killed processes left behind: nobody holds their locks any more."""
    left = re.compile(re.escape(beginning) + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            file = folder / name
            if left.fullmatch(name) and locks.is_left(file, file):
                file.unlink(missing_ok=True)
