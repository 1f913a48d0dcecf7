"""Policy `chains`: inside recurrences, the type of the next batch is one whose longest chain that batch shortens.

The lower bound of batches (ED-Batch, A.3) is the sum over types of the longest chain of vertices of the type, and so is
that of what remains. A batch takes one off it where all vertices that begin a longest chain of its type are ready, and
nothing where one of them is not. So a type for which they all are is next, if there is one: only the other batches lead
away from the bound. Of several, and where there is none of all, it is the type of which most vertices are ready.

Lemma 2.1, on which `sufficient` rests, asks that all vertices are ready that wait for no other of their type, those
that begin short chains included. Staying at the bound does not take that, and in lattices it is rare.
"""

from __future__ import annotations

from vpps.graph.arrays import Ints
from vpps.plan.policies.batching import Batches, run
from vpps.plan.policies.frontier import Chains, Frontier, Wiring
from vpps.plan.policies.policy import LoadOf, split_by_block
from vpps.plan.policies.sinks_last import SinksLast
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


class LongestChains(SinksLast):
    """What shortens a longest chain first."""

    name = "chains"

    def within(self, topology: Topology, members: list[int], load_of: LoadOf) -> list[Ints]:
        """See SinksLast."""
        return split_by_block(topology, members, by_chains(Wiring(TypedGraph.of(topology, members))).stages)


def by_chains(wiring: Wiring) -> Batches:
    """Batches of a graph by its chains; of equal types the one of the smallest number."""
    chains = Chains(Frontier(wiring))

    def shortening(frontier: Frontier) -> int:
        return max(frontier.types, key=lambda a: (chains.shortens(a), len(frontier.ready[a])))

    def executed(frontier: Frontier, a: int, batch: list[int]) -> None:
        chains.executed(a, batch, frontier.freed)

    return run(wiring, shortening, executed)
