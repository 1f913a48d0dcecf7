"""Checks the words of single instructions, so that kernels treat them as the verifier assumes. Device code reads
only the words that it needs, and divides by the numbers that it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from vpps.model.optim import OPTIMIZERS
from vpps.ops import OPS
from vpps.script.disassemble import Decoded, DecodedOperand
from vpps.script.instructions import BY_NAME, COUNTERS, INDEXED, OFFSET_MASK, SCALAR, SOURCES, Flag, Instruction, Slices
from vpps.script.tails import Load, Tail, ViewUse

MOMENTS = {optimizer.name: len(optimizer.moments) for optimizer in OPTIMIZERS}
WIDTHS = ("columns", "inner", "row_width", "a_width", "b_width", "dy_width")
ALWAYS = frozenset({"end", "signal", "wait", "barrier"})  # every kernel has code for these


class MatrixWords(NamedTuple):
    """Words that the instructions on an on-chip matrix must have.

    Attributes:
        rows, columns: shape of the matrix.
        parts: the word `parts`, which, together with the flags, determines how the rows are divided.
        flags: TURNS or none.
    """

    rows: int
    columns: int
    parts: int
    flags: Flag


@dataclass(frozen=True)
class KnownKernel:
    """The properties of a kernel that limit the scripts it can run.

    Attributes:
        instructions: names of the instructions that it has code for.
        tails: programs of its tails, by number.
        matrices: matrices that it holds on the chip, by number.
        reported: number of floats at the beginning of the pool in which the kernel reports to the host.
    """

    instructions: frozenset[str] = frozenset(BY_NAME)
    tails: Mapping[int, Tail] = field(default_factory=dict)
    matrices: Mapping[int, MatrixWords] = field(default_factory=dict)
    reported: int = 0


EVERYTHING = KnownKernel()


def diagnostics(d: Decoded, knows: KnownKernel, most: int) -> Iterator[str]:
    """Yield the errors in an instruction.

    Args:
        most: largest possible number of rows, or of floats in a row.
    """
    if d.instruction.name not in knows.instructions and d.instruction.name not in ALWAYS:
        yield "the kernel has no code for it"
    if unknown := d.bits & ~_allowed(d.instruction):
        yield f"flags {Flag(unknown)!r} are not allowed"
    if max(d.n, d.width, *(w for k, w in d.fields.items() if k in WIDTHS and isinstance(w, int))) > most:
        yield "it has more rows or floats than possible"
    by_rows = d.instruction.form.startswith("Row") or d.instruction.form in ("SquaresRows", "Watch")
    if by_rows and not d.bits & (Flag.ROWS | Flag.ALONE):
        yield "a virtual processor computes whole rows, so they must be divided by rows"
    if not d.bits & Flag.TURNS and d.width and (d.parts < 1 or d.width % d.parts):
        yield f"{d.width} units are not {d.parts} equal parts"
    yield from _of_form(d, knows)


@cache
def _allowed(instruction: Instruction) -> int:
    """Return the flags that both device code and the verifier test, or that divide an on-chip matrix."""
    found = Flag.ALL
    if instruction.slices is not Slices.ONE:
        found |= Flag.ACCUMULATE | Flag.MEAN | Flag.NO_GRADIENT
    holds = any(f.name == "matrix" for f in instruction.fields)
    if instruction.on_chip and holds:
        found |= Flag.TURNS
    elif instruction.slices is Slices.UNITS:
        found |= Flag.ROWS | Flag.ALONE
    if instruction.name == "held_matvec":
        found |= Flag.CHAINED
    if any(f.rounded for f in instruction.fields):
        found |= Flag.BF16 | Flag.TF32
    if not instruction.on_chip and instruction.form in ("Matvec", "PackedMatmul", "OuterUpdate", "UpdateMatrix"):
        found |= Flag.PAIRS
    return found.value


def _of_form(d: Decoded, knows: KnownKernel) -> Iterator[str]:
    form, fields = d.instruction.form, d.fields
    words = {k: v for k, v in fields.items() if isinstance(v, int)}
    for name in ("columns", "inner"):
        if words.get(name) == 0:
            yield f"0 {name} cannot be divided among threads"
            return
    if d.instruction.on_chip and "matrix" in words:
        yield from _held(d, knows.matrices.get(words["matrix"]), words)
    if words.get("partials", 0) % 4 and form in ("OuterTiles", "SumTiles", "StepTiles"):
        yield f"partial tiles begin at multiples of 4 floats, not at {words['partials']}"
    if form in ("Signal", "Wait") and words["counter"] >= COUNTERS:
        yield f"there is no counter {words['counter']}"
    elif form == "Loss" and words["slot"] >= knows.reported:
        yield f"the host reads no loss at {words['slot']}"
    elif form in ("Guard", "Clip") and words["left_out"] >= knows.reported:
        yield f"the host reads nothing at {words['left_out']}"
    elif form == "Tail":
        yield from _tail(d, knows.tails.get(words["number"]))
    elif form.startswith("Row"):  # the result is a whole row or a single float
        width = 1 if "dst" in single(d.instruction) else words["row_width"]
        if d.width != width:
            yield f"it makes {width} floats from a row of {words['row_width']}, not {d.width}"
    elif form in ("Matvec", "Outer", "OuterUpdate", "OuterTiles"):
        yield from _segments(d, words["columns"], 1)
    elif form in ("PackedMatmul", "PackedMatmulGradient"):
        yield from _segments(d, words["inner"] * words["columns"], words["columns"])
        if form == "PackedMatmul" and d.width % words["columns"]:
            yield f"{d.width} floats are not whole rows of {words['columns']}"
    elif form == "PackedRowsGradient" and words["dy_width"] % words["columns"]:
        yield f"{words['dy_width']} floats are not whole rows of {words['columns']}"
    elif form in ("Transpose", "PackedRows") and d.width % words["columns"]:
        yield f"{d.width} floats are not whole rows of {words['columns']}"
    elif form == "Matmul":
        inner, a, b = words["inner"], words["a_width"], words["b_width"]
        if a % inner or b % inner or a // inner * (b // inner) != d.width:
            yield f"matrices of {a} and {b} floats with inner dimension {inner} do not give {d.width} floats"


def _held(d: Decoded, matrix: MatrixWords | None, words: Mapping[str, int]) -> Iterator[str]:
    """Check an instruction on an on-chip matrix against the matrix that the kernel was compiled for."""
    if matrix is None:
        yield f"the chip holds no matrix {words['matrix']}"
        return
    given = (d.width, words["columns"], d.parts, Flag(d.bits) & Flag.TURNS)
    if given != matrix:
        yield f"matrix {words['matrix']} is held as {tuple(matrix)}, not as {given}"


def _segments(d: Decoded, columns: int, granule: int) -> Iterator[str]:
    """Check the widths of segments: device code reads segments until it has all floats of a row."""
    segments = d.fields["x"]
    assert isinstance(segments, list)
    widths = [width for _, width in segments]
    if sum(widths) != columns or any(w == 0 or w % granule for w in widths):
        yield f"segments of {widths} floats do not make {columns} in multiples of {granule}"


@cache
def single(instruction: Instruction) -> frozenset[str]:
    """Return the operands of a row-wise instruction that have one float per row, not `row_width`."""
    op, _, gradient = instruction.name.partition(".grad")
    arity = OPS[op].arity
    assert arity is not None
    if OPS[op].shape([(2,)] * arity, {}) != ():
        return frozenset()
    return frozenset(SOURCES[arity : arity + 2]) if gradient else frozenset({"dst"})


def _tail(d: Decoded, tail: Tail | None) -> Iterator[str]:
    """Check the views of a tail: the kernel's program fixes which views it reads and which it writes."""
    views = d.fields["views"]
    assert isinstance(views, list)
    if tail is None:
        yield f"the kernel has no program {d.fields['number']:#x}"
        return
    if len(views) != tail.views:
        yield f"it has {len(views)} views, but its program has {tail.views}"
        return
    for k, (operand, use) in enumerate(views):
        if not _suits(operand, use, k, tail):
            yield f"its program uses view {k} differently"


def _suits(operand: DecodedOperand, use: int, k: int, tail: Tail) -> bool:
    """Return True if the program uses its k-th view in the way that the instruction states."""
    if k < tail.sums:
        return use in (ViewUse.SUM, ViewUse.MEAN)
    if k >= tail.first_store:
        return use == ViewUse.WRITE and operand.mode <= OFFSET_MASK
    if k >= tail.first_step:
        return use == ViewUse.CONSTANT
    match tail.loads[k - tail.sums]:
        case Load.RESULT:
            return use == ViewUse.RESULT
        case Load.UNIT:
            return use == ViewUse.READ and operand.mode <= OFFSET_MASK
        case Load.ROW:
            return use == ViewUse.READ and operand.mode & ~OFFSET_MASK == SCALAR
        case Load.LISTED_UNIT:
            return use == ViewUse.READ and operand.mode & ~OFFSET_MASK in (0, INDEXED)
        case Load.LISTED_ROW:
            return use == ViewUse.READ and operand.mode & ~OFFSET_MASK in (SCALAR, SCALAR | INDEXED)
    return False
