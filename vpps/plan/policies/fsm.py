"""Policy `fsm`, ED-Batch's: inside recurrences, a learned machine chooses the type of the next batch.

A recurrence is known by its cells. Its machine is the one that was kept, where there is one, else it is learned from
the first graph that has the recurrence, and kept.
"""

from __future__ import annotations

from vpps.graph.arrays import Ints
from vpps.plan.policies.frontier import Wiring
from vpps.plan.policies.knowledge import cells_of
from vpps.plan.policies.learning import batches_of
from vpps.plan.policies.policy import LoadOf, split_by_block
from vpps.plan.policies.sinks_last import SinksLast
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


class Fsm(SinksLast):
    """As a learned machine says."""

    name = "fsm"

    def describe(self) -> list[str]:
        """See Policy."""
        return [f"policy {self.name}, {sentence}" for sentence in self.knowledge.describe()]

    def within(self, topology: Topology, members: list[int], load_of: LoadOf) -> list[Ints]:
        """See SinksLast."""
        recurrence = self.knowledge.recurrence(cells_of(topology, members))
        arranged = recurrence.arranged(members)
        graph = TypedGraph.of(topology, arranged)
        machine = self.knowledge.machine(recurrence, graph, map(load_of, arranged))
        batches, unseen = batches_of(Wiring(graph), machine)
        self.knowledge.note_unseen(recurrence, unseen)
        of_block = dict(zip(arranged, split_by_block(topology, arranged, batches.stages), strict=True))
        return [of_block[number] for number in members]
