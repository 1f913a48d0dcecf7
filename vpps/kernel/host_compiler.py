"""Compiles host libraries that the package does not ship, with the machine's C++ compiler or the ziglang package."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from vpps.config import CXX, ISA
from vpps.errors import CompileError
from vpps.kernel import prebuilt, processes, programs, ziglang
from vpps.kernel.cache import Label, cached, key_of
from vpps.kernel.diagnostics import of_log
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.render import TILES, Tile, render_cpu, render_tails
from vpps.script.tails import Tail

COMPILERS = ("g++", "clang++")
HOW_TO_GET_ONE = (
    "pip install 'vpps[zig]' brings one and needs no root; or install one (Debian/Ubuntu: apt-get install g++; Fedora: "
    "dnf install gcc-c++; macOS: xcode-select --install; conda: conda install -c conda-forge cxx-compiler), or set CXX "
    "to the path of yours"
)

# Contraction is off so that results do not depend on how work is sliced (templates/host/prelude.h). Never use
# -ffast-math: it flushes denormals for the whole process.
ALL_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
)
FLAGS = (*ALL_FLAGS, "-O2", "-shared", "-pthread", "-fopenmp-simd")
# Not -march=native: it is no faster, and a kernel for a whole instruction set can be shipped.
ISA_FLAGS = {
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"),
    "avx2": ("-mavx2", "-mfma"),
    # By default g++ loads the operands of products too early, and spills two of 24 sums.
    "neon": ("-fno-schedule-insns",),
    "portable": (),
}
# Required processor features, best instruction set first.
ISA_NEEDS = {
    "avx512": {"avx512f", "avx512vl", "avx512dq", "avx512bw", "fma"},
    "avx2": {"avx2", "fma"},
    "neon": {"asimd"},
    "portable": set[str](),
}
Steps = Callable[[Path, Path], Iterable[Sequence[str]]]
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # disk errors that a compiler may report


@lru_cache(maxsize=1)
def _processor() -> dict[str, str]:
    """Fields of /proc/cpuinfo for the first core; {} if not Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in reversed(lines))  # reversed: the first core's fields win
    return {name.strip(): " ".join(value.split()) for name, _, value in fields}


@lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """The processor's feature flags, as Linux names them; on other systems, those of all processors of its kind."""
    found = _processor()
    common = ["asimd"] if platform.machine() in ("aarch64", "arm64") else []
    return frozenset([*(found.get("flags") or found.get("Features", "")).split(), *common])


@lru_cache(maxsize=1)
def processor_name() -> str:
    """Name of the processor, as the operating system reports it."""
    named = (_processor().get(name) for name in ("model name", "Model", "Hardware"))
    return next(filter(None, named), "") or platform.processor() or platform.machine()


def isas_of(target: str = "") -> list[str]:
    """Instruction sets for the machine of a target (see `HostLibrary`), best first. This processor may lack some."""
    machine = target.partition("-")[0] or platform.machine()
    own = {"x86_64": ["avx512", "avx2"], "aarch64": ["neon"], "arm64": ["neon"]}.get(machine, [])
    return [*own, "portable"]


def tile_of_machine() -> Tile:
    """The tile for this processor, or for the instruction set that VPPS_ISA forces. Raises CompileError if the
    processor lacks it."""
    features = cpu_features()
    wanted = ISA.get()
    if wanted == "auto":
        return next(TILES[isa] for isa in isas_of() if ISA_NEEDS[isa] <= features)
    if wanted not in TILES:
        raise CompileError(f"VPPS_ISA={wanted}: expected one of auto, {', '.join(TILES)}")
    lacking = ISA_NEEDS[wanted] - features
    if features and lacking:
        raise CompileError(f"VPPS_ISA={wanted}: this processor has no {', '.join(sorted(lacking))}")
    return TILES[wanted]


