"""Compiles CUDA source with the machine's C++ compiler, together with the emulator that runs it (templates/simt)."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from vpps.kernel import ziglang
from vpps.kernel.cache import Label, read_binary
from vpps.kernel.host_compiler import ALL_FLAGS, build_cached, compiler, compiler_version, cpu_features
from vpps.kernel.render import template_dir

EMULATOR = "emulator.cpp"
EMULATOR_HEADERS = ("barriers.h", "scheduler.h", "races.h", "machine.h", "clocks.h", "fibers.h", "fragments.h")
WORDS = "words.h"

FLAGS = (*ALL_FLAGS, "-fno-exceptions")
# -O1, because compilation takes longer than execution. `#pragma unroll` is meant for NVRTC.
KERNEL_FLAGS = ("-O1", "-Wno-unknown-pragmas")
RACE_FLAGS = ("-fsanitize=thread",)  # accesses call the emulator's __tsan_*; libtsan is not linked
LINK_FLAGS = ("-shared", "-Wl,-z,defs")  # -z defs: an intrinsic that words.h lacks is a link error


def build_emulator() -> Path:
    """Path of the emulator's object file, built unless cached. Raises the errors of `build_simt`."""
    folder = template_dir() / "simt"
    source, *headers = [(folder / name).read_text(encoding="utf-8") for name in (EMULATOR, *EMULATOR_HEADERS)]
    flags: tuple[str, ...] = (*FLAGS, "-O2", "-I", str(folder))
    if platform.machine() in ("x86_64", "AMD64"):
        # The emulator switches stacks without the compiler's knowledge, so it cannot use a red zone below the stack
        # pointer, nor a shadow stack of return addresses.
        flags += ("-mno-red-zone", "-fcf-protection=none")
    command = compiler()
    if ziglang.is_zig(command):
        flags = (*ziglang.compile_flags(flags), *ziglang.RUNTIME_FLAGS, "-DVPPS_STRINGS")
        headers.append(ziglang.identity())

    def steps(text: Path, binary: Path) -> Iterator[list[str]]:
        yield [*command, *flags, "-c", str(text), "-o", str(binary)]

    label = Label("emulator", platform.machine())
    return build_cached(source, "the emulator", flags, steps, *headers, label=label, suffix=".o")


def build_simt(source: str, races: bool = False) -> Path:
    """Path of a library that runs a CUDA kernel in the emulator (vpps/runtime/emulator.py), built unless cached.

    Args:
        source: CUDA C++ that defines `struct Launch` and `extern "C" __global__ void vpps_kernel(const Launch)`.
        races: detect races; the kernel then reports every memory access and is slower.

    Raises:
        CompileError: there is no compiler, or it rejects the source (the message shows its first diagnostics).
    """
    words = template_dir() / "simt" / WORDS
    command = compiler()
    flags: tuple[str, ...] = (*FLAGS, *KERNEL_FLAGS, "-include", str(words))
    if "fma" in cpu_features():
        flags += ("-mfma",)
    if races:
        flags += RACE_FLAGS
        if "clang" not in compiler_version(tuple(command)):
            flags += ("--param=tsan-instrument-func-entry-exit=0",)  # function calls are not reported
    libraries: list[str] = []
    if ziglang.is_zig(command):
        flags = tuple(ziglang.compile_flags(flags))
        libraries = ziglang.link_flags()
    emulator = build_emulator()

    def steps(text: Path, binary: Path) -> Iterator[list[str]]:
        kernel, machine = binary.with_suffix(".o"), binary.with_name(emulator.name)
        yield [*command, *flags, "-c", str(text), "-o", str(kernel)]
        machine.write_bytes(read_binary(emulator))  # a copy: the cached file may be evicted at any time
        yield [*command, *LINK_FLAGS, str(kernel), str(machine), *libraries, "-o", str(binary)]

    label = Label("emulated kernel", "races are looked for" if races else "")
    depends_on = words.read_text(encoding="utf-8"), emulator.name, *LINK_FLAGS, *libraries
    return build_cached(source, "the kernel source", flags, steps, *depends_on, label=label)
