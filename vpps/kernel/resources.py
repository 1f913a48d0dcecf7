"""Resource usage of a compiled CUDA kernel: registers, stack, spills, shared memory, code.

The code size comes from the cubin, an ELF file. Everything else is in the report that ptxas writes with option -v.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vpps.errors import CompileError, SpillError


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one kernel, for one architecture.

    Attributes:
        registers: 32-bit registers per thread.
        stack: bytes of local memory per thread, including called functions; arrays indexed at run time are there.
        spill_stores: bytes that spills store to the stack.
        spill_loads: bytes that spills load back.
        shared_bytes: static shared memory per block; a launch adds dynamic shared memory.
        code_bytes: bytes of machine code, including called functions.
        cached_registers: registers per thread that the renderer gives to weights or gradients.
        compile_seconds: wall time of the compiler, without loading it.
        compiler: name and version that the compiler reports, such as "NVRTC 13.0".
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    code_bytes: int
    cached_registers: int
    compile_seconds: float
    compiler: str


_EXECUTABLE = 0x4  # SHF_EXECINSTR
_USED = re.compile(r"Used (\d+) registers.*")
_STACK = re.compile(r"(\d+) bytes (?:stack frame|cumulative stack size)")  # first without, then with called functions
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class Kernel(NamedTuple):
    """A compiled kernel.

    Attributes:
        source: its text.
        binary: path of the cubin, or of a library for the emulator.
        shared_bytes: dynamic shared memory of a block.
        resources: registers, code size, ...; None for a library.
    """

    source: str
    binary: Path
    shared_bytes: int
    resources: Resources | None = None


def resources_of(
    image: bytes, name: str, report: str, cached_registers: int, compile_seconds: float, compiler: str
) -> Resources:
    """Resources of a kernel, from its cubin.

    Args:
        name: name of the kernel, an `extern "C"` function.
        report: output of ptxas with option -v.

    Raises:
        CompileError: the cubin has no such kernel, or the format of the cubin or report is unknown.
    """
    try:
        sections = list(_sections(image))
    except (struct.error, ValueError, LookupError) as error:
        raise CompileError(
            f"the compiler's cubin is not of a form that vpps knows ({error!r}): please report this"
        ) from error
    kernels = [section.removeprefix(".text.") for section, _, _ in sections if section.startswith(".text.")]
    if name not in kernels:
        raise CompileError(
            f'the kernel source defines no extern "C" __global__ function {name}; '
            f"what it defines: {', '.join(kernels) or 'none'}"
        )
    spills = [(int(stores), int(loads)) for stores, loads in _SPILLS.findall(report)]
    used = _USED.search(report, max(report.find(f"Compiling entry function '{name}'"), 0))
    if not spills or used is None:
        raise CompileError(f"the compiler's report says nothing of registers: please report this\n{report[:2000]}")
    shared = _SHARED.search(used[0])
    return Resources(
        registers=int(used[1]),
        stack=max(map(int, _STACK.findall(report)), default=0),
        spill_stores=sum(stores for stores, _ in spills),
        spill_loads=sum(loads for _, loads in spills),
        shared_bytes=int(shared[1]) if shared else 0,
        code_bytes=sum(size for _, flags, size in sections if flags & _EXECUTABLE),
        cached_registers=cached_registers,
        compile_seconds=compile_seconds,
        compiler=compiler,
    )


def check_resources(resources: Resources) -> None:
    """Reject a kernel that does not keep its weights in registers.

    Raises:
        SpillError: the kernel spills or has a stack; the message names remedies.
    """
    found = []
    if resources.spill_stores or resources.spill_loads:
        found.append(f"spills {resources.spill_stores} bytes and loads {resources.spill_loads} bytes of spills")
    if resources.stack:
        found.append(f"puts {resources.stack} bytes per thread on the stack")
    if found:
        raise SpillError(
            f"the kernel {', '.join(found)}: {resources.cached_registers} cached registers do not stay in the "
            f"{resources.registers} registers of a thread; lower rows per warp or vertices per tile, "
            "or use one block per SM"
        )


def _sections(image: bytes) -> Iterator[tuple[str, int, int]]:
    """Sections of a 64-bit ELF file as (name, flags, size) (System V ABI, chapter 4: ELF header, section header)."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", image, table + i * entry_size) for i in range(count)]
    for name, _, flags, _, _, size, _, _ in headers:
        start = headers[names][4] + name
        yield image[start : image.index(b"\0", start)].decode(), flags, size
