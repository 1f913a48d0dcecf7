"""Policy `auto`: inside each recurrence of several cells, the one of `sinks-last`, `sufficient` and `fsm` that the cost
model says is fastest.

That is decided with the first graph of each size, to a factor of two, and looked up afterwards. Where there is nothing
to decide it is `sinks-last`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vpps.graph.arrays import Ints
from vpps.plan.policies.frontier import Wiring
from vpps.plan.policies.fsm import Fsm
from vpps.plan.policies.knowledge import Cells, Knowledge, cells_of
from vpps.plan.policies.learning import batches_of
from vpps.plan.policies.policy import WorkOf
from vpps.plan.policies.sinks_last import SinksLast, levels_within
from vpps.plan.policies.sufficient import Sufficient, sufficient
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a recurrence, and why.

    Attributes:
        policy: name of the chosen one.
        seconds: by name of those considered, by the cost model, of the graph that it was decided with.
    """

    policy: str
    seconds: dict[str, float]


class Auto(SinksLast):
    """The fastest, by the cost model.

    Attributes:
        decisions: by the cells of a recurrence and the binary digits of its number of vertices.
    """

    name = "auto"

    def __init__(self, knowledge: Knowledge | None = None) -> None:
        super().__init__(knowledge)
        self.decisions: dict[tuple[Cells, int], Decision] = {}
        self._policies = {policy.name: policy(self.knowledge) for policy in (SinksLast, Sufficient, Fsm)}

    def within(self, topology: Topology, members: list[int], work_of: WorkOf) -> list[Ints]:
        """See SinksLast."""
        n = sum(len(topology.blocks[number].calls) for number in members)
        key = cells_of(topology, members), n.bit_length()
        decision = self.decisions.get(key)
        if decision is None:
            decision = self.decisions[key] = self.decide(topology, members, work_of)
        return self._policies[decision.policy].within(topology, members, work_of)

    def decide(self, topology: Topology, members: list[int], work_of: WorkOf) -> Decision:
        """Weigh the policies for a recurrence of a graph. Nothing is learned where `sufficient` attains the lower bound
        of batches."""
        graph = TypedGraph.of(topology, members)
        costs = self.knowledge.costs.of([work_of(number) for number in members])
        wiring = Wiring(graph)
        usual = np.concatenate(levels_within(topology, members))
        by_condition = sufficient(wiring)
        seconds = {SinksLast.name: costs.seconds(graph, usual)}
        seconds[Sufficient.name] = costs.seconds(graph, by_condition.stages)
        if by_condition.n_steps > graph.lower_bound:
            machine = self.knowledge.machine(cells_of(topology, members), graph, costs.work)
            seconds[Fsm.name] = costs.seconds(graph, batches_of(wiring, machine)[0].stages)
        return Decision(min(seconds, key=lambda name: seconds[name]), seconds)
