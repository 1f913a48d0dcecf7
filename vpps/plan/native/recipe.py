"""What is static of cells and parameters, as plain numbers for the compiled planner, which reads them in recipe.h."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.graph.trace import Int, List, TracedCell, Vector
from vpps.model import Lookup, Parameter
from vpps.ops import Form, size
from vpps.plan.barriers import owners_of
from vpps.plan.distribution import AGAIN, LEFT_OUT, Distribution
from vpps.plan.instr import (
    Args,
    Beside,
    BesideGradient,
    Calls,
    Data,
    Elements,
    Ends,
    Expand,
    Ints,
    ListKey,
    Offsets,
    ParameterGradient,
    Positions,
    RandomKey,
    RowNumber,
    Rows,
    TableRows,
    Uses,
    View,
)
from vpps.plan.memory import Life, SlabGroups
from vpps.plan.passes.lazy_batching import Batching, Part
from vpps.plan.products import whole_slab
from vpps.plan.schedules import reading_load
from vpps.plan.templates import CellTemplates, Gathered, Group
from vpps.plan.update import Averaging, matrix_division, step_fields
from vpps.plan.writer import BARRIERS, SIGNALS, WAITS
from vpps.script.encode import AnyWord, Template, Word, direct, encode, indexed
from vpps.script.instructions import BY_NAME, HEAD_WORDS, INDEXED, MAGIC, NO_FLAGS, OFFSET_MASK, Flag, instruction_of
from vpps.script.slices import TILE_COLUMNS, sliced_by_rows

Numbers = NDArray[np.int64]

# As in recipe.h, enum From.
_FROM = (
    Args, Elements, Rows, TableRows, Ints, None, Expand, Offsets, Ends, Uses, Data, Calls, Positions, RandomKey, Beside,
)  # fmt: skip
_CONSTANT = 5
_WIDTH = 3  # word of an instruction's head
_LIVES = (Life.KEPT, Life.ACROSS, Life.LATE, Life.SCRATCH, Life.FORWARD, Life.PASSED_ON, Life.HANDED_BACK)

# Holes of the instructions that no cell makes; as in planner.cpp, enum Frame.
ROWS, GRADIENT, OFFSETS, NUMBERS, IDLE, PARTIALS, HYPER, SOURCE, SLOT, NORM = range(10)


class Names:
    """Numbers of the instructions that no cell makes: bits of what the planner says it has used."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """Of a name."""
        return self._bits.setdefault(name, len(self._bits))

    def of(self, mask: int) -> frozenset[str]:
        """The names of the bits that are set."""
        return frozenset(name for name, bit in self._bits.items() if mask >> bit & 1)


def _template(template: Template, base: NDArray[np.int64]) -> list[int]:
    found = [len(template), *(template.constant & 0xFFFFFFFF).tolist()]
    holes = np.flatnonzero((base >= 0) | (template.per_row != 0) | (template.per_count != 0))
    columns = (holes, base[holes], template.domain[holes], template.per_row[holes], template.per_count[holes])
    return [*found, len(holes), *np.column_stack(columns).reshape(-1).tolist()]


def _alone(words: Sequence[AnyWord]) -> list[int]:
    """The template of an instruction that no cell makes."""
    template = Template(words, [0] * len(words))
    return _template(template, template.base)


def _counted(items: Iterable[Sequence[int]]) -> list[int]:
    """Some things of any length, and before them how many."""
    found = [0]
    for item in items:
        found[0] += 1
        found.extend(item)
    return found


def _plain(numbers: Iterable[int]) -> list[int]:
    return _counted([n] for n in numbers)


class CellRecipe:
    """The numbers of one cell.

    Args:
        cell: encoded.
        beside: what it finds in other parts of the same cell: number of the part, and the view.
        id: number of the encoded cell.
        training: whether it is for plans of training, or of inference.
        parameters: number of each parameter.
        rule: name of the optimizer whose steps go with outer products; None for no step.
        averaging: of the weights, or None.
    """

    def __init__(
        self,
        cell: CellTemplates,
        beside: Mapping[Beside | BesideGradient, tuple[int, View]],
        id: int,
        training: bool,
        distribution: Distribution,
        parameters: dict[Parameter, int],
        names: Names,
        rule: str | None,
        averaging: Averaging | None,
    ) -> None:
        self._cell = cell
        self._places, self._physical = distribution.places, distribution.physical
        self._sources: dict[ListKey, int] = {}
        self._vps = distribution.panel, distribution.n_vps
        self._exclusive = cell.exclusive
        self._names = names
        self._written: list[Sequence[int]] = []
        self._beside = list(beside)
        self._bases = self._numbers_of_bases()
        program, lowered = cell.cell, cell.lowered
        keys = [self._source(key) for key in cell.keys]
        lists = {operand.key: None for operand in cell.operands}  # in the order of their first use
        row_lists = [self._source(key) for key in lists]
        operands = [[list(lists).index(o.key), int(o.whole), o.offset] for o in cell.operands]
        outputs = [self._rows(v, v.domain) for v in lowered.outputs]
        memory = cell.slab_groups(training)
        arguments, tables, of_parameters = [], [], cell.gradients if training else []
        if training:
            arguments = [
                [self._source(key), *self._rows(view, cell.domain_of(key)), _handed_back(memory, view)]
                for key, view in cell.handed_back
            ]
            tables = [
                [parameters[g.table], self._source(g.ids), *self._rows(g.view, g.view.domain)]
                for g in lowered.table_gradients
            ]
        gathered = [self._gathered(g, parameters[g.parameter], copies) for g, copies in cell.gathered if training]
        without = [[parameters[u.table], self._row_numbers(u.row)] for u in cell.without_gradient if training]
        gradients = []
        for gradient, group in of_parameters:
            p = gradient.parameter
            slots = self._physical[p].slots
            stepped: list[int] = [0, 0, 0]
            if rule is not None and gradient.instr.name == "outer" and (slots is None or not slots.keeps_gradient):
                fused = cell.fused(gradient, rule, step_fields(self._physical[p], averaging))
                stepped = self._instruction(fused)
            gradients.append([parameters[p], *self._instruction(group), *stepped])
        self.numbers: Numbers = np.array(
            [
                id,
                program.n_domains,
                *_plain(program.lists.index(d) for d in range(1, program.n_domains + 1)),
                *_counted([s.width, s.domain] for s in lowered.slabs),
                *_counted(self._written),
                *_counted([part, view.slab, view.offset] for part, view in beside.values()),
                *_plain(keys),
                cell.n_forward_keys,
                *_plain(row_lists),
                *_counted(operands),
                cell.n_forward_operands,
                *_counted(outputs),
                *_plain(memory.places[v.slab][0] for v in lowered.outputs),
                *_counted(arguments),
                *_counted(tables),
                *_counted(without),
                *_slab_groups(memory),
                *self._groups(cell.forward),
                *self._groups(cell.backward if training else []),
                *_counted(self._instruction(group) for group in (cell.watches if training else [])),
                *_counted(gradients),
                *_counted(gathered),
                *_plain(sorted(cell.numbers_used(training=False))),
                *_plain(sorted(cell.numbers_used(training)) if training else []),
            ],
            np.int64,
        )

    def _numbers_of_bases(self) -> NDArray[np.int64]:
        """Of each base of the templates, and of none: slabs come first, then what other parts have, then the words of
        operands, then lists."""
        cell, beside = self._cell, self._beside
        n_slabs = len(cell.lowered.slabs)
        n_beside, n_words = n_slabs + len(beside), 2 * len(cell.operands)
        found = np.full(cell.n_bases + 1, -1, np.int64)
        found[:n_slabs] = np.arange(n_slabs)
        for i, (key, at) in enumerate(cell.keys.items()):
            found[n_slabs + at] = n_beside + n_words + i
            if isinstance(key, Beside | BesideGradient):
                found[n_slabs + at] = n_slabs + beside.index(key)
        for i, at in enumerate(cell.operands.values()):
            found[n_slabs + at : n_slabs + at + 2] = n_beside + 2 * i + np.arange(2)
        return found

    def _template(self, template: Template) -> list[int]:
        return _template(template, self._bases[template.base])

    def _instruction(self, group: Group) -> list[int]:
        """A group of one instruction, with the bit of its name."""
        (_, instr), *_ = group.starts
        return [self._names.bit(instr.instruction.name), *self._template(group.template)]

    def _groups(self, by_barrier: list[list[Group]]) -> list[int]:
        return _counted(_counted(self._group(g) for g in groups) for groups in by_barrier)

    def _group(self, group: Group) -> list[int]:
        """A group, and who executes it in an exclusive script: its only instruction, on each row by itself."""
        found = self._template(group.template)
        if not self._exclusive:
            return [*found, 0, 0, 0]
        ((_, instr),) = group.starts
        owners = [] if instr.alone else np.unique(owners_of(instr, *self._vps)).tolist()
        return [*found, instr.domain, reading_load(instr), *_plain(owners)]

    def _gathered(self, gradient: ParameterGradient, parameter: int, copies: Sequence[Gathered]) -> list[int]:
        """What a product of matrices needs of the cell, by side: where it lies side by side, and copies of it."""
        found = [parameter, gradient.instr.domain]
        for side, width in zip(("dy", "x"), gradient.parameter.shape, strict=True):
            view = whole_slab(gradient, side)
            made = _counted([copy.column, *self._instruction(copy.group)] for copy in copies if copy.side == side)
            found += [width, *((-1, 0) if view is None else (view.slab, view.offset)), *made]
        return found

    def _source(self, key: ListKey) -> int:
        """Number of the source of a list's words."""
        if key in self._sources:
            return self._sources[key]
        cell, program = self._cell, self._cell.cell
        a, b, of, domain = 0, 0, -1, 0
        kind = _FROM.index(type(key)) if type(key) in _FROM else -1
        match key:
            case Args(position):
                a = cell.vector_index[position]
            case Beside() | BesideGradient():
                kind, a = _FROM.index(Beside), self._beside.index(key)
                # What is read of the other part also has the ids of its values, as an argument.
                b = cell.vector_index[key.position] if isinstance(key, Beside) else 0
            case Elements(position):
                a, domain = cell.list_index[position], program.list_domains[position]
            case Rows(slab):
                a, domain = slab, cell.lowered.slabs[slab].domain
            case TableRows(node):
                lookup = program.nodes[node]
                assert lookup.parameter is not None
                a, b = self._places[lookup.parameter].weights, size(lookup.parameter.shape[1:])
                of = self._source(Ints(lookup.inputs[0]))
            case Ints(node):
                attrs = program.nodes[node].attrs
                if "constant" in attrs:
                    kind, a = _CONSTANT, attrs["constant"]
                else:
                    a = cell.int_index[attrs["position"]]
            case Expand(domain, inner):
                of = self._source(inner)
            case Offsets(of_domain, inner):
                a, of = of_domain, self._source(inner)
            case Ends(of_domain):
                a = of_domain
            case Uses(output):
                a = output
            case Positions(domain):
                pass
            case Data():
                b = sum(size(n.shape) for n in program.nodes if n.op.form is Form.INPUT)
        self._sources[key] = len(self._written)
        self._written.append((kind, a, b, of, domain))
        return self._sources[key]

    def _row_numbers(self, of: RowNumber) -> int:
        """Number of the source of the row numbers of a lookup."""
        kind, a = (_CONSTANT, of.constant) if of.column < 0 else (_FROM.index(Ints), of.column)
        self._written.append((kind, a, 0, -1, 0))
        return len(self._written) - 1

    def _rows(self, view: View, domain: int) -> list[int]:
        """Where the rows of a view lie, for every row of a domain."""
        if view.shared:
            return [-1, view.address + view.offset]
        return [self._source(view.row_list(domain)), view.offset]


