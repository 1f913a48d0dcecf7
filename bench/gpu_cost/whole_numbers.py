"""Semantics of sm_90's instructions on integers, bits and predicates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from gpu_cost.machine import THREADS, Machine, Mask, Step, UnknownInstruction
from gpu_cost.operands import COMPARE, JOIN, U64, Meaning, known, split, u64


def _term(m: Machine, text: str) -> Callable[[], Any]:
    """An addition's operand as 64 bits; -x becomes ~x + 1, with its carry."""
    if text.startswith("-") and not text[1:2].isdigit():
        get = m.words(text[1:])
        return lambda: u64(~get()) + U64(1)
    get = m.words(text)
    return lambda: u64(get())


def _of_words(operation: Callable[..., Any], count: int) -> Meaning:
    """Semantics of an elementwise operation on `count` operands."""

    def make(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
        known(modifiers)
        put, parts = m.put(operands[0]), [m.words(t) for t in operands[1 : 1 + count]]
        return lambda mask: put(operation(*(p() for p in parts)), mask)

    return make


def _iadd3(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "X")
    target, carries, rest = split(operands)
    terms, given = [_term(m, t) for t in rest[:3]], [m.predicate(t) for t in rest[3:]]
    put, out = m.put(target), [m.put_predicate(c) for c in carries]

    def run(mask: Mask) -> None:
        total = terms[0]() + terms[1]() + terms[2]()
        for carry in given:
            total = total + u64(carry())
        put(total & U64(0xFFFFFFFF), mask)
        for k, write in enumerate(out):
            write(total >> U64(32) > k, mask)

    return run


def _extreme(
    m: Machine,
    operands: tuple[str, ...],
    modifiers: list[str],
    *,
    may: tuple[str, ...] = ("U32", "RELU"),
    adds: bool = False,
) -> Step:
    """Minimum or maximum of two or three operands; VIADDMNMX first adds the first two."""
    known(modifiers, *may)
    put, least = m.put(operands[0]), m.predicate(operands[-1])
    terms = [m.words(t) for t in operands[1:-1]]
    kind = np.uint32 if "U32" in modifiers else np.int32

    def run(mask: Mask) -> None:
        values = [np.asarray(t()) for t in terms]
        if adds:
            values[:2] = [values[0] + values[1]]
        values = [value.view(kind) for value in values]
        found = np.where(least(), reduce(np.minimum, values), reduce(np.maximum, values))
        put((np.maximum(found, kind(0)) if "RELU" in modifiers else found).view(np.uint32), mask)

    return run


def _imad(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "MOV", "U32", "IADD", "SHL", "X", "HI", "WIDE")
    target, carries, rest = split(operands)
    if "WIDE" in modifiers or "HI" in modifiers:
        return _imad_wide(m, target, carries, rest, modifiers)
    a, b, c = (m.words(t) for t in rest[:3])
    given = [m.predicate(t) for t in rest[3:]]
    put = m.put(target)
    if carries:
        raise UnknownInstruction("carries out of IMAD")

    def run(mask: Mask) -> None:
        total = a() * b() + c()
        for carry in given:
            total = total + carry()
        put(total, mask)

    return run


def _imad_wide(m: Machine, target: str, carries: list[str], rest: list[str], modifiers: list[str]) -> Step:
    kind = np.uint32 if "U32" in modifiers else np.int32
    whole: Any = np.uint64 if "U32" in modifiers else np.int64
    a, b, c = m.words(rest[0]), m.words(rest[1]), m.pair(rest[2]) if rest[2][0] in "RU" else _wide_constant(m, rest[2])
    given = [m.predicate(t) for t in rest[3:]]
    if given or [p for p in carries if p not in ("PT", "UPT")]:
        raise UnknownInstruction("carries of IMAD.WIDE")
    high = m.put(target) if "HI" in modifiers else None
    both = m.put_pair(target) if high is None else None

    def run(mask: Mask) -> None:
        product = (a().view(kind).astype(whole) * b().view(kind).astype(whole)).view(U64)
        total = product + c()
        if both is not None:
            both(total, mask)
        elif high is not None:
            high(total >> U64(32), mask)

    return run


def _wide_constant(m: Machine, text: str) -> Callable[[], Any]:
    value = m.words(text)
    return lambda: np.asarray(value()).astype(U64)


def _lea(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "HI", "X", "SX32")
    target, carries, rest = split(operands)
    put, out = m.put(target), [m.put_predicate(c) for c in carries]
    a, b = m.words(rest[0]), m.words(rest[1])
    extended = "SX32" in modifiers
    high = m.words(rest[2]) if "HI" in modifiers and not extended else None
    rest = rest[2:] if high is None else rest[3:]
    shift, given = U64(int(rest[0], 16)), [m.predicate(t) for t in rest[1:]]

    def run(mask: Mask) -> None:
        low = a()
        if high is None and not extended:
            shifted = u64(low) << shift & U64(0xFFFFFFFF)
        elif high is None:
            shifted = (np.asarray(low).view(np.int32).astype(np.int64).view(U64) << shift) >> U64(32)
        else:
            shifted = ((u64(high()) << U64(32) | u64(low)) << shift) >> U64(32)
        total = shifted + u64(b())
        for carry in given:
            total = total + u64(carry())
        put(total & U64(0xFFFFFFFF), mask)
        for write in out:
            write(total >> U64(32) > 0, mask)

    return run


def _lop3(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "LUT")
    first = m.put_predicate(operands[0]) if operands[0].startswith(("P", "UP")) else None
    target, a, b, c, table = operands[1:6] if first else operands[:5]
    put, parts, lut = m.put(target), [m.words(t) for t in (a, b, c)], int(table, 16)
    if operands[-1] not in ("!PT", "!UPT"):
        raise UnknownInstruction("LOP3 with a predicate")

    def run(mask: Mask) -> None:
        value = _looked_up(lut, *(p() for p in parts))
        put(value, mask)
        if first:
            first(np.broadcast_to(value != 0, THREADS), mask)

    return run


def _looked_up(lut: int, a: Any, b: Any, c: Any) -> Any:
    if lut == 0xC0:
        return a & b
    value: Any = a & ~a
    for k in range(8):
        if lut >> k & 1:
            value = value | (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    return value


def _plop3(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "LUT")
    outs, parts = [m.put_predicate(t) for t in operands[:2]], [m.predicate(t) for t in operands[2:5]]
    tables = [int(t, 16) for t in operands[5:7]]

    def run(mask: Mask) -> None:
        values = [p() for p in parts]
        for write, lut in zip(outs, tables, strict=True):
            write(_looked_up(lut, *values), mask)

    return run


def _isetp(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    name, *rest = modifiers
    known(rest, "U32", "AND", "OR", "XOR", "EX")
    kind = np.uint32 if "U32" in rest else np.int32
    compare, join = COMPARE[name], JOIN[next(r for r in rest if r in JOIN)]
    yes, no = m.put_predicate(operands[0]), m.put_predicate(operands[1])
    a, b, other = m.words(operands[2]), m.words(operands[3]), m.predicate(operands[4])
    low = m.predicate(operands[5]) if "EX" in rest else None
    strict = COMPARE[{"LE": "LT", "GE": "GT"}.get(name, name)]

    def run(mask: Mask) -> None:
        x, y = np.asarray(a()).view(kind), np.asarray(b()).view(kind)
        if low is None:
            met = compare(x, y)
        elif name == "NE":
            met = (x != y) | low()
        elif name == "EQ":
            met = (x == y) & low()
        else:
            met = strict(x, y) | (x == y) & low()
        before = other()
        yes(join(met, before), mask)
        no(join(~met, before), mask)

    return run


def _sel(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers)
    put, a, b, p = m.put(operands[0]), m.words(operands[1]), m.words(operands[2]), m.predicate(operands[3])
    return lambda mask: put(np.where(p(), a(), b()), mask)


def _shf(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    wraps = "W" in modifiers  # shift counts wrap instead of saturating
    direction, kind, *rest = (name for name in modifiers if name != "W")
    known(rest, "HI", "LO")
    put, low, by, high = m.put(operands[0]), *(m.words(t) for t in operands[1:4])
    wide, left = "64" in kind, direction == "L"
    # The upper half of the pair shifted left, or the lower half shifted right. 32 bits with .HI: only `high` matters.
    only_high = not left and not wide and "HI" in rest
    only_low = left and not wide and "HI" not in rest
    if not (wide or only_high or only_low):
        raise UnknownInstruction("a funnel shift of another kind")
    signed = kind.startswith("S")

    def run(mask: Mask) -> None:
        most = np.uint32(63 if wide else 32)
        shift = (by() & np.uint32(63 if wide else 31) if wraps else np.minimum(np.asarray(by()), most)).astype(U64)
        if only_low:
            put(u64(np.asarray(low())) << shift & U64(0xFFFFFFFF), mask)
        elif only_high and signed:
            put((np.asarray(high()).view(np.int32).astype(np.int64) >> shift.astype(np.int64)).astype(np.uint32), mask)
        elif only_high:
            put(u64(np.asarray(high())) >> shift, mask)
        else:
            both = u64(np.asarray(high())) << U64(32) | u64(np.asarray(low()))
            if signed and not left:
                put((both.view(np.int64) >> shift.astype(np.int64)) & 0xFFFFFFFF, mask)
            else:
                put((both << shift) >> U64(32) if left else (both >> shift) & U64(0xFFFFFFFF), mask)

    return run


def _prmt(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers)
    put, a, selector, c = m.put(operands[0]), m.words(operands[1]), int(operands[2], 16), m.words(operands[3])

    def run(mask: Mask) -> None:
        both = u64(np.asarray(a())) | u64(np.asarray(c())) << U64(32)
        value = np.zeros(THREADS, U64)
        for k in range(4):
            pick = selector >> 4 * k & 15
            byte = both >> U64(8 * (pick & 7)) & U64(255)
            if pick & 8:
                byte = (byte >> U64(7)) * U64(255)
            value |= byte << U64(8 * k)
        put(value, mask)

    return run


def _p2r(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    put, kept, which = m.put(operands[0]), m.words(operands[2]), np.uint32(int(operands[3], 16))

    def run(mask: Mask) -> None:
        bits = sum((m.p[k].astype(np.uint32) << np.uint32(k) for k in range(7)), np.zeros(THREADS, np.uint32))
        put(kept() & ~which | bits & which, mask)

    return run


def _r2p(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    a, which = m.words(operands[1]), int(operands[2], 16)
    outs = [(k, m.put_predicate(f"P{k}")) for k in range(7) if which >> k & 1]

    def run(mask: Mask) -> None:
        bits = a()
        for k, write in outs:
            write((bits >> np.uint32(k) & np.uint32(1)).astype(bool), mask)

    return run


WHOLE_NUMBERS: dict[str, Meaning] = {
    "IADD3": _iadd3,
    "VIADD": _of_words(lambda a, b: a + b, 2),
    "VIADDMNMX": partial(_extreme, adds=True),
    "VIMNMX": _extreme,
    "IMNMX": _extreme,
    "VIMNMX3": partial(_extreme, may=("U32",)),
    "IMAD": _imad,
    "LEA": _lea,
    "LOP3": _lop3,
    "PLOP3": _plop3,
    "ISETP": _isetp,
    "SEL": _sel,
    "MOV": _of_words(lambda a: a, 1),
    "SHF": _shf,
    "PRMT": _prmt,
    "IABS": _of_words(lambda a: np.abs(a.view(np.int32)).view(np.uint32), 1),
    "P2R": _p2r,
    "R2P": _r2p,
    "POPC": _of_words(np.bitwise_count, 1),
}
