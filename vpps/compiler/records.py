"""Records for the compiled planner: the static data of cells and parameters.

A record is `NameRecord` here and `Name` in C++. `flat` turns it into ints, and the C++ struct reads its fields from
these ints in order.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from vpps.compiler.slabs import Life
from vpps.kernel.shared_types import BOOL, I32, I64, U32

# Source of the words of a list, for each list key of vpps/compiler/instr.py.
From = IntEnum(
    "From",
    "ARGS ELEMENTS ROWS TABLE_ROWS INTS CONSTANT EXPAND OFFSETS ENDS USES DATA CALLS POSITIONS RANDOM_KEY SAME_ROW",
    start=0,
)

# Relocations of instructions that belong to no cell: words that depend on a table or on the launch.
Frame = IntEnum("Frame", "ROWS GRADIENT OFFSETS NUMBERS IDLE PARTIALS HYPER SOURCE SLOT NORM", start=0)


class RelocationRecord(NamedTuple):
    """A word that a plan decides: constant + base + per_row * first row + per_count * rows (script/encode.py, Word)."""

    word: I32
    base: I32  # -1: none
    domain: I32
    per_row: I64
    per_count: I64


class TemplateRecord(NamedTuple):
    """Words of instructions, and the relocations that a plan fills in."""

    words: list[U32]
    relocations: list[RelocationRecord]


class SourceRecord(NamedTuple):
    """Source of the words of a list.

    Attributes:
        a, b: ARGS: argument; ELEMENTS: list; ROWS: slab; TABLE_ROWS: address of the table, floats per row; INTS:
            argument; CONSTANT: value; OFFSETS, ENDS: domain; USES: output; DATA: -, floats per row; SAME_ROW:
            its number, argument with the ids of its values.
        of: number of another source that this one is made from.
    """

    kind: From
    a: I64 = 0
    b: I64 = 0
    of: I32 = -1
    domain: I32 = 0


class RowsRecord(NamedTuple):
    """Addresses of rows: an offset plus a source's addresses, or only the offset for a shared row (source -1)."""

    source: I32
    offset: I64


class SlabRecord(NamedTuple):
    """A slab: floats per row, and the domain that its rows belong to."""

    width: I64
    domain: I32


class SlabGroupRecord(NamedTuple):
    """Slabs side by side; `stagger`: padding floats between them."""

    life: Life
    domain: I32
    width: I64
    stagger: I64


class SlabPlaceRecord(NamedTuple):
    """Place of a slab: its group, the floats per row of the group's earlier slabs, and the padding before the slab."""

    group: I32
    before: I64
    stagger: I64


class SlabGroupsRecord(NamedTuple):
    """Layout of a cell's slabs in groups."""

    groups: list[SlabGroupRecord]
    places: list[SlabPlaceRecord]  # by slab


class ArgumentRecord(NamedTuple):
    """An argument whose gradient is handed back."""

    values: I32  # source of the values that are read: arguments or elements
    gradient: RowsRecord
    group: I32  # slab group, if gradients are freed step by step; else -1


class TableGradientRecord(NamedTuple):
    """Gradients for rows of a lookup table; `ids`: source of the row numbers."""

    table: I32
    ids: I32
    gradient: RowsRecord


class InstructionRecord(NamedTuple):
    """An instruction that only some launches include. If it belongs to no cell, its relocations refer to Frame."""

    name: I64  # bit of the name
    words: TemplateRecord


class GradientRecord(NamedTuple):
    """A contribution to a dense gradient.

    Attributes:
        stepped: variant that also performs the matrix's optimizer step, if there is one.
        tiles: instruction that computes the partial tiles, if there is one; `plain` or `stepped` adds them up.
        summed_by: the gradient of the cell whose partial tiles include the terms of this sum; else -1.
    """

    parameter: I32
    plain: InstructionRecord
    stepped: InstructionRecord
    tiles: InstructionRecord
    summed_by: I32


class GroupRecord(NamedTuple):
    """Instructions of a step between one barrier and the next. An exclusive script has one instruction per group and
    executes it row by row: by all owners of its matrix's rows, or by one virtual processor, as a part of its load.

    Attributes:
        domain: domain whose rows the instructions run over.
        load: floats that the instruction reads.
    """

    words: TemplateRecord
    domain: I32
    load: I64
    owners: list[I32]


class SameRowRecord(NamedTuple):
    """A view in another part of the cell, in the same rows."""

    part: I32
    slab: I32
    offset: I64


