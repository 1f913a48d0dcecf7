"""Calls the compiled planner: passes each cell once, passes every batch's arrays, and wraps the results."""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.cell_descriptor import CellDescriptor, Names, argument_counts, in_parts, whole
from vpps.compiler.cells import EncodedCells
from vpps.compiler.instr import SameRow, SameRowGradient, View
from vpps.compiler.linear import linear_kind
from vpps.compiler.model_descriptor import ModelDescriptor
from vpps.compiler.passes import lazy_batching
from vpps.compiler.passes.dead_outputs import ALL_READ
from vpps.compiler.passes.lazy_batching import Batching, CellPart
from vpps.compiler.records import CellRecord, PartsRecord, flat
from vpps.compiler.used_rows import lookups_with_gradient, reach_of
from vpps.errors import GraphError, HandleError, NoGradientError, ScriptError
from vpps.graph.graph import APART, Graph
from vpps.kernel.shared_types import address
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.model import Parameter
from vpps.model.optim import HYPER, IDLE
from vpps.ops import Form
from vpps.ops.philox import LaunchKey, StepKey
from vpps.placement.distribution import LOSS_SLOTS, HeldGradients
from vpps.placement.stacks import members
from vpps.placement.update import Ending, Update
from vpps.planner.grouping import floats_of, is_scalar
from vpps.planner.native.account import Account
from vpps.planner.native.inputs import WORD, BatchInputs
from vpps.planner.native.interface import AccountResult, Call, CellInput, Following, MemoryResult, Pair, Status
from vpps.planner.native.memory import PlanBuffers
from vpps.planner.native.memory_map import Encoded, memory_map
from vpps.planner.plan import STEPS, Plan, Present, Seeds
from vpps.record.arrays import BlockArrays
from vpps.record.topology import Topology
from vpps.record.trace import TracedCell, digest_of
from vpps.script.tails import Tail
from vpps.values import float_word

_log = logging.getLogger(__name__)

DONE = int(Status.DONE)
PARTS = len(Batching)  # maximum number of parts of a cell
MOST_USED = 1024  # size of the instruction cache, which is keyed by combination of cells


NO_ROWS: Mapping[Parameter, NDArray[np.int64]] = {}


class _NeedsEarlierVertices(Exception):
    """Raised if the end of a graph reads earlier values that are not in the pool: then all vertices must be planned."""


