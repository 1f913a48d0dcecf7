"""Where the cache is: in the directory that was configured, or, where that cannot be trusted or written, elsewhere.

Binaries are code that this process will run. A directory is trusted if nobody else can write to it, nor to one above it
and put another in its place. The alternatives, in this order: a folder of the user's in the system's temporary
directory, and one that only this process has.
"""

from __future__ import annotations

import atexit
import contextlib
import grp
import hashlib
import logging
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from vpps.config import CACHE_DIR, cache_dir

_log = logging.getLogger(__name__)

ADVICE = f"set {CACHE_DIR.name} to a directory of your own"
ENTRIES = "kernels"  # folder of the entries within a directory of the cache
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_told: set[tuple[Path, str]] = set()


def configured() -> Path:
    """The directory that was asked for, absolute: the loader of libraries would look for a bare name elsewhere."""
    return cache_dir().absolute()


def usable(create: bool = True) -> Iterator[Path]:
    """Folders for entries that can be trusted, best first. The first refusal of each is logged as a warning.

    Those come last from which no library can be loaded: a cubin can be read there all the same.

    Args:
        create: what is missing; else they need not be there.
    """
    last = []
    for folder in _trusted(create):
        if allows_execution(folder):
            yield folder
        else:
            tell(folder.parent, "its file system is mounted noexec, so that no library can be loaded from it")
            last.append(folder)
    yield from last


def _trusted(create: bool) -> Iterator[Path]:
    root = configured()
    yield from _checked(root, root / ENTRIES, create, told=True)
    shared = temporary()
    if shared is not None:
        # A folder for each directory that was asked for: it stands for that one, and is as empty as that one.
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
        yield from _checked(shared, shared / name, create, told=create)
    own = _of_process() if create or _of_process.cache_info().currsize else None
    if own is not None:
        yield own


def allows_execution(folder: Path) -> bool:
    """Whether libraries can be loaded from a folder, as far as its file system says."""
    try:
        return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)
    except (OSError, AttributeError):
        return True  # it is not there, or nothing is known


def for_building() -> Iterator[Path]:
    """Folders in which something can be compiled before it is stored, best first.

    Compilers write there; so that a full disk of the cache is met by our own writing alone, where it is recognised, the
    system's temporary directory comes first.
    """
    shared = temporary()
    if shared is not None:
        yield from _checked(shared, shared, True, told=True)
    own = _of_process()
    if own is not None:
        yield own
    yield from usable()


def temporary() -> Path | None:
    """The user's folder in the system's temporary directory, which need not exist; None where there is no such one."""
    try:
        return Path(tempfile.gettempdir()).absolute() / f"vpps-{os.getuid()}"
    except OSError:
        return None


@lru_cache(maxsize=1)
def _of_process() -> Path | None:
    """A folder that this process alone has, and that goes with it; None where none can be made."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="vpps-")).absolute()
    except OSError:
        return None
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:  # a forked child leaves it alone
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _checked(root: Path, folder: Path, create: bool, told: bool) -> Iterator[Path]:
    """The folder, if it and the root it is in can be trusted."""
    for directory in dict.fromkeys((root, folder)):
        reason = why_refused(directory)
        if reason is None and not os.path.exists(directory):
            reason = _make(directory) if create else None
        if reason is not None:
            if told:
                tell(root, reason)
            return
    yield folder


def _make(directory: Path) -> str | None:
    """Create a directory for the user alone; why it cannot be."""
    try:
        for path in (*reversed(_missing(directory)), directory):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"it cannot be created ({error})"
    return why_refused(directory)  # somebody else may have been faster


def why_refused(directory: Path) -> str | None:
    """Why a directory cannot be trusted to hold binaries, and what to do about it; None if it can or is not there."""
    try:
        link = directory.lstat()
        status = directory.stat()
    except FileNotFoundError as error:
        return f"it is a link to nowhere ({error})" if directory.is_symlink() else None
    except OSError as error:
        return f"it cannot be read ({error})"
    if not stat.S_ISDIR(status.st_mode):
        return "it is no directory"
    if status.st_uid != os.getuid() or link.st_uid not in (0, os.getuid()):
        return f"it belongs to another user (number {status.st_uid}, you are {os.getuid()})"
    if status.st_mode & _OTHERS_WRITE:
        return (
            f"it is writable by other users (mode {stat.S_IMODE(status.st_mode):o}), who could plant a binary there; "
            f"run chmod -R go-w {directory}"
        )
    return _why_replaceable(directory)


def _why_replaceable(directory: Path) -> str | None:
    """Who else could put another directory in the place of one, by way of those above it; None if nobody but who
    administers the machine.

    In a container that maps no root all users outside it have one number, root among them. That number is trusted for
    the first directory of all and those in it, such as /home, which others than root do not make; further down it may
    be anybody's.
    """
    for above in dict.fromkeys((*directory.absolute().parents, *directory.resolve().parents)):
        try:
            status = above.stat()
        except OSError as error:
            return f"{above} cannot be read ({error})"
        is_top = len(above.parts) <= 2
        if status.st_uid not in (0, os.getuid()) and not (is_top and status.st_uid == _owner_of_all(above)):
            return f"{above} belongs to another user (number {status.st_uid}), who could put another directory there"
        shared = stat.S_IWOTH if _is_of_nobody_else(status.st_gid) else _OTHERS_WRITE
        if status.st_mode & shared and not status.st_mode & stat.S_ISVTX:  # there everybody can rename only their own
            return (
                f"{above} is writable by other users (mode {stat.S_IMODE(status.st_mode):o}), who could put another "
                f"directory in its place; run chmod go-w {above}"
            )
    return None


def _owner_of_all(directory: Path) -> int:
    """The user who owns the root directory."""
    return Path(directory.anchor).stat().st_uid


@lru_cache
def _is_of_nobody_else(group: int) -> bool:
    """True if a group is the user's own, as most systems give every user one: then folders may be writable by it.

    Others may be in it by the list of the group, or by having it as their first one. Where the system does not list
    its users (LDAP), nobody knows: the user is not in the list either.
    """
    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    first = {other.pw_uid for other in pwd.getpwall() if other.pw_gid == group}
    return found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name} and first == {user.pw_uid}


def why_planted(status: os.stat_result) -> str | None:
    """Why a file in a trusted directory may be somebody else's work; None if it cannot."""
    if status.st_uid not in (0, os.getuid()):
        return f"belongs to another user (number {status.st_uid})"
    if status.st_mode & _OTHERS_WRITE:
        return f"is writable by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def is_record(path: Path) -> bool:
    """True if a file begins as vpps's records do: with their format. Raises OSError: it cannot be read."""
    with path.open("rb") as file:
        return b'{"format":' in file.read(16).replace(b"\n ", b"")


def _missing(directory: Path) -> list[Path]:
    """The directories above one that are not there, the nearest first."""
    return [path for path in directory.parents if not os.path.exists(path)]


def why_impossible(directory: Path) -> str | None:
    """Why a directory that is not there cannot be made; None if it can, or is there. A trial tells: rights do not."""
    missing = [] if os.path.exists(directory) else [directory, *_missing(directory)]
    if not missing:
        return None
    try:
        missing[-1].mkdir(mode=0o700)
    except FileExistsError:
        return None  # somebody else has just made it
    except OSError as error:
        return f"it cannot be created ({error}); {ADVICE}"
    with contextlib.suppress(OSError):
        missing[-1].rmdir()
    return None


def tell(directory: Path, reason: str) -> None:
    """Warn, once per process, that compiled kernels are not kept in a directory."""
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
