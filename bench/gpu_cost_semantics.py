"""What each instruction of sm_90 does, as functions over the registers of a `gpu_cost_machine.Machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_cost_code import Instruction
from gpu_cost_machine import (
    _COMPARE,
    _SPECIAL,
    BASE,
    LANES,
    THREADS,
    WARPS,
    Machine,
    Mask,
    Step,
    UnknownInstruction,
    of_warps,
)

_U64 = np.uint64
_QUIET = frozenset(
    "NOP BSSY YIELD NANOSLEEP DEPBAR LDGDEPBAR MEMBAR ERRBAR CGAERRBAR ENDCOLLECTIVE WARPSYNC PREEXIT".split()
)  # nothing that other instructions see, but for BSSY
_IGNORED = {"FTZ", "NTZ", "U32", "S32", "MMA", "reuse"}


def compiled(m: Machine, i: Instruction) -> Step:
    """The instruction as a function of the lanes that execute it. Raises UnknownInstruction and the like."""
    family, *modifiers = i.opcode.split(".")
    if family == "BSSY":
        return _bssy(m, i)
    if family in _QUIET:
        return lambda mask: None
    if family == "CCTL":
        return lambda mask: m.l1.clear()
    name = family[1:] if family in _UNIFORM else family
    return _TABLE[name](m, i.operands, modifiers)


def _bssy(m: Machine, i: Instruction) -> Step:
    row = m.b[int(i.operands[0][1:])]

    def run(mask: Mask) -> None:
        np.copyto(row, mask, where=of_warps(mask))

    return run


def _known(modifiers: list[str], *known: str) -> None:
    """Raise unless these are all that there are."""
    if rest := set(modifiers) - set(known):
        raise UnknownInstruction(f"modifier {', '.join(rest)}")


def _u64(value: Any) -> Any:
    return value.astype(_U64)


# ---- whole numbers


def _split(operands: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    """Destination, predicates behind it, the rest."""
    k = 1
    while k < len(operands) and operands[k].lstrip("!").rstrip("T0123456789") in ("P", "UP"):
        k += 1
    return operands[0], list(operands[1:k]), list(operands[k:])


def _term(m: Machine, text: str) -> Callable[[], Any]:
    """An operand of an addition as 64 bits: -x as ~x + 1, whose carry counts."""
    if text.startswith("-") and not text[1:2].isdigit():
        get = m.words(text[1:])
        return lambda: _u64(~get()) + _U64(1)
    get = m.words(text)
    return lambda: _u64(get())


def _iadd3(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "X")
    target, carries, rest = _split(operands)
    terms, given = [_term(m, t) for t in rest[:3]], [m.predicate(t) for t in rest[3:]]
    put, out = m.put(target), [m.put_predicate(c) for c in carries]

    def run(mask: Mask) -> None:
        total = terms[0]() + terms[1]() + terms[2]()
        for carry in given:
            total = total + _u64(carry())
        put(total & _U64(0xFFFFFFFF), mask)
        for k, write in enumerate(out):
            write(total >> _U64(32) > k, mask)

    return run


def _viadd(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers)
    put, a, b = m.put(operands[0]), m.words(operands[1]), m.words(operands[2])
    return lambda mask: put(a() + b(), mask)


def _extreme(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "U32", "RELU")
    put, least = m.put(operands[0]), m.predicate(operands[-1])
    terms = [m.words(t) for t in operands[1:-1]]
    kind = np.uint32 if "U32" in modifiers else np.int32
    floor = 0 if "RELU" in modifiers else None  # what is below zero is zero

    def run(mask: Mask) -> None:
        *sums, other = (t() for t in terms)
        value = (sums[0] if len(sums) == 1 else sums[0] + sums[1]).view(kind)
        other = other.view(kind)
        found = np.where(least(), np.minimum(value, other), np.maximum(value, other))
        put((found if floor is None else np.maximum(found, kind(floor))).view(np.uint32), mask)

    return run


def _imad(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "MOV", "U32", "IADD", "SHL", "X", "HI", "WIDE")
    target, carries, rest = _split(operands)
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
        product = (a().view(kind).astype(whole) * b().view(kind).astype(whole)).view(_U64)
        total = product + c()
        if both is not None:
            both(total, mask)
        elif high is not None:
            high(total >> _U64(32), mask)

    return run


def _wide_constant(m: Machine, text: str) -> Callable[[], Any]:
    value = m.words(text)
    return lambda: np.asarray(value()).astype(_U64)


def _lea(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "HI", "X", "SX32")
    target, carries, rest = _split(operands)
    put, out = m.put(target), [m.put_predicate(c) for c in carries]
    a, b = m.words(rest[0]), m.words(rest[1])
    extended = "SX32" in modifiers
    high = m.words(rest[2]) if "HI" in modifiers and not extended else None
    rest = rest[2:] if high is None else rest[3:]
    shift, given = _U64(int(rest[0], 16)), [m.predicate(t) for t in rest[1:]]

    def run(mask: Mask) -> None:
        low = a()
        if high is None and not extended:
            shifted = _u64(low) << shift & _U64(0xFFFFFFFF)
        elif high is None:
            shifted = (np.asarray(low).view(np.int32).astype(np.int64).view(_U64) << shift) >> _U64(32)
        else:
            shifted = ((_u64(high()) << _U64(32) | _u64(low)) << shift) >> _U64(32)
        total = shifted + _u64(b())
        for carry in given:
            total = total + _u64(carry())
        put(total & _U64(0xFFFFFFFF), mask)
        for write in out:
            write(total >> _U64(32) > 0, mask)

    return run


def _lop3(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "LUT")
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
    _known(modifiers, "LUT")
    outs, parts = [m.put_predicate(t) for t in operands[:2]], [m.predicate(t) for t in operands[2:5]]
    tables = [int(t, 16) for t in operands[5:7]]

    def run(mask: Mask) -> None:
        values = [p() for p in parts]
        for write, lut in zip(outs, tables, strict=True):
            write(_looked_up(lut, *values), mask)

    return run


def _isetp(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    name, *rest = modifiers
    _known(rest, "U32", "AND", "OR", "XOR", "EX")
    kind = np.uint32 if "U32" in rest else np.int32
    compare, join = _COMPARE[name], _JOIN[next(r for r in rest if r in _JOIN)]
    yes, no = m.put_predicate(operands[0]), m.put_predicate(operands[1])
    a, b, other = m.words(operands[2]), m.words(operands[3]), m.predicate(operands[4])
    low = m.predicate(operands[5]) if "EX" in rest else None
    strict = _COMPARE[{"LE": "LT", "GE": "GT"}.get(name, name)]

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


_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor,
}  # fmt: skip


def _sel(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers)
    put, a, b, p = m.put(operands[0]), m.words(operands[1]), m.words(operands[2]), m.predicate(operands[3])
    return lambda mask: put(np.where(p(), a(), b()), mask)


def _mov(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers)
    put, a = m.put(operands[0]), m.words(operands[1])
    return lambda mask: put(a(), mask)


def _shf(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    wraps = "W" in modifiers  # shifts by more than all bits are by the rest, instead of by all
    direction, kind, *rest = (name for name in modifiers if name != "W")
    _known(rest, "HI", "LO")
    put, low, by, high = m.put(operands[0]), *(m.words(t) for t in operands[1:4])
    wide, left = "64" in kind, direction == "L"
    # Upper half of the pair shifted to the left, or lower half shifted to the right; .HI of 32 bits: `high` alone.
    only_high = not left and not wide and "HI" in rest
    only_low = left and not wide and "HI" not in rest
    if not (wide or only_high or only_low):
        raise UnknownInstruction("a funnel shift of another kind")
    signed = kind.startswith("S")

    def run(mask: Mask) -> None:
        most = np.uint32(63 if wide else 32)
        shift = (by() & np.uint32(63 if wide else 31) if wraps else np.minimum(np.asarray(by()), most)).astype(_U64)
        if only_low:
            put(_u64(np.asarray(low())) << shift & _U64(0xFFFFFFFF), mask)
        elif only_high and signed:
            put((np.asarray(high()).view(np.int32).astype(np.int64) >> shift.astype(np.int64)).astype(np.uint32), mask)
        elif only_high:
            put(_u64(np.asarray(high())) >> shift, mask)
        else:
            both = _u64(np.asarray(high())) << _U64(32) | _u64(np.asarray(low()))
            if signed and not left:
                put((both.view(np.int64) >> shift.astype(np.int64)) & 0xFFFFFFFF, mask)
            else:
                put((both << shift) >> _U64(32) if left else (both >> shift) & _U64(0xFFFFFFFF), mask)

    return run


def _prmt(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers)
    put, a, selector, c = m.put(operands[0]), m.words(operands[1]), int(operands[2], 16), m.words(operands[3])

    def run(mask: Mask) -> None:
        both = _u64(np.asarray(a())) | _u64(np.asarray(c())) << _U64(32)
        value = np.zeros(THREADS, _U64)
        for k in range(4):
            pick = selector >> 4 * k & 15
            byte = both >> _U64(8 * (pick & 7)) & _U64(255)
            if pick & 8:
                byte = (byte >> _U64(7)) * _U64(255)
            value |= byte << _U64(8 * k)
        put(value, mask)

    return run


def _iabs(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    put, a = m.put(operands[0]), m.words(operands[1])
    return lambda mask: put(np.abs(a().view(np.int32)).view(np.uint32), mask)


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


def _popc(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers)
    put, a = m.put(operands[0]), m.words(operands[1])
    return lambda mask: put(np.bitwise_count(a()), mask)


# ---- floats


def _float(operation: Callable[..., Any]) -> Callable[[Machine, tuple[str, ...], list[str]], Step]:
    def make(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
        _known(modifiers, "FTZ", "RZ", "RM", "RP", "SAT")
        put, parts = m.put(operands[0]), [m.floats(t) for t in operands[1:]]
        saturated = "SAT" in modifiers

        def run(mask: Mask) -> None:
            value = operation(*(p() for p in parts))
            value = np.clip(value, 0, 1) if saturated else value
            put(np.asarray(value, np.float32).view(np.uint32), mask)

        return run

    return make


def _fused(a: Any, b: Any, c: Any) -> Any:
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def _fsel(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "FTZ")
    put, a, b, p = m.put(operands[0]), m.floats(operands[1]), m.floats(operands[2]), m.predicate(operands[3])
    return lambda mask: put(np.where(p(), a(), b()).view(np.uint32), mask)


def _fmnmx(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "NAN", "FTZ")
    put, a, b, p = m.put(operands[0]), m.floats(operands[1]), m.floats(operands[2]), m.predicate(operands[3])
    least, most = (np.minimum, np.maximum) if "NAN" in modifiers else (np.fmin, np.fmax)
    return lambda mask: put(np.where(p(), least(a(), b()), most(a(), b())).view(np.uint32), mask)


def _fsetp(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    name, *rest = modifiers
    _known(rest, "FTZ", "AND", "OR", "XOR")
    join = _JOIN[next(r for r in rest if r in _JOIN)]
    yes, no = m.put_predicate(operands[0]), m.put_predicate(operands[1])
    a, b, other = m.floats(operands[2]), m.floats(operands[3]), m.predicate(operands[4])

    def run(mask: Mask) -> None:
        x, y = a(), b()
        unordered = np.isnan(x) | np.isnan(y)
        if name in ("NAN", "NUM"):
            met = unordered if name == "NAN" else ~unordered
        elif name.endswith("U"):
            met = _COMPARE[name[:2]](x, y) | unordered
        else:
            met = _COMPARE[name](x, y) & ~unordered
        before = other()
        yes(join(met, before), mask)
        no(join(~met, before), mask)

    return run


def _fchk(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    """Whether a quotient needs the long way: numbers at the ends of what a float can be."""
    put, a, b = m.put_predicate(operands[0]), m.floats(operands[1]), m.floats(operands[2])

    def run(mask: Mask) -> None:
        x, y = np.abs(a()), np.abs(b())
        put(~((y > 2.0**-100) & (y < 2.0**100) & ((x == 0) | (x > 2.0**-100)) & (x < 2.0**100)), mask)

    return run


_SPECIAL_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "RCP": lambda x: 1 / x, "RSQ": lambda x: 1 / np.sqrt(x), "SQRT": np.sqrt, "EX2": np.exp2, "LG2": np.log2,
    "SIN": np.sin, "COS": np.cos, "TANH": np.tanh,
}  # fmt: skip


def _mufu(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    put, a, f = m.put(operands[0]), m.floats(operands[1]), _SPECIAL_FUNCTIONS[modifiers[0]]
    return lambda mask: put(np.asarray(f(a()), np.float32).view(np.uint32), mask)


def _i2f(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "RP", "RZ", "F32", "S32", "U32", "U16")
    put, a = m.put(operands[0]), m.words(operands[1])
    signed, mask16 = not {"U32", "U16"} & set(modifiers), np.uint32(0xFFFF if "U16" in modifiers else 0xFFFFFFFF)

    def run(mask: Mask) -> None:
        value = np.asarray(a() & mask16)
        exact = (value.view(np.int32) if signed else value).astype(np.float64)
        rounded = exact.astype(np.float32)
        if "RP" in modifiers:
            rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
        put(np.asarray(rounded, np.float32).view(np.uint32), mask)

    return run


def _f2i(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "FTZ", "U32", "TRUNC", "NTZ")
    put, a, low, high = m.put(operands[0]), m.floats(operands[1]), 0.0, 2.0**32 - 1
    if "U32" not in modifiers:
        low, high = -(2.0**31), 2.0**31 - 1

    def run(mask: Mask) -> None:
        value = np.nan_to_num(np.trunc(a().astype(np.float64)), nan=0.0, posinf=high, neginf=low)
        put(np.clip(value, low, high).astype(np.int64) & 0xFFFFFFFF, mask)

    return run


def _hfma2(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    """Only as the compiler loads constants by it: two halves, times nothing."""
    if operands[1].lstrip("-") != "RZ" or operands[2] != "RZ":
        raise UnknownInstruction("arithmetic in half precision")
    halves = np.array([float(operands[4]), float(operands[3])], np.float16).view(np.uint32)[0]
    put = m.put(operands[0])
    return lambda mask: put(halves, mask)


# ---- other lanes, special registers, memory


def _shfl(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "BFLY", "IDX", "UP", "DOWN")
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
    _known(modifiers, "32")
    if operands[1] not in ("SRZ", "SR_GLOBALTIMERLO", "SR_CLOCKLO"):  # time stands still
        raise UnknownInstruction(operands[1])
    put = m.put(operands[0]) if modifiers else m.put_pair(operands[0])
    return lambda mask: put(np.zeros(THREADS, _U64), mask)


def _r2ur(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    put, a = m.put(operands[0]), m.words(operands[-1])

    def run(mask: Mask) -> None:
        value = a().reshape(WARPS, LANES)
        first = np.zeros(WARPS, int) if mask is True else mask.reshape(WARPS, LANES).argmax(axis=1)
        put(np.repeat(value[np.arange(WARPS), first], LANES), mask)

    return run


def _vote(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "ANY", "ALL")
    target, outs, rest = _split(operands)
    if target.startswith(("P", "UP")):
        outs, target = [target], "RZ"
        rest = list(operands[1:])
    source, put, write = m.predicate(rest[-1]), m.put(target), [m.put_predicate(o) for o in outs[:1]]

    def run(mask: Mask) -> None:
        votes = (source() & mask).reshape(WARPS, LANES)
        asked = np.broadcast_to(np.asarray(mask), THREADS).reshape(WARPS, LANES)
        ballot = (votes.astype(_U64) << np.arange(LANES, dtype=_U64)).sum(axis=1)
        put(np.repeat(ballot, LANES), mask)
        met = votes.any(axis=1) if "ANY" in modifiers else (votes | ~asked).all(axis=1)
        for w in write:
            w(np.repeat(met, LANES), mask)

    return run


_PARTS = {"U8": np.uint32(0xFF), "U16": np.uint32(0xFFFF)}  # of a word


def _width(modifiers: list[str]) -> int:
    """Words of an access."""
    if set(modifiers) & {"U8", "S8", "U16", "S16"}:
        raise UnknownInstruction("bytes")
    return next((int(w) // 32 for w in modifiers if w in ("64", "128")), 1)


def _registers(m: Machine, text: str, count: int) -> list[str]:
    number = m._number(text)
    if number == 255:
        return ["RZ"] * count
    return [f"{'UR' if number > 255 else 'R'}{number % 256 + k}" for k in range(count)]


def _ldc(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count = _width(modifiers)
    puts = [m.put(r) for r in _registers(m, operands[0], count)]
    text = operands[1]
    head, _, at = text.rstrip("]").rpartition("[")
    if at.startswith("0x"):
        gets = [m.words(f"{head}[{int(at, 16) + 4 * k:#x}]") for k in range(count)]
    elif count == 1:
        gets = [m.words(text)]
    else:
        raise UnknownInstruction(text)

    def run(mask: Mask) -> None:
        for put, get in zip(puts, gets, strict=True):
            put(get(), mask)

    return run


def _words_at(address: Any, mask: Mask, limit: int) -> Any:
    """Indices of words; those of idle lanes lead to the first one."""
    index = address >> 2
    if mask is not True:
        index = np.where(mask, index, 0)
    if (index < 0).any() or (index >= limit).any():
        raise UnknownInstruction("an access outside of memory")
    return index


def _load(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count, address = _width(modifiers), m.address(operands[1], wide=True)
    puts = [m.put(r) for r in _registers(m, operands[0], count)]

    def run(mask: Mask) -> Any:
        at = address() - BASE
        index = _words_at(at, mask, len(m.memory) - count)
        for k, put in enumerate(puts):
            put(m.memory[index + k], mask)
        return m.sectors(at, mask, count, reads=True)

    return run


def _store(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count, address = _width(modifiers), m.address(operands[0], wide=True)
    gets = [m.words(r) for r in _registers(m, operands[1], count)]

    def run(mask: Mask) -> Any:
        at = address() - BASE
        index = _words_at(at, mask, len(m.memory) - count)
        for k, get in enumerate(gets):
            value = np.broadcast_to(get(), THREADS)
            m.memory[(index if mask is True else index[mask]) + k] = value if mask is True else value[mask]
        return m.sectors(at, mask, count, reads=False)

    return run


def _add(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    _known(modifiers, "E", "ADD", "STRONG", "GPU", "F32", "FTZ", "RN")
    address, value = m.address(operands[0], wide=True), m.words(operands[1])
    memory = m.memory.view(np.float32) if "F32" in modifiers else m.memory

    def run(mask: Mask) -> Any:
        at = address() - BASE
        index = _words_at(at, mask, len(m.memory))
        terms = np.broadcast_to(value(), THREADS).view(memory.dtype)
        chosen = slice(None) if mask is True else mask
        np.add.at(memory, index[chosen], terms[chosen])
        return m.sectors(at, mask, 1, reads=False)

    return run


def _lds(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    part = next((name for name in modifiers if name in _PARTS), "")
    count, address = _width([name for name in modifiers if name != part]), m.address(operands[1], wide=False)
    puts = [m.put(r) for r in _registers(m, operands[0], count)]

    def run(mask: Mask) -> Any:
        at = address()
        index = _words_at(at, mask, len(m.shared) - count + 1)
        if part:
            puts[0]((m.shared[index] >> (at % 4 * 8).astype(np.uint32)) & _PARTS[part], mask)
            return m.conflicts(at - at % 4, mask, count)
        for k, put in enumerate(puts):
            put(m.shared[index + k], mask)
        return m.conflicts(at, mask, count)

    return run


def _sts(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    count, address = _width(modifiers), m.address(operands[0], wide=False)
    gets = [m.words(r) for r in _registers(m, operands[1], count)]

    def run(mask: Mask) -> Any:
        at = address()
        index = _words_at(at, mask, len(m.shared) - count + 1)
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
        index = _words_at(at, mask, len(m.memory) - count)
        place = _words_at(target, mask, len(m.shared) - count + 1)
        chosen = slice(None) if mask is True else mask
        for k in range(count):
            m.shared[place[chosen] + k] = m.memory[index[chosen] + k]
        return m.sectors(at, mask, count, reads=through_l1)

    return run


def _never(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    def run(mask: Mask) -> None:
        raise UnknownInstruction("the launch is being stopped")

    return run


_TABLE: dict[str, Callable[[Machine, tuple[str, ...], list[str]], Step]] = {
    "IADD3": _iadd3, "VIADD": _viadd, "VIADDMNMX": _extreme, "VIMNMX": _extreme, "IMNMX": _extreme, "IMAD": _imad,
    "LEA": _lea, "LOP3": _lop3, "PLOP3": _plop3, "ISETP": _isetp, "SEL": _sel, "MOV": _mov, "SHF": _shf, "PRMT": _prmt,
    "IABS": _iabs, "P2R": _p2r, "R2P": _r2p, "POPC": _popc, "FADD": _float(np.add), "FMUL": _float(np.multiply),
    "FFMA": _float(_fused), "FSEL": _fsel, "FMNMX": _fmnmx, "FSETP": _fsetp, "FCHK": _fchk, "MUFU": _mufu, "I2F": _i2f,
    "I2FP": _i2f, "F2I": _f2i, "HFMA2": _hfma2, "SHFL": _shfl, "S2R": _s2r, "S2UR": _s2r, "CS2R": _cs2r, "R2UR": _r2ur,
    "VOTE": _vote, "LDC": _ldc, "LDG": _load, "LD": _load, "STG": _store, "ST": _store, "RED": _add, "REDG": _add,
    "ATOMG": _never, "LDS": _lds, "STS": _sts, "LDGSTS": _ldgsts,
}  # fmt: skip
_UNIFORM = {
    f"U{name}"
    for name in ("IADD3", "MOV", "LDC", "LEA", "LOP3", "SHF", "ISETP", "IMAD", "SEL", "PRMT", "PLOP3", "POPC")
}
_UNIFORM.add("UP2R")
