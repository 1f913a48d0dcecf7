"""Memory accesses of instructions: the rows and elements that each reads, writes or adds to.

The verifier and the reports use them. The pass that leaves out barriers (`compiler/barriers.py`) has a separate
analysis, so that an error here cannot hide an error there.

`touches` returns the accesses of an instruction by all virtual processors. The part of one virtual processor follows
from its slice of the result (`rows_of`, `units_of_rows`, `tile_elements`). Most accesses follow from the roles of
operands in the instruction table; those of fields that hold addresses are listed below.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import NamedTuple

import numpy as np

from vpps.script.disassemble import Decoded, DecodedOperand
from vpps.script.instructions import TABLE, Field, Flag, Kind, Role, Slices
from vpps.script.slices import GradientTiles, Ints, share, units_of
from vpps.script.tails import ViewUse
from vpps.script.wellformed import MOMENTS, single

# The word in which watches report to the guard. It is stored beside the counters; here it is represented by one of the
# pool's first floats, which no operand names.
MARK = 8

# Plain ints are faster, and every instruction tests these.
_ACCUMULATE, _ALONE, _CHAINED, _NO_GRADIENT, _PAIRS, _ROWS, _TURNS = (
    Flag[name].value for name in ("ACCUMULATE", "ALONE", "CHAINED", "NO_GRADIENT", "PAIRS", "ROWS", "TURNS")
)
_READ, _WRITE, _SUM, _MEAN = (ViewUse[name].value for name in ("READ", "WRITE", "SUM", "MEAN"))


class Access(Enum):
    """Kind of access by an instruction to elements of the pool."""

    READ = "read"  # by any of its threads
    OWN = "read own"  # only by the thread that writes the unit
    SAME = "read, maybe the same"  # by any of its threads; an element that is also written, only by its writer
    WRITE = "write"
    CHANGE = "read own, then write"
    ADD = "add"  # atomic: additions by several virtual processors need no order


_STORES = Access.WRITE, Access.CHANGE


class Content(Enum):
    """Kind of data in the memory that an instruction touches."""

    ROWS = "values of vertices and their gradients, rows of tables"
    WEIGHTS = "weights that products multiply by, packed"
    GRADIENT = "the gradient of a parameter"
    STATE = "state that an optimizer's step changes: weights, moments, averages"
    TRANSPOSED = "the packed transpose of a matrix"
    PARTIALS = "partial sums of squares"
    REPORT = "words that guards read, and reports to the host"


class Reach(Enum):
    """Rows that an instruction touches, counted from an address. A row has `Touch.width` floats, or the units owned."""

    OWN = "rows of the slice"
    ELEMENTS = "rows of the list elements of the slice's vertices"
    ALL = "all n rows"
    LISTED = "rows in the CSR lists of the slice's rows; the address is that of the offsets, the mode is a shift"
    TABLE = "rows that `table_rows` names for the slice's rows"
    ONCE = "one row, by every virtual processor that owns a part of the result"
    FIRST = "one row, by the first virtual processor that divides the instruction"
    MATRIX = "rows of a matrix on the chip for the slice's units"
    PANELS = "panels of a packed matrix that have the slice's units"
    TILES = "tiles of a packed matrix in the slice"
    TRANSPOSED = "the elements of TILES in the packed transpose"
    PAIRS = "the words with the elements of TILES in the packed pairs, which end at the address"
    TRANSPOSED_PAIRS = "the words with the elements of TILES in the packed pairs of the transpose"
    SUMS = "a float for each row of a tile"
    PARTIAL = "partial tiles in the slice"
    PARTIAL_SUMS = "sums beside the partial tiles in the slice, of the first tile of each row of tiles"
    STORED = "elements of the slice in all partial tiles that have them"


class Touch(NamedTuple):
    """One access of an instruction to the pool.

    Attributes:
        name: name of the field with the address.
        at: address: rows of an operand, or an address and the distance between rows.
        width: floats per row, or columns of a packed matrix; None: the units in the slice.
    """

    name: str
    access: Access
    content: Content
    reach: Reach
    at: DecodedOperand
    width: int | None = None


def word(d: Decoded, name: str) -> int:
    """Return the value of a field that is a number."""
    value = d.fields[name]
    assert isinstance(value, int)
    return value


def pairs(d: Decoded, name: str) -> list[tuple[DecodedOperand, int]]:
    """Return the value of a field that is segments with widths, or views with uses."""
    value = d.fields[name]
    assert isinstance(value, list)
    return value


def touches(d: Decoded) -> tuple[Touch, ...]:
    """Return all accesses of an instruction, reads before writes."""
    found = [*_of_operands(d), *_of_words(d)]
    return tuple([t for t in found if t.access not in _STORES] + [t for t in found if t.access in _STORES])


@cache
def _roles(opcode: int, bits: int) -> tuple[tuple[Field, Access, Reach], ...]:
    """Return the access to each operand's rows, for an instruction with some flags; for views, the access of writes."""
    table = TABLE[opcode]
    result = Access.CHANGE if bits & _ACCUMULATE else Access.WRITE
    of_role = {Role.WRITE: result, Role.READ: Access.OWN, Role.ADD: Access.ADD, Role.READ_ROWS: Access.READ}
    usual = Reach.ALL if table.slices is Slices.TILES else Reach.OWN
    found = []
    for f in table.fields:
        if f.kind not in (Kind.OPERAND, Kind.SEGMENTS, Kind.VIEWS) or (f.role is Role.WRITE and bits & _CHAINED):
            continue  # the tail that follows a chained product takes its result
        access = Access.READ if f.name == "bias" else of_role.get(f.role, result)  # a product prefetches biases
        found.append((f, access, Reach.ELEMENTS if f.elements else usual))
    return tuple(found)


