"""The C++ compiler of the `ziglang` package: clang and all headers, from PyPI, for machines that have no compiler.

`zig c++` ships its libraries as sources and compiles them at the first link: two minutes of processor time for libc++
alone. Our libraries avoid that. They only include headers and use no exceptions. They link with the C library that this
process has loaded, and with the few functions of `runtime.h`. The first kernel therefore takes no longer than any
other, and zig's own cache remains empty. Results are bit-identical to those with g++.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vpps.kernel.programs import in_packages, package_folders

# By default, zig's clang compiles for this processor, and other compilers for the architecture's baseline. At -O0, zig
# adds checks that need a library.
DEFAULTS = ("-mcpu=baseline", "-fno-sanitize=undefined")
COMPILE_FLAGS = ("-fno-exceptions", "-fvisibility-global-new-delete=force-hidden", "-g0")
LINK_FLAGS = ("-O2", "-shared", "-Wl,-s")  # without -O, zig compiles its checks and links them
RUNTIME = Path(__file__).with_name("runtime.h")
RUNTIME_FLAGS = ("-include", str(RUNTIME))  # for one source file in each library


@cache
def installed() -> tuple[str, ...] | None:
    """The command of the package's compiler; None if the package is not installed."""
    program = in_packages(Path(folder, "ziglang", "zig") for folder in package_folders())
    return (str(program), "c++") if program else None


def is_zig(command: Sequence[str]) -> bool:
    """True if a command is zig's compiler: `zig c++`, or `python -m ziglang c++`."""
    return len(command) > 1 and command[-1] == "c++" and Path(command[-2]).name in ("zig", "ziglang")


def environment(scratch: Path) -> dict[str, str]:
    """Environment variables that make zig write to a scratch folder, which the caller removes."""
    return {"ZIG_GLOBAL_CACHE_DIR": str(scratch), "ZIG_LOCAL_CACHE_DIR": str(scratch)}


def c_library() -> Path | None:
    """The C library that this process has loaded; None if it cannot be found."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None  # not Linux
    files = [Path(fields[5]) for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6]
    return next((file for file in files if file.name.startswith(("libc.so", "libc-2", "ld-musl-"))), None)


def compile_flags(flags: Sequence[str]) -> list[str]:
    """Flags to compile an object file, without `-c`. `flags` are those for g++."""
    return [*DEFAULTS, *(f for f in flags if f != "-shared"), *COMPILE_FLAGS]


def link_flags(target: str = "") -> list[str]:
    """Flags that follow the object files of a shared library. `target`: zig's name for a platform; "": this machine."""
    libc = None if target else c_library()
    return [*LINK_FLAGS, *(["-nostdlib", str(libc)] if libc else ["-nostdlib++"])]


def steps(command: Sequence[str], flags: Sequence[str], text: Path, binary: Path, target: str = "") -> list[list[str]]:
    """Commands that build a shared library from a source, in order. Intermediate files are next to `binary`. `flags`
    are those for g++; `target`: see `link_flags`."""
    compiled = str(binary.with_suffix(".o"))
    command = [*command, *(["-target", target] if target else [])]
    return [
        [*command, *compile_flags(flags), *RUNTIME_FLAGS, "-c", str(text), "-o", compiled],
        [*command, compiled, *link_flags(target), "-o", str(binary)],
    ]


def identity() -> str:
    """Text that describes a library's inputs besides source, flags and compiler; part of the cache key."""
    return "\n".join([RUNTIME.read_text(encoding="utf-8"), *DEFAULTS, *COMPILE_FLAGS, *LINK_FLAGS])
