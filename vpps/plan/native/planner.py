"""The compiled planner: as `vpps.plan.build.Planner`, word for word, once a library is there that knows how.

Whatever is wrong with a graph NumPy says. A plan made so holds what a launch needs; who made which word, and what is
where for the verifier, is found by planning once more when somebody asks.
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
from vpps.plan.native import library, policies
from vpps.plan.native.engine import COMPILED_LAYOUTS, Engine, Found
from vpps.plan.passes import Passes
from vpps.plan.plan import Plan
from vpps.plan.planner import Planner
from vpps.plan.policies import Policy
from vpps.plan.row_order import RECORDED
from vpps.plan.update import Update


def planner_for(
    distribution: Distribution,
    policy: str | Policy,
    schedule: str,
    passes: Passes | None,
    layout: str = RECORDED,
) -> Planner:
    """The quickest planner that there is."""
    if layout not in COMPILED_LAYOUTS or library.choice() == "numpy":
        return Planner(distribution, policy, schedule, passes, layout)
    return CompiledPlanner(distribution, policy, schedule, passes, layout)


class CompiledPlanner(Planner):
    """Plans in compiled code, once the library is there."""

    def __init__(
        self,
        distribution: Distribution,
        policy: str | Policy,
        schedule: str,
        passes: Passes | None,
        layout: str = RECORDED,
    ) -> None:
        super().__init__(distribution, policy, schedule, passes, layout)
        self.batching.knowledge.learn = policies.learn
        self._engines: dict[tuple[str, float | None] | None, Engine] = {}
        self._latest: Engine | None = None

    def plan_forward(
        self, graph: Graph, wanted: Sequence[Expression | Rows], held: Held = NOTHING_HELD, calls: int | None = None
    ) -> Plan:
        """See Planner."""
        n_calls, in_numpy = graph.n_calls, super().plan_forward
        engine = self._engine(None) if calls is None else None
        values = np.concatenate([np.atleast_1d(value_ids(e)) for e in wanted])
        if engine is None:
            return in_numpy(graph, wanted, held, calls)
        with engine.lock:
            found = engine.forward(graph, values)
        if found is None:
            return in_numpy(graph, wanted, held, calls)
        again = partial(self._asked, engine, graph, (values,), n_calls)
        return Plan(graph, found, held, held, again)

    def plan_training(
        self,
        graph: Graph,
        loss: Expression,
        update: Update | None,
        parity: int,
        key: LaunchKey | StepKey | None = None,
        held: Held = NOTHING_HELD,
        keep: bool = False,
        calls: int | None = None,
    ) -> Plan:
        """See Planner."""
        n_calls, in_numpy = graph.n_calls, super().plan_training
        engine = self._engine(update) if calls is None else None
        if engine is None:
            return in_numpy(graph, loss, update, parity, key, held, keep, calls)
        how = loss.ref, update, parity, key, held, keep
        with engine.lock:
            found = engine.training(graph, *how)
        if found is None:
            return in_numpy(graph, loss, update, parity, key, held, keep, calls)
        kept = found.held(held) if keep else NOTHING_HELD
        again = partial(self._asked, engine, graph, how, n_calls)
        return Plan(graph, found, held, kept, again)

    def _asked(self, engine: Engine, graph: Graph, how: tuple[Any, ...], calls: int) -> Found:
        """The same once more, with an account; it needs the cells that this planner knows."""
        plan: Callable[..., Found | None] = engine.training if len(how) > 1 else engine.forward
        with engine.lock:
            found = plan(graph, *how, calls)
        assert found is not None
        return found

    def _engine(self, update: Update | None) -> Engine | None:
        """What plans launches with such an update."""
        if update is None and self._latest is not None:
            return self._latest
        averaging = update.averaging if update is not None else None
        kind = None
        if update is not None:
            kind = update.optimizer.name, averaging.decay if averaging is not None else None
        found = self._engines.get(kind)
        if found is None:
            lib = library.library()
            if lib is None:
                return None
            found = self._engines[kind] = Engine(lib, self, kind[0] if kind is not None else None, averaging)
        self._latest = found
        return found
