"""Text that people read by its lines: source, and what compilers make of it - assembler, PTX, machine code of a GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vpps.errors import CompileError, KernelError
from vpps.kernel.diagnostics import numbered
from vpps.kernel.programs import environment, which
from vpps.targets import CPU, CUDA
from vpps.text import Report

CUDA_CPP = "cuda"
"""The language of kernels that are made for a model, as Pygments calls it."""
HOW_TO_GET_OBJDUMP = "install it (Debian/Ubuntu: apt-get install binutils; macOS: xcode-select --install)"
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Listing(Report):
    """Lines of a program.

    Attributes:
        what: it is: "source", "tails", "asm", "ptx", "sass".
        target: its name.
        arch: instruction set or architecture that it is for, "" of simt.
        language: for highlighting, as Pygments calls it: "cpp", "cuda", "gas", "ptx" ...
        source: the text; a part of it after `between`.
        first: number of its first line, as compile errors count.
    """

    what: str
    target: str
    arch: str
    language: str
    source: str
    first: int = 1

    @property
    def last(self) -> int:
        """Number of its last line."""
        return self.first + len(self.source.splitlines()) - 1

    def text(self) -> str:
        """The text itself: of a whole listing, what the compiler gets."""
        return self.source

    def numbered(self) -> str:
        """With the number of every line before it, as compile errors quote them."""
        return "\n".join([*numbered(enumerate(self.source.splitlines(), self.first)), ""])

    def between(self, first: int, last: int | None = None) -> Listing:
        """Some of the lines.

        Raises:
            KernelError: there are no such lines.
        """
        lines = self.source.splitlines()
        last = self.last if last is None else max(first, min(last, self.last))
        if not self.first <= first <= self.last:
            raise KernelError(f"there is no line {first}: the {self.what} has lines {self.first} to {self.last}")
        part = lines[first - self.first : last - self.first + 1]
        return replace(self, source="\n".join([*part, ""]), first=first)

    def as_json(self) -> dict[str, Any]:
        """What it is, and its lines."""
        kept = {name: getattr(self, name) for name in ("what", "target", "arch", "language", "first", "last")}
        return {**kept, "lines": self.source.splitlines()}


def asm(library: Path, isa: str, what: str = "asm") -> Listing:
    """A compiled library of the host, disassembled by objdump.

    Raises:
        CompileError: there is none.
    """
    for tool in ("objdump", "llvm-objdump"):
        if path := which(tool):
            text = _output([path, "--disassemble", "--demangle", "--no-show-raw-insn", str(library)], library)
            return Listing(what, CPU.name, isa, "objdump", text)
    raise CompileError(f"the kernel cannot be disassembled, there is no objdump: {HOW_TO_GET_OBJDUMP}")


def sass(cubin: Path, arch: str) -> Listing:
    """Machine code of a GPU, disassembled by nvdisasm. Raises CompileError if there is none."""
    from vpps.kernel.sass import HOW_TO_GET_IT, nvdisasm

    tool = nvdisasm()
    if tool is None:
        raise CompileError(f"the kernel cannot be disassembled, there is no nvdisasm: {HOW_TO_GET_IT}")
    return Listing("sass", CUDA.name, arch, "text", _output([str(tool), "--print-code", str(cubin)], cubin))


def ptx(source: str, arch: str) -> Listing:
    """What NVRTC makes of a kernel before it assembles that. Raises CompileError if there is no NVRTC."""
    from vpps.kernel.nvrtc import compile_ptx

    return Listing("ptx", CUDA.name, arch, "ptx", compile_ptx(source, arch))


def _output(command: Sequence[str], file: Path) -> str:
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS, env=environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{command[0]} failed: {error}") from error
    if run.returncode:
        raise CompileError(f"{command[0]} cannot read {file}: {run.stderr.strip()[:500]}")
    return run.stdout
