"""Compiles what is not compiled later: planner and recorder, and for a wheel the kernels of the cpu target.

`hatch_build.py` calls it when vpps is installed or a wheel is made. In a checkout whose sources have changed:
`python -m vpps.installation`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vpps import locks
from vpps.errors import CompileError
from vpps.graph import recorder
from vpps.kernel import prebuilt
from vpps.kernel.host_compiler import build_library, cpu_kernel, isas_of
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
        CompileError: there is no compiler, or it rejects a source.
    """
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda library: _put(library, folder), _libraries(kernels, target)))


def _libraries(kernels: bool, target: str) -> Iterator[HostLibrary]:
    yield planner.described(target)
    for isa in isas_of(target) if kernels else ():
        yield cpu_kernel(TILES[isa], target)
    try:
        library = recorder.described(target)
    except CompileError as error:
        print(f"left out: {error}")
    else:
        if Path(*library.headers, "Python.h").is_file():
            yield library
        else:
            print(f"left out, as there are none of Python's headers: {library.what}")


def _put(library: HostLibrary, folder: Path) -> Path:
    """Have a library in a folder."""
    path = folder / library.file_name
    if not path.is_file():
        made = build_library(library)
        folder.mkdir(parents=True, exist_ok=True)
        with locks.scratch(folder) as work:
            shutil.copyfile(made, work / path.name)
            (work / path.name).replace(path)
    for other in folder.glob(f"{library.beginning}*.so"):
        if other != path:
            other.unlink(missing_ok=True)  # whoever has it open keeps it
    return path


def main() -> None:
    """Compile for this checkout what is not there, and say which files that are."""
    for path in build():
        print(path)


if __name__ == "__main__":
    main()