class SlabViewRecord(NamedTuple):
    """Part of a slab's rows; slab -1: no view."""

    slab: I32
    offset: I64


class RowOperandRecord(NamedTuple):
    """An operand whose rows have an even stride or are found through a list (its number, and the offset in each row).

    Attributes:
        whole: True if its instruction works on all rows of the cell at once.
    """

    list: I32
    whole: BOOL
    offset: I64


class CellRecord(NamedTuple):
    """An encoded cell, or a part of one. The keys and operands that forward uses come first."""

    id: I64
    n_domains: I64
    list_of_domain: list[I32]
    slabs: list[SlabRecord]
    sources: list[SourceRecord]
    same_row: list[SameRowRecord]
    keys: list[I32]  # sources of the lists that every plan places
    n_forward_keys: I64
    row_lists: list[I32]  # sources of the lists that operands may need
    operands: list[RowOperandRecord]
    n_forward_operands: I64
    outputs: list[RowsRecord]
    passed_on: list[I32]  # slab group of each output
    arguments: list[ArgumentRecord]
    tables: list[TableGradientRecord]
    memory: SlabGroupsRecord
    forward: list[list[GroupRecord]]  # by barrier
    backward: list[list[GroupRecord]]
    watches: list[InstructionRecord]
    gradients: list[GradientRecord]
    matrices_of_forward: list[I32]  # numbers of on-chip matrices
    matrices_of_training: list[I32]
    input_gradient: SlabViewRecord  # gradient of a graph input, if the user wants it


class CrossingRecord(NamedTuple):
    """A value that another part computes."""

    part: I32
    output: I32


class PartRecord(NamedTuple):
    """A part of a cell (passes/lazy_batching.py, CellPart).

    Attributes:
        streams: True if its steps may run while virtual processors wait for each other.
        vectors, ints, lists, outputs: numbers in the whole cell; -1: an output that only crosses to another part.
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
    """A lookup in a user's table. An int argument (`column`) gives the row; if `column` is -1, the row is constant."""

    table: I32
    column: I32
    constant: I64


class OutputReachRecord(NamedTuple):
    """Dependencies of a cell's output through recorded ops with gradients. Parameters: the user's dense parameters."""

    operands: list[I32]
    parameters: list[I32]
    lookups: list[LookupRecord]


class PartsRecord(NamedTuple):
    """A cell for the planner: its parts, or one part if it is undivided. For groups of virtual processors, it also
    gives the cost of a vertex (planner/grouping.py).

    Attributes:
        reach: dependencies of each output, in training.
        reaches_all: True if every read output depends on all operands and lookups, and all of these get gradients.
        piece_rows: rows per piece of a step (some pieces have up to twice as many); 0: steps are not divided.
        is_scalar: True if it has only scalars and no matrices.
        floats, element_floats: floats that a computation uses per vertex, and per element of a list argument.
    """

    parts: list[PartRecord]
    reach: list[OutputReachRecord]
    reaches_all: BOOL
    piece_rows: I64 = 0
    is_scalar: BOOL = False
    floats: I64 = 0
    element_floats: list[I64] = []  # noqa: RUF012


class ParameterRecord(NamedTuple):
    """Instructions for a parameter at the end of a launch (vpps/placement/update.py).

    Attributes:
        width: floats per row of a table.
        squares: number of partial sums of squares for a dense gradient.
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
    """A matrix that a launch loads onto the chip if an instruction uses its number."""

    parameter: I32
    number: I32
    words: TemplateRecord


class ModelRecord(NamedTuple):
    """The parameters, and data that all scripts of a model share.

    Attributes:
        kernel_of: for each user parameter, the number of the kernel parameter that it is, or in which it is stacked.
        load_name: name bit of load instructions.
        exclusive: True if every virtual processor has its own script.
        accumulate, no_gradient: flags, shifted to their place in the word.
        tile_rows, tile_columns, segment, most_segments, shared_tiles: constants for partial tiles (`script/slices.py`).
        indexed, offset_mask: mode bits of an operand's second word.
        header: header of a script; the entry points begin at its fifth word.
        barrier, signal, wait: words for each group's counter; then, if there are several groups, for the counter that
            they share. The last word of a barrier or wait is the number of signals.
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
    """Return the ints of a record, or of a list of records."""
    if isinstance(value, int):
        return [value]
    found = [len(value)] if isinstance(value, list) else []
    for item in value:
        found += flat(item)
    return found
