"""What is static of cells and parameters, as the compiled planner takes it: records.

A record is `NameRecord` here and `Name` in C++, where it reads itself from the ints that `flat` makes of it, field by
field.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from vpps.compiler.slabs import Life
from vpps.kernel.shared_types import BOOL, I32, I64, U32

# Where the words of a list come from: the list keys of vpps/compiler/instr.py.
From = IntEnum(
    "From",
    "ARGS ELEMENTS ROWS TABLE_ROWS INTS CONSTANT EXPAND OFFSETS ENDS USES DATA CALLS POSITIONS RANDOM_KEY SAME_ROW",
    start=0,
)

# Relocations of the instructions that no cell makes: what their words say of a table or of the launch.
Frame = IntEnum("Frame", "ROWS GRADIENT OFFSETS NUMBERS IDLE PARTIALS HYPER SOURCE SLOT NORM", start=0)


class RelocationRecord(NamedTuple):
    """A word that a plan decides: constant + base + per_row * first row + per_count * rows (script/encode.py, Word)."""

    word: I32
    base: I32  # -1: none
    domain: I32
    per_row: I64
    per_count: I64


class TemplateRecord(NamedTuple):
    """Words, and those among them that a plan decides."""

    words: list[U32]
    relocations: list[RelocationRecord]


class SourceRecord(NamedTuple):
    """Where the words of a list come from.

    Attributes:
        a, b: ARGS: argument; ELEMENTS: list; ROWS: slab; TABLE_ROWS: address of the table, floats of a row; INTS:
            argument; CONSTANT: the value; USES: output; DATA: -, floats of a row; SAME_ROW: which, and the argument
            that has the ids of its values.
        of: another source.
    """

    kind: From
    a: I64 = 0
    b: I64 = 0
    of: I32 = -1
    domain: I32 = 0


class RowsRecord(NamedTuple):
    """Addresses of rows: those of a source, or one that all rows share (-1), plus an offset."""

    source: I32
    offset: I64


class SlabRecord(NamedTuple):
    """Floats of a row, and what there is a row for."""

    width: I64
    domain: I32


class SlabGroupRecord(NamedTuple):
    """Slabs side by side; `stagger`: floats between them."""

    life: Life
    domain: I32
    width: I64
    stagger: I64


class SlabPlaceRecord(NamedTuple):
    """Of a slab its group, the floats per row of those before it there, and floats before it that belong to none."""

    group: I32
    before: I64
    stagger: I64


class SlabGroupsRecord(NamedTuple):
    """How slabs lie side by side."""

    groups: list[SlabGroupRecord]
    places: list[SlabPlaceRecord]  # by slab


class ArgumentRecord(NamedTuple):
    """An argument whose gradient is handed back."""

    values: I32  # source of the values that are read: arguments or elements
    gradient: RowsRecord
    group: I32  # of slabs, where gradients are given back step by step; else -1


class TableGradientRecord(NamedTuple):
    """Gradients of rows of a lookup table; `ids`: source of the rows' numbers."""

    table: I32
    ids: I32
    gradient: RowsRecord


class InstructionRecord(NamedTuple):
    """An instruction that not every launch of a kind has; where no cell makes it, Frame has its relocations."""

    name: I64  # its bit
    words: TemplateRecord


class GradientRecord(NamedTuple):
    """A contribution to a dense gradient; `stepped` also makes the matrix's step, if there is such an instruction.

    Attributes:
        tiles: where there is such an instruction, it makes partial tiles, which `plain` or `stepped` adds up.
        summed_by: the gradient of the cell whose partial tiles have the terms of this sum beside them; else -1.
    """

    parameter: I32
    plain: InstructionRecord
    stepped: InstructionRecord
    tiles: InstructionRecord
    summed_by: I32


class GroupRecord(NamedTuple):
    """Instructions of a step between one barrier and the next. In an exclusive script it is one, executed for each row
    by itself: by all owners of rows of its matrix, or by one virtual processor whose load it adds to.

    Attributes:
        domain: whose rows it counts.
        load: floats that it reads.
    """

    words: TemplateRecord
    domain: I32
    load: I64
    owners: list[I32]


class SameRowRecord(NamedTuple):
    """What another part of a cell has for each row."""

    part: I32
    slab: I32
    offset: I64


class SlabViewRecord(NamedTuple):
    """Part of a slab's rows; -1: of none."""

    slab: I32
    offset: I64


class RowOperandRecord(NamedTuple):
    """An operand whose rows lie at an even stride or are found through a list: which list, the offset in each row.

    Attributes:
        whole: its instruction works on all rows of the cell at once.
    """

    list: I32
    whole: BOOL
    offset: I64


