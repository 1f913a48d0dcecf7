"""Configurator: chooses the configuration in which a handle works, and exchanges engines between launches."""

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
    """The user's choice goes first, then what was the fastest before, then what is the fastest of the candidates that
    training tries. A configuration that was not the user's and does not do for a graph is given up.

    Args:
        losses: is told of every step of training that has ended.

    Attributes:
        engine: the one that works.
        optimizer, clip_norm: the rule of the updates.
        listeners: are given the timeline of every launch that has ended.

    Raises:
        HandleError, CompileError: as `Engine`.
    """

    def __init__(self, model: Model, options: Options, losses: Losses) -> None:
        self.optimizer, self.clip_norm = options.rule, options.clip_norm
        self.optimizer.check()
        self.listeners: list[Callable[[Timeline], None]] = []  # of the trace that is being recorded
        self._model = model
        self._options = options
        self._losses = losses
        self._target = options.target
        self._chosen = options.chosen
        self._tunes = options.autotune
        self._tuner: Autotuner | None = None
        self._choice: Choice | None = None  # the fastest, once that is known
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
        """An engine in a configuration, which leaves timelines or not."""
        return Engine(self._model, self._options, configuration, self._target, records, self._losses, self.listeners)

    # ---- choices

    @property
    def records(self) -> bool:
        """Whether launches leave timelines, from the next call on."""
        return self._wanted[1]

    def describe(self) -> str:
        """What tuning has found, or tries: a line, "" where there is nothing to say."""
        found = self._tuner if self._choice is None else self._choice
        return "" if found is None else found.describe()

    def configure(self, configuration: Configuration | None = None, records: bool | None = None) -> None:
        """From the next call on work in this configuration, or record timelines or not; None leaves it as it is."""
        before, recorded = self._wanted
        self._wanted = configuration or before, recorded if records is None else records

    def _use(self, candidate: Candidate) -> None:
        """From the next call on."""
        self._used = candidate
        self.configure(Configuration(**{**self._chosen, **candidate.changes}))

    def _use_choice(self) -> None:
        """Work as was the fastest before, if that is known and the user leaves it open."""
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
        """Whether the user leaves to us what candidates change."""
        return self._chosen.keys().isdisjoint(CHANGED)

    def _key(self) -> Key:
        return key_for(self._model, self.engine.machine, self._options.train, self._options.precisions)

    def choose(self) -> None:
        """Decide in which configuration the batch that comes is trained. A block that records stays in its own."""
        if self._tuner is not None and not self.records:
            self._use(self._tuner.current)

    def note(self, graph: Graph) -> None:
        """A batch was begun: tell tuning, if there is any, and keep what it has found."""
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
            except OSError as error:  # training goes on
                _log.warning("what tuning has found is not kept: %s", error)

    # ---- preparations

    def prepare(self, graph: Graph, trains: bool = False, accumulate: bool = False) -> Planner:
        """A planner for a graph, in the configuration that is wanted."""
        try:
            return self._exchanged(graph, trains, accumulate)
        except (CapacityError, CompileError, HandleError) as error:
            self.give_up(error)
            return self._exchanged(graph, trains, accumulate)

    def prepare_aside(self, graph: Graph) -> None:
        """For something that is no step of training."""
        self.interrupt()
        self.prepare(graph)

    def interrupt(self) -> None:
        """Something comes that tuning must not take for a step."""
        if self._tuner is not None:
            self._tuner.interrupted()

    def kernel_for(
        self, graph: Graph, make: Callable[[Planner], Plan], trains: bool = False, accumulate: bool = False
    ) -> Plan:
        """A plan, and a kernel that can run it. `prepare` has seen the graph. One of a step has no stack in part."""
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
        """Go back to the default, as what tuning tries or has found does not do for a graph. Raises the error if it is
        not to blame."""
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
        """Make the engine that is wanted the one that works. If it cannot be made all is as it was; after
        Ctrl-C the next call tries again."""
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
