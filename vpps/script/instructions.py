"""The instruction table. The encoder, C++ decoder, disassembler and verifier all derive from it.

An instruction has a head of five words - `opcode | flags << 16`, number of words, rows n, width, parts - and then its
fields in order. Rows are the vertices of a step, or the elements of their lists; `width` is the number of floats in a
row of the result.

Field kinds:
    operand: two words, an address and a mode. Direct: row r starts at `address + r * stride`. Indexed (mode bit 31):
        row r starts at `script[address + r] + offset`. The low 29 bits of the mode are the stride or the offset. A
        *scalar* operand (mode bit 30) has one float per row, used for every unit.
    list: position, in the script, of a list with one word per row.
    word: an unsigned integer, or a pool address if the name says so.
    float: an IEEE single.
    segments: any number of (operand, width) pairs to the end of the instruction.
    views: any number of (operand, use) pairs to the end of the instruction; see `tails.py`.

Instructions on lists have a row per vertex, and work on the elements of its lists. In operands with `elements`, rows
`elements[r]` to `elements[r + 1]` are the elements of vertex r; row 0 is the first element of the cell.

Division of an instruction among the virtual processors (`Slices`):
    units: a VP owns some units of each of the `parts` equal parts of a row, for all rows (flag ROWS clear);
    rows: a VP owns some whole rows (flag ROWS set);
    alone: a VP computes the whole result, because only its script has the instruction (flag ALONE set);
    tiles: a VP owns some tiles of a packed matrix; in `outer_tiles`, the VPs make partial tiles in turn;
    one: virtual processor 0 executes it.

If virtual processors form groups, an instruction is divided among those of one group, which are numbered within the
group. With flag ALL, it is divided among those of all groups, which are numbered across groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from typing import Any

from vpps.model.optim import OPTIMIZERS
from vpps.ops import OPS, Form

HEAD_WORDS = 5
INDEXED = 1 << 31
SCALAR = 1 << 30
OFFSET_MASK = (1 << 29) - 1

MAGIC = 0x53505056  # "VPPS"
HEADER_WORDS = 4  # magic, number of virtual processors, groups, total words; then one entry point per VP

COUNTERS = 8  # of signals: one for each group of virtual processors, then one for barriers across all groups
MAX_GROUPS = COUNTERS - 1


class Flag(IntFlag):
    """Bits 16 and up of an instruction's first word."""

    ACCUMULATE = 1  # add to the result instead of storing
    ROWS = 2  # slices are rows, not units
    MEAN = 4  # gather_sum divides by the number of entries
    NO_GRADIENT = 8  # the graph does not use the parameter: its gradient is zero
    ALONE = 16  # one virtual processor computes all of the result
    TURNS = 32  # a matrix's rows are dealt out in turns (the published VPPS scheme), see slices.unit_owners
    ALL = 64  # divided among the virtual processors of all groups, not of one group
    CHAINED = 128  # a product leaves its result on the chip, and the tail that follows is executed with it
    BF16 = 256  # factors are rounded to bf16 (`Field.rounded`)
    TF32 = 512  # factors are rounded to tf32 (`Field.rounded`)
    PAIRS = 1024  # a word of a product's weights holds two bf16 weights, from neighbouring columns, also after a step


NO_FLAGS = Flag(0)


class Kind(Enum):
    """Kind of a field.

    Attributes:
        words: number of its words, or of the words of each segment or view.
        repeated: True if the field repeats to the end of the instruction.
    """

    words: int
    repeated: bool

    def __new__(cls, name: str, words: int = 1, repeated: bool = False) -> Kind:
        kind = object.__new__(cls)
        kind._value_, kind.words, kind.repeated = name, words, repeated
        return kind

    OPERAND = "operand", 2
    LIST = "list"
    WORD = "word"
    FLOAT = "floating"
    SEGMENTS = "segments", 3, True
    VIEWS = "views", 3, True


