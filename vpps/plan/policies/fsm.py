"""Policy `fsm`, ED-Batch's: inside recurrences, a learned machine chooses the type of the next batch.

A recurrence is known by its cells. Its machine is that of the store, where that has one, else it is learned from the
first graph that has the recurrence, and stored.
"""

from __future__ import annotations

from vpps.graph.arrays import Ints
from vpps.plan.policies.frontier import Wiring
from vpps.plan.policies.knowledge import cells_of
from vpps.plan.policies.learning import batches_of
from vpps.plan.policies.policy import WorkOf, split_by_block
from vpps.plan.policies.sinks_last import SinksLast
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


class Fsm(SinksLast):
    """As a learned machine says."""

    name = "fsm"

    def within(self, topology: Topology, members: list[int], work_of: WorkOf) -> list[Ints]:
        """See SinksLast."""
        cells = cells_of(topology, members)
        graph = TypedGraph.of(topology, members)
        machine = self.knowledge.machine(cells, graph, [work_of(number) for number in members])
        batches, unseen = batches_of(Wiring(graph), machine)
        self.knowledge.unseen[cells] = self.knowledge.unseen.get(cells, 0) + unseen
        return split_by_block(topology, members, batches.stages)
