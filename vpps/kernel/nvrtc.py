"""Compiles CUDA source to a cubin with NVRTC from PyPI. It needs no toolkit, driver or GPU.

It compiles to a cubin, not PTX: PTX is compiled by the driver, whose version is untested. The source includes no
headers: <cuda/atomic> and cooperative groups cost 0.6 to 1.5 s of compile time each.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from vpps.errors import CompileError
from vpps.kernel.cache import BinaryRequest, Label, key_of, obtain
from vpps.kernel.diagnostics import quoted
from vpps.kernel.libnvrtc import Form, library
from vpps.kernel.resources import Resources, resources_of

# -fmad=false: fused multiply-adds are explicit in the templates. The cpu and simt targets are also compiled without
# contraction, so all targets give the same bits if sums have the same order. Never use --use_fast_math (it flushes
# denormals), -G (arrays go to local memory) or --Ofast-compile (arrays go to local memory, and later compilations in
# the process change).
# --device-as-default-execution-space: NVRTC 13.0 rejects a generic lambda because it takes it for a host function.
# Other versions generate the same code with this option and without it.
OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space", "--ptxas-options=-v")

LINES = "--generate-line-info"  # source lines of instructions, for listings; the instructions stay the same

KERNEL = "vpps_kernel"
"""Name of the kernel, an `extern "C"` function."""

_ARCH = re.compile(r"sm_(\d+)[af]?")
_COMPLAINT = re.compile(r"^\S+\((\d+)\): (?:catastrophic |fatal |internal )?(error|warning)\b[^:]*: (.*)$")


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel, in the cache.

    Attributes:
        path: path of the cubin, which the driver loads.
        source: path of its CUDA source.
        resources: its resource usage.
        warnings: compiler warnings, "line N: ...".
    """

    path: Path
    source: Path
    resources: Resources
    warnings: tuple[str, ...]


def supported_archs() -> tuple[str, ...]:
    """Architectures of the installed NVRTC, oldest first: ("sm_75", ...). Raises CompileError if there is no NVRTC."""
    return tuple(f"sm_{arch}" for arch in library().archs())


def check_arch(arch: str) -> None:
    """Raise CompileError if there is no NVRTC or it does not compile for this architecture."""
    known = supported_archs()
    base = arch.rstrip("af")
    if base in known:
        return
    number, oldest = int(base[3:]), int(known[0][3:])
    if number < 70:
        remedy = "vpps needs sm_70 or newer"
    elif number < oldest:
        remedy = f"{base} needs the 12.x line: pip install 'vpps[cuda12]' in an environment without cuda13's packages"
    else:
        remedy = "a newer one may: pip install --upgrade nvidia-cuda-nvrtc"
    raise CompileError(f"{compiler_version()} does not compile for {arch} (it does for {', '.join(known)}): {remedy}")


def compile_cubin(source: str, arch: str, cached_registers: int = 0, lines: bool = False) -> Cubin:
    """Compile a kernel, unless the cache has it (a few ms, and 6 ms once for NVRTC's version).

    Args:
        source: CUDA C++ that includes no headers.
        arch: "sm_75", "sm_90", "sm_90a" ...
        cached_registers: registers per thread for weights or gradients; stored in `resources`.
        lines: also store the source line of every instruction, for listings. The cache keeps such a cubin separately.

    Raises:
        CompileError: there is no NVRTC, it does not know the architecture, it rejects the source (the message shows its
            first diagnostics with the source lines around them), or no cache directory can be used.
    """
    options = _options_for(arch, "sm_", lines)
    known = ",".join(f.name for f in fields(Resources))  # fields stored with the cubin
    key = key_of("nvrtc", source, shlex.join(options), library().identity, known)

    def build(text: Path, binary: Path) -> dict[str, Any]:
        image, log, seconds = _compile(source, options, arch)
        resources = resources_of(image, KERNEL, log, cached_registers, seconds, compiler_version())
        binary.write_bytes(image)
        warnings = [f"line {line}: {message}" for line, kind, message in _paragraphs(log) if kind == "warning"]
        return {"resources": asdict(resources), "warnings": warnings}

    made_for = f"{arch}, {cached_registers} registers of weights" if cached_registers else arch
    entry = obtain(BinaryRequest(key, ".cubin", source, build, ".cu", Label("cubin", made_for, compiler_version())))
    facts = entry.facts
    resources = replace(Resources(**facts["resources"]), cached_registers=cached_registers)
    return Cubin(entry.binary, entry.binary.with_suffix(".cu"), resources, tuple(facts["warnings"]))


def compile_ptx(source: str, arch: str) -> str:
    """PTX of a kernel with source lines, for readers; the GPU runs the cubin. Compiled at each call. Raises the errors
    of `compile_cubin`."""
    text, _, _ = _compile(source, _options_for(arch, "compute_", lines=True), arch, "PTX")
    return text.rstrip(b"\0").decode()


def _options_for(arch: str, prefix: str, lines: bool) -> tuple[str, ...]:
    if not _ARCH.fullmatch(arch):
        raise CompileError(f"{arch!r} is no architecture: expected sm_ and digits, such as sm_90")
    return f"--gpu-architecture={arch.replace('sm_', prefix)}", *OPTIONS, *([LINES] if lines else ())


def compiler_version() -> str:
    """Name and version that NVRTC reports: "NVRTC 13.0". Raises CompileError if there is no NVRTC."""
    return f"NVRTC {library_version()}"


def library_version() -> str:
    """Version that NVRTC reports: "13.0". Raises CompileError if there is no NVRTC."""
    return library().version


def _compile(source: str, options: tuple[str, ...], arch: str, form: Form = "CUBIN") -> tuple[bytes, str, float]:
    """Compile; return code, log and seconds."""
    nvrtc = library()
    check_arch(arch)
    start = time.perf_counter()
    done = nvrtc.compile(source, f"{KERNEL}.cu", options, form)
    if done.error:
        errors = [(line, message) for line, kind, message in _paragraphs(done.log) if kind == "error"]
        told = quoted(errors, source) if errors else done.log[:2000]
        raise CompileError(f"{compiler_version()} rejected the kernel source ({done.error}):\n{told}")
    return done.image, done.log, time.perf_counter() - start


def _paragraphs(log: str) -> list[tuple[int, str, str]]:
    """Diagnostics as (line, "error" or "warning", message), without the compiler's echo of the source line."""
    found = []
    for paragraph in log.split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        match = _COMPLAINT.match(lines[0]) if lines else None
        if match is None:
            continue
        carets = [i for i, line in enumerate(lines) if line.strip() == "^"]
        echo = {i - 1 for i in carets} | set(carets)
        rest = [line for i, line in enumerate(lines) if i not in echo]
        found.append((int(match[1]), match[2], "\n".join([match[3], *rest[1:]])))
    return found
