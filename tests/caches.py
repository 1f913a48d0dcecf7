"""Caches of a test's own, in which nothing has to be compiled that other tests need as well."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from vpps.config import cache_dir
from vpps.kernel.host_compiler import build_cpu

LATEST = 400
"""Entries that are taken over, of a cache that may hold thousands."""


def cache_with_kernels(folder: Path) -> Path:
    """The folder as a cache with the kernels that were used last, but without measured choices.

    What takes longest to compile, and most tests need, is among them: the cpu target's kernel.
    """
    build_cpu()
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for entry in sorted(filter(_used, (cache_dir() / "kernels").iterdir()), key=_used)[-LATEST:]:
        with suppress(OSError):  # another process may remove it meanwhile
            shutil.copytree(entry, folder / "kernels" / entry.name, copy_function=_link, dirs_exist_ok=True)
    return folder


def _used(entry: Path) -> float:
    """When, in seconds since 1970; 0 for what is no entry."""
    try:
        return (entry / f"{entry.name}.json").stat().st_mtime
    except OSError:
        return 0.0


def _link(source: str, target: str) -> None:
    """The same file, where both are on one disk: a cache may be large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
