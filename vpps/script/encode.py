"""Encodes instructions. Words may still depend on where a step begins: templates are filled in for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.script.instructions import HEAD_WORDS, INDEXED, NO_FLAGS, OFFSET_MASK, SCALAR, Flag, Kind, instruction_of
from vpps.values import float_word


@dataclass(frozen=True, slots=True)
class Word:
    """A word that a plan completes: `constant + base + per_row * first_row + per_count * rows`.

    Attributes:
        constant: the part that is known when the cell is lowered.
        base: index into the block's table of bases (slabs, then lists, operands and constants), or -1.
        per_row: multiplies the step's first row.
        per_count: multiplies the step's number of rows.
    """

    constant: int
    base: int = -1
    per_row: int = 0
    per_count: int = 0


AnyWord = int | Word
# (address or list position, stride or offset, indexed, scalar)
OperandWords = tuple[AnyWord, AnyWord]

ROWS_OF_STEP = Word(0, per_count=1)


def direct(address: AnyWord, stride: int, scalar: bool = False) -> OperandWords:
    """Return the words of an operand whose row r starts at `address + r * stride`."""
    assert 0 <= stride <= OFFSET_MASK
    return address, stride | (SCALAR if scalar else 0)


def indexed(position: AnyWord, offset: int, scalar: bool = False) -> OperandWords:
    """Return the words of an operand whose row r starts at `script[position + r] + offset`."""
    assert 0 <= offset <= OFFSET_MASK
    return position, INDEXED | offset | (SCALAR if scalar else 0)


def placed(base: int, scalar: bool = False) -> OperandWords:
    """Return the words of an operand that a plan makes `direct` or `indexed`: bases `base` and `base + 1`."""
    return Word(0, base), Word(SCALAR if scalar else 0, base + 1)


def encode(
    name: str, n: AnyWord, width: int, parts: int = 1, flags: Flag = NO_FLAGS, /, **fields: Any
) -> list[AnyWord]:
    """Return the words of one instruction.

    Args:
        n: number of rows.
        width: floats per row of the result.
        fields: values by their names in the instruction table; operands from `direct` and `indexed`, segments as a list
            of (operand, width), views as a list of (operand, use).
    """
    instruction = instruction_of(name, fields)
    body: list[AnyWord] = []
    for field in instruction.fields:
        value = fields.pop(field.name)
        if field.kind is Kind.OPERAND:
            body.extend(value)
        elif field.kind is Kind.FLOAT:
            body.append(value if isinstance(value, Word) else float_word(value))
        elif field.kind.repeated:
            for operand, word in value:
                body.extend((*operand, word))
        else:
            body.append(value)
    assert not fields, f"{name} has no fields {sorted(fields)}"
    return [instruction.opcode | int(flags) << 16, HEAD_WORDS + len(body), n, width, parts, *body]


class Template:
    """Instructions of a cell that run between two barriers, encoded for any step; compiled code fills them in."""

    def __init__(self, words: Sequence[AnyWord], domains: Sequence[int]) -> None:
        """`domains[i]` is the domain (vertices, or elements of a list) whose rows determine word i."""
        full = [w if isinstance(w, Word) else Word(w) for w in words]
        self.constant = np.array([w.constant for w in full], np.int64)
        self.base = np.array([w.base for w in full], np.int64)
        self.per_row = np.array([w.per_row for w in full], np.int64)
        self.per_count = np.array([w.per_count for w in full], np.int64)
        self.domain = np.array(domains, np.int64)

    def __len__(self) -> int:
        return len(self.constant)


def plain(words: Sequence[AnyWord]) -> NDArray[np.uint32]:
    """Return words without relocations as an array."""
    return np.array(words, np.uint32)


def signal(counter: int = 0) -> NDArray[np.uint32]:
    """Return a signal for a barrier, on its counter."""
    return plain(encode("signal", 0, 0, counter=counter))


def wait(counter: int = 0, target: int = 0) -> NDArray[np.uint32]:
    """Return a wait for `target` signals, which is its last word."""
    return plain(encode("wait", 0, 0, counter=counter, target=target))


def barrier(counter: int = 0, target: int = 0) -> NDArray[np.uint32]:
    """Return a signal and a wait in one instruction; the last word is the target of the wait."""
    return plain(encode("barrier", 0, 0, counter=counter, target=target))
