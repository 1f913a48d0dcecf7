"""What an instruction touches: whose rows and which elements of them it reads, writes or adds to.

The verifier executes scripts on this, and reports count by it. The reasoning that leaves barriers out
(`compiler/barriers.py`) has one of its own: else an error here would hide one there.

`touches` says it for an instruction, whoever executes it; what a virtual processor does of that follows from its slice
of the result (`rows_of`, `units_of_rows`, `tile_elements`). Most of it the instruction table says, by the roles of
operands; words that are addresses have a line of their own below.
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

# What watches tell the guard: it lies with the counters, and stands here as one of the first floats of the pool, which
# no operand names.
MARK = 8

# As plain ints: they are asked for at every instruction.
_ACCUMULATE, _ALONE, _CHAINED, _NO_GRADIENT, _PAIRS, _ROWS, _TURNS = (
    Flag[name].value for name in ("ACCUMULATE", "ALONE", "CHAINED", "NO_GRADIENT", "PAIRS", "ROWS", "TURNS")
)
_READ, _WRITE, _SUM, _MEAN = (ViewUse[name].value for name in ("READ", "WRITE", "SUM", "MEAN"))


class Access(Enum):
    """What an instruction does with elements of the pool."""

    READ = "read"  # by any of its threads
    OWN = "read own"  # by the thread alone that writes the unit
    SAME = "read, maybe the same"  # by any of its threads; what is written as well, by the thread that does so
    WRITE = "write"
    CHANGE = "read own, then write"
    ADD = "add"  # atomically: additions of several virtual processors need no order


_STORES = Access.WRITE, Access.CHANGE


class Content(Enum):
    """What lies where an instruction touches the pool."""

    ROWS = "values of vertices and their gradients, rows of tables"
    WEIGHTS = "weights that products multiply by, packed"
    GRADIENT = "the gradient of a parameter"
    STATE = "what an optimizer's step changes: weights, moments, averages"
    TRANSPOSED = "the packed transpose of a matrix"
    PARTIALS = "partial sums of squares"
    REPORT = "what guards read and the host is told"


class Reach(Enum):
    """Which rows an instruction touches, counted from an address; a row of `Touch.width` floats, or of own units."""

    OWN = "those of the slice"
    ELEMENTS = "those of the list elements of the slice's vertices"
    ALL = "all n"
    LISTED = "those that CSR offsets list for the slice's rows; the address is that of the offsets, the mode a shift"
    TABLE = "those that `table_rows` names for the slice's rows"
    ONCE = "one, by all who own anything of the result"
    FIRST = "one, by the first of those who divide the instruction"
    MATRIX = "of a matrix on the chip, those of the slice's units"
    PANELS = "of a packed matrix, the panels that the slice's units lie in"
    TILES = "of a packed matrix, the tiles of the slice"
    TRANSPOSED = "the same elements in the packed transpose"
    PAIRS = "the words with these elements in the packed pairs, which lie before those of the transpose, at the address"
    TRANSPOSED_PAIRS = "the words with these elements in the packed pairs of the transpose"
    SUMS = "a float for each row of a tile"
    PARTIAL = "partial tiles that the slice has"
    PARTIAL_SUMS = "of the sums beside them, those of the first tile of a row of tiles"
    STORED = "of all partial tiles that hold them, the elements of the slice"


class Touch(NamedTuple):
    """Some of the pool that an instruction touches.

    Attributes:
        name: of the field that says where.
        at: where: rows of an operand; or an address, and how far rows are apart.
        width: floats of a row, or columns of a packed matrix; None: the units that the slice has.
    """

    name: str
    access: Access
    content: Content
    reach: Reach
    at: DecodedOperand
    width: int | None = None


def word(d: Decoded, name: str) -> int:
    """A field that is a number."""
    value = d.fields[name]
    assert isinstance(value, int)
    return value


def pairs(d: Decoded, name: str) -> list[tuple[DecodedOperand, int]]:
    """Segments with their widths, or views with their uses."""
    value = d.fields[name]
    assert isinstance(value, list)
    return value


def touches(d: Decoded) -> tuple[Touch, ...]:
    """All that an instruction touches, what is read first."""
    found = [*_of_operands(d), *_of_words(d)]
    return tuple([t for t in found if t.access not in _STORES] + [t for t in found if t.access in _STORES])


@cache
def _roles(opcode: int, bits: int) -> tuple[tuple[Field, Access, Reach], ...]:
    """What an instruction with some flags does with the rows of its operands; of views what is written."""
    table = TABLE[opcode]
    result = Access.CHANGE if bits & _ACCUMULATE else Access.WRITE
    of_role = {Role.WRITE: result, Role.READ: Access.OWN, Role.ADD: Access.ADD, Role.READ_ROWS: Access.READ}
    usual = Reach.ALL if table.slices is Slices.TILES else Reach.OWN
    found = []
    for f in table.fields:
        if f.kind not in (Kind.OPERAND, Kind.SEGMENTS, Kind.VIEWS) or (f.role is Role.WRITE and bits & _CHAINED):
            continue  # of a chained product the tail behind it takes the result
        access = Access.READ if f.name == "bias" else of_role.get(f.role, result)  # a product looks up biases ahead
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
    """Floats of a row of an operand; None: the units that the slice has."""
    if operand.scalar and f.broadcast:
        return 1
    if f.role not in (Role.READ_ROWS, Role.ADD):
        return None
    if f.width == "row_width" and f.name in single(d.instruction):
        return 1
    if d.instruction.form == "PackedMatmulGradient":
        return d.width * word(d, "columns")
    return word(d, f.width) if f.width else d.width


# Which weights the steps of optimizers change.
_STEPS = {
    "UpdateVector": Reach.ONCE,
    "UpdateRows": Reach.TABLE,
    "UpdateMatrix": Reach.TILES,
    "OuterUpdate": Reach.TILES,
    "StepTiles": Reach.TILES,
}


def _of_words(d: Decoded) -> Iterator[Touch]:
    """What fields other than operands stand for."""
    form = d.instruction.form
    result = Access.CHANGE if d.bits & _ACCUMULATE else Access.WRITE

    def touch(
        name: str, access: Access, content: Content, reach: Reach, step: int = 0, width: int | None = None
    ) -> Touch:
        return Touch(name, access, content, reach, DecodedOperand(word(d, name), step), width)

    match form:
        case "GatherSum":  # a row may be among those that it is the sum of
            offsets = DecodedOperand(word(d, "offsets"), word(d, "shift"))
            name = ViewUse.MEAN.name if d.bits & Flag.MEAN else ViewUse.SUM.name
            yield Touch(name, Access.SAME, Content.ROWS, Reach.LISTED, offsets)
        case "Matvec" | "PackedMatmul":
            columns = word(d, "columns" if form == "Matvec" else "inner")
            width = -(-columns // 2) if d.bits & _PAIRS else columns
            yield touch("weights", Access.READ, Content.WEIGHTS, Reach.PANELS, width=width)
        case "PackedRows":  # any rows
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
            own = Reach.OWN if form == "UpdateRows" else reach  # a row for each that is used
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
    """How many words of a list in the script an instruction reads."""

    ROWS = "one for each row of the slice"
    ENDS = "where the lists of the slice's rows begin, and where the last one ends"
    UNITS = "one for each element of the slice"
    FIXED = "a number of its own"


_SAYS = {"labels": "labels", "positions": "positions", "idle": "average"}  # the word that is 0 where there is no list


@cache
def _lists_of(opcode: int) -> tuple[tuple[str, Length, str], ...]:
    """(name, length, word that says whether there is one) of the lists that an instruction may name."""
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
    """Lists that fields name, besides those of operands and of sums."""
    possible = _lists_of(d.instruction.opcode)
    return tuple((name, length) for name, length, says in possible if not says or d.fields[says])


# ---- the slice of a virtual processor


def rows_of(d: Decoded, index: int, count: int) -> range:
    """Rows of the result that virtual processor `index` owns, of `count` that divide an instruction among them."""
    by_rows = d.bits & _ROWS and not d.bits & _ALONE
    return range(*share(d.n, index, count)) if by_rows else range(d.n)


def units_of_rows(width: int, parts: int, bits: int, panel: int, index: int, count: int) -> Ints:
    """Units of those rows."""
    if bits & (_ALONE | _ROWS):
        return np.arange(width)
    return units_of(width, parts, panel, index, count, bool(bits & _TURNS))


def columns_of_tiles(d: Decoded) -> int:
    """Columns of the packed matrix that an instruction divides by tiles."""
    return word(d, "inner" if d.instruction.form == "PackedMatmulGradient" else "columns")


def partial_tiles_of(d: Decoded, index: int, count: int) -> Ints:
    """Numbers of the partial tiles that virtual processor `index` makes."""
    found = GradientTiles.of(d.n, d.width, word(d, "columns"))
    return np.arange((index - word(d, "turn")) % count, found.tiles * found.stored, count)
