"""Encodes a lowered cell once per distribution: script templates, with relocations for words that a graph decides."""

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

# Lists of rows that the previous step may have written: values in forward, and gradients in backward. Between steps of
# one cell SameRow does not matter: other parts have computed their values earlier.
_VALUES = (Args, Elements, SameRow)
_GRADIENTS = (Uses, SameRowGradient)

CACHED_FLOATS = 1 << 17
"""Floats of the rows of a piece: 512 KiB, half of a core's second-level cache today."""

FEWEST_ROWS = 64
"""Fewest rows of a piece: with fewer, products read their matrices too often."""


class Contribution(NamedTuple):
    """A contribution to a dense gradient.

    Attributes:
        group: the instruction that computes it, or that adds up its partial tiles.
        tiles: the instruction that computes the partial tiles beforehand.
        summed_by: number of the contribution whose partial tiles include the terms of this sum; or -1.
    """

    gradient: ParameterGradient
    group: Group
    tiles: Group | None = None
    summed_by: int = -1


class Group:
    """Instructions of a cell that a virtual processor executes one after the other, without a barrier in between.

    Args:
        whole: True if the instructions work on all rows of the cell at once, not on those of a step.

    Attributes:
        template: words of the instructions.
        starts: first word of each instruction, and the instruction.
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
        exclusive: True for exclusive scripts (see LoweredCell): every instruction is its own group.
        taken_back: the outputs as in LoweredCell, each with the stride of its gradient rows in floats.
        fusion, first_same_row, training, unread: as in LoweredCell.

    Attributes:
        forward, backward: groups between one barrier and the next, by barrier.
        handed_back: those of `lowered.arguments` whose gradient rows producers find through index lists.
        read_whole: slabs that another part of the cell reads in one step.
        keys: lists that its words refer to, with the number of the base that holds the list's position.
        operands: operands that a plan makes direct or indexed, with the number of their first word's base; the next
            base is their second word.
        constants: slot and word of each Constant in its words, with the number of its base.
        n_forward_keys, n_forward_operands: how many keys and operands forward needs; these come first.
        watches: instructions that detect non-finite parameter gradients.
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
        """Return the names of its instructions, and its tails. Instructions for parameter gradients are left out: each
        launch selects its own."""
        steps = self._steps(backward)
        return frozenset(i.instruction.name for i in steps), frozenset(i.tail for i in steps if i.tail is not None)

    def numbers_used(self, training: bool) -> frozenset[int]:
        """Return the numbers of the on-chip matrices that the cell's products use."""
        return frozenset(i.values["matrix"] for i in self._steps(training) if i.name.startswith("matvec"))

    def may_follow(self, other: EncodedCell, group: int, backward: bool) -> bool:
        """Return True if a step may begin while virtual processors still execute a group of a training step of `other`
        (or of this cell). The two steps work on different vertices."""
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
        """Return True if the first backward step may begin while virtual processors still execute a group of the last
        forward step of another cell, or of this one."""
        theirs = [i for i in other.lowered.forward if i.group == group]
        mine = [i for i in self.lowered.backward if not i.group]
        reads = Reads(_VALUES, self._width_of)
        freely = follows_freely(theirs, other.lowered.outputs, mine, (), self._vps, reads)
        return freely and (other is not self or shares_by_owner(theirs, mine, self._vps))

    def piece_rows(self) -> int:
        """Return the number of rows in a piece, or 0 if steps are not divided.

        In inference, a step runs all of its instructions on one piece of its rows, then on the next piece. Operands are
        then in the second-level cache, and scratch memory is no larger than that; scoring a vocabulary gains most. A
        step with barriers is not divided. Training stores most values, so it gains nothing. On a GPU, caches are not
        the bottleneck.
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
        """Return the number of floats per row of the values or gradients that a list refers to."""
        if isinstance(key, Uses | SameRowGradient):
            return self.lowered.outputs[key.output].width
        assert isinstance(key, Args | Elements | SameRow)
        kind = self.cell.kinds[key.position]
        assert isinstance(kind, Vector | List)
        assert kind.shape is not None
        return size(kind.shape)

    def slab_groups(self, training: bool) -> SlabGroups:
        """Return the slabs of the cell, grouped by lifetime."""
        if training not in self._slab_groups:
            self._slab_groups[training] = SlabGroups(self.lowered, training, self.read_whole, self._read_by_steps())
        return self._slab_groups[training]

    def _read_by_steps(self) -> set[int]:
        """Return the slabs of argument gradients that backward can free step by step: only backward steps read them,
        through index lists, and there is a barrier within any three consecutive steps of this cell."""
        if self._groups_of_vps > 1 or self._runs_on():
            return set()
        beside = set(self.lowered.arguments).difference(self.handed_back)
        return {view.slab for _, view in self.handed_back} - {view.slab for _, view in beside}

    def _runs_on(self) -> bool:
        """Return True if there are several virtual processors and backward steps need no barrier in or between them."""
        if self._vps[1] == 1 or len(self.backward) != 1:
            return False
        handed = [view for _, view in self.lowered.arguments]
        reads = Reads(_GRADIENTS, self._width_of)
        return follows_freely(self.lowered.backward, handed, self.lowered.backward, (), self._vps, reads)

    def domain_of(self, key: ListKey) -> int:
        """Return the domain of an index list: it has a word for each row of the domain."""
        match key:
            case Elements(position):
                return self.cell.list_domains[position]
            case Expand(domain, _):
                return domain
            case IndexList(slab):
                return self.lowered.slabs[slab].domain
        return 0

    def row_lists(self, training: bool) -> list[tuple[ListKey, list[RowOperand]]]:
        """Return the index lists that operands may need, in the order of their first use; without training, only
        those for forward."""
        found: dict[ListKey, list[RowOperand]] = {}
        for operand in list(self.operands)[: None if training else self.n_forward_operands]:
            found.setdefault(operand.key, []).append(operand)
        return list(found.items())

    def _tiles_of_sum(self, gradient: ParameterGradient, distribution: Distribution) -> int:
        """Return the number of the tiled gradient whose product reads the vectors that this gradient sums; or -1."""
        i = gradient.instr
        for k, g in enumerate(self.lowered.parameter_gradients if i.name == "column_sum" else ()):
            other = g.instr
            if _is_tiled(g, distribution) and (other.operands["dy"], other.domain) == (i.operands["src"], i.domain):
                return k
        return -1

    def _tiled(self, gradient: ParameterGradient) -> Contribution:
        """Make the contribution to a matrix gradient through partial tiles."""
        i = gradient.instr
        values = {"partials": 0, "columns": i.values["columns"], "sums": 0, "turn": 0}
        tiles = Group(self, [replace(i, name="outer_tiles", values=values)], whole=True)
        added = replace(i, name="sum_tiles", operands={}, values={**i.values, "partials": 0}, rounds=NO_FLAGS)
        return Contribution(gradient, Group(self, [added], whole=True), tiles)

    def fused(self, contribution: Contribution, ending: Ending) -> Group:
        """Return the group in which an outer product, or a sum of partial tiles, is fused with the optimizer step."""
        i, place = contribution.gradient.instr, ending.distribution.physical[contribution.gradient.parameter]
        # The plan fills in the position of the hyper-parameters, which is the first field.
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
        """Return the words of an operand that has a row for each word in a list."""
        if self.exclusive:  # an instruction on a single vertex reads the list, as in VPPS
            return indexed(self._list(key, per_row=int(not whole)), offset, scalar)
        return placed(self.operands.setdefault(RowOperand(key, offset, whole), self.n_bases), scalar)

    def _operand(self, view: View, instr: Instr, field: Field, whole: bool) -> OperandWords:
        scalar = field.role not in (Role.WRITE, Role.ADD) and view.width == 1
        if field.elements:  # rows are counted from the cell's first element, not the instruction's
            return self._found(view.row_list(instr.elements), view.offset, scalar, whole=True)
        return self._rows(view, instr, scalar, whole)

    def _rows(self, view: View, instr: Instr, scalar: bool, whole: bool) -> OperandWords:
        """Return the words of a view that has a row for each row of an instruction."""
        if view.may_be_listed(instr.domain):
            return self._found(view.row_list(instr.domain), view.offset, scalar, whole)
        if view.shared:
            return direct(view.address + view.offset, 0, scalar)
        if view.slab >= 0:
            stride = self.lowered.slabs[view.slab].width
            return direct(Word(view.offset, view.slab, stride), stride, scalar)
        assert isinstance(view.rows, SameRow | SameRowGradient)
        # A value that crosses between parts has its own slab.
        key = view.rows
        stride = self._taken_back[key.output] if isinstance(key, SameRowGradient) else self._width_of(key)
        address = self._list(key, per_row=stride)
        return direct(replace(address, constant=view.offset), stride, scalar)

    def _tail_view(
        self, use: ViewUse, what: View | Listed | Constant | float | int, instr: Instr, whole: bool
    ) -> tuple[OperandWords, int]:
        """Return the words of a tail's view, and its use."""
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
        """Return the words of an instruction; views and lists become bases. `whole`: see Group."""
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
    """Return True if a gradient is computed in partial tiles, as on a GPU."""
    return gradient.instr.name == "outer" and distribution.physical[gradient.parameter].tiled


def watches(lowered: LoweredCell, gradients: Sequence[ParameterGradient], for_all: bool) -> list[Instr]:
    """Return instructions that check the operands of gradients, including table gradients: dy, and x if a gradient is
    a sum of dy x^T."""
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
    # A watch with x makes a watch on the same dy without x redundant.
    return [i for of_dy in found.values() for i in [i for i in of_dy if i.operands["x"]] or of_dy[:1]]