class Role(Enum):
    """Use of an operand by the virtual processor that executes the instruction."""

    WRITE = "write"  # writes its own slice
    READ = "read"  # reads its own slice
    ADD = "add"  # adds to whole rows, by atomic additions: any number of virtual processors at once
    READ_ROWS = "read rows"  # reads whole rows: its own with flag ROWS, else all
    NONE = ""


class Slices(Enum):
    """Division of an instruction among the virtual processors."""

    UNITS = "units or rows"
    TILES = "tiles"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an instruction.

    Attributes:
        width: name of the field with the operand's width; "" for the result's width.
        elements: True if the operand's rows are list elements and the instruction runs over vertices.
        broadcast: True if device code tests mode bit SCALAR, and then uses a row's single float for every unit.
        rounded: True for a factor of a product that flags BF16 and TF32 round; all other operands are float32.
    """

    name: str
    kind: Kind
    role: Role = Role.NONE
    width: str = ""
    elements: bool = False
    broadcast: bool = False
    rounded: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One row of the instruction table. Rows are compared by identity, so that look-ups are fast.

    Attributes:
        name: mnemonic.
        opcode: number of the instruction.
        form: name of the C++ struct that decodes it; instructions of one form have the same fields.
        fields: fields in order of their words.
        device: the C++ function that executes it, `device(vp, form)`.
        slices: division among virtual processors.
        doc: one line for the reference page.
        on_chip: True if only GPUs have it, which hold weights on the chip.
        on_host: True if only CPUs have it.
        fixed_words: number of words without segments and views.
    """

    name: str
    opcode: int
    form: str
    fields: tuple[Field, ...]
    device: str
    slices: Slices
    doc: str
    on_chip: bool = False
    on_host: bool = False
    fixed_words: int = field(init=False)

    def __post_init__(self) -> None:
        words = HEAD_WORDS + sum(f.kind.words for f in self.fields if not f.kind.repeated)
        object.__setattr__(self, "fixed_words", words)


def _operand(name: str, role: Role, width: str = "", elements: bool = False, broadcast: bool = False) -> Field:
    return Field(name, Kind.OPERAND, role, width, elements, broadcast)


def _words(names: str) -> tuple[Field, ...]:
    return tuple(Field(name, Kind.WORD) for name in names.split())


DST = _operand("dst", Role.WRITE)
SOURCES = ("a", "b", "c", "d")  # of elementwise and row-wise instructions


def _map_form(n: int) -> tuple[Field, ...]:
    return (DST, *(_operand(s, Role.READ, broadcast=True) for s in SOURCES[:n]), Field("value", Kind.FLOAT))


def _row_form(n: int) -> tuple[Field, ...]:
    sources = (_operand(s, Role.READ_ROWS, "row_width") for s in SOURCES[:n])
    return (DST, *sources, Field("row_width", Kind.WORD), Field("labels", Kind.LIST), Field("value", Kind.FLOAT))


_DST_ELEMENTS = _operand("dst", Role.WRITE, elements=True)
_LIST = _operand("a", Role.READ, elements=True)
_ELEMENTS = Field("elements", Kind.LIST)
# Address of the matrix's master copy in memory, its columns, and its number on the chip; 0: it is in memory only.
_MATRIX = _words("weights columns matrix")
_FACTOR = (Field("weights", Kind.WORD, rounded=True), *_MATRIX[1:])  # of a product
_DY = Field("dy", Kind.OPERAND, Role.READ_ROWS, rounded=True)
_X = Field("x", Kind.SEGMENTS, Role.READ_ROWS, rounded=True)
_HYPER = Field("hyper", Kind.WORD)  # position in the script of the optimizer's hyper-parameters
_STATE = (
    Field("moment0", Kind.WORD),
    Field("moment1", Kind.WORD),
    Field("average", Kind.WORD),  # average of the weights; 0 if there is none
    Field("complement", Kind.FLOAT),  # 1 - decay of the average
)

