"""A planned launch: a script with everything needed to run it and to explain it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.errors import ScriptError
from vpps.graph.graph import Graph
from vpps.model.model import Parameter
from vpps.ops import size
from vpps.placement.distribution import FIRST_FREE, NOTHING_HELD, HeldGradients, held_matrices
from vpps.placement.stacks import members
from vpps.placement.update import UsedRows
from vpps.planner.blocks import PlannedBlock
from vpps.planner.grouping import Grouping
from vpps.planner.native.account import Account
from vpps.planner.native.interface import NOWHERE, Call, GroupingResult
from vpps.planner.native.memory import OF_GROUPING, PlanBuffers
from vpps.planner.native.memory_map import PlannedMemory
from vpps.planner.sections import Section, Stream
from vpps.record.ranges import Ints
from vpps.script.disassemble import Words
from vpps.script.footprint import MemoryMap
from vpps.script.instructions import HEADER_WORDS
from vpps.script.tails import Tail
from vpps.script.wellformed import KnownKernel

if TYPE_CHECKING:
    from vpps.planner.planner_library import PlannerLibrary


class Seeds(NamedTuple):
    """Layout of the wanted values' gradients, which the caller writes between forward and backward.

    Attributes:
        offsets: each gradient's offset from the first gradient, in floats.
        floats: total size in floats.
    """

    offsets: NDArray[np.int64]
    floats: int


class Present(NamedTuple):
    """Graph values that are in the pool before a launch and remain there.

    Attributes:
        addresses: addresses of the graph's first values, by value id; NOWHERE if a value is not in the pool.
        calls: number of vertices that are already planned. If later vertices need a missing value from these, all
            vertices are planned again.
        stop: first free address of the pool.
    """

    addresses: NDArray[np.uint32]
    calls: int
    stop: int


NOTHING_PRESENT = Present(np.zeros(0, np.uint32), 0, 0)


class Plan:
    """A script with everything needed to run it and to explain it. Explanations are computed on request.

    Args:
        library: compiled planner that made the plan.
        ids: the library's numbers for the encoded cells.
        memory: buffers that hold the plan.
        call: arguments and results of the library call.
        before: gradients in the pool before the launch.
        again: callback that plans the same vertices again with an account, even if the graph has grown since.

    Attributes:
        script: the words, including index lists and input data.
        pool_floats: number of pool floats that the launch uses.
        places: address of each value's first float, by value id; NOWHERE if the value is not computed.
        loss_slot: address of the loss after the launch, or -1.
        n_barriers: number of barriers in a launch.
        encoded: times when writing instructions began and when the script was complete (`time.perf_counter_ns`).
        held: gradients that the pool holds after the launch, for a later launch.
        kept: size in floats of the start of the pool, which holds data from before the launch.
        present: values in the pool after the launch, if values are kept; else None.
        divisions: positions in the script of additional launches' entry points, if the caller acts in between. The
            second launch follows forward; if backward includes an update, a third launch follows it.
        seeds: address of the gradients that the caller writes between the launches.
        is_torn: True if the loss depends on some, but not all, parameters of a stack.
        updates_alone: True if the launch only applies an update from given gradients.
        has_loss: True if the launch writes a loss to `loss_slot`.
        input_gradients: (value, address) for each input value whose gradient is requested; address ZERO if no gradient
            flows into it.
        used: `instructions` and `tails`; all plans of a planner that use the same cells share one object.
        explanation: account and memory map, if the launch was planned with an account.
    """

    explanation: tuple[Account, PlannedMemory] | None = None

    def __init__(
        self,
        graph: Graph,
        library: PlannerLibrary,
        ids: tuple[int, ...],
        memory: PlanBuffers,
        call: Call,
        before: HeldGradients,
        again: Callable[[], Plan],
    ) -> None:
        self.graph = graph
        self.script: Words = memory.script[: call.words]
        self.pool_floats: int = call.pool_floats
        self.loss_slot: int = call.loss_slot
        self.n_barriers: int = call.n_barriers
        self.encoded = call.encoding, time.perf_counter_ns()
        self._tables, self._n_tables, self._keeps = memory.tables, call.n_tables, bool(call.keeps)
        self._library, self._before, self._again = library, before, again
        self.places: NDArray[np.uint32] = memory.addresses[: call.n_values]
        self.kept: int = max(library.distribution.end, call.present_stop)
        self.present = Present(self.places, graph.n_calls, self.pool_floats) if call.stays else None
        self._touched = memory.touched if call.training else _NOTHING
        self._grouping = memory.grouping
        self.used = library.used(call.names, ids, bool(call.training))
        self.divisions = [call.entries + k * library.distribution.all_vps for k in range(call.n_launches - 1)]
        self.seeds: int = call.seeds_at
        self.is_torn = bool(call.torn)
        self.has_loss = bool(call.training and not call.seeded)
        self.updates_alone = bool(call.seeded and not call.n_wanted)
        self.input_gradients = _NO_PAIRS
        if n := call.n_input_gradients:  # copied, because the next plan overwrites them
            self.input_gradients = np.frombuffer(ctypes.string_at(call.input_gradients, 16 * n), np.int64).reshape(n, 2)
        self.held = before
        if call.training:
            self.held = self._sums() if call.keeps else NOTHING_HELD

    def __repr__(self) -> str:
        return f"<plan of {self.graph.describe()}: {len(self.script)} words>"

    def _sums(self) -> HeldGradients:
        """Return the gradients that the pool holds after a launch that keeps gradients."""
        rows = dict(self._before.rows)
        for table, used in self.tables.items():
            rows[table] = np.union1d(rows[table], used.rows) if table in rows else used.rows
        stack_of = self._library.distribution.stacks.of
        return HeldGradients(self._before.dense | {stack_of.get(p, p) for p in self.reached}, rows)

    @property
    def zeros(self) -> set[Parameter]:
        """Held gradients that are zero and not written by the launch."""
        return set(self.held.dense) - self._before.dense - self._with_gradient

    # ---- views for the host, computed on request

    @cached_property
    def addresses(self) -> NDArray[np.int64]:
        """Address of each value's first float, by value id; -1 if the value is not computed."""
        found = self.places.astype(np.int64)
        found[found == NOWHERE] = -1
        return found

    @cached_property
    def touched(self) -> set[Parameter]:
        """Dense parameters that have a gradient."""
        return {member for p in self._with_gradient for member in members(p)} & self.reached

    @property
    def _with_gradient(self) -> set[Parameter]:
        """Physical parameters (after stacking) that have a gradient."""
        return {p for p, has in zip(self._library.parameters, self._touched.tolist(), strict=False) if has & 1}

    @cached_property
    def reached(self) -> set[Parameter]:
        """Dense parameters that the loss depends on. Passes may drop some gradients because they are zero."""
        found = self._touched[len(self._library.parameters) :].tolist()
        return {p for p, has in zip(self._library.users, found, strict=False) if has}

    @cached_property
    def idle(self) -> set[str]:
        """Names of the trainable parameters that an update leaves unchanged."""
        idle = np.flatnonzero(self._library.trainable & ~self._touched[: len(self._library.trainable)])
        return {member.name for k in idle.tolist() for member in members(self._library.parameters[k])}

    @cached_property
    def tables(self) -> dict[Parameter, UsedRows]:
        """Used rows of each lookup table that has a gradient."""
        found: dict[Parameter, UsedRows] = {}
        for used in self._tables[: self._n_tables]:
            p = self._library.parameters[used.parameter]
            rows = self.script[used.numbers : used.numbers + used.rows].astype(np.int64)
            if self._keeps:  # the list holds addresses
                rows = (rows - self._library.gradients[used.parameter]) // size(p.shape[1:])
            found[p] = UsedRows(rows, used.gradient, used.offsets, used.numbers, used.idle)
        return found

    @property
    def instructions(self) -> frozenset[str]:
        """Names of the instructions that the script uses."""
        return self.used[0]

    @property
    def tails(self) -> frozenset[Tail]:
        """Tails that the script uses."""
        return self.used[1]

    @cached_property
    def grouping(self) -> Grouping | None:
        """Assignment of vertices to groups of virtual processors; None if there is only one group."""
        if not len(self._grouping):
            return None
        found = GroupingResult(*self._grouping[:OF_GROUPING].tolist())
        work = self._grouping[OF_GROUPING:].astype(np.float64)
        return Grouping(found.first_own, found.first_joining, found.n_components, work)

    # ---- origins of words

    @cached_property
    def _explained(self) -> tuple[Account, PlannedMemory]:
        """Account and memory map, from planning the same vertices again."""
        again = self._again()
        assert again.explanation is not None
        if len(again.script) != len(self.script) or not np.array_equal(again._entries(), self._entries()):
            raise ScriptError(
                f"a plan of {len(self.script):,} words has {len(again.script):,} words, or other instruction streams, "
                "when it is planned again to explain it; if hyper-parameter groups were added to the optimizer since, "
                "ask for the explanation before you add them; otherwise please report this"
            )
        return again.explanation

    def _entries(self) -> Words:
        """Return all virtual processors' entry points in all launches."""
        n_vps = int(self.script[1])
        return np.concatenate([self.script[at : at + n_vps] for at in (HEADER_WORDS, *self.divisions)])

    @property
    def account(self) -> Account:
        """Account of the plan: the origin of each word, and the lists."""
        return self._explained[0]

    @cached_property
    def streams(self) -> list[tuple[int, Stream]]:
        """Instruction streams with their origins, each with its position in the script."""
        return self.account.streams(self.blocks)

    def origin(self, position: int) -> str:
        """Describe the instruction at a position of the script in the user's terms."""
        found = self.section_at(position)
        return "" if found is None else found[0].origin(found[1])

    def section_at(self, position: int) -> tuple[Section, int] | None:
        """Return the section that contains a position of the script, and the position's offset in that section."""
        found = self._stream_at(position)
        if found is None:
            return None
        start, stream = found
        section = stream.section_at(position - start)
        return section, position - start - section.start

    def whereabouts(self, position: int) -> str:
        """Describe a virtual processor's position in the user's terms; at a barrier, also what it has just executed."""
        found = self._stream_at(position)
        return "" if found is None else found[1].whereabouts(position - found[0])

    def _stream_at(self, position: int) -> tuple[int, Stream] | None:
        """Return the stream that contains a position of the script, and the position where the stream begins."""
        return next(((start, stream) for start, stream in reversed(self.streams) if start <= position), None)

    # ---- memory

    @property
    def blocks(self) -> list[PlannedBlock]:
        """Rows and slabs of each cell."""
        return self._explained[1].blocks

    @cached_property
    def layout(self) -> MemoryMap:
        """Memory map of the pool and the script, and the kernel's capabilities, for the verifier."""
        distribution = self._library.distribution
        account, memory = self._explained
        written = [used.gradient for used in self.tables.values()] if self.updates_alone else []  # by the caller
        written += [self.seeds] if self.divisions else []
        taken = account.memory[~np.isin(account.memory[:, 0], written)]
        fixed, gradients = distribution.spans(self._before)
        if self.kept > distribution.end:
            fixed.append((distribution.end, self.kept))
        lasting = _spans(fixed, account.memory)
        always = np.hstack([lasting, np.full((len(lasting), 3), [-1, memory.end, -1])])
        tails = {tail.number: tail for tail in self.tails}
        return MemoryMap(
            n_vps=distribution.all_vps,
            groups=distribution.groups,
            panel=distribution.panel,
            pool_floats=self.pool_floats,
            memory=np.concatenate([always, memory.arrays]),
            periods=account.periods,
            unwritten=_spans([*gradients, (self.kept, memory.stop)], taken),
            lists=account.lists,
            knows=KnownKernel(self.instructions, tails, held_matrices(distribution), reported=FIRST_FREE),
        )


_NO_PAIRS = np.zeros((0, 2), np.int64)
STEPS = 4  # a flag: see native/launch_end.h
_NOTHING = np.zeros(0, np.uint8)


def _spans(some: Sequence[tuple[int, int]], others: Ints) -> Ints:
    """Return all spans in one sorted array."""
    found = np.concatenate([np.array(some, np.int64).reshape(-1, 2), others])
    return found[np.lexsort(found.T[::-1])]
