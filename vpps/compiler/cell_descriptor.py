"""Makes a cell's records for the compiled planner: the data that does not depend on the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.barriers import owners_of
from vpps.compiler.encoded_cell import EncodedCell, Group
from vpps.compiler.instr import (
    Args,
    Calls,
    Data,
    Elements,
    Ends,
    Expand,
    IndexList,
    Ints,
    ListKey,
    Offsets,
    Positions,
    SameRow,
    SameRowGradient,
    TableRows,
    Uses,
    View,
)
from vpps.compiler.passes.lazy_batching import Batching, CellPart
from vpps.compiler.records import (
    ArgumentRecord,
    CellRecord,
    CrossingRecord,
    From,
    GradientRecord,
    GroupRecord,
    InstructionRecord,
    PartRecord,
    RelocationRecord,
    RowOperandRecord,
    RowsRecord,
    SameRowRecord,
    SlabGroupRecord,
    SlabGroupsRecord,
    SlabPlaceRecord,
    SlabRecord,
    SlabViewRecord,
    SourceRecord,
    TableGradientRecord,
    TemplateRecord,
)
from vpps.compiler.slabs import STAGGER, Life, SlabGroups
from vpps.model.model import Parameter
from vpps.ops import Form, size
from vpps.placement.update import Ending
from vpps.record.trace import WORDS_OF_CONSTANT, Int, List, TracedCell, Vector
from vpps.script.encode import Template

NOTHING = InstructionRecord(0, TemplateRecord([], []))  # placeholder for an instruction that does not exist


class Names:
    """Bit numbers of instruction names, for the masks in which the planner reports the instructions that it used."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """Return the bit of a name."""
        return self._bits.setdefault(name, len(self._bits))

    def of(self, mask: int) -> frozenset[str]:
        """Return the names of the bits that are set."""
        return frozenset(name for name, bit in self._bits.items() if mask >> bit & 1)


def template_record(template: Template, base: NDArray[np.int64]) -> TemplateRecord:
    """Make a template's record. `base` is the number of the base of each word's relocation, or -1."""
    at = np.flatnonzero((base >= 0) | (template.per_row != 0) | (template.per_count != 0))
    columns = at, base[at], template.domain[at], template.per_row[at], template.per_count[at]
    words = (template.constant & 0xFFFFFFFF).tolist()
    return TemplateRecord(words, [RelocationRecord(*row) for row in np.column_stack(columns).tolist()])


class CellDescriptor:
    """Makes the record of one cell.

    Args:
        cell: the encoded cell.
        same_row: values and gradients that it reads from other parts of the same cell: number of the part, and view.
        id: number of the encoded cell.
        training: True for training plans, False for inference plans.
        ending: the end of the launch; outer products can be fused with its optimizer steps.
        parameters: number of each parameter.
    """

    def __init__(
        self,
        cell: EncodedCell,
        same_row: Mapping[SameRow | SameRowGradient, tuple[int, View]],
        id: int,
        training: bool,
        ending: Ending,
        parameters: dict[Parameter, int],
        names: Names,
    ) -> None:
        self._cell = cell
        distribution = ending.distribution
        self._places = distribution.places
        self._sources: dict[ListKey, int] = {}
        self._vps = distribution.panel, distribution.n_vps
        self._exclusive = cell.exclusive
        self._names = names
        self._written: list[SourceRecord] = []
        self._same_row = list(same_row)
        self._bases = self._numbers_of_bases()
        program, lowered = cell.cell, cell.lowered
        keys = [self._source(key) for key in cell.keys]
        lists: dict[ListKey, int] = {}  # list -> number, in the order of first use
        operands = [RowOperandRecord(lists.setdefault(o.key, len(lists)), o.whole, o.offset) for o in cell.operands]
        row_lists = [self._source(key) for key in lists]
        outputs = [self._rows(v, v.domain) for v in lowered.outputs]
        memory = cell.slab_groups(training)
        arguments, tables, watches, gradients = [], [], [], []
        if training:
            arguments = [
                ArgumentRecord(self._source(key), self._rows(view, cell.domain_of(key)), _handed_back(memory, view))
                for key, view in cell.handed_back
            ]
            tables = [
                TableGradientRecord(parameters[g.table], self._source(g.ids), self._rows(g.view, g.view.domain))
                for g in lowered.table_gradients
            ]
            watches = [self._instruction(group) for group in cell.watches]
        for contribution in cell.gradients if training else ():
            p, name = contribution.gradient.parameter, contribution.gradient.instr.name
            stepped = tiles = NOTHING
            if ending.rule is not None and name == "outer":
                stepped = self._instruction(cell.fused(contribution, ending))
            if contribution.tiles is not None:
                tiles = self._instruction(contribution.tiles)
            plain = self._instruction(contribution.group)
            gradients.append(GradientRecord(parameters[p], plain, stepped, tiles, contribution.summed_by))
        wanted = lowered.input_gradient if training else None
        self.record = CellRecord(
            id=id,
            n_domains=program.n_domains,
            list_of_domain=[program.lists.index(d) for d in range(1, program.n_domains + 1)],
            slabs=[SlabRecord(s.width, s.domain) for s in lowered.slabs],
            sources=self._written,
            same_row=[SameRowRecord(part, view.slab, view.offset) for part, view in same_row.values()],
            keys=keys,
            n_forward_keys=cell.n_forward_keys,
            row_lists=row_lists,
            operands=operands,
            n_forward_operands=cell.n_forward_operands,
            outputs=outputs,
            passed_on=[memory.places[v.slab][0] for v in lowered.outputs],
            arguments=arguments,
            tables=tables,
            memory=SlabGroupsRecord(
                [SlabGroupRecord(g.life, g.domain, g.width, (len(g.slabs) - 1) * STAGGER) for g in memory.groups],
                [SlabPlaceRecord(*place) for place in memory.places],
            ),
            forward=[list(map(self._group, groups)) for groups in cell.forward],
            backward=[list(map(self._group, groups)) for groups in cell.backward if training],
            watches=watches,
            gradients=gradients,
            matrices_of_forward=sorted(cell.numbers_used(training=False)),
            matrices_of_training=sorted(cell.numbers_used(training=True)) if training else [],
            input_gradient=SlabViewRecord(-1, 0) if wanted is None else SlabViewRecord(wanted.slab, wanted.offset),
        )

    def _numbers_of_bases(self) -> NDArray[np.int64]:
        """Return the planner's number for each base in the templates, and a final -1 for no base. The planner numbers
        slabs first, then the views in other parts, then operands' words, then lists and constants."""
        cell, same_row = self._cell, self._same_row
        n_slabs = len(cell.lowered.slabs)
        n_same_row, n_words = n_slabs + len(same_row), 2 * len(cell.operands)
        found = np.full(cell.n_bases + 1, -1, np.int64)
        found[:n_slabs] = np.arange(n_slabs)
        for i, (key, at) in enumerate(cell.keys.items()):
            found[at] = n_same_row + n_words + i
            if isinstance(key, SameRow | SameRowGradient):
                found[at] = n_slabs + same_row.index(key)
        for i, at in enumerate(cell.operands.values()):
            found[at : at + 2] = n_same_row + 2 * i + np.arange(2)
        for (slot, word), at in cell.constants.items():
            found[at] = n_same_row + n_words + len(cell.keys) + WORDS_OF_CONSTANT * slot + word
        return found

    def _template(self, template: Template) -> TemplateRecord:
        return template_record(template, self._bases[template.base])

    def _instruction(self, group: Group) -> InstructionRecord:
        """Make the record of a single-instruction group, with the bit of the instruction's name."""
        (_, instr), *_ = group.starts
        return InstructionRecord(self._names.bit(instr.instruction.name), self._template(group.template))

    def _group(self, group: Group) -> GroupRecord:
        """Make a group's record. In an exclusive script, a group is one instruction; the record names its owners."""
        template = self._template(group.template)
        if not self._exclusive:
            return GroupRecord(template, 0, 0, [])
        ((_, instr),) = group.starts
        owners = [] if instr.alone else np.unique(owners_of(instr, *self._vps)).tolist()
        reads = sum(view.width for _, view in instr.views()) - instr.width
        return GroupRecord(template, instr.domain, max(reads, instr.width), owners)  # at least its writes: VPPS III-B1

    def _source(self, key: ListKey) -> int:
        """Return the number of the source that a list's words come from."""
        if key not in self._sources:
            source = self._source_record(key)  # may first write the sources that it depends on
            self._sources[key] = len(self._written)
            self._written.append(source)
        return self._sources[key]

    def _source_record(self, key: ListKey) -> SourceRecord:
        cell, program = self._cell, self._cell.cell
        match key:
            case Args(position):
                return SourceRecord(From.ARGS, program.place(position))
            case SameRow(position):  # like arguments, the other part's values have ids
                return SourceRecord(From.SAME_ROW, self._same_row.index(key), program.place(position))
            case SameRowGradient():
                return SourceRecord(From.SAME_ROW, self._same_row.index(key))
            case Elements(position):
                domain = program.list_domains[position]
                return SourceRecord(From.ELEMENTS, program.place(position), domain=domain)
            case IndexList(slab):
                return SourceRecord(From.ROWS, slab, domain=cell.lowered.slabs[slab].domain)
            case TableRows(node):
                lookup = program.nodes[node]
                assert lookup.parameter is not None
                address, floats = self._places[lookup.parameter].weights, size(lookup.parameter.shape[1:])
                return SourceRecord(From.TABLE_ROWS, address, floats, self._source(Ints(lookup.inputs[0])))
            case Ints(node):
                attrs = program.nodes[node].attrs
                if "constant" in attrs:
                    return SourceRecord(From.CONSTANT, attrs["constant"])
                return SourceRecord(From.INTS, program.place(attrs["position"]))
            case Expand(domain, of):
                return SourceRecord(From.EXPAND, of=self._source(of), domain=domain)
            case Offsets(domain, of):
                return SourceRecord(From.OFFSETS, domain, of=self._source(of))
            case Ends(domain):
                return SourceRecord(From.ENDS, domain)
            case Uses(output):
                return SourceRecord(From.USES, output)
            case Positions(domain):
                return SourceRecord(From.POSITIONS, domain=domain)
            case Data():
                floats = sum(size(n.shape) for n in program.nodes if n.op.form is Form.INPUT)
                return SourceRecord(From.DATA, b=floats)
            case Calls():
                return SourceRecord(From.CALLS)
        return SourceRecord(From.RANDOM_KEY)

    def _rows(self, view: View, domain: int) -> RowsRecord:
        """Make the record of the addresses of a view's rows, one address for each row of a domain."""
        if view.shared:
            return RowsRecord(-1, view.address + view.offset)
        return RowsRecord(self._source(view.row_list(domain)), view.offset)


