"""Compiles what is not compiled later, planner and recorder, and kernels of the cpu target: a wheel has them all.

`hatch_build.py` calls it when vpps is installed or a wheel is made. In a checkout whose sources have changed:
`python -m vpps.installation`.
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
    """Have the libraries in a folder, compiled side by side where they are not there, and nothing older beside them.

    Args:
        kernels: those of the cpu target, too, for every instruction set of the target's kind of processor.
        target: as of `HostLibrary`.

    Returns:
        Their files.

    Raises:
        CompileError: there is no compiler, it rejects a source, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        locks.sweep(folder)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda library: _put(library, folder), _libraries(folder, kernels, target)))
    except OSError as error:
        raise CompileError(f"{folder} cannot be written ({error}): install from a copy that is yours") from error


def build_for_checkout() -> list[Path]:
    """As `build`, for the package's own folder; beside them this machine's cpu kernel is compiled into the cache, where
    the first program finds it: on two cores that takes no longer. Raises as `build` does."""
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
            raise  # a wheel is for all who have this Python
        print(f"left out: {error}")
        return
    yield replace(library, headers=(*library.headers, *_configuration(folder, target)))


def _configuration(folder: Path, target: str) -> Iterator[str]:
    """A folder where Debian's headers find what this Python was configured for: the same on all targets, of 64 bits."""
    include = Path(sysconfig.get_path("include"))
    own = include.parent / str(sysconfig.get_config_var("MULTIARCH")) / include.name / "pyconfig.h"
    if target and own.is_file():
        place = folder / "headers" / target.rpartition(".")[0].rpartition(".")[0] / include.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(own, place)
        yield str(folder / "headers")


def _put(library: HostLibrary, folder: Path) -> Path:
    """Have a library in a folder."""
    path = folder / library.file_name
    if not (path.is_file() and (library.target or _loads(path))):
        path.unlink(missing_ok=True)
        made = build_library(library)
        with locks.scratch(folder) as work:
            shutil.copyfile(made, work / path.name)
            (work / path.name).replace(path)
    for other in folder.glob(f"{library.beginning}*.so"):
        if other != path:
            other.unlink(missing_ok=True)  # whoever has it open keeps it
    return path


def _loads(path: Path) -> bool:
    """Not one that another system of this checkout has compiled, with a C or C++ library that this one lacks."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def main() -> None:
    """Compile for this checkout what is not there, and say which files that are."""
    for path in build_for_checkout():
        print(path)


if __name__ == "__main__":
    main()
