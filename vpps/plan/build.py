"""Builds the plan of a graph: rows, slabs, index lists, script. What an `fb` costs the host is here."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError, ModelError
from vpps.graph.graph import Graph
from vpps.graph.operand import Expression
from vpps.graph.trace import TracedCell
from vpps.model import Lookup, Parameter
from vpps.ops import size
from vpps.optim import Optimizer
from vpps.plan.distribution import LOSS_SLOTS, ONE, Distribution, aligned
from vpps.plan.instr import Instr, View
from vpps.plan.templates import CellTemplates, Group
from vpps.plan.topology import BlockArrays, Ints, Topology, ragged, stages
from vpps.script.encode import direct, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, NO_FLAGS, Flag
from vpps.script.slices import TILE_COLUMNS, sliced_by_rows

Words = NDArray[np.uint32]

# Signal, then wait for everyone; the last word is the target.
BARRIER = plain([*encode("signal", 0, 0, counter=0), *encode("wait", 0, 0, counter=0, target=0)])


@dataclass(frozen=True, slots=True)
class Update:
    """What the end of a launch does with the gradients.

    Attributes:
        optimizer: its rule and hyper-parameters.
        step: number of the update, from 1.
        clip_norm: bound of the gradients' global norm, or None.
    """

    optimizer: Optimizer
    step: int
    clip_norm: float | None


@dataclass(frozen=True, slots=True)
class Section:
    """A run of words of the script that one group of a cell's instructions made for one step."""

    start: int
    block: BlockPlan | None
    group: Group | None
    first: int
    phase: str


@dataclass
class Plan:
    """A script with everything needed to run and to explain it.

    Attributes:
        script: the words; index lists and input data included.
        pool_floats: floats of the pool that it uses.
        addresses: address of each value's first float, by value id; -1 where it is not computed.
        loss_slot: address of the loss after the launch, or -1.
        blocks: rows and slabs of each cell.
        sections: where the words came from, by position.
        n_barriers: full barriers of a launch.
        touched: parameters that have a gradient.
        table_gradients: per lookup table, (rows, address of their compact gradients).
    """

    script: Words
    pool_floats: int
    addresses: Ints
    loss_slot: int
    blocks: list[BlockPlan]
    sections: list[Section]
    n_barriers: int
    touched: set[Parameter]
    table_gradients: dict[Parameter, tuple[Ints, int]]
    graph: Graph

    def origin(self, position: int) -> str:
        """The user's words for the instruction at a position of the script."""
        i = bisect_right(self.sections, position, key=lambda s: s.start) - 1
        if i < 0:
            return ""
        section = self.sections[i]
        if section.block is None or section.group is None:
            return section.phase
        offset = position - section.start
        if offset >= len(section.group.template):
            return section.phase
        instr: Instr | None = None
        for start, candidate in section.group.starts:
            if start <= offset:
                instr = candidate
        assert instr is not None
        cell = section.block.arrays.cell
        node = cell.nodes[instr.node] if instr.node < len(cell.nodes) else None
        call = int(section.block.arrays.calls[section.block.order[section.first]])
        op = node.op.name if node is not None else "output"
        return f"{section.phase} of cell {cell.name!r}, op {op!r}, from call {call}"


@dataclass
class BlockPlan:
    """Rows of one cell in execution order.

    Attributes:
        order: the vertex (row of the block's arrays) in each row.
        n_needed: the first rows are those that the loss depends on; only they run backward.
        step_stage: stage of each step; steps cover the rows one after the other.
        first, count: `(steps, 1 + domains)`, rows of each step in each domain.
        bases: addresses of the slabs, then positions of the lists, then 0.
    """

    arrays: BlockArrays
    cell: CellTemplates
    order: Ints
    n_needed: int
    step_stage: Ints
    first: Ints
    count: Ints
    bases: Ints
    ends: list[Ints] = field(default_factory=list)  # per domain, element row where each vertex's list begins
    owner: list[Ints] = field(default_factory=list)  # per domain, vertex row of each element

    def n_rows(self, domain: int) -> int:
        """Rows in a domain."""
        return len(self.order) if domain == 0 else len(self.owner[domain - 1])

    def needed_rows(self, domain: int) -> int:
        """Rows in a domain that run backward."""
        return self.n_needed if domain == 0 else int(self.ends[domain - 1][self.n_needed])

    @property
    def n_needed_steps(self) -> int:
        """Steps that run backward; the first ones."""
        return int((self.first[:, 0] < self.n_needed).sum())