def argument_counts(cell: TracedCell) -> tuple[int, int, int, int]:
    """Return how many vector, int and list arguments a cell has, and how many outputs."""
    vectors, ints, lists = (sum(isinstance(k, kind) for k in cell.kinds) for kind in (Vector, Int, List))
    return vectors, ints, lists, len(cell.outputs)


def whole(cell: TracedCell, record: CellRecord) -> list[PartRecord]:
    """Return an undivided cell as one part with all arguments and outputs."""
    vectors, ints, lists, outputs = (list(range(n)) for n in argument_counts(cell))
    return [PartRecord(Batching.LEVEL, False, vectors, ints, lists, outputs, [], record)]


def in_parts(parts: Sequence[CellPart], records: Sequence[CellRecord], streams: bool) -> list[PartRecord]:
    """Return the parts of a divided cell. `streams`: eager steps may run while virtual processors wait."""
    numbers = {part.batching: k for k, part in enumerate(parts)}
    return [
        PartRecord(
            batching=part.batching,
            streams=streams and part.batching is Batching.EAGER,
            vectors=list(part.vectors),
            ints=list(part.ints),
            lists=list(part.lists),
            outputs=list(part.outputs),
            crossings=[CrossingRecord(numbers[c.batching], c.output) for c in part.crossings],
            cell=record,
        )
        for part, record in zip(parts, records, strict=True)
    ]


def _handed_back(memory: SlabGroups, gradient: View) -> int:
    """Return the slab group of an argument's gradient if backward frees it step by step, else -1."""
    group = memory.places[gradient.slab][0] if gradient.slab >= 0 else -1
    return group if group in memory.of_life[Life.HANDED_BACK] else -1
