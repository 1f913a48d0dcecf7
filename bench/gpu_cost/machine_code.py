"""Parses a kernel's machine code from `nvdisasm -hex -gi`: instructions, control bits, source lines."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vpps.errors import CompileError
from vpps.kernel import nvrtc
from vpps.report.listing import nvdisasm

_INSTRUCTION = re.compile(r"\s+/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<text>[^;]*);\s+/\* 0x(?P<low>[0-9a-f]{16}) \*/")
_HIGH = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
_FROM = re.compile(r'\s*//## File "[^"]*", line (\d+)')
_LABEL = re.compile(r"([.$\w]+):$")
_BANK = re.compile(r"\.nv\.constant(\d)")
_BYTES = re.compile(r"\s+/\*[0-9a-f]+\*/\s+\.byte\s+(.*)")
_ZEROS = re.compile(r"\s+\.zero\s+(\d+)")
_TEXT = re.compile(r"(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>\S+)\s*(?P<operands>.*)")
_FUNCTION = re.compile(r"(?:^|\s)(?:VP_DEVICE|VP_ROUTINE|VP_GLOBAL|__device__)\s.*?([A-Za-z_]\w*)\s*\(")
_STRUCT = re.compile(r"^(?:template <.*> )?struct (\w+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """A machine instruction.

    Attributes:
        at: byte offset in the kernel.
        guard: "P0", "!UP3", or "" if it is always executed.
        opcode: opcode with modifiers.
        operands: operands as printed, with offsets instead of labels.
        stall: minimum cycles until the warp's next instruction.
        written, read: scoreboards (0-5), released when its result is ready and when its operands are read; 7: none.
        waits: scoreboards that it waits for, one bit each.
        lines: source lines, innermost first: the code's own line, then the calls through which it was inlined.
    """

    at: int
    guard: str
    opcode: str
    operands: tuple[str, ...]
    stall: int
    written: int
    read: int
    waits: int
    lines: tuple[int, ...]

    @property
    def family(self) -> str:
        """Opcode without modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Code:
    """Machine code of a kernel.

    Attributes:
        instructions: instructions by address, 16 bytes each.
        constants: words of each constant bank except the parameter bank.
        functions: for each source line, the name of its function; index 0 is not a line.
        source: source lines.
        registers: registers per thread.
    """

    instructions: list[Instruction]
    constants: dict[int, NDArray[np.uint32]]
    functions: list[str]
    source: list[str]
    registers: int

    def places(self, pc: int) -> list[str]:
        """Functions that contain an instruction, innermost first, without repetitions."""
        return list(dict.fromkeys(self.functions[line] for line in self.instructions[pc].lines))


def code_of(source: str, arch: str, folder: Path, registers: int) -> Code:
    """Compile a kernel again with line numbers, which do not change the code itself.

    Args:
        folder: folder for the cubin, which nvdisasm reads from a file.

    Raises:
        CompileError: there is no compiler or no nvdisasm, or nvdisasm's listing has an unknown format.
    """
    tool = nvdisasm()
    if tool is None:
        raise CompileError("there is no nvdisasm: pip install nvidia-cuda-nvdisasm")
    image, _, _ = nvrtc._compile(source, (f"--gpu-architecture={arch}", *nvrtc.OPTIONS, "-lineinfo"), arch)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(image)
    listing = subprocess.run([str(tool), "-hex", "-gi", str(cubin)], capture_output=True, text=True, check=False)
    if listing.returncode:
        raise CompileError(f"{tool}: {listing.stderr.strip()[:500]}")
    return parse(listing.stdout, source, registers)


def parse(listing: str, source: str, registers: int) -> Code:
    """Parse a listing from nvdisasm."""
    raw: list[tuple[int, str, int, tuple[int, ...]]] = []
    labels: dict[str, int] = {}
    banks: dict[int, bytearray] = {}
    lines: list[int] = []
    fresh = True  # True if the next line number starts a new chain
    section, pending = "", None
    for line in listing.splitlines():
        if line.startswith("//----"):
            section = line.strip("/- ")
        elif section.startswith(".text"):
            if pending is not None and (high := _HIGH.match(line)):
                raw.append((*pending, int(high[1], 16), tuple(lines)))
                pending, fresh = None, True
            elif found := _INSTRUCTION.match(line):
                pending = int(found["at"], 16), found["text"]
            elif found := _FROM.match(line):
                lines = [int(found[1])] if fresh else [*lines, int(found[1])]
                fresh = False
            elif found := _LABEL.match(line):
                labels[found[1]] = 16 * len(raw)
        elif bank := _BANK.match(section):
            held = banks.setdefault(int(bank[1]), bytearray())
            if found := _BYTES.match(line):
                held.extend(int(byte, 16) for byte in found[1].split(","))
            elif found := _ZEROS.match(line):
                held.extend(bytes(int(found[1])))
    if not raw:
        raise CompileError(f"nvdisasm's listing is not of a form that is known here:\n{listing[:500]}")
    instructions = [_instruction(*each, labels) for each in raw]
    if any(i.at != 16 * k for k, i in enumerate(instructions)):
        raise CompileError("nvdisasm shows a kernel whose instructions do not lie one behind the other")
    text = source.splitlines()
    constants = {bank: np.frombuffer(bytes(found), np.uint32) for bank, found in banks.items()}
    return Code(instructions, constants, functions_of(text), text, registers)


def _instruction(at: int, text: str, high: int, lines: tuple[int, ...], labels: dict[str, int]) -> Instruction:
    found = _TEXT.fullmatch(" ".join(re.sub(r"\(\*.*\*\)", "", text).split()))
    if found is None:
        raise CompileError(f"nvdisasm printed an instruction that cannot be read: {text}")
    named = re.sub(r"`\(([^)]+)\)", lambda m: hex(labels[m[1]]) if m[1] in labels else m[1], found["operands"])
    operands = tuple(part.strip().replace(".reuse", "") for part in named.split(",")) if named else ()
    bits = high >> 41
    return Instruction(
        at, found["guard"] or "", found["opcode"], operands,
        bits & 15, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63, tuple(dict.fromkeys(lines)),
    )  # fmt: skip


def functions_of(source: list[str]) -> list[str]:
    """Name of the function that each line (from 1) belongs to; a member's name includes its struct."""
    names, struct, function = [""], "", ""
    for line in source:
        if found := _STRUCT.match(line):
            struct = found[1] + "::"
        elif line.startswith(("VP_", "__device__", "template", "enum", "#")):
            struct = ""
        if found := _FUNCTION.search(re.sub(r"__launch_bounds__\([^)]*\)|//.*", "", line)):
            function = struct + found[1]
        names.append(function)
        if line.startswith("}"):
            function = struct = ""
    return names
