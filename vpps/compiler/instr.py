"""The result of lowering: instructions of a cell over views of its slabs, before any graph is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vpps.model.model import Lookup, Parameter
from vpps.placement.distribution import ZERO
from vpps.record.trace import Constant
from vpps.script.instructions import BY_NAME, NO_FLAGS, Flag, Instruction, Kind, Role, instruction_of
from vpps.script.tails import Tail, ViewUse


class ListKey:
    """Base class for the keys of lists whose words depend on the graph."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Args(ListKey):
    """Index list: address of the value given as the vector argument at a position."""

    position: int


@dataclass(frozen=True, slots=True)
class Elements(ListKey):
    """Index list, a word per list element: address of each element in the list argument at a position."""

    position: int


@dataclass(frozen=True, slots=True)
class IndexList(ListKey):
    """Index list: address of each row of a slab."""

    slab: int


@dataclass(frozen=True, slots=True)
class TableRows(ListKey):
    """Index list: address of the table row that a lookup node selects."""

    node: int


@dataclass(frozen=True, slots=True)
class Ints(ListKey):
    """List: the int of each vertex at an index node (a label, a row number)."""

    node: int


@dataclass(frozen=True, slots=True)
class Expand(ListKey):
    """Another list, with each vertex's word repeated for every element of the vertex's lists in a domain."""

    domain: int
    of: ListKey


@dataclass(frozen=True, slots=True)
class Offsets(ListKey):
    """CSR offsets into the index list `of`, which lists a domain's elements: a word per vertex, and one more."""

    domain: int
    of: ListKey


@dataclass(frozen=True, slots=True)
class Ends(ListKey):
    """List, a word per vertex and one more: row of the vertex's first element among the rows of a domain."""

    domain: int


@dataclass(frozen=True, slots=True)
class Uses(ListKey):
    """CSR offsets into the addresses of the gradient rows that the readers of an output hand back."""

    output: int


@dataclass(frozen=True, slots=True)
class Data(ListKey):
    """The floats of graph inputs, carried by the script."""


@dataclass(frozen=True, slots=True)
class Calls(ListKey):
    """List: the recording index of each vertex."""


@dataclass(frozen=True, slots=True)
class Positions(ListKey):
    """List, a word per element of a domain: its position in the vertex's list."""

    domain: int


@dataclass(frozen=True, slots=True)
class RandomKey(ListKey):
    """Three words of the launch: two with its random key, and one that says if dropout is on."""


@dataclass(frozen=True, slots=True)
class SameRow(ListKey):
    """Values that another part of the cell computes in the same rows, passed as the argument at a position."""

    position: int


@dataclass(frozen=True, slots=True)
class SameRowGradient(ListKey):
    """Gradients of an output that its only reader, another part of the cell, hands back in the same rows."""

    output: int


class Slab(NamedTuple):
    """A 2-D array of one block: a row per vertex (domain 0) or per list element, in execution order."""

    width: int
    domain: int


class View(NamedTuple):
    """Rows of floats that an operand reads or writes.

    Attributes:
        slab: number of the slab, or -1.
        rows: key of an index list that holds the rows' addresses, or None.
        address: address of a single row that all vertices share (a parameter); there are no slab and rows then.
        offset: floats before the view in each row.
        width: floats of the view in each row.
        domain: 0 for a row per vertex, else the domain with a row per list element.
    """

    slab: int
    rows: ListKey | None
    address: int
    offset: int
    width: int
    domain: int

    def part(self, offset: int, width: int) -> View:
        """Return the view of `width` floats that begins `offset` floats into this one."""
        return self._replace(offset=self.offset + offset, width=width)

    def row_list(self, domain: int) -> ListKey:
        """Return the key of an index list with a row's address, without the offset, for every element of a domain."""
        own = IndexList(self.slab) if self.rows is None else self.rows
        return own if self.domain == domain else Expand(domain, own)

    @property
    def shared(self) -> bool:
        """True if all vertices share one row."""
        return self.slab < 0 and self.rows is None

    def may_be_listed(self, domain: int) -> bool:
        """Return True if an instruction over a domain's rows may find this view's rows through an index list. Otherwise
        the rows are stored one after the other, with the same stride in every step."""
        if self.shared:
            return False
        return self.domain != domain or (self.slab < 0 and not isinstance(self.rows, SameRow | SameRowGradient))


