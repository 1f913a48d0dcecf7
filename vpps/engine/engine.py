"""Engine: one model on one machine in one configuration. A handle has one engine, replaceable between launches."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from vpps.compiler.arrangement import NO_CHIP, Arrangement, arrangements, matrices_of
from vpps.compiler.passes.cell_history import CellHistory
from vpps.compiler.passes.stacking import Stacking
from vpps.engine.configuration import Configuration
from vpps.engine.losses import Losses
from vpps.engine.memory import MemoryUse, memory_use
from vpps.engine.nonfinite import where_it_began
from vpps.engine.options import Options, check_precision
from vpps.engine.parameter_store import ParameterStore
from vpps.engine.programs import KnownPrograms
from vpps.engine.timeline import HostSpan, Timeline
from vpps.errors import KernelError, NonFiniteError, SpillError
from vpps.graph.graph import Graph
from vpps.kernel.spec import KernelSpec
from vpps.model.model import Model, Parameter
from vpps.model.optim import Optimizer
from vpps.ops.element import WORD_BYTES
from vpps.ops.operand import Expression
from vpps.ops.philox import StepKey, launch_key
from vpps.placement.distribution import LEFT_OUT, Distribution, Pool
from vpps.placement.stacks import NO_STACKS, Stacks
from vpps.planner.plan import NOTHING_PRESENT, Plan, Present
from vpps.planner.planner import Planner
from vpps.record.trace import TracedCell
from vpps.runtime.machine import MachineRequest, make_machine
from vpps.script.disassemble import entered_at
from vpps.script.instructions import HEAD_WORDS
from vpps.targets import TARGETS

_log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """A launch in flight.

    Attributes:
        plan: the plan that the launch executes.
        number: number of the launch, counted by the machine.
        step: number of the update that the launch applies or contributes to; 0 if it is not a training step.
        loss: loss of that step.
        simple: True if the launch changes only weights and moments. The step number is then its only bookkeeping.
        has_gradients: True if the launch computes gradients of inputs.
        undo: callback that reverts the launch's bookkeeping if it did not run or its step was skipped.
    """

    plan: Plan
    number: int
    step: int
    loss: Expression | None
    simple: bool
    has_gradients: bool
    undo: Callable[[], None]


class ForwardRecord(NamedTuple):
    """Record of a finished forward.

    Attributes:
        plan: the forward's plan.
        calls: number of vertices in the graph at that time.
        key: key for the random numbers.
        changes: number of weight changes before the forward.
        growths: number of times that the graph grew during this series of consecutive forwards.
    """

    plan: Plan
    calls: int
    key: StepKey | None
    changes: int
    growths: int


class Engine:
    """Places a model's parameters on a machine, compiles kernels for its graphs, and launches them.

    Args:
        model: the model to run.
        options: options of the handle, such as the optimizer and the pool limit.
        configuration: the configuration to run in.
        target: name of the target.
        records: True to record a timeline of every launch.
        losses: receives every finished training step.
        listeners: callbacks for the timeline of every finished launch. The list's owner may change the list.

    Attributes:
        machine: the virtual processors and their pool.
        store: the model's copy in the pool.
        plan: plan of the latest launch; None before the first.
        has_gradients: True if that launch computed gradients.
        planner: the planner; None until the parameters have been placed.
        arrangement: weights that the chip holds for the current cells.
        peak: largest number of pool floats that a launch has used.
        stepped_down: number of larger arrangements that spilled.
        timelines: timelines of the last two launches, by launch number.
        evaluated: record of the latest launch if it was a forward; else None.

    Raises:
        HandleError, CompileError: the machine cannot be used; the message gives the reason and a remedy.
    """

    def __init__(
        self,
        model: Model,
        options: Options,
        configuration: Configuration,
        target: str,
        records: bool,
        losses: Losses,
        listeners: Sequence[Callable[[Timeline], None]],
    ) -> None:
        self.model = model
        self.configuration = configuration
        self.records = records
        self._options = options
        self._trains = options.train
        self._losses = losses
        self._listeners = listeners
        local_rank = 0 if options.world is None else options.world.local_rank
        wanted = MachineRequest(
            configuration.vps, configuration.onchip, self._trains, records, configuration.schedule, local_rank,
            configuration.precision,
        )  # fmt: skip
        self.machine = make_machine(target, wanted)
        check_precision(configuration.precision, self.machine.target, self.machine.device)
        self._passes = configuration.on(self.machine.target).passes
        self.arrangement = NO_CHIP
        self.stepped_down = 0
        self._arrangements: Iterator[Arrangement] = iter(())
        self._arranged_for: tuple[tuple[TracedCell, ...], Stacks] | None = None
        self._bound = NO_STACKS, NO_CHIP
        self._stacking = Stacking(
            model, self._passes, self.machine.panel, configuration.apart, self._history(),
            lambda p: self.store.taken_by(p),
        )  # fmt: skip
        kind = type(options.rule) if options.train else None
        precisions = configuration.precision
        self.store = ParameterStore(model, self.machine, kind, options.ema, precisions)
        self._pool_limit = options.pool_limit or self.machine.default_pool_limit
        self.plan: Plan | None = None
        self.has_gradients = False
        self.evaluated: ForwardRecord | None = None
        self.planner: Planner | None = None
        self._programs = KnownPrograms()
        self.timelines: dict[int, Timeline] = {}
        self._flights: list[_Flight] = []  # launches not waited for yet, at most two
        self._prepared = 0  # time when planning began
        self._can_run: object = None  # features used by this planner's latest plan that the kernel can run
        self.peak = 0

    def close(self) -> None:
        """Wait for launches in flight and free everything; the contents of the pool are lost. May be called twice."""
        self.plan = self.evaluated = self._can_run = None
        self.timelines.clear()
        self.machine.close()
        self._flights.clear()
        self._programs = KnownPrograms()
        self._begin_tables()

    @property
    def memory(self) -> MemoryUse:
        """Bytes of memory by use, for the latest launch."""
        if self.planner is None:
            return MemoryUse(pool=self.machine.pool.nbytes, peak=WORD_BYTES * self.peak)
        return memory_use(self.planner.distribution, self.plan, len(self.machine.pool), self.peak)

    # ---- preparations

    def prepare(self, graph: Graph, optimizer: Optimizer, trains: bool, accumulate: bool = False) -> Planner:
        """Place all parameters and return a planner for the graph. A launch may be in flight.

        Args:
            trains: True for a training step. Steps decide the stacks and the weights on the chip, and through these the
                last bits of results. Other calls use the arrangement of the steps, or replace it until the next step.
            accumulate: True for a step that keeps its gradients.
        """
        if self._programs.note(graph.blocks):
            self._begin_tables()
        self._arrange(graph, optimizer, trains)
        if not self._is_bound or not self.store.is_ready(accumulate):
            self._bind(accumulate)
        self.store.adopt()
        assert self.planner is not None
        self._prepared = time.perf_counter_ns()
        if not self._flights:
            self.machine.expect()
        return self.planner

    @property
    def _is_bound(self) -> bool:
        """True if the parameters are placed in the current arrangement. Ctrl-C can leave an older placement."""
        stacks, arrangement = self._bound
        return self.planner is not None and stacks is self._stacking.stacks and arrangement is self.arrangement

    def knows(self, graph: Graph) -> bool:
        """Return True if preparing for a step on the graph would change nothing."""
        return self._is_bound and self._stacking.has_seen(graph.blocks)

    def _bind(self, accumulate: bool) -> None:
        """Place all current parameters of the model."""
        self.wait()
        self.pull()
        self.plan = self.planner = self.evaluated = None
        self._bound = self._stacking.stacks, self.arrangement
        self._begin_planner(self.store.bind(*self._bound, self._pool_limit, accumulate))
        self.model.places = dict(self._places(*self._bound))

    def _begin_planner(self, distribution: Distribution) -> None:
        its = self.configuration
        self.planner = Planner(distribution, its.policy, its.schedule, self._passes)

    def _begin_tables(self) -> None:
        """Forget all programs. Existing plans keep the data that they need."""
        self._stacking.let_go()
        if self.planner is not None:
            self._begin_planner(self.planner.distribution)

    def _places(self, stacks: Stacks, arrangement: Arrangement) -> Iterator[tuple[Parameter, str]]:
        """Yield every parameter with the name of the memory that holds its weights during a launch."""
        held = arrangement.onchip.held if arrangement.onchip is not None else ()
        tiers = {role.name: role.tier for role in held}
        memory = "GPU memory" if TARGETS[self.machine.target].is_gpu else "cpu memory"
        for p in self.model:
            yield p, tiers.get(stacks.of.get(p, p).name, memory)

    def _arrange(self, graph: Graph, optimizer: Optimizer, trains: bool) -> None:
        """Decide the stacks of parameters and the weights that the chip holds."""
        restored = self._stacking.history is not self.model.cell_history or not self.store.is_current
        if self._trains and restored:
            self._stacking.adopt(self._history())
        self._stacking.see(graph.blocks, optimizer, trains or not self._trains)
        device, cells, stacks = self.machine.device, self._stacking.cells, self._stacking.stacks
        arranged_cells, arranged_stacks = self._arranged_for or (None, None)
        if device is None or (cells is arranged_cells and stacks is arranged_stacks):
            return
        matrices = matrices_of(cells, stacks, self.configuration.precision)
        trained = {p.name: spec.trained for p, spec in matrices.items()}
        known = self.arrangement.onchip
        if known is None or stacks is not arranged_stacks or {m.name: m.trained for m in known.matrices} != trained:
            onchip, schedule = self.configuration.onchip, self.configuration.schedule
            self._arrangements = arrangements(matrices, device, self.machine.vps, onchip, self._trains, schedule)
            self.arrangement = next(self._arrangements)
            self.stepped_down = 0
        self._arranged_for = cells, stacks

    def _history(self) -> CellHistory:
        """Return the cell history that decides the stacks. In training, this is the model's history of all cells seen
        so far. A forward-only handle starts an empty history: forward gives the same bits with and without stacks."""
        if not self._trains:
            return CellHistory()
        if self.model.cell_history is None:
            self.model.cell_history = CellHistory()
        return self.model.cell_history

    def part(self, moved: Container[Parameter]) -> bool:
        """Unstack parameters if a step updates only part of their stack. If this returns True, call `prepare` again."""
        return self._stacking.part(moved)

    def kernel_for(self, make: Callable[[Planner], Plan]) -> Plan:
        """Return a plan, with a kernel to run it. If a kernel spills registers, try the next smaller arrangement."""
        while True:
            assert self.planner is not None
            plan = make(self.planner)
            if plan.used is self._can_run:
                return plan
            rounds = self.configuration.precision.is_reduced
            spec = KernelSpec(plan.instructions, self.arrangement.chip, plan.tails, rounds)
            if self.machine.can_run(spec):
                self._can_run = plan.used
                return plan
            self.wait()
            if self.machine.launches:
                _log.info("after launch %d a graph needs more than the kernel can do: compiling", self.machine.launches)
            try:
                self.machine.specialise(spec)
                return plan
            except SpillError:
                self.arrangement = next(self._arrangements)
                self.stepped_down += 1
                self._bind(accumulate=False)  # existing room for table gradients is kept

    # ---- graphs that grow

    def present(self, graph: Graph, key: StepKey | None) -> Present | None:
        """Return the graph's values that a forward finds in the pool and keeps there; None if it keeps no values.

        Args:
            key: key for the forward's random numbers.
        """
        last = self.evaluated
        if last is None or last.plan.graph is not graph or last.key != key:
            return None
        if last.plan.present is not None:
            return last.plan.present
        return NOTHING_PRESENT if last.growths and graph.n_calls > last.calls else None

    def note_evaluated(self, plan: Plan, key: StepKey | None, before: ForwardRecord | None) -> None:
        """Record that the latest launch was a forward; `before` is the record of the previous one."""
        calls, growths = plan.graph.n_calls, 0
        if before is not None and before.plan.graph is plan.graph:
            growths = before.growths + (calls > before.calls)
        self.evaluated = ForwardRecord(plan, calls, key, self.store.changes, growths)

    # ---- launches

    @property
    def parity(self) -> int:
        """Parity of the next launch: 0 or 1."""
        return self.machine.launches & 1

    @property
    def in_flight(self) -> int:
        """Number of launches not waited for yet."""
        return len(self._flights)

    @property
    def has_step_in_flight(self) -> bool:
        """True if a launch in flight is part of a training step, which may be skipped."""
        return any(flight.step for flight in self._flights)

    def may_queue(self, plan: Plan) -> bool:
        """Return True if a step may be launched while the previous one runs: it needs no work by the host in between,
        and does not depend on whether the previous step is skipped."""
        machine, flights = self.machine, self._flights
        if not (machine.queues and self._is_simple(plan) and all(flight.simple for flight in flights)):
            return False
        return plan.pool_floats <= len(machine.pool) and self.store.is_uploaded

    def _is_simple(self, plan: Plan) -> bool:
        return self.store.is_simple and not (plan.held or plan.divisions)

    def launch(
        self,
        plan: Plan,
        step: int = 0,
        updates: bool = False,
        loss: Expression | None = None,
        given: Callable[[Pool], None] | None = None,
        part: int = 0,
        at_once: bool = False,
        begin: Callable[[], None] | None = None,
    ) -> None:
        """Begin to execute a plan.

        Args:
            step: number of the update that the launch applies or contributes to; 0 if it is not a training step.
            updates: True if the launch applies the update.
            loss: loss of that step.
            given: callback that writes gradients into the pool for the launch.
            part: index of the part of the plan to run: `plan.divisions` separate forward, backward and the rest.
            at_once: True if the caller calls `wait` next.
            begin: callback that begins the launch; None for a launch of the plan's script.
        """
        waited = time.perf_counter_ns()
        machine, store = self.machine, self.store
        self.evaluated = None
        machine.grow(plan.pool_floats, plan.kept, self._pool_limit)
        if self._trains:  # this thread holds the turn, or works for the thread that holds it
            store.upload()
        else:
            with self.model.turn.lock:  # all weights come from the same step
                self.model.pull_weights()
                store.upload()
        if self._options.verify and not part:
            self._verify(plan)
        if step and not plan.updates_alone:
            store.upload_gradients(plan)
        if given is not None:
            given(machine.pool)
        self.plan, self.has_gradients = plan, plan.loss_slot >= 0 and (part > 0 or not plan.divisions)
        self.peak = max(self.peak, plan.pool_floats)
        number = machine.launches + 1
        if self.records:
            # Scripts have no jumps, so a virtual processor executes at most all instructions of the script.
            recording = machine.record(len(plan.script) // HEAD_WORDS)
            host = HostSpan.between(self._prepared, *plan.encoded, waited, time.perf_counter_ns())
            self.timelines = {n: t for n, t in self.timelines.items() if n == number - 1}
            self.timelines[number] = Timeline(plan, recording, host)
        undo = store.restorer(plan) if step else lambda: None
        self._flights.append(_Flight(plan, number, step, loss, self._is_simple(plan), self.has_gradients, undo))
        try:
            if step:
                store.begin(plan, updates)
            machine.helped = at_once
            # The launch comes last: Ctrl-C can arrive as soon as it runs.
            if begin is not None:
                begin()
            else:
                machine.launch(entered_at(plan.script, plan.divisions[part - 1]) if part else plan.script)
        except BaseException:
            self.check_begun()
            raise

    def _verify(self, plan: Plan) -> None:
        from vpps.script.verify import verify

        verify(plan.script, plan.layout, plan.origin, plan.divisions)
        # NaN exposes reads of memory that the script does not write: old gradients, values left by earlier batches.
        for start, stop in plan.layout.unwritten:
            self.machine.pool[start:stop] = np.nan

    def check_begun(self) -> None:
        """Undo the bookkeeping of launches that never began, due to Ctrl-C or because the previous one was stopped."""
        flights = self._flights
        while flights and self.machine.launches < flights[-1].number:
            flights[-1].undo()
            flights.pop()
            self.plan, self.has_gradients = (flights[-1].plan, flights[-1].has_gradients) if flights else (None, True)

    def wait(self, running: int = 0) -> None:
        """Wait until at most `running` launches are in flight; report the losses of finished steps.

        Ctrl-C leaves launches running; a later call waits for them.

        Raises:
            KernelError: a launch was stopped; the message gives the place in the user's words.
        """
        self.check_begun()
        while len(self._flights) > running:
            flight = self._flights[0]
            plan = flight.plan
            failure = self.machine.wait(flight.number)
            if failure is not None:
                self.check_begun()
                self._flights.clear()
                self.plan, self.evaluated = plan, None
                lost = ""
                if flight.step and self.store.accumulated:  # the held gradients may be partly overwritten
                    self.store.drop_gradients()
                    lost = "; the accumulated gradients are discarded"
                raise KernelError(failure.message.format(*map(plan.whereabouts, failure.positions)) + lost)
            loss = self.machine.loss(plan.loss_slot) if flight.step and plan.has_loss else None
            why = self.machine.loss(plan.loss_slot + LEFT_OUT) if flight.step else 0.0
            left_out = why != 0
            dropped = left_out and self._take_back(flight, why)
            self._flights.pop(0)
            if flight.number in self.timelines:
                for listen in self._listeners:
                    listen(self.timelines[flight.number])
            if flight.step:
                self._losses.note(flight.step, loss, left_out, dropped, partial(self._where_it_began, flight))

    def _take_back(self, flight: _Flight, why: float) -> bool:
        """Undo a skipped step's bookkeeping except for its number, for any `on_nonfinite`. Return True if the
        accumulated gradients are lost because the launch had already added to them."""
        if flight.simple and len(self._flights) > 1:  # a whole step, whose number is its only bookkeeping
            self.store.count(flight.plan, -1)
        else:
            step = self.model.step
            flight.undo()
            self.model._step = step
        if not self.store.accumulated or not math.isinf(why):
            return False
        self.store.drop_gradients()
        return True

    def _where_it_began(self, flight: _Flight) -> str:
        """Find the place where values or gradients of a skipped step first became non-finite."""
        if self._flights or flight.loss is None:  # a later launch may have changed the weights
            return ""
        self.pull()
        key = launch_key(self.model.seed, flight.step, self.store.accumulated)
        weights = {p.name: p.host.copy() for p in self.model}
        return where_it_began(flight.plan.graph, flight.loss, weights, key, self.store.precisions)

    def latest_timeline(self) -> Timeline | None:
        """Return the timeline of the latest finished launch, if it was recorded."""
        self.check_begun()
        return self.timelines.get(self.machine.launches - len(self._flights))

    def pull(self) -> None:
        """Update the model from the pool if the pool is newer; waits for the launch in flight."""
        if self.store.is_newer:
            self.wait()
            self.store.pull()

    def as_after_last_step(self, read: Callable[[], Any]) -> Any:
        """Call `read` after all launches in flight have ended, even if this thread is in the middle of another call.

        Waiting and pulling work on copies of the state that they change. The state is restored afterwards, and the
        interrupted call repeats that work.

        Raises:
            KernelError: a launch was stopped.
        """
        changed: list[tuple[Any, list[str]]] = [
            (self, "_flights plan has_gradients evaluated timelines _listeners".split())
        ]
        changed += [(self.store, list(vars(self.store))), (self._losses, list(vars(self._losses)))]
        if self._trains:
            changed += [(self.model, "_step optimizer_state accumulated averages".split())]
            for p in self.model:
                _ = p.host  # makes it current
                changed.append((p, ["_host", "version"]))
        kept = [(owner, name, getattr(owner, name)) for owner, names in changed for name in names]
        back = starmap(setattr, kept)
        try:
            for owner, name, value in kept:
                setattr(owner, name, _copied(value))
            self._listeners, self._losses._warned, self._losses._warns = (), True, False
            while self._flights:
                with suppress(NonFiniteError):  # the interrupted call reports it
                    self.wait()
            self.pull()
            return read()
        finally:
            deque(back, 0)  # one call, so that Ctrl-C cannot interrupt it


def _copied(value: Any) -> Any:
    """Copy arrays and containers that the engine and its store change in place; return other values as they are."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value.copy() if isinstance(value, list | np.ndarray) else value
