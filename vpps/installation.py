"""Compiles the planner, the recorder and the kernels of the cpu target ahead of time: a wheel contains them all.

`hatch_build.py` calls this module when it installs vpps or builds a wheel. In a checkout whose sources have changed,
run `python -m vpps.installation`.
"""

from __future__ import annotations

import ctypes
import shutil
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from vpps import locks
from vpps.errors import CompileError
from vpps.graph import recorder
from vpps.kernel import prebuilt
from vpps.kernel.host_compiler import build_cpu, build_library, cpu_kernel, isas_of
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.render import TILES
from vpps.planner.native import library as planner


def build(folder: Path = prebuilt.FOLDER, kernels: bool = False, target: str = "") -> list[Path]:
    """Compile the libraries that are missing in a folder, in parallel, and delete older versions of them.

    Args:
        kernels: True to compile the kernels of the cpu target as well, for every instruction set of the target.
        target: as for `HostLibrary`.

    Returns:
        The library files.

    Raises:
        CompileError: there is no compiler, it rejects a source, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        locks.sweep(folder)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda library: _put(library, folder), _libraries(folder, kernels, target)))
    except OSError as error:
        raise CompileError(f"{folder} cannot be written ({error}): install from a copy that you own") from error


def build_for_checkout() -> list[Path]:
    """Call `build` for the package's folder. In parallel, compile this machine's cpu kernel into the cache, for the
    first program: with two cores, this takes no longer. Raises as `build` does."""
    with ThreadPoolExecutor() as pool:
        kernel = pool.submit(build_cpu)
        made = build()
        kernel.result()
    return made


def _libraries(folder: Path, kernels: bool, target: str) -> Iterator[HostLibrary]:
    yield planner.described(target)
    for isa in isas_of(target) if kernels else ():
        yield cpu_kernel(TILES[isa], target)
    try:
        library = recorder.described(target)
        if not Path(*library.headers, "Python.h").is_file():
            raise CompileError("the recorder needs Python's headers (Debian and Ubuntu: apt-get install python3-dev)")
    except CompileError as error:
        if target:
            raise  # a wheel must work for every user of this Python
        print(f"left out: {error}")
        return
    yield replace(library, headers=(*library.headers, *_configuration(folder, target)))


def _configuration(folder: Path, target: str) -> Iterator[str]:
    """Yield a folder with this Python's pyconfig.h for Debian's headers; it fits all 64-bit targets."""
    include = Path(sysconfig.get_path("include"))
    own = include.parent / str(sysconfig.get_config_var("MULTIARCH")) / include.name / "pyconfig.h"
    if target and own.is_file():
        place = folder / "headers" / target.rpartition(".")[0].rpartition(".")[0] / include.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(own, place)
        yield str(folder / "headers")


def _put(library: HostLibrary, folder: Path) -> Path:
    """Compile a library into a folder unless a usable one is there, and return its path."""
    path = folder / library.file_name
    if not (path.is_file() and (library.target or _loads(path))):
        path.unlink(missing_ok=True)
        made = build_library(library)
        with locks.scratch(folder) as work:
            shutil.copyfile(made, work / path.name)
            (work / path.name).replace(path)
    for other in folder.glob(f"{library.beginning}*.so"):
        if other != path:
            other.unlink(missing_ok=True)  # a process that has it open can still use it
    return path


def _loads(path: Path) -> bool:
    """Return False if a library needs a C or C++ library that this system lacks, because another system compiled it."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def main() -> None:
    """Compile the libraries that this checkout lacks, and print the paths of all libraries."""
    for path in build_for_checkout():
        print(path)


if __name__ == "__main__":
    main()
