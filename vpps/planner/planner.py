"""Plans graphs for one distribution of the parameters, in compiled code (planner/native/).

A plan holds what a launch needs; who made which word, and what is where for the verifier, is found by planning once
more when somebody asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.cells import EncodedCells
from vpps.compiler.passes import Passes
from vpps.compiler.schedule import PAPER
from vpps.graph.graph import Graph
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.model import Parameter
from vpps.ops import size
from vpps.ops.operand import Expression
from vpps.ops.philox import LaunchKey, StepKey
from vpps.placement.distribution import NOTHING_HELD, Distribution, HeldGradients
from vpps.placement.update import Ending, Update
from vpps.planner.native import library
from vpps.planner.plan import Plan, Present, Seeds
from vpps.planner.planner_library import PlannerLibrary
from vpps.record.rows import Rows


class Planner:
    """Makes plans for one distribution, policy and schedule.

    Args:
        distribution: places of the parameters, number of virtual processors.
        policy: name of the batching policy, or a learned one.
        schedule: name of the schedule.
        passes: of the cell compiler; default as VPPS_PASSES says.

    Attributes:
        policy: its name.
        cells: that it knows.
    """

    def __init__(
        self,
        distribution: Distribution,
        policy: str | LearnedPolicy = "sinks-last",
        schedule: str = "vector",
        passes: Passes | None = None,
    ) -> None:
        self.distribution = distribution
        self.policy = policy if isinstance(policy, str) else policy.name
        self._policy = policy
        self.passes = Passes.from_environment() if passes is None else passes
        self.schedule = schedule
        self.cells = EncodedCells(distribution, schedule == PAPER, self.passes)
        self._libraries: dict[tuple[str | None, float | None], PlannerLibrary] = {}
        self._latest: PlannerLibrary | None = None

    def plan_forward(
        self,
        graph: Graph,
        wanted: Sequence[Expression | Rows],
        held: HeldGradients = NOTHING_HELD,
        key: LaunchKey | StepKey | None = None,
        present: Present | None = None,
    ) -> Plan:
        """Plan that computes the wanted values and what they depend on, nothing else; gradients that are held stay.

        Args:
            present: values that are not to be computed again; all others stay, too. None: only what is wanted does.

        Raises:
            CompileError: there is no compiler.
        """
        return self._library(None).forward(graph, _ids_of(wanted), held, key, present)

    def plan_training(
        self,
        graph: Graph,
        loss: Expression,
        update: Update | None,
        parity: int,
        key: LaunchKey | StepKey | None = None,
        held: HeldGradients = NOTHING_HELD,
        keep: bool = False,
    ) -> Plan:
        """Plan of forward, backward, gradients and (unless `update` is None) the update.

        Args:
            parity: of the launch; says where its loss is kept.
            key: of the launch's random numbers; None turns dropout off.
            held: gradients of earlier batches, to which those of this one are added.
            keep: leave the sums in the pool for a later launch.

        Raises:
            NoGradientError: the loss depends on no trainable parameter and, where there is no update, on no input that
                wants its gradient.
            CompileError: there is no compiler.
        """
        return self._library(update).training(graph, array("q", (loss.ref,)), update, parity, key, held, keep)

    def plan_halves(
        self,
        graph: Graph,
        wanted: Sequence[Expression | Rows],
        update: Update | None,
        parity: int,
        key: LaunchKey | StepKey | None = None,
        held: HeldGradients = NOTHING_HELD,
    ) -> Plan:
        """As `plan_training`, in two launches: forward, and what follows from gradients of what is wanted, which the
        caller writes at `Plan.seeds`, one behind the other."""
        each = np.repeat([size(e.shape) for e in wanted], [len(e) if isinstance(e, Rows) else 1 for e in wanted])
        seeds = Seeds(np.cumsum(each) - each, int(each.sum()))
        return self._library(update).training(graph, _ids_of(wanted), update, parity, key, held, False, seeds)

    def plan_update(
        self, update: Update, parity: int, held: HeldGradients, given: Mapping[Parameter, NDArray[np.int64]]
    ) -> Plan:
        """Plan of an update alone, from gradients that are held.

        Args:
            given: numbers of the rows of tables whose gradients the caller writes (`Plan.tables`).
        """
        seeds = Seeds(np.zeros(0, np.int64), 0)
        return self._library(update).training(Graph(), array("q"), update, parity, None, held, False, seeds, given)

    def _library(self, update: Update | None) -> PlannerLibrary:
        """What plans launches with such an update."""
        if update is None and self._latest is not None:
            return self._latest
        rule = update.optimizer.name if update is not None else None
        averaging = update.averaging if update is not None else None
        kind = rule, averaging.decay if averaging is not None else None
        found = self._libraries.get(kind)
        if found is None:
            ending = Ending(self.distribution, rule, averaging)
            found = self._libraries[kind] = PlannerLibrary(library.library(), self.cells, self._policy, ending)
        self._latest = found
        return found


def _ids_of(wanted: Sequence[Expression | Rows]) -> array[int]:
    """Value ids of expressions, and of rows, one after the other."""
    found = array("q")
    for e in wanted:
        if isinstance(e, Rows):
            found.frombytes(e.ids.tobytes())
        else:
            found.append(e.ref)
    return found
