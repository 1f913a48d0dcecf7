"""Builds the plan of a graph: rows, slabs, index lists, script. What an `fb` costs the host is here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
from vpps.graph.arrays import Ints
from vpps.graph.graph import Graph
from vpps.graph.operand import Expression
from vpps.graph.vertices import Block
from vpps.model import Parameter
from vpps.ops.philox import LaunchKey, StepKey
from vpps.plan.distribution import FIRST_FREE, LEFT_OUT, LOSS_SLOTS, NOTHING_HELD, ONE, Held, held_matrices
from vpps.plan.end_of_launch import EndOfLaunch
from vpps.plan.group_vertices import group_vertices
from vpps.plan.grouped import GroupedSchedule
from vpps.plan.grouping import Grouping
from vpps.plan.instr import Beside, BesideGradient, Data, Offsets, RandomKey, Uses
from vpps.plan.loss_chain import LossChain
from vpps.plan.memory import SlabMemory
from vpps.plan.passes.dead_outputs import ALL_READ, Unread, unread_outputs
from vpps.plan.passes.lazy_batching import STAGES, Batching, Part
from vpps.plan.pieces import Piece, pieces
from vpps.plan.plan import Plan
from vpps.plan.row_lists import place_row_lists
from vpps.plan.row_order import StepKeys, row_orders
from vpps.plan.rows import BlockPlan, step_keys
from vpps.plan.schedules import WRITERS, Schedule
from vpps.plan.sections import Phase, Stream, Words
from vpps.plan.stacks import members
from vpps.plan.topology import Topology
from vpps.plan.update import Update, UsedRows
from vpps.plan.writer import ScriptWriter, spans
from vpps.script.encode import direct
from vpps.script.instructions import Flag
from vpps.script.products import Sequel
from vpps.script.tails import Tail
from vpps.script.verify import Layout
from vpps.script.wellformed import Knowledge
from vpps.values import float_word

if TYPE_CHECKING:
    from vpps.plan.planner import Planner


class NumpyPlan(Plan):
    """A plan that NumPy has made: all that may be asked of it is known."""

    def __init__(
        self,
        graph: Graph,
        script: Words,
        pool_floats: int,
        addresses: Ints,
        loss_slot: int,
        blocks: Any,  # as good as those of PlannedBlock
        streams: list[tuple[int, Stream]],
        n_barriers: int,
        touched: set[Parameter],
        tables: dict[Parameter, UsedRows],
        held: Held,
        instructions: frozenset[str],
        tails: frozenset[Tail],
        encoded: tuple[int, int],
        make_layout: Callable[[], Layout],
        grouping: Grouping | None,
        sequel: Sequel | None = None,
    ) -> None:
        known = {name: value for name, value in locals().items() if name != "self" and not name.startswith("_")}
        self.__dict__.update(known)

    @cached_property
    def layout(self) -> Layout:
        """See Plan."""
        layout = self.__dict__["make_layout"]()
        tails = {tail.number: tail for tail in self.tails}
        found: Layout = replace(layout, knows=replace(layout.knows, instructions=self.instructions, tails=tails))
        return found

    @property
    def lists(self) -> Ints:
        """See Plan."""
        return self.layout.lists


def _step_keys(planned: Sequence[Piece], needed: NDArray[np.bool_], skip_rest: bool) -> list[StepKeys]:
    """The steps of each block's vertices; where it is in parts, of the one that the others follow."""
    found = []
    for first, piece in enumerate(planned):
        if piece.number:
            continue
        p = planned[first + _leader(piece)]
        runs = needed[p.arrays.calls]
        keys = step_keys(p.stage, p.group, runs)
        found.append(StepKeys(np.where(runs, keys, -1) if skip_rest else keys, p.stage))
    return found


def _leader(piece: Piece) -> int:
    """The part of a block whose order the others have: the one that runs by level, if there is one."""
    return next((k for k, part in enumerate(piece.parts) if part.batching is Batching.LEVEL), 0)


