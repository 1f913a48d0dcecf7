"""Semantics of sm_90's instructions that read other lanes or special registers."""

from __future__ import annotations

import numpy as np

from gpu_cost.machine import LANES, THREADS, WARPS, Machine, Mask, Step, UnknownInstruction
from gpu_cost.operands import U64, Meaning, known, split

_SPECIAL = {"SR_TID.X": np.arange(THREADS), "SR_LANEID": np.arange(THREADS) % LANES, "SR_CgaCtaId": np.zeros(THREADS)}


def _shfl(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "BFLY", "IDX", "UP", "DOWN")
    put, a, by, clamp = m.put(operands[1]), *(m.words(t) for t in operands[2:5])
    inside, out = np.arange(THREADS) % LANES, m.put_predicate(operands[0])
    mode = modifiers[0]

    def run(mask: Mask) -> None:
        if not ((clamp() & np.uint32(0x1F1F)) == (0 if mode == "UP" else 0x1F)).all():
            raise UnknownInstruction("a shuffle within parts of a warp")
        b = by().astype(np.int64) & 31
        lane = {"BFLY": inside ^ b, "IDX": np.broadcast_to(b, THREADS), "UP": inside - b, "DOWN": inside + b}[mode]
        there = (lane >= 0) & (lane < LANES)
        source = np.where(there, lane, inside) + np.arange(THREADS) // LANES * LANES
        put(a()[source], mask)
        out(there, mask)

    return run


def _s2r(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    put = m.put(operands[0])
    value = np.full(THREADS, m.block) if operands[1] == "SR_CTAID.X" else _SPECIAL[operands[1]]
    return lambda mask: put(value, mask)


def _cs2r(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "32")
    if operands[1] not in ("SRZ", "SR_GLOBALTIMERLO", "SR_CLOCKLO"):  # clocks always read 0
        raise UnknownInstruction(operands[1])
    put = m.put(operands[0]) if modifiers else m.put_pair(operands[0])
    return lambda mask: put(np.zeros(THREADS, U64), mask)


def _r2ur(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    put, a = m.put(operands[0]), m.words(operands[-1])

    def run(mask: Mask) -> None:
        value = a().reshape(WARPS, LANES)
        first = np.zeros(WARPS, int) if mask is True else mask.reshape(WARPS, LANES).argmax(axis=1)
        put(np.repeat(value[np.arange(WARPS), first], LANES), mask)

    return run


def _vote(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "ANY", "ALL")
    target, outs, rest = split(operands)
    if target.startswith(("P", "UP")):
        outs, target = [target], "RZ"
        rest = list(operands[1:])
    source, put, write = m.predicate(rest[-1]), m.put(target), [m.put_predicate(o) for o in outs[:1]]

    def run(mask: Mask) -> None:
        votes = (source() & mask).reshape(WARPS, LANES)
        asked = np.broadcast_to(np.asarray(mask), THREADS).reshape(WARPS, LANES)
        ballot = (votes.astype(U64) << np.arange(LANES, dtype=U64)).sum(axis=1)
        put(np.repeat(ballot, LANES), mask)
        met = votes.any(axis=1) if "ANY" in modifiers else (votes | ~asked).all(axis=1)
        for w in write:
            w(np.repeat(met, LANES), mask)

    return run


LANES_AND_REGISTERS: dict[str, Meaning] = {
    "SHFL": _shfl,
    "S2R": _s2r,
    "S2UR": _s2r,
    "CS2R": _cs2r,
    "R2UR": _r2ur,
    "VOTE": _vote,
    "VOTEU": _vote,
}
