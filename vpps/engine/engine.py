"""Engine: a model on a machine in one configuration. A handle has one, and may exchange it between launches."""

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
from vpps.runtime.machine import Wanted, make_machine
from vpps.script.disassemble import entered_at
from vpps.script.instructions import HEAD_WORDS
from vpps.targets import TARGETS

_log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """A launch that was begun.

    Attributes:
        plan: what it executes.
        number: of the launch, as the machine counts.
        step: number of the update that it makes or contributes to, or 0 where it is no step of training.
        loss: of that step.
        simple: it changes weights and moments alone: all that is noted of it is its number.
        undo: takes back what was noted of it; for the case that it never ran.
    """

    plan: Plan
    number: int
    step: int
    loss: Expression | None
    simple: bool
    undo: Callable[[], None]


class Evaluated(NamedTuple):
    """What a forward has computed.

    Attributes:
        plan: of it.
        calls: vertices that its graph had.
        key: of its random numbers.
        changes: of weights before it.
        growths: how often the graph had grown, in calls that came one after the other.
    """

    plan: Plan
    calls: int
    key: StepKey | None
    changes: int
    growths: int


class Engine:
    """Places a model's parameters on a machine, has kernels compiled for its graphs, and launches.

    Args:
        model: what is run.
        options: of the handle; whether and by what it trains, and how much memory it may take.
        configuration: how.
        target: what runs kernels.
        records: whether every launch leaves a timeline.
        losses: is told of every step of training that has ended.
        listeners: are given the timeline of every launch that has ended; whose list it is may change it.

    Attributes:
        machine: virtual processors and the pool.
        store: what of the model is in the pool.
        plan: of the latest launch, None before the first.
        has_gradients: whether that launch has computed gradients.
        planner: once the parameters have their places.
        arrangement: what the chip holds, for these cells.
        peak: floats of the pool that a launch has used at most.
        stepped_down: arrangements that spilled before this one.
        timelines: of the last two launches, by their numbers.
        evaluated: what the latest launch has computed, where that was a forward; None: it was something else.

    Raises:
        HandleError, CompileError: there is no such machine; says why and what to do.
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
        wanted = Wanted(
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
        self.evaluated: Evaluated | None = None
        self.planner: Planner | None = None
        self._programs = KnownPrograms()
        self.timelines: dict[int, Timeline] = {}
        self._flights: list[_Flight] = []  # launches that nobody has waited for, at most two
        self._prepared = 0  # when planning began
        self._can_run: object = None  # what the latest plan of this planner has used, where there was a kernel for it
        self.peak = 0

    def close(self) -> None:
        """Wait for launches in flight and free everything; what the pool holds is lost. May be called twice."""
        self.plan = self.evaluated = self._can_run = None
        self.timelines.clear()
        self.machine.close()
        self._flights.clear()
        self._programs = KnownPrograms()
        self._begin_tables()

    @property
    def memory(self) -> MemoryUse:
        """Bytes by what they are for, of the latest launch."""
        if self.planner is None:
            return MemoryUse(pool=self.machine.pool.nbytes, peak=WORD_BYTES * self.peak)
        return memory_use(self.planner.distribution, self.plan, len(self.machine.pool), self.peak)

    # ---- preparations

    def prepare(self, graph: Graph, optimizer: Optimizer, trains: bool, accumulate: bool = False) -> Planner:
        """A planner for the graph, all parameters in their places. A launch may be in flight.

        Args:
            trains: for a step of training. Steps decide what is stacked and what the chip holds, and so their last
                bits; other calls make do with it, or have it otherwise until the next step.
            accumulate: for a step that keeps its gradients.
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
        """Whether parameters lie as they are arranged. That may be wrong after Ctrl-C."""
        stacks, arrangement = self._bound
        return self.planner is not None and stacks is self._stacking.stacks and arrangement is self.arrangement

    def knows(self, graph: Graph) -> bool:
        """Whether preparing for a step of it would change nothing."""
        return self._is_bound and self._stacking.has_seen(graph.blocks)

    def _bind(self, accumulate: bool) -> None:
        """Place all parameters as the model has them now."""
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
        """Forget all programs. A plan that was made keeps what it needs."""
        self._stacking.let_go()
        if self.planner is not None:
            self._begin_planner(self.planner.distribution)

    def _places(self, stacks: Stacks, arrangement: Arrangement) -> Iterator[tuple[Parameter, str]]:
        """Where the weights of every parameter are during a launch."""
        held = arrangement.onchip.held if arrangement.onchip is not None else ()
        tiers = {role.name: role.tier for role in held}
        memory = "GPU memory" if TARGETS[self.machine.target].is_gpu else "cpu memory"
        for p in self.model:
            yield p, tiers.get(stacks.of.get(p, p).name, memory)

    def _arrange(self, graph: Graph, optimizer: Optimizer, trains: bool) -> None:
        """Decide which parameters are stacked, and what the chip holds."""
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
        """What decides which parameters are stacked: for training, all that the model has seen. What only evaluates
        leaves that alone: stacked or not, forward gives the same bits."""
        if not self._trains:
            return CellHistory()
        if self.model.cell_history is None:
            self.model.cell_history = CellHistory()
        return self.model.cell_history

    def part(self, moved: Container[Parameter]) -> bool:
        """Stop stacking parameters of which a step moves some and not others. True: there were such; prepare anew."""
        return self._stacking.part(moved)

    def kernel_for(self, make: Callable[[Planner], Plan]) -> Plan:
        """A plan, and a kernel that can run it: one that the compiler fits into registers, or the next smaller one."""
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
                self._bind(accumulate=False)  # room for gradients of tables, once made, stays

    # ---- graphs that grow

    def present(self, graph: Graph, key: StepKey | None) -> Present | None:
        """Which values of a graph a forward finds in the pool, and lets stay there; None: none are to stay.

        Args:
            key: of its random numbers.
        """
        last = self.evaluated
        if last is None or last.plan.graph is not graph or last.key != key:
            return None
        if last.plan.present is not None:
            return last.plan.present
        return NOTHING_PRESENT if last.growths and graph.n_calls > last.calls else None

    def note_evaluated(self, plan: Plan, key: StepKey | None, before: Evaluated | None) -> None:
        """The latest launch, which has ended, was a forward; `before`: what the one before it was."""
        calls, growths = plan.graph.n_calls, 0
        if before is not None and before.plan.graph is plan.graph:
            growths = before.growths + (calls > before.calls)
        self.evaluated = Evaluated(plan, calls, key, self.store.changes, growths)

    # ---- launches

    @property
    def parity(self) -> int:
        """Of the next launch."""
        return self.machine.launches & 1

    @property
    def in_flight(self) -> int:
        """Launches that nobody has waited for."""
        return len(self._flights)

    def may_queue(self, plan: Plan) -> bool:
        """Whether a step may be launched while the one before runs: it needs nothing that only the host can do, and
        does not depend on whether that one is left out."""
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
    ) -> None:
        """Begin to execute a plan.

        Args:
            step: number of the update that it makes or contributes to; 0 where it is no step of training.
            updates: whether it makes it.
            loss: of that step.
            given: writes gradients into the pool that the launch finds there.
            part: of the plan, which its divisions separate: forward, backward, what follows.
            at_once: `wait` comes next.
        """
        waited = time.perf_counter_ns()
        machine, store = self.machine, self.store
        self.evaluated = None
        machine.grow(plan.pool_floats, plan.kept, self._pool_limit)
        if self._trains:  # whoever trains has the turn, or waits for this thread, which works for it
            store.upload()
        else:
            with self.model.turn.lock:  # one step's weights
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
            # There are no jumps: a virtual processor executes no more instructions than the script has.
            recording = machine.record(len(plan.script) // HEAD_WORDS)
            host = HostSpan.between(self._prepared, *plan.encoded, waited, time.perf_counter_ns())
            self.timelines = {n: t for n, t in self.timelines.items() if n == number - 1}
            self.timelines[number] = Timeline(plan, recording, host)
        undo = store.restorer(plan) if step else lambda: None  # nothing is noted
        self._flights.append(_Flight(plan, number, step, loss, self._is_simple(plan), undo))
        try:
            if step:
                store.begin(plan, updates)
            machine.helped = at_once
            # At the very end: Ctrl-C may come as soon as it runs.
            script = entered_at(plan.script, plan.divisions[part - 1]) if part else plan.script
            machine.launch(script)
        except BaseException:
            self.check_begun()
            raise

    def _verify(self, plan: Plan) -> None:
        from vpps.script.verify import verify

        verify(plan.script, plan.layout, plan.origin, plan.divisions)
        # What the script does not write it must not read: gradients of former launches, memory of former batches.
        for start, stop in plan.layout.unwritten:
            self.machine.pool[start:stop] = np.nan

    def check_begun(self) -> None:
        """Where Ctrl-C came just before a launch began, or the one before it was stopped, take back what was noted."""
        flights = self._flights
        while flights and self.machine.launches < flights[-1].number:
            flights[-1].undo()
            flights.pop()
            self.plan, self.has_gradients = flights[-1].plan if flights else None, True  # none but whole steps queue

    def wait(self, running: int = 0) -> None:
        """Wait until no more launches than that are in flight; tell the losses of steps.

        Ctrl-C leaves launches running, to be waited for later.

        Raises:
            KernelError: a launch was stopped; the message says where, in the user's words.
        """
        self.check_begun()
        while len(self._flights) > running:
            flight = self._flights[0]
            plan = flight.plan
            failure = self.machine.wait(flight.number)
            if failure is not None:
                self.check_begun()
                self._flights.clear()
                self.plan = plan
                lost = ""
                if flight.step and self.store.accumulated:  # nobody knows how far it got
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
        """A step was left out: only its number is used up, whatever `on_nonfinite` says. Returns whether what was
        accumulated had to be given up, because it had been added to before that was known."""
        if flight.simple and len(self._flights) > 1:  # a whole step, of which nothing else was noted
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
        """Where values or gradients of a step that was left out stopped being finite."""
        if self._flights or flight.loss is None:  # the weights may be others already
            return ""
        self.pull()
        key = launch_key(self.model.seed, flight.step, self.store.accumulated)
        weights = {p.name: p.host.copy() for p in self.model}
        return where_it_began(flight.plan.graph, flight.loss, weights, key, self.store.precisions)

    def latest_timeline(self) -> Timeline | None:
        """Of the launch that nobody needs to wait for any more, if one was recorded."""
        self.check_begun()
        return self.timelines.get(self.machine.launches - len(self._flights))

    def pull(self) -> None:
        """Bring the model up to the pool, waiting for the launch in flight, if that is newer."""
        if self.store.is_newer:
            self.wait()
            self.store.pull()

    def as_after_last_step(self, read: Callable[[], Any]) -> Any:
        """Call `read` after all launches that were started, even if this thread is in the middle of another call.

        Waiting and pulling work on copies of the state that they change. The state is put back, and the interrupted
        call does that work again.

        Raises:
            KernelError: a launch was stopped.
        """
        changed: list[tuple[Any, list[str]]] = [
            (self, "_flights plan has_gradients evaluated timelines _listeners".split())
        ]
        changed += [(self.store, list(vars(self.store))), (self._losses, list(vars(self._losses)))]
        if self._trains:
            changed += [(self.model, "_step optimizer_state accumulated averages".split())]
            changed += [(p, ["host", "version"]) for p in self.model]
        kept = [(owner, name, getattr(owner, name)) for owner, names in changed for name in names]
        back = starmap(setattr, kept)
        try:
            for owner, name, value in kept:
                setattr(owner, name, _copied(value))
            self._listeners, self._losses._warned, self._losses._warns = (), True, False
            while self._flights:
                with suppress(NonFiniteError):  # told to whoever was interrupted
                    self.wait()
            self.pull()
            return read()
        finally:
            deque(back, 0)  # one call, so that Ctrl-C cannot come in the middle


def _copied(value: Any) -> Any:
    """Arrays and containers so far as the engine and its store change them in place."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value.copy() if isinstance(value, list | np.ndarray) else value
