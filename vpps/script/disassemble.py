"""Decodes scripts into instructions, for the verifier, and formats instructions as lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpps.errors import ScriptError
from vpps.script.instructions import (
    HEAD_WORDS,
    HEADER_WORDS,
    INDEXED,
    MAGIC,
    OFFSET_MASK,
    SCALAR,
    TABLE,
    Flag,
    Instruction,
    Kind,
)
from vpps.script.tails import ViewUse

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class DecodedOperand:
    """Decoded operand; see `instructions.py`."""

    address: int
    mode: int

    @property
    def indexed(self) -> bool:
        return bool(self.mode & INDEXED)

    @property
    def scalar(self) -> bool:
        return bool(self.mode & SCALAR)

    @property
    def stride(self) -> int:
        """Stride between rows, or the offset within an indexed row."""
        return self.mode & OFFSET_MASK

    def __str__(self) -> str:
        each = " scalar" if self.scalar else ""
        if self.indexed:
            return f"[list {self.address}" + (f" + {self.stride}" if self.stride else "") + f"{each}]"
        return f"[{self.address}" + (f" step {self.stride}" if self.stride else "") + f"{each}]"


@dataclass(frozen=True, slots=True)
class Decoded:
    """One instruction of a script.

    Attributes:
        position: position of its first word.
        words: number of words.
        bits: the flags as a plain int.
        fields: values by name: operands, ints, floats, or lists of (operand, width) or (operand, use).
    """

    position: int
    instruction: Instruction
    words: int
    bits: int
    n: int
    width: int
    parts: int
    fields: dict[str, object]

    @property
    def flags(self) -> Flag:
        """The flags as `Flag`."""
        return Flag(self.bits)


def decode(script: Words, position: int) -> Decoded:
    """Decode the instruction at a position. Raises ScriptError if there is none."""
    if not 0 <= position <= len(script) - HEAD_WORDS:
        raise ScriptError(f"position {position} lies outside the script of {len(script)} words")
    first, words, n, width, parts = script[position : position + HEAD_WORDS].tolist()
    opcode = first & 0xFFFF
    if opcode >= len(TABLE):
        raise ScriptError(f"word {position}: there is no opcode {opcode}")
    instruction = TABLE[opcode]
    end = position + words
    if words < instruction.fixed_words or end > len(script):
        raise ScriptError(f"word {position}: {instruction.name} of {words} words does not fit")
    found, at = script[position:end].tolist(), HEAD_WORDS
    fields: dict[str, object] = {}
    for f in instruction.fields:
        if f.kind is Kind.OPERAND:
            fields[f.name] = DecodedOperand(found[at], found[at + 1])
        elif f.kind is Kind.FLOAT:
            fields[f.name] = float(script[position + at : end].view(np.float32)[0])
        elif f.kind.repeated:
            if (words - at) % 3:
                raise ScriptError(
                    f"word {position}: {instruction.name} of {words} words ends within one of its {f.name}"
                )
            fields[f.name] = [(DecodedOperand(*found[i : i + 2]), found[i + 2]) for i in range(at, words, 3)]
            at = words
            continue
        else:
            fields[f.name] = found[at]
        at += f.kind.words
    if at != words:
        raise ScriptError(f"word {position}: {instruction.name} has {words} words, but its fields take {at}")
    return Decoded(position, instruction, words, first >> 16, n, width, parts, fields)


def entry_points(script: Words) -> list[int]:
    """Return the entry point of each virtual processor. Raises ScriptError if the words are not a script."""
    if len(script) < HEADER_WORDS or script[0] != MAGIC or script[3] != len(script):
        raise ScriptError("these words are not a script: wrong magic number or length")
    n_vps = int(script[1])
    return [int(e) for e in script[HEADER_WORDS : HEADER_WORDS + n_vps]]


def entered_at(script: Words, entries: int) -> Words:
    """Return a copy of a script whose entry points are replaced by those stored in the script at position `entries`."""
    n_vps = int(script[1])
    words = script.copy()
    words[HEADER_WORDS : HEADER_WORDS + n_vps] = script[entries : entries + n_vps]
    return words


def instructions(script: Words, entry: int) -> Iterator[Decoded]:
    """Yield the instructions of a virtual processor, `end` included."""
    position = entry
    while True:
        decoded = decode(script, position)
        yield decoded
        if decoded.instruction.name == "end":
            return
        position += decoded.words


def line_of(d: Decoded, where: str = "") -> str:
    """Format an instruction as a line; `where` names it in the user's terms."""
    flags = "".join(f".{name.lower()}" for name, f in Flag.__members__.items() if d.flags & f)
    fields = ", ".join(f"{f.name}={_text(d.fields[f.name], f.kind)}" for f in d.instruction.fields)
    shape = f"{d.n} x {d.width}" + (f" in {d.parts} parts" if d.parts > 1 else "") if d.width else ""
    text = f"{d.position:8d}  {d.instruction.name + flags:28s} {shape:18s} {fields}".rstrip()
    return f"{text}  ; {where}" if where else text


def _text(value: object, kind: Kind) -> str:
    if isinstance(value, list):
        shown = _view if kind is Kind.VIEWS else "{}:{}".format
        return "(" + " ".join(shown(x, word) for x, word in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _view(x: DecodedOperand, use: int) -> str:
    """Format a view of a tail."""
    if use in (ViewUse.SUM, ViewUse.MEAN):
        return f"{ViewUse(use).name.lower()} of lists {x.address}" + (f" + {x.mode}" if x.mode else "")
    if use == ViewUse.RESULT:
        return f"result {x.address}"
    if use == ViewUse.CONSTANT:
        return f"{np.uint32(x.address).view(np.float32):g}"
    return f"{'to ' if use == ViewUse.WRITE else ''}{x}"
