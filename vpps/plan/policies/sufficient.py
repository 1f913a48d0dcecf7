"""Policy `sufficient`: inside recurrences, the type of which the largest part is ready that could be first at all.

Where all vertices of a type that wait for no other of that type are ready, a shortest sequence of batches begins with
that type (ED-Batch, Lemma 2.1). Where no type fulfils that, the one that comes nearest to it is next. Chains and trees
are batched with as few batches as possible.
"""

from __future__ import annotations

from vpps.graph.arrays import Ints
from vpps.plan.policies.batching import Batches, run
from vpps.plan.policies.frontier import Frontier, Subgraphs, Wiring, nearest
from vpps.plan.policies.policy import LoadOf, split_by_block
from vpps.plan.policies.sinks_last import SinksLast
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


class Sufficient(SinksLast):
    """Nearest to the sufficient condition first."""

    name = "sufficient"

    def within(self, topology: Topology, members: list[int], load_of: LoadOf) -> list[Ints]:
        """See SinksLast."""
        return split_by_block(topology, members, sufficient(Wiring(TypedGraph.of(topology, members))).stages)


def sufficient(wiring: Wiring) -> Batches:
    """Batches of a graph by the sufficient condition."""
    subgraphs = Subgraphs(Frontier(wiring))

    def executed(_: Frontier, a: int, batch: list[int]) -> None:
        subgraphs.executed(a, batch)

    return run(wiring, lambda frontier: nearest(frontier, subgraphs), executed)
