"""Compiles CUDA source with the machine's C++ compiler, together with the emulator that runs it (templates/simt)."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from vpps.kernel import ziglang
from vpps.kernel.cache import Label, read_binary
from vpps.kernel.host_compiler import ALL_FLAGS, compiler, compiler_version, cpu_features, made
from vpps.kernel.render import template_dir

EMULATOR = "emulator.cpp"
EMULATOR_HEADERS = ("barriers.h", "scheduler.h", "races.h", "machine.h", "clocks.h", "fibers.h", "fragments.h")
WORDS = "words.h"

FLAGS = (*ALL_FLAGS, "-fno-exceptions")
# -O1 for the kernel: compiling takes longer than running it. `#pragma unroll` is for NVRTC.
KERNEL_FLAGS = ("-O1", "-Wno-unknown-pragmas")
RACE_FLAGS = ("-fsanitize=thread",)  # accesses call the emulator's __tsan_*; libtsan is not linked
LINK_FLAGS = ("-shared", "-Wl,-z,defs")  # nothing may be missing: an intrinsic that words.h lacks is an error here


def build_emulator() -> Path:
    """The emulator as an object file, from the cache if it is there. Raises as `build_simt`."""
    folder = template_dir() / "simt"
    source, *headers = [(folder / name).read_text(encoding="utf-8") for name in (EMULATOR, *EMULATOR_HEADERS)]
    flags: tuple[str, ...] = (*FLAGS, "-O2", "-I", str(folder))
    if platform.machine() in ("x86_64", "AMD64"):
        # It switches stacks below the compiler's back: nothing may live beyond the stack pointer, nor may return
        # addresses be compared with a second stack of them.
        flags += ("-mno-red-zone", "-fcf-protection=none")
    command = compiler()
    if ziglang.is_zig(command):
        flags = (*ziglang.compile_flags(flags), *ziglang.RUNTIME_FLAGS, "-DVPPS_STRINGS")
        headers.append(ziglang.identity())

    def steps(text: Path, binary: Path) -> Iterator[list[str]]:
        yield [*command, *flags, "-c", str(text), "-o", str(binary)]

    label = Label("emulator", platform.machine())
    return made(source, "the emulator", flags, steps, *headers, label=label, suffix=".o")


def build_simt(source: str, races: bool = False) -> Path:
    """A library that runs a CUDA kernel in the emulator (vpps/runtime/emulator.py), from the cache if it is there.

    Args:
        source: CUDA C++ that defines `struct Launch` and `extern "C" __global__ void vpps_kernel(const Launch)`.
        races: whether it reports every access to memory, so that races are seen; slower.

    Raises:
        CompileError: no compiler, or it rejects the source (the message shows its first diagnostics).
    """
    words = template_dir() / "simt" / WORDS
    command = compiler()
    flags: tuple[str, ...] = (*FLAGS, *KERNEL_FLAGS, "-include", str(words))
    if "fma" in cpu_features():
        flags += ("-mfma",)
    if races:
        flags += RACE_FLAGS
        if "clang" not in compiler_version(tuple(command)):
            flags += ("--param=tsan-instrument-func-entry-exit=0",)  # calls are none of our business
    libraries: list[str] = []
    if ziglang.is_zig(command):
        flags = tuple(ziglang.compile_flags(flags))
        libraries = ziglang.link_flags()
    emulator = build_emulator()

    def steps(text: Path, binary: Path) -> Iterator[list[str]]:
        kernel, machine = binary.with_suffix(".o"), binary.with_name(emulator.name)
        yield [*command, *flags, "-c", str(text), "-o", str(kernel)]
        machine.write_bytes(read_binary(emulator))  # what the cache has may go any time
        yield [*command, *LINK_FLAGS, str(kernel), str(machine), *libraries, "-o", str(binary)]

    label = Label("emulated kernel", "races are looked for" if races else "")
    depends_on = words.read_text(encoding="utf-8"), emulator.name, *LINK_FLAGS, *libraries
    return made(source, "the kernel source", flags, steps, *depends_on, label=label)
