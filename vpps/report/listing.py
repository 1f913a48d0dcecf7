"""Disassembles compiled kernels: assembly code of the host, PTX and machine code of a GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from vpps.errors import CompileError
from vpps.kernel.programs import environment, in_packages, which
from vpps.text import Text

HOW_TO_GET_OBJDUMP = "install it (Debian/Ubuntu: apt-get install binutils; macOS: xcode-select --install)"
_SECONDS = 300


def asm(library: Path) -> Text:
    """Disassemble a compiled library of the host with objdump. Raises CompileError if objdump is missing."""
    for tool in ("objdump", "llvm-objdump"):
        if path := which(tool):
            return _output([path, "--disassemble", "--demangle", "--no-show-raw-insn", str(library)], library)
    raise CompileError(f"the kernel cannot be disassembled, there is no objdump: {HOW_TO_GET_OBJDUMP}")


def nvdisasm() -> Path | None:
    """Find NVIDIA's disassembler in the wheel, else on PATH. Return None if there is none."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    tools = (Path(str(file.locate())) for file in files)
    if path := in_packages(path for path in tools if path.stem == "nvdisasm" and path.parent.name == "bin"):
        return path
    found = which("nvdisasm")
    return Path(found) if found else None


def sass(cubin: Path) -> Text:
    """Disassemble the machine code of a GPU with nvdisasm, with the source lines that the cubin has.

    Raises:
        CompileError: nvdisasm is missing.
    """
    tool = nvdisasm()
    if tool is None:
        raise CompileError("the kernel cannot be disassembled, there is no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return _output([str(tool), "--print-code", "--print-line-info", str(cubin)], cubin)


def ptx(source: str, arch: str) -> Text:
    """Compile a kernel to PTX with NVRTC. Raises CompileError if NVRTC is missing."""
    from vpps.kernel.nvrtc import compile_ptx

    return Text(compile_ptx(source, arch))


def cubin_with_lines(source: str, arch: str, cached_registers: int) -> Path:
    """Compile a kernel for `sass`, with source lines, and return its path. Raises CompileError if NVRTC is missing."""
    from vpps.kernel.nvrtc import compile_cubin

    return compile_cubin(source, arch, cached_registers, lines=True).path


def _output(command: Sequence[str], file: Path) -> Text:
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_SECONDS, env=environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{command[0]} failed: {error}") from error
    if run.returncode:
        raise CompileError(f"{command[0]} cannot read {file}: {run.stderr.strip()[:500]}")
    return Text(run.stdout)
