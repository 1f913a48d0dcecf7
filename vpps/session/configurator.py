"""Configurator: chooses the configuration of a handle, and replaces its engine between launches."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vpps.config import TARGET
from vpps.engine.configuration import Configuration
from vpps.engine.engine import Engine
from vpps.engine.losses import Losses
from vpps.engine.options import Options
from vpps.engine.timeline import Timeline
from vpps.errors import CapacityError, CompileError, HandleError, VppsError
from vpps.graph.graph import Graph
from vpps.model.model import Model
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.tuning.autotune import Autotuner
from vpps.tuning.candidates import CHANGED, Candidate, candidates_for
from vpps.tuning.choices import Choice, Key, find, keep, key_for

_log = logging.getLogger(__name__)


class Configurator:
    """Chooses the configuration: first the user's choice, then the stored fastest configuration, then tuning's fastest
    candidate. If a graph does not run in a configuration that tuning chose, the default replaces it.

    Args:
        losses: receives every finished training step.

    Attributes:
        engine: the current engine.
        optimizer, clip_norm: the update rule.
        listeners: callbacks for the timeline of every finished launch.

    Raises:
        HandleError, CompileError: see `Engine`.
    """

    def __init__(self, model: Model, options: Options, losses: Losses) -> None:
        self.optimizer, self.clip_norm = options.rule, options.clip_norm
        self.optimizer.check()
        self.listeners: list[Callable[[Timeline], None]] = []  # from the trace that is being recorded
        self._model = model
        self._options = options
        self._losses = losses
        self._target = options.target
        self._chosen = options.chosen
        self._tunes = options.autotune
        self._tuner: Autotuner | None = None
        self._choice: Choice | None = None  # the fastest configuration, once known
        self._used = Candidate()
        self._wanted = Configuration(**self._chosen), bool(options.timeline)
        try:
            self.engine = self.make_engine(*self._wanted)
        except HandleError as error:
            if not options.by_environment:
                raise
            raise HandleError(f"{error} (the target is that of {TARGET.name}={options.target})") from error
        self._target = self.engine.machine.target
        self._use_choice()

    def make_engine(self, configuration: Configuration, records: bool) -> Engine:
        """Create an engine in a configuration; `records` makes it record timelines."""
        return Engine(self._model, self._options, configuration, self._target, records, self._losses, self.listeners)

    # ---- choices

    @property
    def records(self) -> bool:
        """True if launches record timelines from the next call on."""
        return self._wanted[1]

    def describe(self) -> str:
        """Return a line about tuning's result or progress; "" if there is none."""
        found = self._tuner if self._choice is None else self._choice
        return "" if found is None else found.describe()

    def configure(self, configuration: Configuration | None = None, records: bool | None = None) -> None:
        """Set the configuration, or the recording of timelines, from the next call on; None changes nothing."""
        before, recorded = self._wanted
        self._wanted = configuration or before, recorded if records is None else records

    def _use(self, candidate: Candidate) -> None:
        """Use a candidate from the next call on."""
        self._used = candidate
        self.configure(Configuration(**{**self._chosen, **candidate.changes}))

    def _use_choice(self) -> None:
        """Use the stored fastest configuration, if there is one and the user has not chosen otherwise."""
        self._choice = find(self._key()) if self._is_free else None
        if self._choice is None:
            return
        self._use(self._choice.candidate)
        try:
            self.exchange()
        except (CapacityError, CompileError, HandleError) as error:
            self.give_up(error)

    @property
    def _is_free(self) -> bool:
        """True if the user has set no option that candidates change."""
        return self._chosen.keys().isdisjoint(CHANGED)

    def _key(self) -> Key:
        return key_for(self._model, self.engine.machine, self._options.train, self._options.precisions)

    def choose(self) -> None:
        """Choose the configuration for the next batch. A block that records keeps its configuration."""
        if self._tuner is not None and not self.records:
            self._use(self._tuner.current)

    def note(self, graph: Graph) -> None:
        """Count a batch for tuning, and store the result when tuning is done."""
        if not self._tunes or self._choice is not None:
            return
        if self._tuner is None:
            self._tuner = Autotuner(candidates_for(self.engine, self._chosen))
        if self.engine.records:
            self._tuner.interrupted()
            return
        self._tuner.batch(len(graph))
        if self._tuner.done:
            self._choice, self._tuner = self._tuner.choice(), None
            self._use(self._choice.candidate)
            try:
                if self._is_free:
                    keep(self._key(), self._choice)
            except OSError as error:  # training continues
                _log.warning("cannot store the result of tuning: %s", error)

    # ---- preparations

    def prepare(self, graph: Graph, trains: bool = False, accumulate: bool = False) -> Planner:
        """Return a planner for a graph in the chosen configuration."""
        try:
            return self._exchanged(graph, trains, accumulate)
        except (CapacityError, CompileError, HandleError) as error:
            self.give_up(error)
            return self._exchanged(graph, trains, accumulate)

    def prepare_aside(self, graph: Graph) -> None:
        """Prepare a graph for a call that is not a training step."""
        self.interrupt()
        self.prepare(graph)

    def interrupt(self) -> None:
        """Exclude the time of the next call from tuning, because it is not a step."""
        if self._tuner is not None:
            self._tuner.interrupted()

    def kernel_for(
        self, graph: Graph, make: Callable[[Planner], Plan], trains: bool = False, accumulate: bool = False
    ) -> Plan:
        """Return a plan, with a kernel to run it. Call `prepare` first. A training step must update whole stacks; a
        stack that it would update only in part is dissolved."""
        plan = self._tried(graph, make, trains, accumulate)
        while trains and plan.is_torn and self.engine.part(plan.reached):
            self._exchanged(graph, trains, accumulate)
            plan = self._tried(graph, make, trains, accumulate)
        return plan

    def _tried(self, graph: Graph, make: Callable[[Planner], Plan], trains: bool, accumulate: bool) -> Plan:
        try:
            return self.engine.kernel_for(make)
        except (CapacityError, CompileError) as error:
            self.give_up(error)
            self._exchanged(graph, trains, accumulate)
            return self.engine.kernel_for(make)

    def give_up(self, error: VppsError) -> None:
        """Return to the default configuration after an error in one that tuning chose. Re-raises the error if the
        default was in use."""
        failed = self._used
        if failed == Candidate():
            raise error
        if self._tuner is not None:
            self._tuner.failed(failed, error)
        else:
            _log.info("the tuned configuration (%s) is given up: %s", failed.describe(), error)
            self._choice, self._tunes = None, False
        self._use(Candidate())

    def _exchanged(self, graph: Graph, trains: bool, accumulate: bool) -> Planner:
        self.exchange()
        return self.engine.prepare(graph, self.optimizer, trains, accumulate)

    def exchange(self) -> None:
        """Replace the engine with one in the chosen configuration. On an error, nothing changes; after Ctrl-C, the next
        call tries again."""
        wanted, before = self._wanted, self.engine
        if wanted == (before.configuration, before.records):
            return
        before.wait()
        before.pull()
        try:
            after = self.make_engine(*wanted)
        except Exception:
            self._wanted = before.configuration, before.records
            raise
        after.peak = before.peak
        self.engine, self._wanted = after, wanted
        before.close()
