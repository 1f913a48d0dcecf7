"""Semantics of sm_90's floating-point instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_cost.machine import Machine, Mask, Step, UnknownInstruction
from gpu_cost.operands import COMPARE, JOIN, Meaning, known


def _float(operation: Callable[..., Any]) -> Callable[[Machine, tuple[str, ...], list[str]], Step]:
    def make(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
        known(modifiers, "FTZ", "RZ", "RM", "RP", "SAT")
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
    known(modifiers, "FTZ")
    put, a, b, p = m.put(operands[0]), m.floats(operands[1]), m.floats(operands[2]), m.predicate(operands[3])
    return lambda mask: put(np.where(p(), a(), b()).view(np.uint32), mask)


def _fmnmx(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    known(modifiers, "NAN", "FTZ")
    put, a, b, p = m.put(operands[0]), m.floats(operands[1]), m.floats(operands[2]), m.predicate(operands[3])
    least, most = (np.minimum, np.maximum) if "NAN" in modifiers else (np.fmin, np.fmax)
    return lambda mask: put(np.where(p(), least(a(), b()), most(a(), b())).view(np.uint32), mask)


def _comparison(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Callable[[], tuple[Mask, Mask]]:
    """The comparison and its complement, each joined with a predicate."""
    name, *rest = modifiers
    known(rest, "FTZ", "AND", "OR", "XOR")
    join = JOIN[next(r for r in rest if r in JOIN)]
    a, b, other = m.floats(operands[0]), m.floats(operands[1]), m.predicate(operands[2])

    def compare() -> tuple[Mask, Mask]:
        x, y = a(), b()
        unordered = np.isnan(x) | np.isnan(y)
        if name in ("NAN", "NUM"):
            met = unordered if name == "NAN" else ~unordered
        elif name.endswith("U"):
            met = COMPARE[name[:2]](x, y) | unordered
        else:
            met = COMPARE[name](x, y) & ~unordered
        before = other()
        return join(met, before), join(~met, before)

    return compare


def _fsetp(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    yes, no = m.put_predicate(operands[0]), m.put_predicate(operands[1])
    compare = _comparison(m, operands[2:], modifiers)

    def run(mask: Mask) -> None:
        met, not_met = compare()
        yes(met, mask)
        no(not_met, mask)

    return run


def _fset(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    """Comparison with the result 1.0 or 0.0."""
    form, *rest = modifiers
    if form != "BF":
        raise ValueError(form)
    put, compare = m.put(operands[0]), _comparison(m, operands[1:], rest)
    return lambda mask: put(compare()[0].astype(np.float32).view(np.uint32), mask)


def _fchk(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    """Tests if a division needs the slow path, because operands are near the limits of a float's range."""
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
    known(modifiers, "RP", "RZ", "F32", "S32", "U32", "U16")
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
    known(modifiers, "FTZ", "U32", "TRUNC", "NTZ")
    put, a, low, high = m.put(operands[0]), m.floats(operands[1]), 0.0, 2.0**32 - 1
    if "U32" not in modifiers:
        low, high = -(2.0**31), 2.0**31 - 1

    def run(mask: Mask) -> None:
        value = np.nan_to_num(np.trunc(a().astype(np.float64)), nan=0.0, posinf=high, neginf=low)
        put(np.clip(value, low, high).astype(np.int64) & 0xFFFFFFFF, mask)

    return run


def _to_bf16(value: Any) -> Any:
    """Upper halves of floats, rounded to nearest even; all NaNs become the same NaN."""
    words = np.asarray(value, np.float32).view(np.uint32)
    upper = (words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), upper)


def _f2fp(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    """Converts two floats to BF16, the first to the upper half. F2F converts one (on sm_80 without modifier F32)."""
    known(modifiers, "BF16", "F32", "PACK_AB")
    put, parts = m.put(operands[0]), [m.floats(t) for t in operands[1:]]

    def run(mask: Mask) -> None:
        low, *high = (_to_bf16(p()) for p in reversed(parts))
        put(low | high[0] << np.uint32(16) if high else low, mask)

    return run


def _hfma2(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    """Only supports the form that loads constants in compiled code: two halves as the addend, with factors of zero."""
    if operands[1].lstrip("-") != "RZ" or operands[2] != "RZ":
        raise UnknownInstruction("arithmetic in half precision")
    halves = np.array([float(operands[4]), float(operands[3])], np.float16).view(np.uint32)[0]
    put = m.put(operands[0])
    return lambda mask: put(halves, mask)


FLOATS: dict[str, Meaning] = {
    "FADD": _float(np.add),
    "FMUL": _float(np.multiply),
    "FFMA": _float(_fused),
    "FSEL": _fsel,
    "FMNMX": _fmnmx,
    "FSETP": _fsetp,
    "FSET": _fset,
    "FCHK": _fchk,
    "MUFU": _mufu,
    "I2F": _i2f,
    "I2FP": _i2f,
    "F2I": _f2i,
    "F2F": _f2fp,
    "F2FP": _f2fp,
    "HFMA2": _hfma2,
}
