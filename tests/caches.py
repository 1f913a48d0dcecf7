"""Test caches that share compiled kernels with other tests."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from vpps.config import cache_dir
from vpps.kernel.host_compiler import build_cpu

LATEST = 400
"""Number of entries copied from a cache that may hold thousands."""


def cache_with_kernels(folder: Path) -> Path:
    """Fill a folder as a cache with the latest kernels but without measured choices; returns the folder.

    It includes the cpu target's kernel, which takes longest to compile and which most tests need.
    """
    build_cpu()
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for entry in sorted(filter(_used, (cache_dir() / "kernels").iterdir()), key=_used)[-LATEST:]:
        with suppress(OSError):  # another process may remove it meanwhile
            shutil.copytree(entry, folder / "kernels" / entry.name, copy_function=_link, dirs_exist_ok=True)
    return folder


def _used(entry: Path) -> float:
    """Return the time of last use in seconds since 1970; 0 if this is not an entry."""
    try:
        return (entry / f"{entry.name}.json").stat().st_mtime
    except OSError:
        return 0.0


def _link(source: str, target: str) -> None:
    """Link a file if both paths are on one disk, otherwise copy it: a cache can be large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
