"""Encodes a lowered cell once per distribution: script templates with relocations for what only a graph decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vpps.compiler.barriers import Reads, follows_freely, in_groups, reuses_by_owner, shares_by_owner
from vpps.compiler.instr import (
    Args,
    Data,
    Elements,
    Expand,
    IndexList,
    Instr,
    Listed,
    ListKey,
    ParameterGradient,
    RandomKey,
    RowOperand,
    SameRow,
    SameRowGradient,
    Uses,
    View,
)
from vpps.compiler.lower import LoweredCell
from vpps.compiler.slabs import REUSED, SlabGroups
from vpps.ops import size
from vpps.placement.distribution import Distribution
from vpps.placement.update import Ending, step_fields
from vpps.record.trace import Constant, List, TracedCell, Vector
from vpps.script.encode import ROWS_OF_STEP, AnyWord, OperandWords, Template, Word, direct, encode, indexed, placed
from vpps.script.instructions import BY_NAME, NO_FLAGS, Field, Kind, Role
from vpps.script.tails import Tail, ViewUse
from vpps.values import float_word

# What may just have been written: values in forward (to a step of the same cell, those of other parts are older), and
# gradients in backward.
_VALUES = (Args, Elements, SameRow)
_GRADIENTS = (Uses, SameRowGradient)

CACHED_FLOATS = 1 << 17
"""That the rows of a piece have: 512 KiB, half of what a core's second-level cache has today."""

FEWEST_ROWS = 64
"""Products of fewer rows would read their matrices more often than it pays."""


class Contribution(NamedTuple):
    """A contribution to a dense gradient.

    Attributes:
        group: the instruction that makes it, or adds it up from partial tiles.
        tiles: the instruction that makes these before.
        summed_by: number of the contribution whose partial tiles have the terms of this sum beside them; or -1.
    """

    gradient: ParameterGradient
    group: Group
    tiles: Group | None = None
    summed_by: int = -1


class Group:
    """Instructions of a cell that one virtual processor executes one after the other, with no barrier between.

    Args:
        whole: they work on all rows of the cell at once, not on those of a step.

    Attributes:
        template: their words.
        starts: for each instruction, its first word and itself.
    """

    def __init__(self, cell: EncodedCell, instrs: list[Instr], whole: bool = False) -> None:
        words: list[AnyWord] = []
        domains: list[int] = []
        self.starts: list[tuple[int, Instr]] = []
        for instr in instrs:
            self.starts.append((len(words), instr))
            words.extend(cell.encode(instr, whole))
            domains.extend([instr.domain] * (len(words) - len(domains)))
        self.template = Template(words, domains)