class Build:
    """One plan in the making."""

    def __init__(
        self,
        planner: Planner,
        graph: Graph,
        topology: Topology,
        needed: NDArray[np.bool_],
        asked: Ints,
        skip_rest: bool,
        key: LaunchKey | StepKey | None = None,
        held: Held = NOTHING_HELD,
        chain: LossChain | None = None,
    ) -> None:
        self.graph = graph
        self.chain = chain
        self.key = key
        self.held = held
        self.distribution = planner.distribution
        self.writer = ScriptWriter(planner.distribution, planner.schedule.exclusive)
        self._key_position = -1
        of_vertex = planner.batching.stages(topology, partial(planner.load_of, topology))
        self._unread: dict[Block, Unread] = {}
        if planner.passes.dead_outputs:
            self._leave_out(planner, topology, unread_outputs(topology, needed, asked), skip_rest)
        groups: Sequence[Ints | None] = [None] * len(of_vertex)
        self.grouping: Grouping | None = None
        self.schedule: Schedule
        if self.distribution.groups > 1:
            cells = [planner.templates(b.cell, training=not skip_rest) for b in topology.blocks]
            runs = needed if skip_rest else np.ones_like(needed)
            self.grouping = group_vertices(topology, cells, of_vertex, self.distribution.groups, runs)
            of_vertex, groups = self.grouping.stages, self.grouping.groups
        split = planner.split if planner.passes.lazy_batching else None
        unread = {b.cell: self._unread.get(b.block, ALL_READ) for b in topology.blocks}

        def streams(parts: tuple[Part, ...]) -> bool:
            return planner.streams(parts, not skip_rest, unread[planner.whole(parts)])

        planned, n_values, stretch = pieces(topology, of_vertex, groups, split, planner.batching.at_once, streams)
        if self.grouping is not None:
            self.grouping = self.grouping.stretched(stretch)
            self.schedule = GroupedSchedule(self.writer, self.grouping)
        else:
            self.schedule = WRITERS[planner.schedule.name](self.writer)
        self.n_values = topology.n_values
        self.addresses: Ints = np.full(n_values, -1, np.int64)  # of what crosses between parts of cells, too
        self.blocks: list[BlockPlan] = []
        late = chain.blocks if chain is not None and self.schedule.runs_chains_late else ()
        self._late = {topology.blocks[number].block for number in late}
        orders = row_orders(planner.layout, topology, _step_keys(planned, needed, skip_rest))
        for piece, order in zip((p for p in planned if p.number == 0), orders, strict=True):
            self._plan_block(planner, piece, planned, needed, skip_rest, order)
        self.memory = SlabMemory(self.blocks, self.writer.pool_floats)

    def _leave_out(self, planner: Planner, topology: Topology, unread: Sequence[Unread], inference: bool) -> None:
        """Note which outputs nothing reads. In inference, blocks go without them altogether."""
        for number, (b, outputs) in enumerate(zip(topology.blocks, unread, strict=True)):
            if outputs and inference:
                topology.leave_out(number, outputs, planner.without(b.cell, outputs))
            elif outputs:
                self._unread[b.block] = outputs
                planner.note_unread(b.cell, outputs)

    def _plan_block(
        self,
        planner: Planner,
        piece: Piece,
        planned: Sequence[Piece],
        needed: NDArray[np.bool_],
        skip_rest: bool,
        order: Ints | None,
    ) -> None:
        """Arrange the rows of a block, or of all parts of one, which have them in the same order: the one that is
        given, or else the user's."""
        arguments = self.distribution, needed[piece.arrays.calls], skip_rest, self.addresses
        unread = self._unread.get(piece.arrays.block, ALL_READ)
        if not piece.parts:
            whole = planner.templates(piece.arrays.cell, unread, training=not skip_rest)
            self.blocks.append(BlockPlan(piece.arrays, whole, piece.stage, piece.group, *arguments, order))
            self.blocks[-1].late = piece.arrays.block in self._late
            return
        made: dict[int, BlockPlan] = {}
        first = planned.index(piece)
        of_parts = planner.templates_of(piece.parts, unread, training=not skip_rest)
        leader = _leader(piece)
        for k in sorted(range(len(piece.parts)), key=lambda k: k != leader):
            part = planned[first + k]
            made[k] = BlockPlan(part.arrays, of_parts[k].cell, part.stage, part.group, *arguments, order)
            order = made[k].order
        part_of = planned[first : first + len(of_parts)]
        for k, templates in enumerate(of_parts):
            made[k].pause = STAGES if part_of[k].streams else 0
            made[k].beside = {key: (made[other], view) for key, (other, view) in templates.beside.items()}
            self.blocks.append(made[k])

    def _set_addresses(self) -> None:
        self.writer.extend(self.memory.arena.stop)
        for block in self.blocks:
            block.set_addresses()

    def forward_only(self, wanted: Ints) -> Plan:
        """A plan without gradients; only the wanted values are there afterwards."""
        shared_stages = self.grouping.first_own if self.grouping is not None else 0
        self.memory.for_inference(len(self.addresses), wanted, shared_stages)
        self._set_addresses()
        self._place_lists(False, lambda block, output: 0)
        began = time.perf_counter_ns()
        self._load(training=False)
        self.schedule.steps(self.blocks, backward=False, period=lambda stage: stage, training=False)
        kept = np.full_like(self.addresses, -1)  # where other values lie, others have come since
        kept[wanted] = self.addresses[wanted]
        self.addresses = kept
        return self._finish(began, -1, None)

    def training(self, loss: Expression, update: Update | None, parity: int, keep: bool) -> Plan:
        """A plan with backward, gradients and update."""
        end = EndOfLaunch(self.writer, self.distribution, self.blocks, update, self.held, keep)
        if self.grouping is None:
            self.memory.for_training(len(self.addresses), *self.schedule.decide(self.blocks))
        else:
            self.memory.for_training_in_groups()
        end.take_memory(self.memory)
        self._set_addresses()
        self._place_lists(True, self._reverse_lists())
        end.place_lists()
        if not end.depends_on_parameters:
            raise GraphError(
                "the loss depends on no trainable parameter, so there is nothing to learn; "
                "use handle.forward to evaluate it"
            )
        began = time.perf_counter_ns()
        self._load(training=True)
        self._fill_constants()
        self.schedule.steps(self.blocks, backward=False, period=lambda stage: stage, training=True)
        slot = LOSS_SLOTS + parity
        source = int(self.addresses[loss.ref])
        report = partial(self.writer.instruction, "loss", 1, 1, during=Phase.FORWARD, source=source, slot=slot)
        self.schedule.report(report)
        self.writer.during = Phase.BACKWARD
        self.schedule.steps(self.blocks, backward=True, period=self.memory.backward, training=True)
        self.writer.during = Phase.GRADIENTS
        self.writer.begin_period(self.memory.end)
        self.schedule.end_backward()
        end.expect(source, slot + LEFT_OUT)
        end.watch()
        if end.is_guarded_first:
            self.schedule.meet("before the gradients")
            end.guard()
        end.gradients()
        self.schedule.meet("before the update")
        self.writer.during = Phase.UPDATE
        end.update()
        return self._finish(began, slot, end)

    def _fill_constants(self) -> None:
        """Let one virtual processor write the constants that backward begins with, long before anybody reads them."""
        if len(self._constants):
            at = self.writer.place_list(self._constants)
            flags = Flag.ALONE if self.writer.exclusive else Flag.ROWS
            dst = direct(self._constants_at, 0)
            self.writer.instruction("input", 1, len(self._constants), flags, of="the loss", dst=dst, data=at)

    def _load(self, training: bool) -> None:
        """Let the chip take in the weights that the script's products use; forward alone needs no transposes."""
        used = {n for b in self.blocks for n in b.cell.numbers_used(training and b.n_needed > 0)}
        for p, place in self.distribution.physical.items():
            if place.slots is None:
                continue
            for dealt, weights, shape in (
                (place.slots.rows, place.weights, p.shape),
                (place.slots.transposed, place.transposed, p.shape[::-1]),
            ):
                if dealt is not None and dealt.number in used:
                    fields: dict[str, Any] = {"weights": weights, "columns": shape[1], "matrix": dealt.number}
                    self.writer.instruction("load", 1, shape[0], dealt.flags, parts=dealt.word, of=p.name, **fields)

    def _finish(self, began: int, loss_slot: int, end: EndOfLaunch | None) -> Plan:
        script, streams = self.writer.finish()
        addresses = self.addresses[: self.n_values]
        # Of the chain of the loss there is no backward: its gradients are constants.
        of_cells = [(b.cell, end is not None and not b.late) for b in self.blocks]
        tables, held = (end.tables, end.held) if end is not None else ({}, self.held)
        touched = {member for p in end.touched for member in members(p)} if end is not None else set()
        return NumpyPlan(
            self.graph,
            script,
            self.writer.pool_floats,
            addresses,
            loss_slot,
            self.blocks,
            streams,
            self.writer.n_barriers,
            touched,
            tables,
            held,
            frozenset(self.writer.names).union(*(cell.instructions_used(backward) for cell, backward in of_cells)),
            frozenset[Tail]().union(*(cell.tails_used(backward) for cell, backward in of_cells)),
            (began, time.perf_counter_ns()),
            self._layout,
            self.grouping,
            end.sequel if end is not None else None,
        )

    def _layout(self) -> Layout:
        writer = self.writer
        fixed, gradients = self.distribution.spans(self.held)
        slabs = self.distribution.end, self.memory.arena.stop
        return Layout(
            n_vps=writer.all_vps,
            groups=writer.groups,
            panel=writer.panel,
            pool_floats=writer.pool_floats,
            memory=self.memory.arrays(spans([*fixed, *writer.memory])),
            periods=np.array(writer.periods, np.int64),
            unwritten=spans([*gradients, *writer.memory, slabs]),
            lists=spans(writer.lists),
            knows=Knowledge(matrices=held_matrices(self.distribution), reported=FIRST_FREE),
        )

    def _place_lists(self, training: bool, uses: Callable[[int, int], int]) -> None:
        """Put every block's index lists into the script. `uses(block, output)` is the position of the reverse lists."""
        for number, block in enumerate(self.blocks):
            n_keys = len(block.cell.keys) if training else block.cell.n_forward_keys
            n_slabs = len(block.cell.lowered.slabs)
            for key, i in list(block.cell.keys.items())[:n_keys]:
                match key:
                    case Uses(output):
                        position = uses(number, output)
                    case Beside() | BesideGradient():
                        block.bases[:, n_slabs + i] = block.bases_beside(key)
                        continue
                    case RandomKey():
                        position = self._random_key()
                    case Data():
                        position = self.writer.place_list(block.data().view(np.uint32))
                    case Offsets(domain, of):
                        entries = self.writer.place_list(block.list_values(of))
                        position = self.writer.place_list(entries + block.offsets(domain))
                    case _:
                        position = self.writer.place_list(block.list_values(key))
                block.bases[:, n_slabs + i] = position
            place_row_lists(block, self.writer.place_list, training)

    def _random_key(self) -> int:
        """Position of the launch's random key, and of whether dropout is on; one for all cells."""
        if self._key_position < 0:
            words = (0, 0, 0) if self.key is None else (*self.key, 1)
            self._key_position = self.writer.place_list(np.array(words, np.uint32))
        return self._key_position

    def _constant_addresses(self) -> Ints:
        """Where the gradients are that backward begins with; finds memory for those other than 1."""
        assert self.chain is not None
        words = self.chain.gradients.view(np.uint32)
        self._constants = np.setdiff1d(words, float_word(1.0))
        self._constants_at = self.writer.take(len(self._constants))
        found = self._constants_at + self._constants.searchsorted(words)
        return np.where(words == float_word(1.0), ONE, found)

    def _reverse_lists(self) -> Callable[[int, int], int]:
        """Place, for every value, the addresses of the gradient rows that its readers hand back.

        Returns a function that gives the position of the offsets of (block, output): row r's readers are listed between
        offsets r and r + 1, in the order of blocks, arguments and rows - fixed, so that sums are reproducible.
        """
        ordinal = np.zeros(len(self.addresses), np.int64)
        starts: dict[tuple[int, int], int] = {}
        total = 0
        for number, block in enumerate(self.blocks):
            for k, ids in enumerate(block.arrays.values):
                starts[number, k] = total
                ordinal[ids[block.order]] = np.arange(total, total + len(block.order))
                total += len(block.order)
        assert self.chain is not None
        values: list[Ints] = [self.chain.values]
        rows: list[Ints] = [self._constant_addresses()]
        for block in self.blocks:
            for key, view in block.cell.handed_back if block.n_needed else []:
                domain = block.cell.domain_of(key)
                n = block.needed_rows(domain)
                values.append(block.values_read(key)[:n])
                rows.append(block.row_addresses(view, domain)[:n])
        targets = ordinal[np.concatenate(values)]
        order = np.argsort(targets, kind="stable")
        entries = self.writer.place_list(np.concatenate(rows)[order])
        offsets = np.zeros(total + 1, np.int64)
        np.cumsum(np.bincount(targets, minlength=total), out=offsets[1:])
        position = self.writer.place_list(entries + offsets)
        return lambda block, output: position + starts[block, output]