class CellRecord(NamedTuple):
    """An encoded cell, or a part of one. The first keys and operands are those of forward."""

    id: I64
    n_domains: I64
    list_of_domain: list[I32]
    slabs: list[SlabRecord]
    sources: list[SourceRecord]
    same_row: list[SameRowRecord]
    keys: list[I32]  # the lists that are placed: their sources
    n_forward_keys: I64
    row_lists: list[I32]  # those that operands may need: their sources
    operands: list[RowOperandRecord]
    n_forward_operands: I64
    outputs: list[RowsRecord]
    passed_on: list[I32]  # by output: its group of slabs
    arguments: list[ArgumentRecord]
    tables: list[TableGradientRecord]
    memory: SlabGroupsRecord
    forward: list[list[GroupRecord]]  # by barrier
    backward: list[list[GroupRecord]]
    watches: list[InstructionRecord]
    gradients: list[GradientRecord]
    matrices_of_forward: list[I32]  # on the chip: their numbers
    matrices_of_training: list[I32]
    input_gradient: SlabViewRecord  # of a graph's input that wants its gradient


class CrossingRecord(NamedTuple):
    """A value that another part computes."""

    part: I32
    output: I32


class PartRecord(NamedTuple):
    """A part of a cell (passes/lazy_batching.py, Part): which of the whole's it takes, and gives; -1: it crosses.

    Attributes:
        streams: its steps may run while virtual processors wait for each other.
    """

    batching: I64  # a Batching
    streams: BOOL
    vectors: list[I32]
    ints: list[I32]
    lists: list[I32]
    outputs: list[I32]
    crossings: list[CrossingRecord]
    cell: CellRecord


class LookupRecord(NamedTuple):
    """A lookup in a table of the user's: of the row that an int argument says, or, if that is -1, of a constant one."""

    table: I32
    column: I32
    constant: I64


class OutputReachRecord(NamedTuple):
    """Dependencies of an output of a cell by recorded ops that have gradients; parameters are dense and the user's."""

    operands: list[I32]
    parameters: list[I32]
    lookups: list[LookupRecord]


class PartsRecord(NamedTuple):
    """A cell as it is planned: in parts, or one that is all of a piece; and, for groups of virtual processors, what its
    vertices weigh (planner/grouping.py).

    Attributes:
        reach: by output, in training.
        reaches_all: every output that is read depends on all operands and lookups, and gradients come back to these.
        is_scalar: it deals with scalars and no matrices.
        floats, element_floats: that a vertex computes with, and for each element of a list argument.
        piece_rows: into pieces of so many rows its steps are divided, or of up to twice as many; 0: they are not.
    """

    parts: list[PartRecord]
    reach: list[OutputReachRecord]
    reaches_all: BOOL
    piece_rows: I64 = 0
    is_scalar: BOOL = False
    floats: I64 = 0
    element_floats: list[I64] = []  # noqa: RUF012


class ParameterRecord(NamedTuple):
    """What the end of a launch does with a parameter (vpps/placement/update.py).

    Attributes:
        width: of a table's row.
        squares: partial sums of squares of a dense gradient.
    """

    trainable: BOOL
    is_table: BOOL
    gradient: I64
    width: I64
    squares: I64
    square: InstructionRecord
    step: InstructionRecord
    sum: InstructionRecord
    sum_held: InstructionRecord


class LoadRecord(NamedTuple):
    """A matrix that is loaded into the chip where something uses its number."""

    parameter: I32
    number: I32
    words: TemplateRecord


class ModelRecord(NamedTuple):
    """The parameters, and what all scripts of a model share.

    Attributes:
        kernel_of: of each parameter of the user's, the number of the kernel's that it is or is stacked in.
        load_name: bit of the name of loads.
        exclusive: every virtual processor has instructions of its own.
        accumulate, no_gradient: flags, shifted to their place.
        tile_rows, tile_columns, segment, most_segments, shared_tiles: of partial tiles (`script/slices.py`).
        indexed, offset_mask: of an operand's second word.
        header: of a script; from the fifth word on entry points.
        barrier, signal, wait: by counter, one of each group, then that of all where there are several; of a barrier and
            a wait the last word is the number of signals.
    """

    n_vps: I64  # of each group
    groups: I64
    end: I64
    load_name: I64
    exclusive: BOOL
    accumulate: U32
    no_gradient: U32
    head_words: I64
    tile_rows: I64
    tile_columns: I64
    segment: I64
    most_segments: I64
    shared_tiles: I64
    indexed: I64
    offset_mask: I64
    header: list[U32]
    barrier: list[list[U32]]
    signal: list[list[U32]]
    wait: list[list[U32]]
    stop: list[U32]
    loss: InstructionRecord
    constants: InstructionRecord
    clip: InstructionRecord
    guard: InstructionRecord
    loads: list[LoadRecord]
    parameters: list[ParameterRecord]
    kernel_of: list[I32]


RECORDS: tuple[type, ...] = tuple(found for name, found in list(globals().items()) if name.endswith("Record"))


def flat(value: Any) -> list[int]:
    """The ints of a record, or of a list of them."""
    if isinstance(value, int):
        return [value]
    found = [len(value)] if isinstance(value, list) else []
    for item in value:
        found += flat(item)
    return found
