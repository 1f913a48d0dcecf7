"""Caches of a test's own, in which nothing has to be compiled that other tests need as well."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vpps.config import cache_dir
from vpps.kernel.host_compiler import build_cpu
from vpps.planner.native import library as planner


def cache_with_kernels(folder: Path) -> Path:
    """The folder as a cache with the kernels that are compiled already, but without measured choices.

    What takes longest to compile, and most tests need, is among them: the cpu target's kernels and the planner.
    """
    for timeline in (False, True):
        build_cpu(timeline)
    planner.build()
    kernels = cache_dir() / "kernels"
    ignored = shutil.ignore_patterns("*.lock", "build-*")
    shutil.copytree(kernels, folder / "kernels", ignore=ignored, copy_function=_link, dirs_exist_ok=True)
    return folder


def _link(source: str, target: str) -> None:
    """The same file, where both are on one disk: a cache may be large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