def multiplies_pairs(isa: str) -> bool:
    """True if this processor has the bf16 instructions of that set. The fallback gives the same bits."""
    return isa == "avx512" and "avx512_bf16" in cpu_features()


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, else g++, else clang++, else the `ziglang` package.

    Raises:
        CompileError: there is no compiler (the message says how to get one).
    """
    if CXX.get():
        try:
            command = shlex.split(CXX.get())
        except ValueError as error:
            raise CompileError(f"CXX={CXX.get()}: {error}; write it as in a shell") from None
        if not command or programs.which(command[0]) is None:
            raise CompileError(f"CXX={CXX.get()}: no such program; {HOW_TO_GET_ONE}")
        return command
    if command := _found():
        return command
    raise CompileError(f"vpps needs a C++ compiler, and neither g++ nor clang++ was found: {HOW_TO_GET_ONE}")


def has_compiler() -> bool:
    """True if there is a compiler. Also True if CXX names a compiler that does not exist; compilation then raises."""
    return CXX.is_set or bool(_found())


def _found() -> list[str]:
    """The command of a compiler without CXX; [] if there is none."""
    for name in COMPILERS:
        if (path := programs.which(name)) and _works(path):
            return [name]
    return [*(ziglang.installed() or ())]


@lru_cache(maxsize=8)
def _works(path: str) -> bool:
    """True if a program is a compiler. On macOS, g++ may be a stub that asks to install the developer tools."""
    try:
        compiler_version((path,))
    except CompileError as error:  # the compilation raises other errors
        return not isinstance(error.__cause__, subprocess.CalledProcessError)
    return True


def compiler_version(command: tuple[str, ...]) -> str:
    """Output of the compiler's --version; part of the cache key."""
    return _version((programs.which(command[0]) or command[0], *command[1:]))


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> str:
    is_zig = ziglang.is_zig(command)
    query = [*command[:-1], "version"] if is_zig else [*command, "--version"]
    try:
        run = subprocess.run(
            query, capture_output=True, text=True, errors="replace", check=True, timeout=60, env=programs.environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        if isinstance(error, OSError) and error.errno in processes.NO_MORE:
            raise CompileError(processes.no_more(query[0], error.strerror)) from None
        raise CompileError(f"{shlex.join(query)} failed ({error}); {HOW_TO_GET_ONE}") from error
    return f"clang of zig {run.stdout}" if is_zig else run.stdout


def run_compiler(compiler: Sequence[str], step: Sequence[str], what: str, text: Path) -> None:
    """Run a command of the compiler. The command's last word is the output file.

    Args:
        what: name of the source, for messages.
        text: path of the source; messages quote its lines.

    Raises:
        OSError: the disk is full or fails; another folder may work.
        CompileError: the compiler was interrupted, rejects the source (the message shows its first diagnostics), or
            writes nothing.
    """
    result = Path(step[-1])
    own = ziglang.environment(result.parent) if ziglang.is_zig(compiler) else {}
    # Temporary files are in the result's folder, so that they are removed with it even after a kill. Messages must not
    # be translated, because the code below searches them.
    variables = {**programs.environment(), "TMPDIR": str(result.parent), "LC_ALL": "C", **own}
    code, log = processes.run(step, variables)
    if code:
        for number in _DISK_ERRORS:
            if os.strerror(number) in log:
                raise OSError(number, f"{shlex.join(compiler)}: {os.strerror(number)}", str(result.parent))
        diagnostics = of_log(log, text.read_text(encoding="utf-8"), text)
        raise CompileError(f"{shlex.join(compiler)} rejected {what}:\n{diagnostics}")
    if not result.is_file():
        raise CompileError(f"{shlex.join(compiler)} reports success but wrote no library; {HOW_TO_GET_ONE}")


def build_cpu(rounds: bool = False) -> tuple[Path, str, Tile]:
    """Build the cpu target's kernel (`build_library`); return its path, source and tile. `rounds`: see `render_cpu`."""
    tile = tile_of_machine()
    kernel = cpu_kernel(tile, rounds=rounds)
    return build_library(kernel), kernel.source, tile


def cpu_kernel(tile: Tile, target: str = "", rounds: bool = False) -> HostLibrary:
    """The cpu target's kernel for a tile, as a `HostLibrary`. For `target` see there, for `rounds` see `render_cpu`."""
    name = f"{tile.name}-rounding" if rounds else tile.name
    flags, label = (*FLAGS, *ISA_FLAGS[tile.isa]), Label("cpu kernel", name)
    if rounds and not target and multiplies_pairs(tile.isa):
        flags = (*flags, "-mavx512bf16")
    source = render_cpu(tile, rounds=rounds)
    return HostLibrary(f"kernel-{name}", "the kernel source", source, flags, label, target=target)


def build_tails(tails: Sequence[Tail]) -> Path:
    """Build a library of tails for the kernel of `build_cpu`; return its path. Raises the errors of `build_library`."""
    tile = tile_of_machine()
    label = Label("tails", f"{len(tails)} program{'s' * (len(tails) > 1)}, {tile.isa}")
    flags = (*FLAGS, *ISA_FLAGS[tile.isa])
    return build_library(HostLibrary("tails", "tails of cells", render_tails(tails, tile), flags, label))


def build_library(library: HostLibrary) -> Path:
    """Path of a shared library. It is compiled unless the package or the cache has it.

    Raises:
        CompileError: there is no compiler, or it rejects the source (the message shows its first diagnostics).
    """
    if not library.target and (found := prebuilt.find(library)) is not None:
        return found
    command = list(ziglang.installed() or ()) if library.target else compiler()
    if not command:
        raise CompileError(f"it takes the ziglang package to compile for {library.target}: pip install ziglang")
    is_zig = ziglang.is_zig(command)
    flags = (*library.flags, *(f"-I{folder}" for folder in library.headers))
    depends_on = (library.name, library.target, *((ziglang.identity(),) if is_zig else ()))

    def steps(text: Path, binary: Path) -> list[list[str]]:
        if is_zig:
            return ziglang.steps(command, flags, text, binary, library.target)
        return [[*command, *flags, str(text), "-o", str(binary)]]

    return build_cached(library.source, library.what, flags, steps, *depends_on, label=library.label, command=command)


def build_cached(
    source: str, what: str, flags: Sequence[str], steps: Steps, *depends_on: str, label: Label, suffix: str = ".so",
    command: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Path of the binary compiled from a source, built unless the cache has it. Raises the errors of `build_library`.

    Args:
        source: text of the source.
        what: name of the source, for messages.
        flags: compiler flags.
        steps: (source file, output file) -> commands; see `run_compiler`.
        depends_on: further parts of the cache key, besides source, flags, compiler and kind of machine.
        label: description in the cache; the compiler is added.
        suffix: suffix of the binary.
        command: command of the compiler; default: `compiler()`.
    """
    command = tuple(command or compiler())
    version = compiler_version(command)

    def build(text: Path, binary: Path) -> None:
        for step in steps(text, binary):
            run_compiler(command, step, what, text)

    # The key omits zig's path: pip installs zig in a new folder for every wheel that it builds.
    is_zig = ziglang.is_zig(command)
    named = ("zig", "c++") if is_zig else command
    key = key_of(source, shlex.join([*named, *flags]), version, platform.machine(), *depends_on)
    label = replace(label, compiler="zig " * is_zig + version.partition("\n")[0])
    return cached(key, suffix, source, build, label=label)
