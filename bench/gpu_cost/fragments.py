"""Semantics of sm_80's and sm_90's instructions on fragments: matrices whose elements are divided among the lanes.

Layouts are those of the PTX ISA (chapters on `mma`, `movmatrix` and `ldmatrix`). A register holds one TF32 element, or
two adjacent BF16 elements, the first in the lower half. One simplification: sums of products are exact and rounded
once, but tensor cores keep only a few more bits than a float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_cost.accesses import registers, words_at
from gpu_cost.machine import LANES, THREADS, WARPS, Lanes, Machine, Mask, Step, UnknownInstruction, of_warps
from gpu_cost.operands import Meaning, known

ROWS, COLUMNS, GROUP = 16, 8, 4  # shape of the sums; number of adjacent lanes that share a row of A or a column of B
_DEPTHS = {("16816", "BF16"): 16, ("1688", "BF16"): 8, ("1688", "TF32"): 8, ("1684", "TF32"): 4}  # m16n8k...
_KEPT = {"BF16": np.uint32(0xFFFF0000), "TF32": np.uint32(0xFFFFE000)}  # an element's bits in the upper part of a word


def _whole(mask: Mask) -> None:
    if mask is not True and not (of_warps(mask) == mask).all():
        raise UnknownInstruction("by a part of a warp")


def _fragment(m: Machine, text: str, count: int) -> Lanes:
    """Consecutive registers, as an array (count, WARPS, LANES)."""
    number = m.number(text)
    rows = np.zeros((count, THREADS), np.uint32) if number == 255 else m.r[number : number + count]
    return rows.reshape(count, WARPS, LANES)


def _hmma(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    shape, element = modifiers[0], modifiers[-1]
    known(modifiers, shape, "F32", element)
    depth, kept, packed = _DEPTHS[shape, element], _KEPT[element], 2 if element == "BF16" else 1
    row, column, k = np.arange(ROWS)[:, None], np.arange(COLUMNS), np.arange(depth)
    word, half = k // packed, k % packed  # along the summed dimension: word and part of it
    shift = (16 * (packed - 1 - half)).astype(np.uint32)
    a = _fragment(m, operands[1], depth // (2 * packed))
    b = _fragment(m, operands[2], depth // (GROUP * packed))
    c = _fragment(m, operands[3], 4).view(np.float32)
    puts = [m.put(r) for r in registers(m, operands[0], 4)]
    of_a = row // 8 + 2 * (word // GROUP), GROUP * (row % 8) + word % GROUP
    of_b = (word // GROUP)[:, None], GROUP * column + (word % GROUP)[:, None]
    register, lane = np.arange(4)[:, None], np.arange(LANES)
    of_c = lane // GROUP + 8 * (register // 2), 2 * (lane % GROUP) + register % 2

    def elements(fragment: Lanes, at: tuple[Lanes, Lanes], shift: Lanes) -> Any:
        words = np.moveaxis(fragment[at[0], :, at[1]], 2, 0)
        return (words << shift & kept).view(np.float32).astype(np.float64)

    def run(mask: Mask) -> None:
        _whole(mask)
        products = elements(a, of_a, shift) @ elements(b, of_b, shift[:, None])
        sums = products[:, of_c[0], of_c[1]].swapaxes(0, 1) + c
        for put, value in zip(puts, sums.astype(np.float32).view(np.uint32).reshape(4, THREADS), strict=True):
            put(value, mask)

    return run


def _transposed(words: Lanes) -> Lanes:
    """Transpose 8x8 elements of 16 bits in each warp; `words` has one word per lane."""
    elements = np.ascontiguousarray(words).view(np.uint16).reshape(WARPS, 8, 8)
    return np.ascontiguousarray(elements.swapaxes(1, 2)).view(np.uint32).reshape(THREADS)


def _movm(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "16", "MT88")
    put, a = m.put(operands[0]), m.words(operands[1])

    def run(mask: Mask) -> None:
        _whole(mask)
        put(_transposed(a()), mask)

    return run


def _ldsm(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "16", "M88", "MT88", "2", "4")
    count = next((int(name) for name in modifiers if name in ("2", "4")), 1)
    puts, address = [m.put(r) for r in registers(m, operands[0], count)], m.address(operands[1], wide=False)
    asked = np.arange(THREADS) % LANES < 8 * count  # lanes that give the address of a 16-byte row

    def run(mask: Mask) -> Any:
        _whole(mask)
        at = address()
        rows = words_at(at, mask & asked, len(m.shared) - 3).reshape(WARPS, LANES)
        for k, put in enumerate(puts):
            words = m.shared[rows[:, 8 * k : 8 * k + 8, None] + np.arange(4)].reshape(THREADS)
            put(_transposed(words) if "MT88" in modifiers else words, mask)
        return m.conflicts(at, mask & asked, 4)

    return run


FRAGMENTS: dict[str, Meaning] = {"HMMA": _hmma, "MOVM": _movm, "LDSM": _ldsm}