# The decoded form of an instruction: name of the C++ struct -> its fields.
FORMS: dict[str, tuple[Field, ...]] = {
    **{f"Map{n}": _map_form(n) for n in range(1, 5)},
    **{f"Row{n}": _row_form(n) for n in range(1, 5)},
    "Dropout": (
        *(DST, _operand("a", Role.READ), Field("calls", Kind.LIST), Field("positions", Kind.LIST)),
        *(*_words("number threshold"), Field("scale", Kind.FLOAT), *_words("key")),
    ),
    "Fill": (DST,),
    "Input": (DST, Field("data", Kind.WORD)),
    "GatherSum": (DST, Field("offsets", Kind.LIST), Field("shift", Kind.WORD)),
    "DivideByCount": (DST, _operand("src", Role.READ), Field("offsets", Kind.LIST)),
    "ListMap": (_DST_ELEMENTS, _LIST, _ELEMENTS),
    "ListMapGrad": (_DST_ELEMENTS, _LIST, _operand("dy", Role.READ, elements=True), _ELEMENTS),
    "ListReduce": (DST, _LIST, _ELEMENTS),
    "ListReduceGrad": (_DST_ELEMENTS, _LIST, _operand("dy", Role.READ), _ELEMENTS),
    "Transpose": (DST, _operand("a", Role.READ_ROWS), Field("columns", Kind.WORD)),
    "Matmul": (
        DST,
        _operand("a", Role.READ_ROWS, "a_width"),
        _operand("b", Role.READ_ROWS, "b_width"),
        *_words("a_width b_width inner a_transposed b_transposed"),
    ),
    "PackedMatmul": (DST, Field("weights", Kind.WORD, rounded=True), *_words("inner columns"), _X),
    "PackedMatmulGradient": (*_words("gradient inner columns"), _DY, _X),
    "PackedRows": (DST, *_words("weights rows columns"), Field("labels", Kind.LIST)),  # rows of whole panels
    "PackedRowsGradient": (
        *_words("gradient columns dy_width"),
        _operand("dy", Role.READ_ROWS, "dy_width"),
        Field("labels", Kind.LIST),
    ),
    "Tail": (Field("number", Kind.WORD), Field("views", Kind.VIEWS)),
    "ColumnSum": (Field("vector", Kind.WORD), _operand("src", Role.READ)),
    "Matvec": (DST, _operand("bias", Role.READ, broadcast=True), *_FACTOR, _X),
    "Load": _MATRIX,
    "MatvecTransposed": (
        _operand("dst", Role.ADD, "columns"),
        *_FACTOR,
        Field("x", Kind.OPERAND, Role.READ, rounded=True),
    ),
    "Outer": (*_words("gradient columns"), _DY, _X),
    # Hyper-parameters differ from launch to launch: as the first field, they are easy for a plan to find.
    "OuterUpdate": (_HYPER, *_STATE, *_words("weights columns transposed gradient"), _DY, _X),
    # Partial tiles of a gradient, and sums of dy if `sums` is not 0 (`slices.GradientTiles`). `turn`: the first VP.
    "OuterTiles": (*_words("partials columns sums turn"), _DY, _X),
    "SumTiles": _words("gradient columns partials"),
    "StepTiles": (_HYPER, *_STATE, *_words("weights columns transposed gradient partials")),
    "SquaresMatrix": _words("gradient columns partials"),
    "SquaresRows": _words("gradient partials"),
    "Clip": (Field("partials", Kind.WORD), Field("max_norm", Kind.FLOAT), Field("left_out", Kind.WORD)),
    "Watch": (_operand("dy", Role.READ), Field("terms", Kind.WORD), Field("x", Kind.SEGMENTS, Role.READ_ROWS)),
    "Guard": _words("loss left_out"),
    "UpdateMatrix": (*_words("weights columns transposed gradient"), *_STATE, _HYPER),
    "UpdateVector": (*_words("weights gradient"), *_STATE, _HYPER),
    "UpdateRows": (
        *(*_words("weights gradient"), *_STATE, _HYPER, Field("table_rows", Kind.LIST)),
        Field("idle", Kind.LIST),  # factors of the rows' averages for the updates that skipped the rows
    ),
    "Loss": _words("source slot"),
    "Signal": _words("counter"),
    "Wait": _words("counter target"),
    "End": (),
}