def _of_operands(d: Decoded) -> Iterator[Touch]:
    for f, access, reach in _roles(d.instruction.opcode, d.bits):
        value = d.fields[f.name]
        if isinstance(value, DecodedOperand):
            yield Touch(f.name, access, Content.ROWS, reach, value, _width(d, f, value))
        elif f.kind is Kind.SEGMENTS:
            for operand, width in pairs(d, f.name):
                yield Touch(f.name, access, Content.ROWS, reach, operand, width)
        else:
            for operand, use in pairs(d, f.name):
                if use in (_SUM, _MEAN):
                    yield Touch(ViewUse(use).name, Access.READ, Content.ROWS, Reach.LISTED, operand)
                elif use in (_READ, _WRITE):
                    does = access if use == _WRITE else Access.OWN
                    yield Touch(f.name, does, Content.ROWS, reach, operand, 1 if operand.scalar else None)


def _width(d: Decoded, f: Field, operand: DecodedOperand) -> int | None:
    """Return the number of floats in a row of an operand; None: the units in the slice."""
    if operand.scalar and f.broadcast:
        return 1
    if f.role not in (Role.READ_ROWS, Role.ADD):
        return None
    if f.width == "row_width" and f.name in single(d.instruction):
        return 1
    if d.instruction.form == "PackedMatmulGradient":
        return d.width * word(d, "columns")
    return word(d, f.width) if f.width else d.width


# The weights that each form of an optimizer step changes.
_STEPS = {
    "UpdateVector": Reach.ONCE,
    "UpdateRows": Reach.TABLE,
    "UpdateMatrix": Reach.TILES,
    "OuterUpdate": Reach.TILES,
    "StepTiles": Reach.TILES,
}


