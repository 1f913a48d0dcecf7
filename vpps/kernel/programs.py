"""Finds installed programs and libraries, in trusted folders only.

It never searches the folder of the script or the working directory, although Python and a PATH such as ":/usr/bin"
put them first. Otherwise files in a downloaded folder would be executed.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vpps.config import search_path


def package_folders() -> list[str]:
    """Package folders in sys.path: site-packages, absolute folders of PYTHONPATH, and NumPy's folder. Other folders,
    such as the working directory and the script's folder, may hold strangers' files."""
    named = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    trusted = [folder for folder in named if os.path.isabs(folder)]
    trusted += [*site.getsitepackages(), str(Path(np.__file__).parents[1])]
    if site.ENABLE_USER_SITE:
        trusted.append(site.getusersitepackages())
    real = set(map(os.path.realpath, trusted))
    return [folder for folder in sys.path if os.path.isabs(folder) and os.path.realpath(folder) in real]


def which(name: str) -> str | None:
    """Path of a program. A bare name is looked up in the absolute folders of PATH; a path is made absolute."""
    if os.path.dirname(name):
        return shutil.which(os.path.abspath(name))
    return shutil.which(name, path=absolute_path(search_path()))


def absolute_path(path: str) -> str:
    """A value of PATH or PYTHONPATH without relative folders."""
    return os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep)))


def environment() -> dict[str, str]:
    """The environment of every process that vpps starts, which finds the same programs and modules as this process."""
    found = {**os.environ, "PYTHONSAFEPATH": "1"}
    return found | {name: absolute_path(found[name]) for name in ("PATH", "PYTHONPATH") if name in found}


def in_packages(paths: Iterable[Path]) -> Path | None:
    """The first of these files that exists in a package folder; None if there is none."""
    folders = [os.path.abspath(folder) for folder in package_folders()]
    for path in paths:
        absolute = os.path.abspath(path)
        if os.path.isfile(absolute) and any(absolute.startswith(folder + os.sep) for folder in folders):
            return Path(absolute)
    return None