# Prefix of instructions on an on-chip matrix. A kernel has code only for the instructions that occur.
HELD = "held_"


def _rows() -> Iterator[tuple[str, str, str, Slices, str]]:
    """Yield (name, form, device, slices, doc) of every instruction, in opcode order."""
    one, units, tiles = Slices.ONE, Slices.UNITS, Slices.TILES
    yield "end", "End", "", one, "the virtual processor has reached the end of its script"
    doc = "add one to a counter; all earlier writes are visible to virtual processors that wait for it"
    yield "signal", "Signal", "signal", one, doc
    yield "barrier", "Wait", "", one, "signal, then wait for the same counter, with no work between"
    yield "wait", "Wait", "wait", one, "wait until a counter has reached the target"
    yield "dropout", "Dropout", "dropout", units, "dst = a times 0 or scale, by random words below or above a threshold"
    yield "zero", "Fill", "zero", units, "dst = 0"
    yield "input", "Input", "input", units, "dst = floats carried by the script"
    yield "gather_sum", "GatherSum", "gather_sum", units, "dst[r] = sum of the rows listed for r, in order"
    yield "divide_by_count", "DivideByCount", "divide_by_count", units, "dst[r] = src[r] / number of rows listed for r"
    for name, of in (("matvec", "a packed matrix, or its packed transpose"), ("held_matvec", "held on the chip")):
        yield name, "Matvec", name, units, f"dst = W x + bias for n vectors; W is {of}"
    name = "matvec_transposed"
    yield name, "MatvecTransposed", name, units, "dst += W^T x, from the rows of W that the chip holds"
    yield "load", "Load", "load", units, "take the owned rows of a matrix from memory"
    yield "outer", "Outer", "outer", tiles, "G = sum over rows of dy x^T"
    yield "outer_tiles", "OuterTiles", "outer_tiles", tiles, "partial tiles of the sum over rows of dy x^T, and of dy"
    yield "sum_tiles", "SumTiles", "sum_tiles", tiles, "G = sum of partial tiles"
    yield "matmul", "Matmul", "matmul", units, "dst[r] = A B, or a transpose of either, for matrices of every vertex"
    name = "packed_matmul"
    yield name, "PackedMatmul", name, units, "dst[r] = W M for a matrix M of every vertex; W as in matvec"
    name = "packed_matmul_gradient"
    yield name, "PackedMatmulGradient", name, tiles, "G = sum over rows of dY M^T"
    doc = "dst[r] = rows of a packed matrix, one after the other from row labels[r] on"
    yield "packed_rows", "PackedRows", "packed_rows", units, doc
    name = "packed_rows_gradient"
    yield name, "PackedRowsGradient", name, tiles, "G = sum of rows dy[r], those from row labels[r] on"
    yield "transpose", "Transpose", "transpose", units, "dst[r] = transpose of a matrix with `columns` columns"
    yield "column_sum", "ColumnSum", "column_sum", units, "vector = sum over rows of src"
    name = "squares_matrix"
    yield name, "SquaresMatrix", name, tiles, "partial sums of squares of a matrix gradient"
    yield "squares_rows", "SquaresRows", "squares_rows", units, "sum of squares of each row of a gradient"
    doc = "every VP: scale of the gradients from the global norm of n partial sums; like guard if that is not finite"
    yield "clip", "Clip", "clip", one, doc
    doc = "report if the sum over rows of dy x^T, or of dy, or its squares, may not be finite"
    yield "watch", "Watch", "watch", units, doc
    doc = "every VP: if the loss is not finite, or a watch has reported, leave the launch before it changes any weight"
    yield "guard", "Guard", "guard", one, doc
    yield "loss", "Loss", "report_loss", one, "copy the loss into the slot of this launch"
    for op in OPS.values():
        if op.form is Form.MAP:
            assert op.arity is not None
            yield op.name, f"Map{op.arity}", f"map<&{op.device}::forward, {op.arity}>", units, op.doc
        elif op.form is Form.ROWWISE:
            assert op.arity is not None
            yield op.name, f"Row{op.arity}", f"rowwise<&{op.device}::forward>", units, op.doc
        elif op.form in (Form.LIST_MAP, Form.LIST_REDUCE) and op.device:
            form = "ListMap" if op.form is Form.LIST_MAP else "ListReduce"
            yield op.name, form, f"lists<&{op.device}::forward>", units, op.doc
            doc = f"gradient of {op.name}"
            yield f"{op.name}.grad0", f"{form}Grad", f"lists<&{op.device}::backward>", units, doc
            continue
        else:
            continue
        for k in range(op.arity if op.differentiable else 0):
            if k in op.passes:
                continue
            function = f"backward{k}" if op.arity > 1 else "backward"
            loop = "map" if op.form is Form.MAP else "rowwise"
            n = f", {op.arity + 2}" if loop == "map" else ""
            form = f"{'Map' if loop == 'map' else 'Row'}{op.arity + 2}"
            doc = f"gradient of {op.name} with respect to operand {k}"
            yield f"{op.name}.grad{k}", form, f"{loop}<&{op.device}::{function}{n}>", units, doc
    yield "tail", "Tail", "tail", units, "a run of elementwise instructions in one loop, by the program of that number"
    for optimizer in OPTIMIZERS:
        rule, device = optimizer.name, f"<{optimizer.device}>"
        for what, sliced, of in (
            ("update_matrix", tiles, "a matrix"),
            ("update_vector", units, "a vector"),
            ("update_rows", units, "a table"),
        ):
            form = what.title().replace("_", "")
            yield f"{what}.{rule}", form, what + device, sliced, f"{optimizer.__name__} step of {of}"
        doc = f"the last outer product of a gradient, and the {optimizer.__name__} step of its matrix"
        yield f"outer_update.{rule}", "OuterUpdate", f"outer_update{device}", tiles, doc
        doc = f"the sum of a gradient's last partial tiles, and the {optimizer.__name__} step of its matrix"
        yield f"step_tiles.{rule}", "StepTiles", f"step_tiles{device}", tiles, doc


