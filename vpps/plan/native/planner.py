"""The compiled planner: as `vpps.plan.build.Planner`, word for word.

A plan made so holds what a launch needs; who made which word, and what is where for the verifier, is found by planning
in NumPy when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from vpps.errors import ScriptError
from vpps.graph.arrays import Ints
from vpps.graph.graph import Graph
from vpps.graph.operand import Expression
from vpps.graph.rows import Rows, value_ids
from vpps.ops.philox import LaunchKey, StepKey
from vpps.plan.build import Plan
from vpps.plan.distribution import NOTHING_HELD, Distribution, Held
from vpps.plan.native import library, policies
from vpps.plan.native.engine import Engine, Found
from vpps.plan.passes import Passes
from vpps.plan.planner import Planner
from vpps.plan.policies import Policy
from vpps.plan.row_order import RECORDED
from vpps.plan.update import Update
from vpps.script.verify import Layout


class CompiledPlanner(Planner):
    """Plans in compiled code, which is waited for with the first plan."""

    def __init__(
        self,
        distribution: Distribution,
        policy: str | Policy,
        schedule: str = "vector",
        passes: Passes | None = None,
        layout: str = RECORDED,
    ) -> None:
        super().__init__(distribution, policy, schedule, passes, layout)
        self.batching.knowledge.learn = policies.learn
        self._engines: dict[tuple[str, float | None] | None, Engine] = {}
        self._latest: Engine | None = None

    def plan_forward(  # type: ignore[override]
        self, graph: Graph, wanted: Sequence[Expression | Rows], held: Held = NOTHING_HELD
    ) -> Plan:
        """See Planner."""
        n_calls, in_numpy = graph.n_calls, super().plan_forward
        found = self._engine(None).forward(graph, np.concatenate([np.atleast_1d(value_ids(e)) for e in wanted]))
        return CompiledPlan(graph, found, held, held, lambda: in_numpy(graph, wanted, held, n_calls))

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
        n_calls, in_numpy = graph.n_calls, super().plan_training
        found = self._engine(update).training(graph, loss.ref, update, parity, key, held, keep)
        kept = found.held(held) if keep else NOTHING_HELD
        again = partial(in_numpy, graph, loss, update, parity, key, held, keep, n_calls)
        return CompiledPlan(graph, found, held, kept, again)

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


class CompiledPlan(Plan):
    """A plan whose script compiled code has written. What nobody needs for a launch is found when it is asked for.

    Args:
        found: by the compiled planner.
        before, held: gradients that the pool holds before the launch, and after it for a later one.
        in_numpy: makes the same plan of the same vertices, however many have been recorded since.
    """

    def __init__(self, graph: Graph, found: Found, before: Held, held: Held, in_numpy: Callable[[], Plan]) -> None:
        self.graph = graph
        self.script = found.script
        self.pool_floats = found.pool_floats
        self.loss_slot = found.loss_slot
        self.n_barriers = found.n_barriers
        self.held = held
        self.sequel = found.sequel(before)
        self.encoded = found.encoded
        self._result = found
        self._in_numpy = in_numpy

    def __repr__(self) -> str:
        return f"<plan of {self.graph.describe()}: {len(self.script)} words>"

    def __getattr__(self, name: str) -> Any:
        if name in ("addresses", "touched", "tables", "instructions", "tails", "grouping"):
            value = getattr(self._result, name)
        elif name in ("blocks", "streams"):
            value = getattr(self._whole, name)
        else:
            raise AttributeError(f"a plan has no {name!r}")
        self.__dict__[name] = value
        return value

    @cached_property
    def layout(self) -> Layout:
        """As of Plan. It serves to check the script, so that is compared with NumPy's as well."""
        whole = self._whole
        different = np.flatnonzero(whole.script != self.script)
        if len(different):
            at = int(different[0])
            self._disagree(f"word {at} of the script", int(self.script[at]), int(whole.script[at]))
        if self.pool_floats != whole.pool_floats:
            self._disagree("the pool", self.pool_floats, whole.pool_floats)
        return whole.layout

    @property
    def lists(self) -> Ints:
        """As of Plan, at any time: factors of averages, which NumPy would write anew, are others after the launch."""
        return self._whole.lists

    @cached_property
    def _whole(self) -> Plan:
        """The same plan as NumPy makes it."""
        plan = self._in_numpy()
        if len(plan.script) != len(self.script):
            self._disagree("the script's length", len(self.script), len(plan.script))
        return plan

    def _disagree(self, what: str, compiled: int, in_numpy: int) -> None:
        raise ScriptError(
            f"{what} is {compiled} as compiled code plans the graph and {in_numpy} as NumPy does; please report this"
        )
