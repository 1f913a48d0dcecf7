"""Configurator: chooses the configuration in which a handle works, and exchanges engines between launches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from vpps.config import TARGET
from vpps.engine.configuration import Configuration
from vpps.engine.engine import Engine
from vpps.engine.losses import Losses
from vpps.engine.options import Options
from vpps.engine.timeline import Timeline
from vpps.errors import CapacityError, CompileError, HandleError, VppsError
from vpps.graph.graph import Graph
from vpps.model.model import Model
from vpps.ops.operand import Expression
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.planner.policies import Knowledge
from vpps.record.trace import TracedCell
from vpps.tuning.automata import AutomatonFiles
from vpps.tuning.database import Tuned, keep, tuned_for
from vpps.tuning.online import OnlineTuner, Progress

_log = logging.getLogger(__name__)


class Configurator:
    """The user's choice goes first, then what the tuning database has for such a model, then what tuning finds while
    training. Where a configuration that was not the user's turns out not to do for a graph, it is given up.

    Args:
        model: what is trained.
        options: of the handle.
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
        self._knowledge = Knowledge(kept=AutomatonFiles())
        self._tuned: Tuned | None = None
        self._looked_up = False  # whether the tuning database was asked, with the first graph
        self._tuner: OnlineTuner | None = None
        self._kept = False  # whether what tuning found is in the database
        self._trained: dict[TracedCell, None] = {}  # cells of the graphs that were trained while tuning
        self._wanted = Configuration(**self._chosen), bool(options.timeline)
        try:
            self.engine = self.make_engine(*self._wanted)
        except HandleError as error:
            if not options.by_environment:
                raise
            raise HandleError(f"{error} (the target is that of {TARGET.name}={options.target})") from error
        self._target = self.engine.machine.target

    def make_engine(self, configuration: Configuration, records: bool) -> Engine:
        """An engine in a configuration, which leaves timelines or not."""
        return Engine(
            self._model, self._options, configuration, self._target, records, self._losses, self.listeners,
            self._knowledge,
        )  # fmt: skip

    def release(self) -> None:
        """End tuning and the engine; what the pool holds is lost."""
        if self._tuner is not None:
            self._tuner.close()
        self.engine.close()

    # ---- choices

    @property
    def records(self) -> bool:
        """Whether launches leave timelines, from the next call on."""
        return self._wanted[1]

    @property
    def tuning(self) -> Progress | None:
        """How far tuning while training has come; None where there is none."""
        return None if self._tuner is None else self._tuner.progress

    def describe(self) -> str:
        """What the tuning database gave, or tuning has found: a line, "" where there is nothing to say."""
        found = self.tuning if self._tuned is None else self._tuned
        return found.describe() if found is not None else ""

    def configure(self, configuration: Configuration | None = None, records: bool | None = None) -> None:
        """From the next call on work in this configuration, or record timelines or not; None leaves it as it is."""
        before, recorded = self._wanted
        self._wanted = configuration or before, recorded if records is None else records

    def settle(self, configuration: Configuration) -> None:
        """Work in this configuration, whatever the tuning database has."""
        self._looked_up = True
        self.configure(configuration)

    def choose(self, graph: Graph, loss: Expression) -> None:
        """Decide in which configuration a batch is trained. What is recorded stays in the one that there is."""
        self._look_up(graph)
        if not self._options.autotune or self._tuned is not None or self.records:
            return
        if self._tuner is None:
            from vpps.tuning.autotune import tuner_for

            rule = self.optimizer, self.clip_norm
            self._tuner = tuner_for(self._model, self.engine, (graph, loss), *rule, self._chosen)
        self.configure(self._tuner.configuration())

    def _look_up(self, graph: Graph) -> None:
        """With the first graph take over what the tuning database has for such; what the user chose stays."""
        if self._looked_up:
            return
        self._looked_up = True
        options = self._options
        self._tuned = tuned_for(self._model, graph, self.engine.machine, options.train, options.precisions)
        if self._tuned is not None:
            self.configure(replace(self._tuned.configuration, **self._chosen))

    def note(self, graph: Graph) -> None:
        """Tell the tuner of a batch that was begun, and the database of what was found."""
        if self._tuner is None or self._kept:
            return
        if self.engine.records:
            self._tuner.interrupted()
        else:
            self._tuner.batch(len(graph))
        self._trained.update(dict.fromkeys(graph.blocks))
        if self._tuner.done:
            self._keep(self._tuner.progress)

    def keep_gain(self) -> None:
        """Tell the database what tuning has found by now, where that is a gain."""
        progress = self.tuning
        if progress is not None and progress.is_gain:
            self._keep(progress)

    def _keep(self, progress: Progress) -> None:
        if not self._kept:
            self._kept = True
            keep(self._model, self._trained, self.engine.machine, progress)
            self._trained.clear()

    # ---- preparations

    def prepare(self, graph: Graph, trains: bool = False, accumulate: bool = False) -> Planner:
        """A planner for a graph, in the configuration that is wanted."""
        self._look_up(graph)
        try:
            return self._exchanged(graph, trains, accumulate)
        except (CapacityError, CompileError, HandleError) as error:
            self._give_up(error)
            return self._exchanged(graph, trains, accumulate)

    def prepare_aside(self, graph: Graph) -> None:
        """For something that is no step of training."""
        self.interrupt()
        self.prepare(graph)

    def prepare_update(self) -> None:
        """For an update from given gradients; what was not decided before stays so."""
        self._exchanged(Graph(), False, False)

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
            self._give_up(error)
            self._exchanged(graph, trains, accumulate)
            return self.engine.kernel_for(make)

    def _give_up(self, error: VppsError) -> None:
        """Go back to a configuration that did before: one chosen by tuning does not do for this graph. Raises the error
        where that is not the reason."""
        back = self._tuner.failed(error) if self._tuner is not None else None
        if back is None and self._tuned is not None:
            _log.info("the tuned configuration (%s) is given up: %s", self._tuned.describe(), error)
            self._tuned, back = None, Configuration(**self._chosen)
        if back is None:
            raise error
        self.configure(back)

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