class PlannerLibrary:
    """The compiled planner for one distribution and one update rule.

    Args:
        cells: encoded cells.
        policy: name of the batching policy, or a learned policy.
        ending: the end of each launch: update rule and averaging.

    Attributes:
        distribution: distribution of the parameters.
        parameters: physical parameters (after stacking), as kernels know them.
        users: parameters of the model.
        gradients: address of each physical parameter's gradient.
        groups: number of groups of virtual processors.
    """

    def __init__(self, lib: ctypes.CDLL, cells: EncodedCells, policy: str | LearnedPolicy, ending: Ending) -> None:
        distribution = ending.distribution
        self._lib = lib
        self._cells = cells
        self._learned = isinstance(policy, LearnedPolicy)
        self._ending = ending
        self.distribution = distribution
        self._bits = Names()
        self.parameters = list(distribution.physical)
        self.trainable = np.array([STEPS if p.trainable else 0 for p in self.parameters], np.uint8)
        self.groups = distribution.groups
        self.gradients = [place.gradient for place in distribution.physical.values()]
        self._number = {p: i for i, p in enumerate(self.parameters)}
        self.users = list(distribution.places)
        self._users = {p: i for i, p in enumerate(self.users)}
        descriptor = ModelDescriptor(ending, cells.exclusive, self._bits)
        numbers = array("q", flat(descriptor.record))
        automata = array("q", policy.numbers().tobytes() if isinstance(policy, LearnedPolicy) else [0])
        name = policy.name if isinstance(policy, LearnedPolicy) else policy
        self._handle = lib.vpps_planner(name.encode(), *automata.buffer_info(), *numbers.buffer_info())
        if not self._handle:
            raise ScriptError("the compiled planner cannot read the records of the parameters; please report this")
        weakref.finalize(self, lib.vpps_planner_free, self._handle).atexit = False  # a daemon thread may be planning
        self._numbers: dict[TracedCell, int] = {}
        self._keyless: set[TracedCell] = set()  # cells that use no random numbers
        self._used: dict[tuple[int, tuple[int, ...]], tuple[frozenset[str], frozenset[Tail]]] = {}
        self._ids = array("q")  # numbers of the latest plan's encoded cells
        self._memories: list[PlanBuffers] = []
        self._words = self._values = 0  # largest sizes that a plan has needed
        self._groups: (
            tuple[tuple[str, ...], Mapping[str, int], dict[tuple[str | None, int], str], array[int]] | None
        ) = None
        self._encoded: list[Encoded] = []  # by the compiled planner's cell number
        self._pair = Pair()
        self._call = Call()
        # Initial state of `_call`.
        self._fresh = Call(splits=int(cells.passes.lazy_batching), new_pair=ctypes.addressof(self._pair))
        self._call_at = ctypes.addressof(self._call)
        self._bytes, self._fresh_bytes = (memoryview(call).cast("B") for call in (self._call, self._fresh))
        self._alive: list[Any] = []  # arrays that the call points to
        self._lock = threading.RLock()  # a thread may query a plan while another thread plans

    # ---- plans

    def forward(
        self,
        graph: Graph,
        wanted: array[int],
        held: HeldGradients,
        key: LaunchKey | StepKey | None = None,
        present: Present | None = None,
        calls: int | None = None,
    ) -> Plan:
        """Return a plan without gradients; see `Planner.plan_forward`.

        Args:
            calls: if given, plan only that many of the first vertices, with an account.
        """
        self._refuse_within_a_plan()
        with self._lock:
            self._begin(-1, graph, key)
            while True:
                again = partial(self.forward, graph, wanted, held, key, present, graph.n_calls)
                try:
                    return self._plan(graph, wanted, held, calls, again, present)
                except _NeedsEarlierVertices:
                    assert present is not None
                    present = present._replace(calls=0)

    def training(
        self,
        graph: Graph,
        wanted: array[int],
        update: Update | None,
        parity: int,
        key: LaunchKey | StepKey | None,
        held: HeldGradients,
        keep: bool,
        seeds: Seeds | None = None,
        given: Mapping[Parameter, NDArray[np.int64]] = NO_ROWS,
        calls: int | None = None,
    ) -> Plan:
        """Return a plan for training; see `Planner.plan_training`.

        Args:
            wanted: the loss; with seeds, the values whose gradients the seeds are; empty for an update only.
            calls: if given, plan only that many of the first vertices, with an account.
        """
        again = partial(self.training, graph, wanted, update, parity, key, held, keep, seeds, given, graph.n_calls)
        self._refuse_within_a_plan()
        with self._lock:
            call = self._begin(LOSS_SLOTS + parity, graph, key)
            call.training, call.updates, call.keeps = 1, int(update is not None), int(keep)
            if seeds is not None:
                call.seeded, call.seeds, call.n_seed_floats = 1, seeds.offsets.ctypes.data, seeds.floats
                call.n_given_rows, call.given_rows = len(given), self._rows_of_tables(given)
            if update is not None:
                self._take_update(update)
            if held.dense:
                call.held = self._pointed(array("B", [p in held.dense for p in self.parameters]))
            call.n_held_rows, call.held_rows = len(held.rows), self._rows_of_tables(held.rows)
            plan = self._plan(graph, wanted, held, calls, again)
        if update is not None and update.averaging is not None:  # catch-up factors of idle table rows
            for table, used in plan.tables.items():
                factors = update.averaging.idle(table, used.rows).view(np.uint32)
                plan.script[used.idle : used.idle + len(factors)] = factors
        return plan

    def _refuse_within_a_plan(self) -> None:
        """Raise HandleError if this thread is planning already: a signal handler or schedule would deadlock."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise HandleError(
                "a signal handler or schedule needs a plan while the same thread is planning: set a flag there, "
                "and act on it after that call"
            )

    def _plan(
        self,
        graph: Graph,
        wanted: array[int],
        held: HeldGradients,
        calls: int | None,
        again: Callable[[], Plan],
        present: Present | None = None,
    ) -> Plan:
        since = 0 if present is None else present.calls
        if calls is None or calls == graph.n_calls:
            batch = BatchInputs(graph, self._cell, since)
        else:
            topology = Topology(graph, calls)
            blocks = [b for b in (BlockArrays(b.block, calls, since) for b in topology.blocks) if len(b.calls)]
            batch = BatchInputs.of_blocks(blocks, [self._cell(b.block.pattern) for b in blocks], topology)
        call = self._call
        call.stays = int(present is not None)
        if present is not None and len(present.addresses):
            call.present, call.n_present = address(present.addresses), len(present.addresses)
            call.present_stop = present.stop
        try:
            memory = self._planned(graph, batch, wanted, calls, since)
            plan = Plan(graph, self, tuple(self._ids[: call.n_cells]), memory, call, held, again)
            if calls is not None:
                where = MemoryResult()  # its columns are copied from the batch
                self._lib.vpps_map(self._handle, ctypes.byref(where))
                noted = AccountResult()
                self._lib.vpps_account(self._handle, ctypes.byref(noted))
                cells = [self._encoded[max(i, ~i)].cell for i in self._ids[: call.n_cells]]
                account = Account(noted, call.words, cells, self._ending)
                plan.explanation = account, memory_map(where, graph, self._encoded)
        finally:
            batch.release()  # the graph must be able to grow even while a traceback is stored
        if self.groups > 1 and _log.isEnabledFor(logging.INFO) and (grouping := plan.grouping) and grouping.some_idle:
            _log.info(grouping.describe())
        return plan

    def _planned(
        self, graph: Graph, batch: BatchInputs, wanted: array[int], calls: int | None, since: int
    ) -> PlanBuffers:
        """Have C++ plan a batch, answer its requests, and return the plan's buffers."""
        call = self._call
        call.account = calls is not None
        call.chunk_rows = lazy_batching.CHUNK_ROWS
        call.wanted, call.n_wanted = (address(wanted) if len(wanted) else 0), len(wanted)
        call.n_blocks, call.blocks = batch.n_blocks, batch.at
        call.n_calls, call.n_values = batch.n_calls, batch.n_values
        if PARTS * batch.n_blocks > len(self._ids):
            self._ids = array("q", bytes(WORD * PARTS * batch.n_blocks))
        call.cells = address(self._ids) if self._ids else 0
        self._values = max(self._values, batch.n_values)
        while True:
            memory = self._memory()
            call.script, call.addresses, call.touched, call.tables = memory.at
            if self.groups > 1:
                call.grouping = memory.grouping.ctypes.data
            call.capacity, call.room_for_values = len(memory.script), len(memory.addresses)
            status: int = self._lib.vpps_plan(self._handle, self._call_at)
            self._words = max(self._words, call.words)
            self._values = max(self._values, call.n_all_values)
            if status == DONE:
                break
            if since and status == Status.NO_VALUE:  # it may be an earlier vertex's value
                raise _NeedsEarlierVertices
            if status == Status.NEW_BLOCK:
                self._tell_parts(batch.cells[call.new_block], ctypes.string_at(call.key, call.n_key))
            elif status == Status.NEW_PAIR:
                self._tell_pair()
            elif status != Status.MORE_MEMORY:
                cell = batch.cells[call.new_block].name if call.new_block >= 0 else ""
                raise _wrong(status, graph, cell, call)
        return memory

    def _memory(self) -> PlanBuffers:
        """Return unused buffers that are large enough for everything planned so far."""
        for memory in self._memories:
            if memory.is_free:
                if len(memory.script) >= self._words and len(memory.addresses) >= self._values:
                    return memory
                self._memories.remove(memory)
                break
        words, values = (max(2048, n + n // 4) for n in (self._words, self._values))
        made = PlanBuffers(words, values, len(self.parameters), len(self.users), self.groups)
        self._memories.append(made)
        return made

    # ---- cells

    def _cell(self, cell: TracedCell) -> int:
        """Return the compiled planner's number of a cell."""
        number = self._numbers.get(cell)
        if number is None:
            digest = int(digest_of(cell), 16) if self._learned else 0
            given = CellInput(*argument_counts(cell), linear_kind(cell), digest)
            number = self._numbers[cell] = self._lib.vpps_planner_cell(self._handle, ctypes.byref(given))
            if not any(node.op.form is Form.DROPOUT for node in cell.nodes):
                self._keyless.add(cell)
        return number

    def _tell_parts(self, cell: TracedCell, key: bytes) -> None:
        """Tell the compiled planner the parts of a cell.

        Args:
            key: one flag per output, set if nothing reads it; one flag for training; then, if the cell may be split,
                one flag per operand and per computed output, set if it comes from, or goes to, other vertices in the
                cell's recurrence.
        """
        cells = self._cells
        n = len(cell.outputs)
        unread, training, crossed = frozenset(k for k in range(n) if key[k]), bool(key[n]), key[n + 1 :]
        computed = cell
        if unread and training:
            cells.note_unread(cell, unread)
        elif unread:
            computed, unread = cells.without(cell, unread), ALL_READ
        parts: tuple[CellPart, ...] = ()
        if crossed:
            n_operands = len(computed.operands)
            gathered = frozenset(p for p, crosses in zip(computed.operands, crossed, strict=False) if crosses)
            scattered = frozenset(k for k, crosses in enumerate(crossed[n_operands:]) if crosses)
            parts = cells.split(computed, gathered, scattered)
        if parts:
            encoded = cells.encoded_parts(parts, unread, training)
            divided = [of_part.cell for of_part in encoded]
            made = [
                self._record(Encoded(cell, part.cell, found.cell), found.same_row, training)
                for part, found in zip(parts, encoded, strict=True)
            ]
            eager = parts[0].batching is Batching.EAGER
            records = in_parts(parts, made, eager and cells.streams(parts, training, unread))
        else:
            divided = [cells.encoded(computed, unread, training)]
            records = whole(computed, self._record(Encoded(cell, computed, divided[0]), {}, training))
        reach = [reach_of(cell, o, self._users) for o in cell.outputs] if training else []
        n_operands, ints = len(cell.operands), [p.ints for p in parts] or [tuple(range(len(cell.kinds)))]
        lookups = lookups_with_gradient(divided, ints, self._users)
        read = [r for r, unread in zip(reach, key, strict=False) if not unread]
        reaches = reach, all(len(r.operands) == n_operands and set(r.lookups) == lookups for r in read)
        record = PartsRecord(records, *reaches, 0 if training else min(cell.piece_rows() for cell in divided))
        if self.groups > 1:
            of_vertex, of_elements = floats_of(cells.encoded(computed, training=training))
            record = PartsRecord(records, *reaches, 0, is_scalar(computed), of_vertex, of_elements)
        numbers = array("q", flat(record))
        good = self._lib.vpps_planner_parts(self._handle, self._numbers[cell], key, len(key), *numbers.buffer_info())
        if not good:
            raise ScriptError(f"the compiled planner cannot read the records of {cell!r}; please report this")

    def _record(
        self, encoded: Encoded, same_row: Mapping[SameRow | SameRowGradient, tuple[int, View]], training: bool
    ) -> CellRecord:
        self._encoded.append(encoded)
        number = len(self._encoded) - 1
        return CellDescriptor(encoded.cell, same_row, number, training, self._ending, self._number, self._bits).record

    def _tell_pair(self) -> None:
        """Tell the compiled planner if a step of one cell may follow another cell's step without a barrier."""
        pair = self._pair
        after, before = self._encoded[pair.after].cell, self._encoded[pair.before].cell
        if pair.following == Following.TURN:
            answer = after.may_turn(before, pair.group)
        else:
            answer = after.may_follow(before, pair.group, backward=pair.following == Following.BACKWARD)
        self._lib.vpps_planner_pair(self._handle, ctypes.byref(pair), int(answer))

    def used(self, mask: int, ids: tuple[int, ...], training: bool) -> tuple[frozenset[str], frozenset[Tail]]:
        """Return the names of a script's instructions, and its tails.

        Args:
            mask: bit mask of instructions that belong to no cell.
            ids: numbers of the encoded cells; ~number if a cell has no backward.
        """
        key = mask, ids
        if key not in self._used:
            if len(self._used) >= MOST_USED:
                self._used.clear()
            used = [self._encoded[max(i, ~i)].cell.used(training and i >= 0) for i in ids]
            names = self._bits.of(mask).union(*(names for names, _ in used))
            self._used[key] = names, frozenset[Tail]().union(*(tails for _, tails in used))
        return self._used[key]

    # ---- other arguments of a call

    def _begin(self, loss_slot: int, graph: Graph, key: LaunchKey | StepKey | None) -> Call:
        """Reset the call, then set the loss address and the random numbers for dropout."""
        call = self._call
        self._bytes[:] = self._fresh_bytes
        self._alive.clear()
        call.loss_slot, call.key_on = loss_slot, int(key is not None)
        call.outside = -1 - key.shard if type(key) is StepKey else -1
        if key is not None and not self._keyless.issuperset(graph.blocks):
            call.key_low, call.key_high = key
            examples = array("q")
            for first, n, numbers in graph.examples:
                n = graph.n_calls - first if n is None else n
                given = (numbers, 0) if isinstance(numbers, int) else (0, address(numbers.numbers) if n else 0)
                examples.extend((first, n, *given))
            call.examples, call.n_examples = self._pointed(examples), len(graph.examples)
        return call

    def _take_update(self, update: Update) -> None:
        """Set the arguments for the optimizer's step."""
        call, optimizer = self._call, update.optimizer
        patterns = tuple(optimizer.groups)
        if self._groups is None or self._groups[0] != patterns or self._groups[1] is not update.counts:
            sets: dict[tuple[str | None, int], str] = {}  # first parameter of each set, in parameter order
            of = array("q")
            for p in self.parameters:
                name = members(p)[0].name
                one = optimizer.group_of(name), update.counts.get(name, 0)
                sets.setdefault(one, name)
                of.append(list(sets).index(one))
            of.append(len(HYPER))
            self._groups = patterns, update.counts, sets, of
        hyper = array("f")
        for (group, _), name in self._groups[2].items():
            hyper += update.hyper(name, group)
        if update.averaging is not None:
            hyper += IDLE
        call.n_hyper, call.hyper = len(hyper) // len(HYPER), self._pointed(hyper)
        call.hyper_of = self._groups[3].buffer_info()[0]
        if update.clip_norm is not None:
            call.clips, call.max_norm = 1, float_word(update.clip_norm)
        call.averages = int(update.averaging is not None)

    def _rows_of_tables(self, given: Mapping[Parameter, NDArray[np.int64]]) -> int:
        """Return the address of each table's row numbers, in the compiled planner's format."""
        tables = array("q")
        for table, rows in given.items():
            numbers = array("q", np.asarray(rows, np.int64).tobytes())
            tables.extend((self._number[table], len(rows), self._pointed(numbers)))
        return self._pointed(tables)

    def _pointed(self, numbers: array[Any]) -> int:
        """Return the address of an array, and keep the array alive until the next plan."""
        self._alive.append(numbers)
        return numbers.buffer_info()[0]


def _wrong(status: int, graph: Graph, cell: str, call: Call) -> Exception:
    """Return the error to raise, in the user's terms.

    Args:
        status: result of planning.
        cell: name of the cell that reads a missing value; empty if there is none.
    """
    if status == Status.NO_GRADIENT:
        if call.seeded:
            return NoGradientError(
                "the wanted values depend on no trainable parameter, and on no input that wants its gradient, so there "
                "is nothing to learn; leave keep= and update= out to evaluate it"
            )
        return NoGradientError(
            "the loss depends on no trainable parameter, so there is nothing to learn; "
            "use handle.forward to evaluate it"
        )
    if status == Status.NO_MEMORY:
        return MemoryError(f"{graph.describe()}: not enough host memory to plan it; use smaller batches")
    if status == Status.TORN:
        return GraphError(f"{graph.describe()}: several threads recorded in it, or one while it was planned; {APART}")
    what = f"a vertex of cell {cell!r} reads a value" if cell else "the request is for a value"
    return ScriptError(f"{graph.describe()}: {what} that the graph does not have; please report this")