_ON_CHIP = frozenset({"MatvecTransposed", "Load", "OuterTiles", "SumTiles", "StepTiles"})


def _is_on_chip(row: tuple[str, str, str, Slices, str]) -> bool:
    return row[1] in _ON_CHIP or row[0].startswith(HELD)


def _is_on_host(row: tuple[str, str, str, Slices, str]) -> bool:
    return row[0] == "outer" or row[1] == "OuterUpdate"


def _is_sliced(row: tuple[str, str, str, Slices, str]) -> bool:
    """Return True if device code needs its virtual processor's slice. Code for on-chip weights computes its own."""
    return row[3] is Slices.UNITS and not _is_on_chip(row)


TABLE: tuple[Instruction, ...] = tuple(
    Instruction(row[0], opcode, row[1], FORMS[row[1]], *row[2:], _is_on_chip(row), _is_on_host(row))
    for opcode, row in enumerate(sorted(_rows(), key=_is_sliced))
)
FIRST_SLICED = sum(not _is_sliced(row) for row in _rows())  # the first opcode whose device code needs its slice
BY_NAME: dict[str, Instruction] = {i.name: i for i in TABLE}


def instruction_of(name: str, fields: Mapping[str, Any]) -> Instruction:
    """Return the instruction for a name and fields: a product with an on-chip matrix (number not 0) has its own."""
    return BY_NAME[HELD + name if fields.get("matrix") and HELD + name in BY_NAME else name]