class EncodedCell:
    """A lowered cell with its encoded groups.

    Args:
        exclusive: for exclusive scripts (see LoweredCell): every instruction is a group of its own.
        fusion: as of `LoweredCell`.
        first_same_row: see LoweredCell.
        taken_back: likewise, with the floats from one row of such gradients to the next.
        training: see LoweredCell.
        unread: likewise.

    Attributes:
        forward, backward: groups between one barrier and the next, by barrier.
        handed_back: gradient rows that readers of this cell's arguments find through index lists, as of `lowered`.
        read_whole: slabs that another part of the cell reads in one step.
        keys: lists that its words refer to, with the number of the base that is the list's position.
        operands: those of which a plan decides how their rows are found; the base of this number and the next one are
            their words.
        constants: slots and words of Constants that its words are, with their base numbers, likewise.
        n_bases: how many there are, slabs included.
        n_forward_keys, n_forward_operands: the first of them are those that forward needs.
        watches: instructions that tell whether any gradient of parameters may not be finite.
        gradients: contributions to dense gradients.
    """

    def __init__(
        self,
        distribution: Distribution,
        exclusive: bool,
        fusion: bool,
        cell: TracedCell,
        first_same_row: int | None = None,
        taken_back: Mapping[int, int] | None = None,
        training: bool = True,
        unread: Collection[int] = (),
    ) -> None:
        self.cell = cell
        self._taken_back = {} if taken_back is None else taken_back
        self.lowered = LoweredCell(
            cell, distribution, exclusive, fusion, first_same_row, self._taken_back, training, unread
        )
        self.handed_back = list(self.lowered.arguments)
        self.read_whole: set[int] = set()
        self.exclusive = exclusive
        self.keys: dict[ListKey, int] = {}
        self.operands: dict[RowOperand, int] = {}
        self.constants: dict[tuple[int, int], int] = {}
        self.forward = self._groups(self.lowered.forward)
        self.n_forward_keys, self.n_forward_operands = len(self.keys), len(self.operands)
        self.backward = self._groups(self.lowered.backward)
        gradients = self.lowered.parameter_gradients
        summed_by = [self._tiles_of_sum(g, distribution) for g in gradients]
        watched = [g for g, k in zip(gradients, summed_by, strict=True) if k < 0 and not _is_tiled(g, distribution)]
        made = watches(self.lowered, watched, distribution.groups > 1)
        self.watches = [Group(self, [watch], whole=True) for watch in made]
        self.gradients = [
            self._tiled(g) if _is_tiled(g, distribution) else Contribution(g, Group(self, [g.instr], True), None, k)
            for g, k in zip(gradients, summed_by, strict=True)
        ]
        self._vps = distribution.panel, distribution.n_vps
        self._groups_of_vps = distribution.groups
        self._slab_groups: dict[bool, SlabGroups] = {}

    def _steps(self, backward: bool) -> list[Instr]:
        return [*self.lowered.forward, *(self.lowered.backward if backward else [])]

    def used(self, backward: bool) -> tuple[frozenset[str], frozenset[Tail]]:
        """Names of its instructions, and its tails; what makes gradients of parameters is chosen launch by launch."""
        steps = self._steps(backward)
        return frozenset(i.instruction.name for i in steps), frozenset(i.tail for i in steps if i.tail is not None)

    def numbers_used(self, training: bool) -> frozenset[int]:
        """Numbers of the matrices on the chip that its products multiply by."""
        return frozenset(i.values["matrix"] for i in self._steps(training) if i.name.startswith("matvec"))

    def may_follow(self, other: EncodedCell, group: int, backward: bool) -> bool:
        """Whether a step may begin while virtual processors still execute a group of a training step of another cell
        (or this one); of both, all other vertices."""
        theirs, mine = (c.lowered.backward if backward else c.lowered.forward for c in (other, self))
        groups = self.slab_groups(training=True).groups if other is self else ()
        return follows_freely(
            [i for i in theirs if i.group == group],
            [v for _, v in other.lowered.arguments] if backward else other.lowered.outputs,
            [i for i in mine if not i.group],
            {slab for g in groups if g.life in REUSED for slab in g.slabs},
            self._vps,
            Reads(_GRADIENTS if backward else _VALUES[: 2 if other is self else 3], self._width_of),
        )

    def may_turn(self, other: EncodedCell, group: int) -> bool:
        """Whether the first backward step may begin while virtual processors still execute a group of the last forward
        step of another cell, or of this one."""
        theirs = [i for i in other.lowered.forward if i.group == group]
        mine = [i for i in self.lowered.backward if not i.group]
        reads = Reads(_VALUES, self._width_of)
        freely = follows_freely(theirs, other.lowered.outputs, mine, (), self._vps, reads)
        return freely and (other is not self or shares_by_owner(theirs, mine, self._vps))

    def piece_rows(self) -> int:
        """In inference, how many rows of a step go through all of its instructions before the others begin; 0: all.

        What one instruction writes the next one then finds in the second-level cache, and memory that steps use again
        is not larger than that: scores of a vocabulary, above all. There must be no barrier between them. In training
        most of it is kept, and nothing is gained; on a GPU caches are not what waits.
        """
        panel, n_vps = self._vps
        if panel == 1 or self.exclusive or self._groups_of_vps > 1:
            return 0
        forward, groups = self.lowered.forward, self.slab_groups(training=False).groups
        again = {slab for g in groups if g.life in REUSED for slab in g.slabs}
        if n_vps > 1 and (len(self.forward) > 1 or not reuses_by_owner(forward, forward, again, self._vps)):
            return 0
        width = sum(g.width for g in groups if not g.domain)
        return max(FEWEST_ROWS, CACHED_FLOATS // max(width, 1))

    def _width_of(self, key: ListKey) -> int:
        """Floats of the rows that a list of values, or of gradients, names."""
        if isinstance(key, Uses | SameRowGradient):
            return self.lowered.outputs[key.output].width
        assert isinstance(key, Args | Elements | SameRow)
        kind = self.cell.kinds[key.position]
        assert isinstance(kind, Vector | List)
        assert kind.shape is not None
        return size(kind.shape)

    def slab_groups(self, training: bool) -> SlabGroups:
        """Its slabs by how long they live."""
        if training not in self._slab_groups:
            self._slab_groups[training] = SlabGroups(self.lowered, training, self.read_whole, self._read_by_steps())
        return self._slab_groups[training]

    def _read_by_steps(self) -> set[int]:
        """Slabs with gradients of arguments that can give way step by step: only steps of backward read them, through
        index lists, and no step of this cell comes after two others without any barrier."""
        if self._groups_of_vps > 1 or self._runs_on():
            return set()
        beside = set(self.lowered.arguments).difference(self.handed_back)
        return {view.slab for _, view in self.handed_back} - {view.slab for _, view in beside}

    def _runs_on(self) -> bool:
        """Whether backward may go from step to step with no barrier in or between them, for several virtual
        processors."""
        if self._vps[1] == 1 or len(self.backward) != 1:
            return False
        handed = [view for _, view in self.lowered.arguments]
        reads = Reads(_GRADIENTS, self._width_of)
        return follows_freely(self.lowered.backward, handed, self.lowered.backward, (), self._vps, reads)

    def domain_of(self, key: ListKey) -> int:
        """The domain whose rows an index list has a word for."""
        match key:
            case Elements(position):
                return self.cell.list_domains[position]
            case Expand(domain, _):
                return domain
            case IndexList(slab):
                return self.lowered.slabs[slab].domain
        return 0

    def row_lists(self, training: bool) -> list[tuple[ListKey, list[RowOperand]]]:
        """The index lists that operands may need, in the order of their first use; of forward alone, or of all."""
        found: dict[ListKey, list[RowOperand]] = {}
        for operand in list(self.operands)[: None if training else self.n_forward_operands]:
            found.setdefault(operand.key, []).append(operand)
        return list(found.items())

    def _tiles_of_sum(self, gradient: ParameterGradient, distribution: Distribution) -> int:
        """Number of the gradient that is a product of the same vectors as those whose sum this one is; or -1."""
        i = gradient.instr
        for k, g in enumerate(self.lowered.parameter_gradients if i.name == "column_sum" else ()):
            other = g.instr
            if _is_tiled(g, distribution) and (other.operands["dy"], other.domain) == (i.operands["src"], i.domain):
                return k
        return -1

    def _tiled(self, gradient: ParameterGradient) -> Contribution:
        """The gradient of a matrix, by way of partial tiles."""
        i = gradient.instr
        values = {"partials": 0, "columns": i.values["columns"], "sums": 0, "turn": 0}
        tiles = Group(self, [replace(i, name="outer_tiles", values=values)], whole=True)
        added = replace(i, name="sum_tiles", operands={}, values={**i.values, "partials": 0}, rounds=NO_FLAGS)
        return Contribution(gradient, Group(self, [added], whole=True), tiles)

    def fused(self, contribution: Contribution, ending: Ending) -> Group:
        """The group of an outer product that goes straight into its matrix's step; or of a sum of partial tiles."""
        i, place = contribution.gradient.instr, ending.distribution.physical[contribution.gradient.parameter]
        # Where the hyper-parameters are the plan fills in: their position is the first field.
        values = {**i.values, **step_fields(place, ending.averaging), "hyper": 0}
        step = replace(i, name=f"outer_update.{ending.rule}", values=values, rounds=place.rounds)
        if contribution.tiles is not None:
            values["partials"] = 0
            step = replace(i, name=f"step_tiles.{ending.rule}", operands={}, values=values, rounds=NO_FLAGS)
        return Group(self, [step], whole=True)

    def _groups(self, instrs: list[Instr]) -> list[list[Group]]:
        if self.exclusive:
            return [[Group(self, [i]) for i in between] for between in in_groups(instrs)]
        return [[Group(self, between)] for between in in_groups(instrs)]

    @property
    def n_bases(self) -> int:
        """The number of bases: slabs, lists, operands and constants."""
        return len(self.lowered.slabs) + len(self.keys) + 2 * len(self.operands) + len(self.constants)

    def _constant(self, value: Constant) -> Word:
        return Word(value.negative << 31, self.constants.setdefault((value.slot, value.word), self.n_bases))

    def _list(self, key: ListKey, per_row: int = 1) -> Word:
        return Word(0, self.keys.setdefault(key, self.n_bases), per_row)

    def _found(self, key: ListKey, offset: int, scalar: bool, whole: bool) -> OperandWords:
        """Words of an operand with a row for each of a list's words."""
        if self.exclusive:  # instructions of single vertices find them in lists, as those of VPPS do
            return indexed(self._list(key, per_row=int(not whole)), offset, scalar)
        return placed(self.operands.setdefault(RowOperand(key, offset, whole), self.n_bases), scalar)

    def _operand(self, view: View, instr: Instr, field: Field, whole: bool) -> OperandWords:
        scalar = field.role not in (Role.WRITE, Role.ADD) and view.width == 1
        if field.elements:  # counted from the cell's first element, whatever vertices the instruction has
            return self._found(view.row_list(instr.elements), view.offset, scalar, whole=True)
        return self._rows(view, instr, scalar, whole)

    def _rows(self, view: View, instr: Instr, scalar: bool, whole: bool) -> OperandWords:
        """Words of a view with a row for each of an instruction's."""
        if view.may_be_listed(instr.domain):
            return self._found(view.row_list(instr.domain), view.offset, scalar, whole)
        if view.shared:
            return direct(view.address + view.offset, 0, scalar)
        if view.slab >= 0:
            stride = self.lowered.slabs[view.slab].width
            return direct(Word(view.offset, view.slab, stride), stride, scalar)
        assert isinstance(view.rows, SameRow | SameRowGradient)
        # What crosses is computed into a slab of its own.
        key = view.rows
        stride = self._taken_back[key.output] if isinstance(key, SameRowGradient) else self._width_of(key)
        address = self._list(key, per_row=stride)
        return direct(replace(address, constant=view.offset), stride, scalar)

    def _tail_view(
        self, use: ViewUse, what: View | Listed | Constant | float | int, instr: Instr, whole: bool
    ) -> tuple[OperandWords, int]:
        """Words of a view of a tail."""
        words: OperandWords
        if use is ViewUse.RESULT:
            assert isinstance(what, int)
            words = what, 0
        elif isinstance(what, Listed):
            words = self._list(what.offsets), what.shift
        elif isinstance(what, View):
            words = self._rows(what, instr, what.width != instr.width, whole)
        elif isinstance(what, Constant):
            words = self._constant(what), 0
        else:
            words = float_word(what), 0
        return words, use

    def encode(self, instr: Instr, whole: bool) -> list[AnyWord]:
        """Words of an instruction; views and lists become bases. `whole`: see Group."""
        fields: dict[str, Any] = {}
        for field in BY_NAME[instr.name].fields:
            if field.kind is Kind.OPERAND:
                fields[field.name] = self._operand(instr.operands[field.name], instr, field, whole)
            elif field.kind is Kind.SEGMENTS:
                views = instr.operands[field.name]
                fields[field.name] = [(self._operand(v, instr, field, whole), v.width) for v in views]
            elif field.kind is Kind.VIEWS:
                views = instr.operands[field.name]
                fields[field.name] = [self._tail_view(use, v, instr, whole) for use, v in views]
            elif field.kind is Kind.LIST:
                key = instr.values[field.name]
                fields[field.name] = 0 if key is None else self._list(key)
            elif isinstance(instr.values[field.name], Constant):
                fields[field.name] = self._constant(instr.values[field.name])
            elif instr.values[field.name] == Data():
                fields[field.name] = self._list(Data(), per_row=instr.width)
            elif instr.values[field.name] == RandomKey():
                fields[field.name] = self._list(RandomKey(), per_row=0)
            else:
                fields[field.name] = instr.values[field.name]
        return encode(instr.name, ROWS_OF_STEP, instr.width, instr.parts, instr.flags, **fields)


def _is_tiled(gradient: ParameterGradient, distribution: Distribution) -> bool:
    """Whether it is made in tiles, as a GPU does."""
    return gradient.instr.name == "outer" and distribution.physical[gradient.parameter].tiled


def watches(lowered: LoweredCell, gradients: Sequence[ParameterGradient], for_all: bool) -> list[Instr]:
    """Instructions that read all that gradients of tables and other ones are made of: dy, and x where they are sums of
    dy x^T."""
    read: list[tuple[int, int, View, list[View], int]] = []  # node, domain, dy, x, terms of a row
    read += [(0, t.view.domain, t.view, [], 1) for t in lowered.table_gradients]
    for instr in (g.instr for g in gradients):
        name = "dy" if "dy" in instr.operands else "src"
        terms = instr.values["columns"] if instr.name == "packed_matmul_gradient" else 1
        read.append((instr.node, instr.domain, instr.operands[name], instr.operands.get("x", []), terms))
    found: dict[View, list[Instr]] = {}
    for node, domain, dy, x, terms in read:
        operands = {"dy": dy, "x": x}
        watch = Instr("watch", node, domain, dy.width, 1, operands, {"terms": terms}, rows=True, for_all=for_all)
        found.setdefault(dy, []).append(watch)
    # One with an x says all that one without says.
    return [i for of_dy in found.values() for i in [i for i in of_dy if i.operands["x"]] or of_dy[:1]]