def argument_counts(cell: TracedCell) -> tuple[int, int, int, int]:
    """Numbers of the vector, int and list arguments of a cell, and of its outputs."""
    vectors, ints, lists = (sum(isinstance(k, kind) for k in cell.kinds) for kind in (Vector, Int, List))
    return vectors, ints, lists, len(cell.outputs)


def whole(cell: TracedCell, recipe: CellRecipe) -> Numbers:
    """The numbers of a cell that stays whole: one part, which takes all and gives all."""
    selections = [_plain(range(n)) for n in argument_counts(cell)]
    return np.array([1, Batching.LEVEL, 0, *itertools.chain(*selections), 0, *recipe.numbers.tolist()], np.int64)


def in_parts(parts: Sequence[Part], recipes: Sequence[CellRecipe], streams: bool) -> Numbers:
    """The numbers of a cell in parts; `streams`: steps of the eager one may run while virtual processors wait."""
    numbers = {part.batching: k for k, part in enumerate(parts)}
    found = [len(parts)]
    for part, recipe in zip(parts, recipes, strict=True):
        selections = [_plain(of_kind) for of_kind in (part.vectors, part.ints, part.lists, part.outputs)]
        crossings = _counted([numbers[c.batching], c.output] for c in part.crossings)
        streaming = int(streams and part.batching is Batching.EAGER)
        found += [part.batching, streaming, *itertools.chain(*selections), *crossings, *recipe.numbers.tolist()]
    return np.array(found, np.int64)


