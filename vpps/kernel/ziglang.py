"""The C++ compiler of the `ziglang` package: clang and all headers, from PyPI, for machines that have no compiler.

`zig c++` brings the sources of its libraries, not the libraries, and compiles them when something is first linked: two
minutes of processor time for libc++ alone. Ours need none of that. They include headers only, are compiled without
exceptions and linked with nothing but the C library that this process has open and the few functions of `runtime.h`,
so that the first kernel takes no longer than any other, and leave nothing in zig's own cache. Bits are those of g++.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vpps.kernel.programs import in_packages, package_folders

# Zig's clang compiles for the processor that it runs on; the others' default is what every processor has.
# Where nothing is optimised (-O0) zig adds checks whose library nobody links.
DEFAULTS = ("-mcpu=baseline", "-fno-sanitize=undefined")
COMPILE_FLAGS = ("-fno-exceptions", "-fvisibility-global-new-delete=force-hidden", "-g0")
LINK_FLAGS = ("-O2", "-shared", "-Wl,-s")  # unless it optimises zig links its checks, compiled first
RUNTIME = Path(__file__).with_name("runtime.h")
RUNTIME_FLAGS = ("-include", str(RUNTIME))  # of one source of each library


@cache
def installed() -> tuple[str, ...] | None:
    """The command of the package's compiler; None where the package is not installed."""
    program = in_packages(Path(folder, "ziglang", "zig") for folder in package_folders())
    return (str(program), "c++") if program else None


def is_zig(command: Sequence[str]) -> bool:
    """Whether a command is zig's compiler: `zig c++`, or `python -m ziglang c++`."""
    return len(command) > 1 and command[-1] == "c++" and Path(command[-2]).name in ("zig", "ziglang")


def environment(scratch: Path) -> dict[str, str]:
    """What zig reads from the environment, so that it writes to a folder of ours, which is removed afterwards."""
    return {"ZIG_GLOBAL_CACHE_DIR": str(scratch), "ZIG_LOCAL_CACHE_DIR": str(scratch)}


def c_library() -> Path | None:
    """The C library that this process has open; None where that cannot be told."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None  # not Linux
    files = [Path(fields[5]) for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6]
    return next((file for file in files if file.name.startswith(("libc.so", "libc-2", "ld-musl-"))), None)


def compile_flags(flags: Sequence[str]) -> list[str]:
    """The flags, as they are for g++, of a compilation to an object file, but for `-c`."""
    return [*DEFAULTS, *(f for f in flags if f != "-shared"), *COMPILE_FLAGS]


def link_flags(target: str = "") -> list[str]:
    """What comes behind the object files of a shared library, for a platform that zig names so; "": this one."""
    libc = None if target else c_library()
    return [*LINK_FLAGS, *(["-nostdlib", str(libc)] if libc else ["-nostdlib++"])]


def steps(command: Sequence[str], flags: Sequence[str], text: Path, binary: Path, target: str = "") -> list[list[str]]:
    """The commands that make a shared library of a source, one after the other; what they make on the way lies beside
    it. Flags are as for g++, the target as of `link_flags`."""
    compiled = str(binary.with_suffix(".o"))
    command = [*command, *(["-target", target] if target else [])]
    return [
        [*command, *compile_flags(flags), *RUNTIME_FLAGS, "-c", str(text), "-o", compiled],
        [*command, compiled, *link_flags(target), "-o", str(binary)],
    ]


def identity() -> str:
    """What a library depends on besides source, flags and compiler."""
    return "\n".join([RUNTIME.read_text(encoding="utf-8"), *DEFAULTS, *COMPILE_FLAGS, *LINK_FLAGS])
