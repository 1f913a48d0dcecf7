"""Files of the tuning database: in a folder of the cache directory, whole or not at all, and nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vpps.config import cache_dir
from vpps.errors import CompileError
from vpps.files import replacing
from vpps.kernel.cache.places import ADVICE, why_refused


def tuning_folder() -> Path:
    """Where they are."""
    return cache_dir().absolute() / "tuning"


def make_private(folder: Path) -> None:
    """Create a directory of mode 0700; refuse one in which others could plant records. Raises CompileError."""
    try:
        for directory in (folder.parent, folder):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            reason = why_refused(directory)
            if reason is not None:
                raise CompileError(f"the tuning database {directory} is not used: {reason}, or {ADVICE}")
    except OSError as error:
        raise CompileError(f"the tuning database {folder} cannot be created ({error}); {ADVICE}") from error


def replace_file(path: Path, text: str) -> None:
    """Write a file at once or not at all. Raises OSError."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def is_private(path: Path) -> bool:
    """Whether nobody else may have written a file or folder. Raises OSError."""
    status = path.stat()
    owned = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return owned and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