class Planner:
    """Makes plans for one distribution and policy; keeps the encoded cells.

    Args:
        distribution: places of the parameters, number of virtual processors.
        policy: name of the batching policy.
    """

    def __init__(self, distribution: Distribution, policy: str) -> None:
        self.distribution = distribution
        self.policy = policy
        self._cells: dict[TracedCell, CellTemplates] = {}

    def templates(self, cell: TracedCell) -> CellTemplates:
        """The encoded cell. Raises ModelError where it uses a parameter of another model."""
        known = self._cells.get(cell)
        if known is None:
            for p in cell.parameters:
                if p not in self.distribution.places:
                    raise ModelError(f"cell {cell.name!r} uses {p!r}, which belongs to another model than the handle's")
            known = self._cells[cell] = CellTemplates(cell, self.distribution)
        return known

    def plan_forward(self, graph: Graph, wanted: Sequence[Expression]) -> Plan:
        """Plan that computes the wanted values and what they depend on, nothing else."""
        topology = Topology(graph)
        needed = topology.reaching(e.ref for e in wanted)
        return _Build(self, graph, topology, needed, skip_rest=True).forward_only()

    def plan_training(self, graph: Graph, loss: Expression, update: Update | None, parity: int) -> Plan:
        """Plan of forward, backward, gradients and (unless `update` is None) the update.

        Raises:
            GraphError: the loss depends on no trainable parameter.
        """
        topology = Topology(graph)
        if topology.all_reach(loss.ref):
            needed = np.ones(topology.n_calls, bool)
        else:
            needed = topology.reaching([loss.ref])
        return _Build(self, graph, topology, needed, skip_rest=False).training(loss, update, parity)


