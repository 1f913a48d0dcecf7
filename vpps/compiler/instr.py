"""What lowering produces: instructions of a cell over views of its slabs, before any graph is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vpps.model.model import Lookup, Parameter
from vpps.placement.distribution import ZERO
from vpps.record.trace import Constant
from vpps.script.instructions import BY_NAME, NO_FLAGS, Flag, Instruction, Kind, Role, instruction_of
from vpps.script.tails import Tail, ViewUse


class ListKey:
    """A list of words that only a graph decides; one of those below."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Args(ListKey):
    """Index list: address of the value given as the vector argument at a position."""

    position: int


@dataclass(frozen=True, slots=True)
class Elements(ListKey):
    """Index list, a word per list element: address of each element of the list argument at a position."""

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
    """Another list, per vertex, repeated for every element of the vertex's lists of a domain."""

    domain: int
    of: ListKey


@dataclass(frozen=True, slots=True)
class Offsets(ListKey):
    """CSR offsets, a word per vertex and one more, into the index list `of` of a domain's elements."""

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
    """List, a word per element of a domain: its place in the vertex's list."""

    domain: int


@dataclass(frozen=True, slots=True)
class RandomKey(ListKey):
    """Three words of the launch: the two of its random key, and whether dropout is on."""


@dataclass(frozen=True, slots=True)
class SameRow(ListKey):
    """Values that another part of the cell computes, passed as the argument at a position: in the same rows."""

    position: int


@dataclass(frozen=True, slots=True)
class SameRowGradient(ListKey):
    """Gradients of an output that another part of the cell hands back, as its only reader: in the same rows."""

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
        address: of a single row that all vertices share (a parameter), where neither of the above.
        offset: floats into the row.
        width: floats.
        domain: rows per vertex (0) or per element of the lists of a domain.
    """

    slab: int
    rows: ListKey | None
    address: int
    offset: int
    width: int
    domain: int

    def part(self, offset: int, width: int) -> View:
        """The view of `width` floats, `offset` floats in."""
        return self._replace(offset=self.offset + offset, width=width)

    def row_list(self, domain: int) -> ListKey:
        """Key of an index list with the rows' addresses, for every element of a domain (offset not included)."""
        own = IndexList(self.slab) if self.rows is None else self.rows
        return own if self.domain == domain else Expand(domain, own)

    @property
    def shared(self) -> bool:
        """One row for all vertices."""
        return self.slab < 0 and self.rows is None

    def may_be_listed(self, domain: int) -> bool:
        """Whether an instruction that counts the rows of a domain may find this one's through an index list. Else they
        lie side by side, at one stride from step to step."""
        if self.shared:
            return False
        return self.domain != domain or (self.slab < 0 and not isinstance(self.rows, SameRow | SameRowGradient))


class RowOperand(NamedTuple):
    """An operand whose rows lie where a plan has put them: at an even stride, or found through an index list.

    Attributes:
        key: of the index list.
        offset: floats into each row.
        whole: its instruction works on all rows of the cell at once, not on those of a step.
    """

    key: ListKey
    offset: int
    whole: bool


class Listed(NamedTuple):
    """Sums of rows that a tail makes: CSR offsets, and floats into each of the rows that they list."""

    offsets: ListKey
    shift: int


# What a view of a tail is: rows to read or write, sums, a constant, or (Use.RESULT) a part of a product's result.
TailView = tuple[ViewUse, View | Listed | Constant | float | int]


NO_BIAS = View(-1, None, ZERO, 0, 1, 0)


@dataclass(slots=True)
class Instr:
    """An instruction over views.

    Attributes:
        name: in the instruction table.
        node: of the traced cell, for messages.
        domain: whose rows it counts.
        width, parts: of a row of the result; parts says how its units are dealt to virtual processors.
        operands: field name -> view (or list of views for segments, of `TailView` for a tail).
        values: field name -> int, float, Constant, or key of an index list.
        rows: slices are rows (flag ROWS).
        alone: one virtual processor computes all of it (flag ALONE).
        accumulate: adds to the result (flag ACCUMULATE).
        mean: flag MEAN.
        gathers: slabs read through an index list that the plan makes: (slab, offset, width).
        elements: domain of the elements whose lists it works on, where it counts vertices; else 0.
        group: instructions of one group need no barrier between them.
        turns: the rows of its matrix are dealt in turns, `parts` at a time (flag TURNS; `parts` says how).
        for_all: the virtual processors of all groups divide it (flag ALL).
        tail: the program of a tail.
        merged: name and node of each instruction that became part of it.
        reads_parts: of what other vertices have written it reads a part of the units.
        chained: a product that leaves its result on the chip, for the tail that follows (flag CHAINED).
        rounds: how it rounds what it multiplies, and how its weights lie (flags BF16, TF32, PAIRS).
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
        """Its row of the instruction table."""
        return instruction_of(self.name, self.values)

    @property
    def flags(self) -> Flag:
        """Flags of its first word."""
        found = self.rounds | (Flag.ALL if self.for_all else NO_FLAGS)
        for name in ("accumulate", "rows", "alone", "mean", "turns", "chained"):
            found |= Flag[name.upper()] if getattr(self, name) else NO_FLAGS
        return found

    def views(self) -> list[tuple[Role, View]]:
        """Every operand with its role."""
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
