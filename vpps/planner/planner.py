"""Plans graphs for one distribution of the parameters, in compiled code (planner/native/).

A plan holds only what a launch needs. The origin of each word, and the memory map for the verifier, are computed on
request by planning again.
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
        distribution: addresses of the parameters, and the number of virtual processors.
        policy: name of the batching policy, or a learned policy.
        schedule: name of the schedule.
        passes: the cell compiler's passes; default: those that VPPS_PASSES selects.

    Attributes:
        policy: name of the policy.
        cells: encoded cells.
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
        """Plan a forward that computes only the wanted values and their dependencies. Held gradients are kept.

        Args:
            present: values not to compute again; all computed values are then kept. If None, only the wanted ones are.

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
        """Plan forward, backward, gradients and (unless `update` is None) the update.

        Args:
            parity: parity of the launch number; selects the loss slot.
            key: key for the launch's random numbers; None turns dropout off.
            held: gradients from earlier batches; this batch's gradients are added to them.
            keep: leave the sums in the pool for a later launch.

        Raises:
            NoGradientError: the loss depends on no trainable parameter and, if there is no update, on no input whose
                gradient is requested.
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
        """Plan like `plan_training`, but in two launches: forward, and everything after it. In between, the caller
        writes the gradients of the wanted values at `Plan.seeds`, contiguously."""
        each = np.repeat([size(e.shape) for e in wanted], [len(e) if isinstance(e, Rows) else 1 for e in wanted])
        seeds = Seeds(np.cumsum(each) - each, int(each.sum()))
        return self._library(update).training(graph, _ids_of(wanted), update, parity, key, held, False, seeds)

    def plan_update(
        self, update: Update, parity: int, held: HeldGradients, given: Mapping[Parameter, NDArray[np.int64]]
    ) -> Plan:
        """Plan only an update, from held gradients.

        Args:
            given: for each table, numbers of the rows whose gradients the caller writes (`Plan.tables`).
        """
        seeds = Seeds(np.zeros(0, np.int64), 0)
        return self._library(update).training(Graph(), array("q"), update, parity, None, held, False, seeds, given)

    def _library(self, update: Update | None) -> PlannerLibrary:
        """Return the library that plans launches with this update."""
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
    """Return the value ids of expressions and rows in one array."""
    found = array("q")
    for e in wanted:
        if isinstance(e, Rows):
            found.frombytes(e.ids.tobytes())
        else:
            found.append(e.ref)
    return found
