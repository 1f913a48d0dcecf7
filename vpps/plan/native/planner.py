"""The compiled planner: as `vpps.plan.build.Planner`, word for word, once a library is there that knows how.

Whatever is wrong with a graph NumPy says. A plan made so holds what a launch needs; who made which word, and what is
where for the verifier, is found by planning in NumPy when somebody asks.
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
from vpps.plan.native import library
from vpps.plan.native.engine import COMPILED_LAYOUTS, Engine, Found
from vpps.plan.passes import Passes
from vpps.plan.planner import Planner
from vpps.plan.policies import Policy
from vpps.plan.row_order import RECORDED
from vpps.plan.update import Update
from vpps.script.verify import Layout


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
        self._engines: dict[tuple[str, float | None] | None, Engine] = {}
        self._latest: Engine | None = None

    def plan_forward(
        self, graph: Graph, wanted: Sequence[Expression | Rows], held: Held = NOTHING_HELD, calls: int | None = None
    ) -> Plan:
        """See Planner."""
        n_calls, in_numpy = graph.n_calls, super().plan_forward
        engine = self._engine(None) if calls is None else None
        found = None
        if engine is not None:
            found = engine.forward(graph, np.concatenate([np.atleast_1d(value_ids(e)) for e in wanted]))
        if found is None:
            return in_numpy(graph, wanted, held, calls)
        return CompiledPlan(graph, found, held, held, lambda: in_numpy(graph, wanted, held, n_calls))

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
        found = engine.training(graph, loss.ref, update, parity, key, held, keep) if engine is not None else None
        if found is None:
            return in_numpy(graph, loss, update, parity, key, held, keep, calls)
        kept = found.held(held) if keep else NOTHING_HELD
        again = partial(in_numpy, graph, loss, update, parity, key, held, keep, n_calls)
        return CompiledPlan(graph, found, held, kept, again)

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
            f"{what} is {compiled} as compiled code plans the graph and {in_numpy} as NumPy does; set "
            "VPPS_PLANNER=numpy, and report this"
        )