class RowOperand(NamedTuple):
    """An operand whose rows a plan places: at an even stride, or anywhere, found through an index list.

    Attributes:
        key: key of the index list.
        offset: floats before the operand in each row.
        whole: True if its instruction works on all rows of the cell at once, not on those of a step.
    """

    key: ListKey
    offset: int
    whole: bool


class Listed(NamedTuple):
    """Operand of a tail that is a sum of listed rows: CSR offsets, and floats before the summands in each row."""

    offsets: ListKey
    shift: int


# A view of a tail: rows to read or write, sums, a constant, or (ViewUse.RESULT) a part of a product's result.
TailView = tuple[ViewUse, View | Listed | Constant | float | int]


NO_BIAS = View(-1, None, ZERO, 0, 1, 0)


@dataclass(slots=True)
class Instr:
    """An instruction over views.

    Attributes:
        name: name in the instruction table.
        node: node of the traced cell, for messages.
        domain: domain whose rows it runs over.
        width: floats per row of the result.
        parts: number of equal parts of a row; virtual processors own the same units in each part.
        operands: field name -> view, or list of views for segments, or list of `TailView` for a tail.
        values: field name -> int, float, Constant, or key of an index list.
        rows: True if slices are rows (flag ROWS).
        alone: True if one virtual processor computes the whole result (flag ALONE).
        accumulate: True to add to the result (flag ACCUMULATE).
        mean: True to divide sums by their number of terms (flag MEAN).
        gathers: views of slabs that it reads through an index list of the plan.
        elements: domain of the list elements, if the instruction works on lists and runs over vertices; else 0.
        group: number of its group; instructions of one group need no barrier between them.
        turns: True if the rows of its matrix are dealt out in turns (flag TURNS); `parts` then says how.
        for_all: True if it is divided among the virtual processors of all groups (flag ALL).
        tail: program of a tail.
        merged: name and node of each instruction that was fused into it.
        reads_parts: True if it reads only some of the units in other vertices' rows.
        chained: True for a product that leaves its result on the chip, for the tail that follows (flag CHAINED).
        rounds: rounding of its factors, and layout of its weights (flags BF16, TF32, PAIRS).
    """

    name: str
    node: int
    domain: int
    width: int
    parts: int = 1
    operands: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    rows: bool = False
    accumulate: bool = False
    mean: bool = False
    gathers: tuple[View, ...] = ()
    elements: int = 0
    group: int = 0
    alone: bool = False
    turns: bool = False
    for_all: bool = False
    tail: Tail | None = None
    merged: tuple[tuple[str, int], ...] = ()
    reads_parts: bool = False
    chained: bool = False
    rounds: Flag = NO_FLAGS

    @property
    def instruction(self) -> Instruction:
        """The row of the instruction table."""
        return instruction_of(self.name, self.values)

    @property
    def flags(self) -> Flag:
        """The flags in the first word of the instruction."""
        found = self.rounds | (Flag.ALL if self.for_all else NO_FLAGS)
        for name in ("accumulate", "rows", "alone", "mean", "turns", "chained"):
            found |= Flag[name.upper()] if getattr(self, name) else NO_FLAGS
        return found

    def views(self) -> list[tuple[Role, View]]:
        """Return every operand with its role."""
        found: list[tuple[Role, View]] = []
        for f in BY_NAME[self.name].fields:
            if f.kind is Kind.OPERAND:
                found.append((f.role, self.operands[f.name]))
            elif f.kind is Kind.SEGMENTS:
                found.extend((f.role, v) for v in self.operands[f.name])
            elif f.kind is Kind.VIEWS:
                roles = {ViewUse.READ: Role.READ, ViewUse.WRITE: Role.WRITE}
                found.extend((roles[use], v) for use, v in self.operands[f.name] if use in roles)
        return found + [(Role.READ, v) for v in self.gathers]


@dataclass(frozen=True, slots=True)
class ParameterGradient:
    """A contribution to a parameter's gradient, computed over all rows of a block after backward."""

    parameter: Parameter
    instr: Instr


@dataclass(frozen=True, slots=True)
class TableGradient:
    """Gradient rows of looked-up table rows; `ids` is the key of the list of row numbers."""

    table: Lookup
    ids: Ints
    view: View