def _of_words(d: Decoded) -> Iterator[Touch]:
    """Yield the accesses through fields that are not operands."""
    form = d.instruction.form
    result = Access.CHANGE if d.bits & _ACCUMULATE else Access.WRITE

    def touch(
        name: str, access: Access, content: Content, reach: Reach, step: int = 0, width: int | None = None
    ) -> Touch:
        return Touch(name, access, content, reach, DecodedOperand(word(d, name), step), width)

    match form:
        case "GatherSum":  # the result may be one of the summed rows
            offsets = DecodedOperand(word(d, "offsets"), word(d, "shift"))
            name = ViewUse.MEAN.name if d.bits & Flag.MEAN else ViewUse.SUM.name
            yield Touch(name, Access.SAME, Content.ROWS, Reach.LISTED, offsets)
        case "Matvec" | "PackedMatmul":
            columns = word(d, "columns" if form == "Matvec" else "inner")
            width = -(-columns // 2) if d.bits & _PAIRS else columns
            yield touch("weights", Access.READ, Content.WEIGHTS, Reach.PANELS, width=width)
        case "PackedRows":  # it may read any rows
            yield touch("weights", Access.READ, Content.WEIGHTS, Reach.ONCE, width=word(d, "rows") * word(d, "columns"))
        case "Load" | "MatvecTransposed":
            columns = word(d, "columns")
            yield touch("weights", Access.READ, Content.WEIGHTS, Reach.MATRIX, columns, columns)
        case "ColumnSum":
            yield touch("vector", result, Content.GRADIENT, Reach.ONCE)
        case "Outer" | "OuterUpdate" | "PackedMatmulGradient" | "PackedRowsGradient":
            yield touch("gradient", result, Content.GRADIENT, Reach.TILES)
        case "OuterTiles":
            yield touch("partials", Access.WRITE, Content.PARTIALS, Reach.PARTIAL)
            if word(d, "sums"):
                yield touch("sums", Access.WRITE, Content.PARTIALS, Reach.PARTIAL_SUMS)
            yield Touch("mark", Access.ADD, Content.REPORT, Reach.ONCE, DecodedOperand(MARK, 0), 1)
        case "SumTiles":
            yield touch("partials", Access.READ, Content.PARTIALS, Reach.STORED)
            yield touch("gradient", result, Content.GRADIENT, Reach.TILES)
        case "StepTiles":
            yield touch("partials", Access.READ, Content.PARTIALS, Reach.STORED)
            if d.bits & _ACCUMULATE:
                yield touch("gradient", Access.OWN, Content.GRADIENT, Reach.TILES)
        case "SquaresMatrix":
            yield touch("gradient", Access.READ, Content.GRADIENT, Reach.TILES)
            yield touch("partials", Access.WRITE, Content.PARTIALS, Reach.SUMS)
        case "SquaresRows":
            yield touch("gradient", Access.READ, Content.GRADIENT, Reach.OWN, d.width)
            yield touch("partials", Access.WRITE, Content.PARTIALS, Reach.OWN, 1, 1)
        case "Watch":
            yield Touch("mark", Access.ADD, Content.REPORT, Reach.ONCE, DecodedOperand(MARK, 0), 1)
        case "Clip":
            yield touch("partials", Access.READ, Content.PARTIALS, Reach.ONCE, width=d.n)
            yield touch("left_out", Access.WRITE, Content.REPORT, Reach.FIRST, width=1)
        case "Guard":
            yield touch("loss", Access.READ, Content.REPORT, Reach.ONCE, width=1)
            yield Touch("mark", Access.READ, Content.REPORT, Reach.ONCE, DecodedOperand(MARK, 0), 1)
            yield touch("left_out", Access.WRITE, Content.REPORT, Reach.FIRST, width=1)
        case "Loss":
            yield touch("source", Access.READ, Content.REPORT, Reach.FIRST, width=1)
            yield touch("slot", Access.WRITE, Content.REPORT, Reach.FIRST, width=1)
    if form in _STEPS:
        reach = _STEPS[form]
        if form not in ("OuterUpdate", "StepTiles") and not d.bits & _NO_GRADIENT:
            own = Reach.OWN if form == "UpdateRows" else reach  # a gradient row for each used row of the table
            yield touch("gradient", Access.OWN, Content.GRADIENT, own, d.width)
        moments = [f"moment{k}" for k in range(MOMENTS[d.instruction.name.partition(".")[2]])]
        for name in ("weights", *moments, *(["average"] if word(d, "average") else [])):
            yield touch(name, Access.CHANGE, Content.STATE, reach, d.width)
        if reach is Reach.TILES:
            if d.bits & _PAIRS:
                yield touch("transposed", Access.WRITE, Content.WEIGHTS, Reach.PAIRS)
                yield touch("transposed", Access.WRITE, Content.TRANSPOSED, Reach.TRANSPOSED_PAIRS)
            else:
                yield touch("transposed", Access.WRITE, Content.TRANSPOSED, Reach.TRANSPOSED)


class Length(Enum):
    """Number of words that an instruction reads from a list in the script."""

    ROWS = "one for each row of the slice"
    ENDS = "one more than rows in the slice: the beginning of each row's list, and the end of the last"
    UNITS = "one for each element of the slice"
    FIXED = "a fixed number for each name"


_SAYS = {"labels": "labels", "positions": "positions", "idle": "average"}  # list -> the word that is 0 if it is absent


@cache
def _lists_of(opcode: int) -> tuple[tuple[str, Length, str], ...]:
    """Return (name, length, word that is 0 if the list is absent) of each list that an instruction may name."""
    found = []
    for f in TABLE[opcode].fields:
        if f.kind is Kind.LIST and TABLE[opcode].form != "GatherSum":
            length = Length.ENDS if f.name in ("elements", "offsets") else Length.ROWS
        elif f.name == "data":
            length = Length.UNITS
        elif f.name in ("key", "hyper"):
            length = Length.FIXED
        else:
            continue
        found.append((f.name, length, _SAYS.get(f.name, "")))
    return tuple(found)


def lists(d: Decoded) -> tuple[tuple[str, Length], ...]:
    """Return the lists that fields name, other than those of operands and of sums."""
    possible = _lists_of(d.instruction.opcode)
    return tuple((name, length) for name, length, says in possible if not says or d.fields[says])


# ---- the slice of a virtual processor


def rows_of(d: Decoded, index: int, count: int) -> range:
    """Return the rows of the result that virtual processor `index` owns, of `count` that divide an instruction."""
    by_rows = d.bits & _ROWS and not d.bits & _ALONE
    return range(*share(d.n, index, count)) if by_rows else range(d.n)


def units_of_rows(width: int, parts: int, bits: int, panel: int, index: int, count: int) -> Ints:
    """Return the units that virtual processor `index` owns in each of its rows."""
    if bits & (_ALONE | _ROWS):
        return np.arange(width)
    return units_of(width, parts, panel, index, count, bool(bits & _TURNS))


def columns_of_tiles(d: Decoded) -> int:
    """Return the columns of the packed matrix that an instruction divides by tiles."""
    return word(d, "inner" if d.instruction.form == "PackedMatmulGradient" else "columns")


def partial_tiles_of(d: Decoded, index: int, count: int) -> Ints:
    """Return the numbers of the partial tiles that virtual processor `index` computes."""
    found = GradientTiles.of(d.n, d.width, word(d, "columns"))
    return np.arange((index - word(d, "turn")) % count, found.tiles * found.stored, count)
