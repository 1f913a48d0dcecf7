"""Files of the tuning database: in a folder of the cache directory, whole or not at all, and nobody else's.

What cannot be read is as good as absent: tuning is a gain, never a condition.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from vpps.config import TUNING, cache_dir
from vpps.errors import CompileError
from vpps.files import replacing
from vpps.kernel.cache.places import ADVICE, why_planted, why_refused
from vpps.locks import LOCK, held, sweep

T = TypeVar("T")

_log = logging.getLogger(__name__)

FORMAT = 1
_TIMEOUT = 2.0  # seconds to wait for another process that writes the same file
_DAMAGE = OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError


class _OtherVersionError(ValueError):
    """The file is in a format that this version does not read."""


def tuning_folder() -> Path:
    """Where they are."""
    return cache_dir().absolute() / "tuning"


def is_switched_on() -> bool:
    """Whether handles may use the database (VPPS_TUNING)."""
    return TUNING.get().lower() not in ("0", "false", "no", "off")


def listed(path: Path, parse: Callable[[Any], T]) -> T | None:
    """What `parse` makes of a file's JSON; None where it is damaged, or of another version, and thus not used."""
    try:
        return parse(_contents(path))
    except _DAMAGE:
        return None


def read(path: Path, parse: Callable[[Any], T]) -> T | None:
    """The same for use; None as well where there is no file, or others may have written it. Says so in the log."""
    try:
        for one in (path.parent, path):
            if reason := why_planted(one.stat()):
                _log.warning("%s is not used: %s %s", path, one, reason)
                return None
        return parse(_contents(path))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except _OtherVersionError:
        _log.info("%s is of another version of vpps and not used", path)
    except _DAMAGE as error:
        _log.warning("%s is damaged and not used: %r", path, error)
    return None


def store(path: Path, contents: Callable[[], dict[str, Any]], indent: int | None = None) -> None:
    """Write a file at once or not at all, while no other process does; `contents` may read what it replaces.

    Raises:
        CompileError: the directory cannot be used, or others could plant records in it; says why and what to do.
    """
    folder = path.parent
    try:
        for directory in (folder.parent, folder):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            reason = why_refused(directory)
            if reason is not None:
                raise CompileError(f"the tuning database {directory} is not used: {reason}, or {ADVICE}")
    except OSError as error:
        raise CompileError(f"the tuning database {folder} cannot be created ({error}); {ADVICE}") from error
    sweep(folder)
    try:
        # Without the lock nothing is damaged, but a record may be lost.
        with held([path.with_suffix(LOCK)], _TIMEOUT), replacing(path) as new:
            text = json.dumps({"format": FORMAT, **contents()}, indent=indent)
            new.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CompileError(f"the tuning database {folder} cannot be written ({error}); {ADVICE}") from error


def _contents(path: Path) -> Any:
    kept = json.loads(path.read_bytes())
    if kept["format"] != FORMAT:
        raise _OtherVersionError
    return kept
