"""The compiled planner: as `vpps.plan.build.Planner`, word for word.

A plan made so holds what a launch needs; who made which word, and what is where for the verifier, is found by planning
once more when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from vpps.graph.graph import Graph
from vpps.graph.operand import Expression
from vpps.graph.rows import Rows, value_ids
from vpps.ops.philox import LaunchKey, StepKey
from vpps.plan.distribution import NOTHING_HELD, Distribution, Held
from vpps.plan.native import library
from vpps.plan.native.engine import Engine, Found
from vpps.plan.passes import Passes
from vpps.plan.plan import Plan
from vpps.plan.planner import Planner
from vpps.plan.policies import Policy
from vpps.plan.row_order import RECORDED
from vpps.plan.update import Update


class CompiledPlanner(Planner):
    """Plans in compiled code, which is waited for with the first plan."""

    def __init__(
        self,
        distribution: Distribution,
        policy: str | Policy = "sinks-last",
        schedule: str = "vector",
        passes: Passes | None = None,
        layout: str = RECORDED,
    ) -> None:
        super().__init__(distribution, policy, schedule, passes, layout)
        self._engines: dict[tuple[str, float | None] | None, Engine] = {}
        self._latest: Engine | None = None

    def plan_forward(  # type: ignore[override]
        self, graph: Graph, wanted: Sequence[Expression | Rows], held: Held = NOTHING_HELD
    ) -> Plan:
        """See Planner."""
        n_calls, engine = graph.n_calls, self._engine(None)
        values = np.concatenate([np.atleast_1d(value_ids(e)) for e in wanted])
        with engine.lock:
            found = engine.forward(graph, values)
        again = partial(self._asked, engine, graph, (values,), n_calls)
        return Plan(graph, found, held, held, again)

    def plan_training(  # type: ignore[override]
        self,
        graph: Graph,
        loss: Expression,
        update: Update | None,
        parity: int,
        key: LaunchKey | StepKey | None = None,
        held: Held = NOTHING_HELD,
        keep: bool = False,
    ) -> Plan:
        """See Planner."""
        n_calls, engine = graph.n_calls, self._engine(update)
        how = loss.ref, update, parity, key, held, keep
        with engine.lock:
            found = engine.training(graph, *how)
        kept = found.held(held) if keep else NOTHING_HELD
        again = partial(self._asked, engine, graph, how, n_calls)
        return Plan(graph, found, held, kept, again)

    def _asked(self, engine: Engine, graph: Graph, how: tuple[Any, ...], calls: int) -> Found:
        """The same once more, with an account; it needs the cells that this planner knows."""
        plan: Callable[..., Found] = engine.training if len(how) > 1 else engine.forward
        with engine.lock:
            return plan(graph, *how, calls)

    def _engine(self, update: Update | None) -> Engine:
        """What plans launches with such an update."""
        if update is None and self._latest is not None:
            return self._latest
        averaging = update.averaging if update is not None else None
        kind = None
        if update is not None:
            kind = update.optimizer.name, averaging.decay if averaging is not None else None
        found = self._engines.get(kind)
        if found is None:
            rule = kind[0] if kind is not None else None
            found = self._engines[kind] = Engine(library.library(), self, rule, averaging)
        self._latest = found
        return found
