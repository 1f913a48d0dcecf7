"""Helpers shared by the semantics of instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_cost.machine import Machine, Step, UnknownInstruction

Meaning = Callable[[Machine, tuple[str, ...], list[str]], Step]  # compiles an instruction's operands and modifiers
U64 = np.uint64

COMPARE = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor,
}  # fmt: skip


def known(modifiers: list[str], *names: str) -> None:
    """Raise UnknownInstruction if there are any modifiers besides these."""
    if rest := set(modifiers) - set(names):
        raise UnknownInstruction(f"modifier {', '.join(rest)}")


def u64(value: Any) -> Any:
    """Convert to unsigned words of 64 bits."""
    return value.astype(U64)


def split(operands: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    """(destination, predicates after it, other operands)."""
    k = 1
    while k < len(operands) and operands[k].lstrip("!").rstrip("T0123456789") in ("P", "UP"):
        k += 1
    return operands[0], list(operands[1:k]), list(operands[k:])
