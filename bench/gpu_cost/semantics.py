"""Compiles each instruction of sm_90 to a function over the registers of a `Machine`."""

from __future__ import annotations

import numpy as np

from gpu_cost.accesses import ACCESSES
from gpu_cost.floats import FLOATS
from gpu_cost.fragments import FRAGMENTS
from gpu_cost.lanes import LANES_AND_REGISTERS
from gpu_cost.machine import Machine, Mask, Step, UnknownInstruction, of_warps
from gpu_cost.machine_code import Instruction
from gpu_cost.operands import Meaning
from gpu_cost.whole_numbers import WHOLE_NUMBERS

_QUIET = frozenset(
    "NOP BSSY YIELD NANOSLEEP DEPBAR LDGDEPBAR MEMBAR ERRBAR CGAERRBAR ENDCOLLECTIVE WARPSYNC PREEXIT".split()
)  # without effects on other instructions, except BSSY


def compiled(m: Machine, i: Instruction) -> Step:
    """Compile an instruction to a function of its active lanes. Raises UnknownInstruction, or KeyError for its name."""
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


def _never(m: Machine, operands: tuple[str, ...], modifiers: list[str]) -> Step:
    def run(mask: Mask) -> None:
        raise UnknownInstruction("the launch is being stopped")

    return run


_TABLE: dict[str, Meaning] = WHOLE_NUMBERS | FLOATS | LANES_AND_REGISTERS | ACCESSES | FRAGMENTS | {"ATOMG": _never}
_UNIFORM = {
    f"U{name}"
    for name in ("IADD3", "MOV", "LDC", "LEA", "LOP3", "SHF", "ISETP", "IMAD", "SEL", "PRMT", "PLOP3", "POPC")
}
_UNIFORM.add("UP2R")