class _Build:
    """One plan in the making."""

    def __init__(
        self, planner: Planner, graph: Graph, topology: Topology, needed: NDArray[np.bool_], skip_rest: bool
    ) -> None:
        self.planner = planner
        self.graph = graph
        self.topology = topology
        self.distribution = planner.distribution
        self.n_vps = planner.distribution.n_vps
        self.chunks: list[Words] = []
        self.position = 0
        self.cursor = planner.distribution.end
        self.sections: list[Section] = []
        self.n_barriers = 0
        self.addresses: Ints = np.full(len(topology.value_block), -1, np.int64)
        header = [MAGIC, self.n_vps, 1, 0] + [0] * self.n_vps
        assert len(header) == HEADER_WORDS + self.n_vps
        self.append(plain(header))
        vertex_stages = stages(topology, planner.policy)
        self.blocks = [
            self._rows(b, planner.templates(b.cell), stage, needed[b.calls], skip_rest)
            for b, stage in zip(topology.blocks, vertex_stages, strict=True)
        ]

    # ---- words and memory

    def append(self, words: Words) -> int:
        """Add words to the script; returns their position."""
        start = self.position
        self.chunks.append(words)
        self.position += len(words)
        return start

    def place_list(self, values: Ints) -> int:
        """Add an index list to the script; returns its position."""
        return self.append(values.astype(np.uint32))

    def take(self, floats: int) -> int:
        """Memory of the batch; returns its address."""
        start = self.cursor
        self.cursor = aligned(start + floats)
        return start

    def instruction(self, name: str, n: int, width: int, flags: Flag = NO_FLAGS, /, **fields: Any) -> None:
        """Append an instruction that no cell made."""
        self.sections.append(Section(self.position, None, None, 0, name))
        self.append(plain(encode(name, n, width, 1, flags, **fields)))

    def barrier(self, why: str) -> None:
        """A full barrier. One virtual processor needs none."""
        self.n_barriers += 1
        if self.n_vps > 1:
            self.sections.append(Section(self.position, None, None, 0, f"barrier {self.n_barriers}, {why}"))
            words = BARRIER.copy()
            words[-1] = self.n_vps * self.n_barriers
            self.append(words)

    # ---- rows

    def _rows(
        self, b: BlockArrays, cell: CellTemplates, stage: Ints, needed: NDArray[np.bool_], skip_rest: bool
    ) -> BlockPlan:
        """Order the vertices: those that run backward first, then by stage, then in the user's order."""
        key = stage + (~needed) * (int(stage.max(initial=0)) + 1)
        order = np.argsort(key, kind="stable")
        n_needed = int(needed.sum())
        if skip_rest:
            order = order[:n_needed]
        sorted_key = key[order]
        starts = np.flatnonzero(np.diff(sorted_key, prepend=-1))
        stops = np.append(starts[1:], len(order))[: len(starts)].astype(np.int64)
        first, count = [starts], [stops - starts]
        plan = BlockPlan(b, cell, order, n_needed, stage[order[starts]], starts, starts, starts)
        for domain in range(1, cell.cell.n_domains + 1):
            xs = b.lists[cell.cell.lists.index(domain)]
            ends = np.zeros(len(order) + 1, np.int64)
            np.cumsum(xs.ends[order + 1] - xs.ends[order], out=ends[1:])
            plan.ends.append(ends)
            plan.owner.append(np.repeat(np.arange(len(order)), np.diff(ends)))
            first.append(ends[starts])
            count.append(ends[stops] - ends[starts])
        plan.first, plan.count = np.stack(first, axis=1), np.stack(count, axis=1)
        return plan

    def allocate(self, training: bool) -> None:
        """Give every block its slabs, and every value its address."""
        for plan in self.blocks:
            lowered = plan.cell.lowered
            slabs = lowered.slabs if training else lowered.slabs[: lowered.n_forward_slabs]
            plan.bases = np.zeros(len(lowered.slabs) + len(plan.cell.keys) + 1, np.int64)
            for i, slab in enumerate(slabs):
                plan.bases[i] = self.take(plan.n_rows(slab.domain) * slab.width)
            for k, view in enumerate(lowered.outputs):
                self.addresses[plan.arrays.first[plan.order] + k] = self.row_addresses(plan, view)

    def row_addresses(self, plan: BlockPlan, view: View) -> Ints:
        """Address of each row of a view."""
        if view.shared:
            return np.full(plan.n_rows(view.domain), view.address + view.offset, np.int64)
        return self.list_values(plan, view.row_list(view.domain)) + view.offset

    def list_values(self, plan: BlockPlan, key: Hashable) -> Ints:
        """Contents of an index list."""
        assert isinstance(key, tuple)
        b, cell = plan.arrays, plan.cell
        match key:
            case ("rows", slab):
                width, domain = cell.lowered.slabs[slab]
                return plan.bases[slab] + np.arange(plan.n_rows(domain)) * width
            case ("args", position):
                arguments: Ints = self.addresses[b.args[plan.order, cell.vector_index[position]]]
                return arguments
            case ("elements", position):
                return self.addresses[self.element_values(plan, position)]
            case ("expand", domain, own):
                expanded: Ints = self.list_values(plan, own)[plan.owner[domain - 1]]
                return expanded
            case ("ints", node):
                return self.int_values(plan, node)
            case ("table", node):
                lookup = cell.cell.nodes[node]
                table = lookup.parameter
                assert table is not None
                rows = self.int_values(plan, lookup.inputs[0])
                return self.distribution.places[table].weights + rows * size(table.shape[1:])
            case _:
                raise AssertionError(f"no rule for the index list {key}")

    def element_values(self, plan: BlockPlan, position: int) -> Ints:
        """Value ids of a list argument's elements, in row order."""
        xs = plan.arrays.lists[plan.cell.list_index[position]]
        return xs.elements[ragged(xs.ends, plan.order)]

    def int_values(self, plan: BlockPlan, node: int) -> Ints:
        """An int argument (or a constant) for each row."""
        attrs = plan.cell.cell.nodes[node].attrs
        if "constant" in attrs:
            return np.full(len(plan.order), attrs["constant"], np.int64)
        ints: Ints = plan.arrays.ints[plan.order, plan.cell.int_index[attrs["position"]]]
        return ints

    def place_lists(self, training: bool, uses: Callable[[int, int], int]) -> None:
        """Put every block's index lists into the script. `uses(block, output)` is the position of the reverse lists."""
        for number, plan in enumerate(self.blocks):
            n_keys = len(plan.cell.keys) if training else plan.cell.n_forward_keys
            n_slabs = len(plan.cell.lowered.slabs)
            for key, i in list(plan.cell.keys.items())[:n_keys]:
                assert isinstance(key, tuple)
                if key[0] == "uses":
                    position = uses(number, key[1])
                elif key[0] == "data":
                    data = plan.arrays.block.data
                    position = self.append(
                        np.concatenate([data[r] for r in plan.order.tolist()]).view(np.uint32)
                        if len(plan.order)
                        else plain([])
                    )
                elif key[0] == "offsets":
                    entries = self.place_list(self.list_values(plan, key[2]))
                    position = self.place_list(entries + plan.ends[key[1] - 1])
                else:
                    position = self.place_list(self.list_values(plan, key))
                plan.bases[n_slabs + i] = position

    # ---- instructions

    def steps(self, backward: bool) -> None:
        """Emit the steps of all stages. Cells of one stage share its barriers: their groups run side by side."""
        by_stage: dict[int, list[tuple[BlockPlan, int]]] = {}
        filled: dict[int, list[Words]] = {}
        for plan in self.blocks:
            groups = plan.cell.backward if backward else plan.cell.forward
            n_steps = plan.n_needed_steps if backward else len(plan.step_stage)
            if not groups or not n_steps:
                continue
            filled[id(plan)] = [g.template.fill(plan.bases, plan.first[:n_steps], plan.count[:n_steps]) for g in groups]
            for step, stage in enumerate(plan.step_stage[:n_steps].tolist()):
                by_stage.setdefault(stage, []).append((plan, step))
        phase = "backward" if backward else "forward"
        for stage in sorted(by_stage, reverse=backward):
            members = by_stage[stage]
            n_groups = max(len(filled[id(plan)]) for plan, _ in members)
            for g in range(n_groups):
                for plan, step in members:
                    if g < len(filled[id(plan)]):
                        group = (plan.cell.backward if backward else plan.cell.forward)[g]
                        self.sections.append(Section(self.position, plan, group, int(plan.first[step, 0]), phase))
                        self.append(filled[id(plan)][g][step])
                self.barrier(f"{phase}, stage {stage}")

    def forward_only(self) -> Plan:
        """Finish a plan without gradients."""
        self.allocate(training=False)
        self.place_lists(False, lambda block, output: 0)
        entry = self.position
        self.steps(backward=False)
        return self.finish(entry, -1, set(), {})

    def training(self, loss: Expression, update: Update | None, parity: int) -> Plan:
        """Finish a plan with backward, gradients and update."""
        used = {p for plan in self.blocks if plan.n_needed for p in plan.cell.cell.parameters if p.trainable}
        if not used:
            raise GraphError(
                "the loss depends on no trainable parameter, so there is nothing to learn; "
                "use handle.forward to evaluate it"
            )
        self.allocate(training=True)
        uses = self._reverse_lists(loss)
        self.place_lists(True, uses)
        tables = self._table_lists()
        hyper = self.append(update.optimizer.hyper(update.step).view(np.uint32)) if update else 0
        entry = self.position
        self.steps(backward=False)
        slot = LOSS_SLOTS + parity
        self.instruction("loss", 1, 1, source=int(self.addresses[loss.ref]), slot=slot)
        self.steps(backward=True)
        touched = self._gradients(tables)
        self.barrier("before the update")
        if update is not None:
            if update.clip_norm is not None:
                self._clip(touched, tables, update.clip_norm)
            self._update(touched, tables, update, hyper)
        gradients = {t: (rows, address) for t, (rows, address, *_) in tables.items()}
        return self.finish(entry, slot, touched | set(tables), gradients)

    def finish(
        self, entry: int, loss_slot: int, touched: set[Parameter], tables: dict[Parameter, tuple[Ints, int]]
    ) -> Plan:
        """Append the end, fill in the header."""
        self.instruction("end", 0, 0)
        script = np.concatenate(self.chunks)
        script[3] = len(script)
        script[HEADER_WORDS : HEADER_WORDS + self.n_vps] = entry
        return Plan(
            script,
            self.cursor,
            self.addresses,
            loss_slot,
            self.blocks,
            self.sections,
            self.n_barriers,
            touched,
            tables,
            self.graph,
        )

    # ---- gradients

    def _reverse_lists(self, loss: Expression) -> Callable[[int, int], int]:
        """Place, for every value, the addresses of the gradient rows that its readers hand back.

        Returns a function that gives the position of the offsets of (block, output): row r's readers are listed between
        offsets r and r + 1, in the order of blocks, arguments and rows - fixed, so that sums are reproducible.
        """
        n_values = len(self.addresses)
        ordinal = np.zeros(n_values, np.int64)
        starts: dict[tuple[int, int], int] = {}
        total = 0
        for number, plan in enumerate(self.blocks):
            for k in range(len(plan.cell.lowered.outputs)):
                starts[number, k] = total
                ordinal[plan.arrays.first[plan.order] + k] = np.arange(total, total + len(plan.order))
                total += len(plan.order)
        values: list[Ints] = [np.array([loss.ref])]
        rows: list[Ints] = [np.array([ONE])]
        for plan in self.blocks:
            if not plan.n_needed:
                continue
            for key, view in plan.cell.lowered.arguments:
                assert isinstance(key, tuple)
                address = self.row_addresses(plan, view)
                if key[0] == "args":
                    targets = plan.arrays.args[plan.order, plan.cell.vector_index[key[1]]]
                    n = plan.n_needed
                else:
                    domain = plan.cell.cell.list_domains[key[1]]
                    targets = self.element_values(plan, key[1])
                    if view.domain == 0:
                        address = address[plan.owner[domain - 1]]
                    n = plan.needed_rows(domain)
                values.append(targets[:n])
                rows.append(address[:n])
        targets = ordinal[np.concatenate(values)]
        order = np.argsort(targets, kind="stable")
        entries = self.place_list(np.concatenate(rows)[order])
        offsets = np.zeros(total + 1, np.int64)
        np.cumsum(np.bincount(targets, minlength=total), out=offsets[1:])
        position = self.place_list(entries + offsets)
        return lambda block, output: position + starts[block, output]

    def _table_lists(self) -> dict[Parameter, tuple[Ints, int, int, int]]:
        """Per lookup table: rows used (sorted, unique), address of their gradients, positions of offsets and rows."""
        ids: dict[Lookup, list[Ints]] = {}
        rows: dict[Lookup, list[Ints]] = {}
        for plan in self.blocks:
            for g in plan.cell.lowered.table_gradients if plan.n_needed else []:
                assert isinstance(g.ids, tuple)
                ids.setdefault(g.table, []).append(self.int_values(plan, g.ids[1])[: plan.n_needed])
                rows.setdefault(g.table, []).append(self.row_addresses(plan, g.view)[: plan.n_needed])
        found: dict[Parameter, tuple[Ints, int, int, int]] = {}
        for table, parts in ids.items():
            unique, inverse = np.unique(np.concatenate(parts), return_inverse=True)
            order = np.argsort(inverse, kind="stable")
            entries = self.place_list(np.concatenate(rows[table])[order])
            offsets = np.zeros(len(unique) + 1, np.int64)
            np.cumsum(np.bincount(inverse, minlength=len(unique)), out=offsets[1:])
            positions = self.place_list(entries + offsets), self.place_list(unique)
            found[table] = (unique, self.take(len(unique) * size(table.shape[1:])), *positions)
        return found

    def _gradients(self, tables: dict[Parameter, tuple[Ints, int, int, int]]) -> set[Parameter]:
        """Emit weight gradients, each once over all rows of a cell (lazy batching); returns the dense ones touched."""
        touched: set[Parameter] = set()
        for plan in self.blocks:
            if not plan.n_needed:
                continue
            domains = range(plan.cell.cell.n_domains + 1)
            first = np.zeros((1, len(domains)), np.int64)
            count = np.array([[plan.needed_rows(d) for d in domains]])
            for gradient, group in plan.cell.gradients:
                words = group.template.fill(plan.bases, first, count)[0]
                if gradient.parameter in touched:
                    words[0] |= int(Flag.ACCUMULATE) << 16
                touched.add(gradient.parameter)
                self.sections.append(Section(self.position, plan, group, 0, f"gradient of {gradient.parameter.name!r}"))
                self.append(words)
        for table, (unique, address, offsets, _) in tables.items():
            width = size(table.shape[1:])
            self.instruction(
                "gather_sum",
                len(unique),
                width,
                self._row_flag(width),
                dst=direct(address, width),
                offsets=offsets,
                shift=0,
            )
        return touched

    def _row_flag(self, width: int) -> Flag:
        return Flag.ROWS if sliced_by_rows(width, 1, self.distribution.panel, self.n_vps) else NO_FLAGS

    def _clip(
        self, touched: Iterable[Parameter], tables: dict[Parameter, tuple[Ints, int, int, int]], clip_norm: float
    ) -> None:
        """Scale all gradients to a global norm of at most `clip_norm`: partial sums, a barrier, the same sum by all."""
        places = self.distribution.places
        dense = [p for p in places if p in touched]
        counts = [
            p.shape[0] * -(-p.shape[1] // TILE_COLUMNS) if self.distribution.is_packed(p) else 1 for p in dense
        ] + [len(unique) for unique, *_ in tables.values()]
        partials = self.take(sum(counts))
        cursor = partials
        for p, n in zip(dense, counts, strict=False):
            if self.distribution.is_packed(p):
                self.instruction(
                    "squares_matrix", 0, p.shape[0], gradient=places[p].gradient, columns=p.shape[1], partials=cursor
                )
            else:
                self.instruction(
                    "squares_rows", 1, size(p.shape), Flag.ROWS, gradient=places[p].gradient, partials=cursor
                )
            cursor += n
        for table, (unique, address, *_) in tables.items():
            width = size(table.shape[1:])
            self.instruction("squares_rows", len(unique), width, Flag.ROWS, gradient=address, partials=cursor)
            cursor += len(unique)
        self.barrier("before clipping")
        self.instruction("clip", sum(counts), 1, partials=partials, max_norm=clip_norm)

    def _update(
        self, touched: set[Parameter], tables: dict[Parameter, tuple[Ints, int, int, int]], update: Update, hyper: int
    ) -> None:
        """Emit the optimizer's step: every trainable dense parameter (unused ones still decay), used rows of tables."""
        rule = update.optimizer.name
        for p, place in self.distribution.places.items():
            moments = (*place.moments, 0, 0)
            fields: dict[str, Any] = {"moment0": moments[0], "moment1": moments[1], "hyper": hyper}
            fields["weights"] = place.weights
            if not p.trainable:
                continue
            if isinstance(p, Lookup):
                if p in tables:
                    unique, address, _, rows = tables[p]
                    width = size(p.shape[1:])
                    self.instruction(
                        f"update_rows.{rule}",
                        len(unique),
                        width,
                        Flag.ROWS,
                        **fields,
                        gradient=address,
                        table_rows=rows,
                    )
                continue
            flags = NO_FLAGS if p in touched else Flag.NO_GRADIENT
            fields["gradient"] = place.gradient
            if self.distribution.is_packed(p):
                self.instruction(
                    f"update_matrix.{rule}",
                    0,
                    p.shape[0],
                    flags,
                    **fields,
                    columns=p.shape[1],
                    transposed=place.transposed,
                )
            else:
                self.instruction(f"update_vector.{rule}", 1, size(p.shape), flags, **fields)
