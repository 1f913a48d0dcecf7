"""Semantics of sm_90's memory instructions: constant, global and shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_cost.machine import BASE, THREADS, Machine, Mask, Step, UnknownInstruction
from gpu_cost.operands import Meaning, known

_PARTS = {"U8": np.uint32(0xFF), "U16": np.uint32(0xFFFF)}  # mask within a word


def _width(modifiers: list[str]) -> int:
    """Number of words that an access reads or writes."""
    if set(modifiers) & {"U8", "S8", "U16", "S16"}:
        raise UnknownInstruction("bytes")
    return next((int(w) // 32 for w in modifiers if w in ("64", "128")), 1)


def registers(m: Machine, text: str, count: int) -> list[str]:
    number = m.number(text)
    if number == 255:
        return ["RZ"] * count
    return [f"{'UR' if number > 255 else 'R'}{number % 256 + k}" for k in range(count)]


def _ldc(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count = _width(modifiers)
    puts = [m.put(r) for r in registers(m, operands[0], count)]
    text = operands[1]
    head, _, at = text.rstrip("]").rpartition("[")
    if at.startswith("0x"):
        gets = [m.words(f"{head}[{int(at, 16) + 4 * k:#x}]") for k in range(count)]
    else:
        base, _, offset = at.partition("+")
        gets = [m.words(f"{head}[{base}+{int(offset or '0', 16) + 4 * k:#x}]") for k in range(count)]

    def run(mask: Mask) -> None:
        found = [get() for get in gets]  # all reads precede the first write, which may overwrite the address
        for put, words in zip(puts, found, strict=True):
            put(words, mask)

    return run


def words_at(address: Any, mask: Mask, limit: int) -> Any:
    """Word indices; idle lanes get index 0."""
    index = address >> 2
    if mask is not True:
        index = np.where(mask, index, 0)
    if (index < 0).any() or (index >= limit).any():
        raise UnknownInstruction("an access outside of memory")
    return index


def _load(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count, address = _width(modifiers), m.address(operands[1], wide=True)
    puts = [m.put(r) for r in registers(m, operands[0], count)]

    def run(mask: Mask) -> Any:
        at = address() - BASE
        index = words_at(at, mask, len(m.memory) - count)
        for k, put in enumerate(puts):
            put(m.memory[index + k], mask)
        return m.sectors(at, mask, count, reads=True)

    return run


def _store(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count, address = _width(modifiers), m.address(operands[0], wide=True)
    gets = [m.words(r) for r in registers(m, operands[1], count)]

    def run(mask: Mask) -> Any:
        at = address() - BASE
        index = words_at(at, mask, len(m.memory) - count)
        for k, get in enumerate(gets):
            value = np.broadcast_to(get(), THREADS)
            m.memory[(index if mask is True else index[mask]) + k] = value if mask is True else value[mask]
        return m.sectors(at, mask, count, reads=False)

    return run


def _add(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "E", "ADD", "STRONG", "GPU", "F32", "FTZ", "RN")
    address, value = m.address(operands[0], wide=True), m.words(operands[1])
    memory = m.memory.view(np.float32) if "F32" in modifiers else m.memory

    def run(mask: Mask) -> Any:
        at = address() - BASE
        index = words_at(at, mask, len(m.memory))
        terms = np.broadcast_to(value(), THREADS).view(memory.dtype)
        chosen = slice(None) if mask is True else mask
        np.add.at(memory, index[chosen], terms[chosen])
        return m.sectors(at, mask, 1, reads=False)

    return run


def _lds(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    part = next((name for name in modifiers if name in _PARTS), "")
    count, address = _width([name for name in modifiers if name != part]), m.address(operands[1], wide=False)
    puts = [m.put(r) for r in registers(m, operands[0], count)]

    def run(mask: Mask) -> Any:
        at = address()
        index = words_at(at, mask, len(m.shared) - count + 1)
        if part:
            puts[0]((m.shared[index] >> (at % 4 * 8).astype(np.uint32)) & _PARTS[part], mask)
            return m.conflicts(at - at % 4, mask, count)
        for k, put in enumerate(puts):
            put(m.shared[index + k], mask)
        return m.conflicts(at, mask, count)

    return run


def _sts(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count, address = _width(modifiers), m.address(operands[0], wide=False)
    gets = [m.words(r) for r in registers(m, operands[1], count)]

    def run(mask: Mask) -> Any:
        at = address()
        index = words_at(at, mask, len(m.shared) - count + 1)
        for k, get in enumerate(gets):
            value = np.broadcast_to(get(), THREADS)
            m.shared[(index if mask is True else index[mask]) + k] = value if mask is True else value[mask]
        return m.conflicts(at, mask, count)

    return run


def _ldgsts(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count = _width(modifiers)
    to, source = m.address(operands[0], wide=False), m.address(operands[1], wide=True)
    through_l1 = "BYPASS" not in modifiers

    def run(mask: Mask) -> Any:
        at, target = source() - BASE, to()
        index = words_at(at, mask, len(m.memory) - count)
        place = words_at(target, mask, len(m.shared) - count + 1)
        chosen = slice(None) if mask is True else mask
        for k in range(count):
            m.shared[place[chosen] + k] = m.memory[index[chosen] + k]
        return m.sectors(at, mask, count, reads=through_l1)

    return run


ACCESSES: dict[str, Meaning] = {
    "LDC": _ldc,
    "LDG": _load,
    "LD": _load,
    "STG": _store,
    "ST": _store,
    "RED": _add,
    "REDG": _add,
    "LDS": _lds,
    "STS": _sts,
    "LDGSTS": _ldgsts,
}