def _handed_back(memory: SlabGroups, gradient: View) -> int:
    """The group of slabs that a gradient of an argument lies in, where that is given back step by step; else -1."""
    group = memory.places[gradient.slab][0] if gradient.slab >= 0 else -1
    return group if group in memory.of_life[Life.HANDED_BACK] else -1


def _slab_groups(found: SlabGroups) -> list[int]:
    groups = _counted([_LIVES.index(g.life), g.domain, g.width, g.floats(1) - g.width] for g in found.groups)
    return [*groups, *_counted(found.places)]


class ModelRecipe:
    """The numbers of the parameters and of the end of a launch.

    Args:
        exclusive: whether every virtual processor has a script of its own (see ScriptWriter).
        rule: name of the optimizer; None where no launch makes a step.
        averaging: of the weights, or None.
    """

    def __init__(
        self,
        distribution: Distribution,
        exclusive: bool,
        names: Names,
        rule: str | None,
        averaging: Averaging | None,
    ) -> None:
        self._distribution = distribution
        self._names = names
        left_out = Word(LEFT_OUT, SLOT)
        position = HEAD_WORDS + [f.name for f in BY_NAME["clip"].fields].index("max_norm")
        clip = self._instruction(
            "clip",
            Word(0, ROWS),
            1,
            holes={position: NORM},
            partials=Word(0, PARTIALS),
            max_norm=0.0,
            left_out=left_out,
        )
        loads = []
        for p, place in distribution.physical.items():
            if place.slots is None:
                continue
            for dealt, weights, shape in (
                (place.slots.rows, place.weights, p.shape),
                (place.slots.transposed, place.transposed, p.shape[::-1]),
            ):
                if dealt is not None:
                    fields = {"weights": weights, "columns": shape[1], "matrix": dealt.number}
                    words = encode("load", 1, shape[0], dealt.word, dealt.flags, **fields)
                    loads.append([dealt.number, *_alone(words)])
        alone = Flag.ALONE if exclusive else Flag.ROWS
        constants: dict[str, Any] = {"dst": direct(Word(0, GRADIENT), 0), "data": Word(0, NUMBERS)}
        header = [MAGIC, distribution.all_vps, distribution.groups, 0] + [0] * distribution.all_vps
        self.numbers: Numbers = np.array(
            [
                distribution.n_vps,
                distribution.end,
                names.bit("load"),
                int(exclusive),
                int(Flag.ACCUMULATE) << 16,
                int(Flag.NO_GRADIENT) << 16,
                HEAD_WORDS,
                INDEXED,
                OFFSET_MASK,
                *_plain(header),
                *_plain(BARRIERS[0].tolist()),
                *_plain(SIGNALS[0].tolist()),
                *_plain(WAITS[0].tolist()),
                *_plain(_constant(encode("end", 0, 0))),
                *self._instruction("loss", 1, 1, source=Word(0, SOURCE), slot=Word(0, SLOT)),
                *self._instruction("input", 1, 0, alone, holes={_WIDTH: ROWS}, **constants),
                *clip,
                *self._instruction("guard", 1, 1, loss=Word(0, SOURCE), left_out=left_out),
                *self._instruction("guard", 1, 1, loss=left_out, left_out=Word(LEFT_OUT + AGAIN, SLOT)),
                *_counted(loads),
                *_counted(self._parameter(p, rule, averaging) for p in distribution.physical),
            ],
            np.int64,
        )

    def _instruction(
        self,
        name: str,
        n: AnyWord,
        width: int,
        flags: Flag = NO_FLAGS,
        /,
        *,
        parts: int = 1,
        holes: dict[int, int] | None = None,
        **fields: Any,
    ) -> list[int]:
        """An instruction whose holes are words of the frame; `holes` adds some at positions."""
        words = encode(name, n, width, parts, flags, **fields)
        for position, hole in (holes or {}).items():
            words[position] = Word(0, hole)
        return [self._names.bit(instruction_of(name, fields).name), *_alone(words)]

    def _parameter(self, p: Parameter, rule: str | None, averaging: Averaging | None) -> list[int]:
        place, width = self._distribution.physical[p], size(p.shape[1:])
        is_table, packed = isinstance(p, Lookup), self._distribution.is_packed(p)
        keeps = place.slots is not None and place.slots.keeps_gradient
        nothing = [0, 0, 0]
        load, store, square, step, summed, held = (nothing for _ in range(6))
        squares = p.shape[0] * -(-p.shape[1] // TILE_COLUMNS) if packed else 1
        partials = Word(0, PARTIALS)
        gradient: AnyWord = place.gradient
        if is_table:
            by_rows = sliced_by_rows(width, 1, self._distribution.panel, self._distribution.n_vps)
            flags = Flag.ROWS if by_rows else NO_FLAGS
            lists: dict[str, Any] = {"offsets": Word(0, OFFSETS), "shift": 0}
            rows, gradient = Word(0, ROWS), Word(0, GRADIENT)
            summed = self._instruction("gather_sum", rows, width, flags, dst=direct(gradient, width), **lists)
            held = self._instruction("gather_sum", rows, width, flags, dst=indexed(Word(0, NUMBERS), 0), **lists)
            square = self._instruction("squares_rows", rows, width, Flag.ROWS, gradient=gradient, partials=partials)
        elif packed:
            load = self._on_matrix("load_gradient", p, gradient=gradient)
            store = self._on_matrix("store_gradient", p, gradient=gradient)
            square = self._on_matrix("squares_matrix", p, gradient=gradient, partials=partials)
        else:
            fields: dict[str, Any] = {"gradient": gradient, "partials": partials}
            square = self._instruction("squares_rows", 1, size(p.shape), Flag.ROWS, **fields)
        if rule is not None and p.trainable:
            fields = {**step_fields(place, averaging), "hyper": Word(0, HYPER), "gradient": gradient}
            transposed = fields.pop("transposed")
            if is_table:
                fields |= {"table_rows": Word(0, NUMBERS), "idle": Word(0, IDLE)}
                step = self._instruction(f"update_rows.{rule}", Word(0, ROWS), width, Flag.ROWS, **fields)
            elif packed:
                step = self._on_matrix(f"update_matrix.{rule}", p, transposed=transposed, **fields)
            else:
                step = self._instruction(f"update_vector.{rule}", 1, size(p.shape), **fields)
        facts = [int(p.trainable), int(is_table), int(keeps), place.gradient, width, squares, place.floats]
        return [*facts, *load, *store, *square, *step, *summed, *held]

    def _on_matrix(self, name: str, p: Parameter, **fields: Any) -> list[int]:
        flags, parts, number = matrix_division(self._distribution.physical[p])
        return self._instruction(name, 0, p.shape[0], flags, parts=parts, columns=p.shape[1], matrix=number, **fields)


def _constant(words: list[AnyWord]) -> list[int]:
    return [w.constant if isinstance(w, Word) else w for w in words]
