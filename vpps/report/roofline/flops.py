"""Floating-point operations of an instruction.

A fused multiply-add counts as two, everything else by the costs of the op table: a division is one, a tanh ten. Copies,
comparisons of labels, random words and addresses are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from vpps.compiler.passes.fusion import CODES
from vpps.model.optim import OPTIMIZERS
from vpps.ops import OPS
from vpps.script.access import word
from vpps.script.disassemble import Decoded
from vpps.script.tails import Tail

_STEP = {rule.name: rule.flops for rule in OPTIMIZERS}
_AVERAGE = 3  # a difference and a fused multiply-add
_OF_FUNCTION = {code.function: name for name, code in CODES.items()}


def _op_flops(name: str, inputs: int, outputs: int) -> int:
    """Of an op, or of the gradient of one that counts like it, for so many units of each operand and of the result."""
    op = OPS[name.partition(".grad")[0]]
    return op.cost([(inputs,)] * (op.arity or 1), (outputs,)).flops


def unit_flops(name: str) -> int:
    """Of an elementwise instruction, for each unit of a row."""
    op_name, _, operand = name.partition(".grad")
    flops = OPS[op_name].gradient_flops if operand else None
    return _op_flops(name, 1, 1) if flops is None else flops


@lru_cache(maxsize=256)
def tail_flops(tail: Tail) -> int:
    """Of a tail's steps, for each unit of a row; the sums that it makes depend on lists and are not among them."""
    return sum(unit_flops(_OF_FUNCTION[step.code]) for step in tail.steps)


def step_flops(name: str, has_gradient: bool, has_average: bool) -> int:
    """Of the optimizer's step of one weight, by the name of its instruction."""
    return _STEP[name.rpartition(".")[2]] + has_gradient + _AVERAGE * has_average


def instruction_flops(d: Decoded, rows: int, units: int, tails: Mapping[int, Tail]) -> int:
    """Of some rows and units of an instruction's result; sums over lists and steps of tables not included.

    Args:
        rows, units: of the result, of a packed matrix its rows and columns.
        tails: programs by number.
    """
    form, area = d.instruction.form, rows * units
    if form.startswith("Map"):
        return area * unit_flops(d.instruction.name)
    if form.startswith("Row"):
        return rows * _op_flops(d.instruction.name, word(d, "row_width"), d.width)
    if form == "Tail":
        return area * tail_flops(tails[word(d, "number")])
    if form in ("Matvec", "MatvecTransposed"):
        return area * (2 * word(d, "columns") + has_bias(d))
    if form in ("Matmul", "PackedMatmul"):
        return area * 2 * word(d, "inner")
    if form in ("Outer", "OuterUpdate", "PackedMatmulGradient"):
        return 2 * d.n * area * (word(d, "columns") if form == "PackedMatmulGradient" else 1)
    if form in ("SquaresMatrix", "SquaresRows"):
        return 2 * area
    if form == "Dropout":
        return area * _op_flops("dropout", 1, 1)
    if form in ("ColumnSum", "DivideByCount", "Clip"):
        return area
    return 0


def list_flops(d: Decoded, elements: int, units: int) -> int:
    """Of an op that looks at all elements of a list together, for some units of each."""
    return elements * _op_flops(d.instruction.name, units, units)


def has_bias(d: Decoded) -> bool:
    """Whether a product adds one: "none" is the zero at the start of the pool."""
    bias = d.fields.get("bias")
    return bias is not None and getattr(bias, "address", 0) != 0
