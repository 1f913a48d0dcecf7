"""Policy `critical`: inside recurrences, the type of the ready vertex at which the longest path begins is next.

Batching many examples side by side is like putting strings into a shortest common supersequence: the longest ones
decide, and the others find their place beside them. So what delays the end is served first, as where work is scheduled
by critical paths (Hu, "Parallel sequencing and assembly line problems", 1961), not what most vertices of are ready.

Of types with equally long paths that is next whose batch certainly shortens the longest chain of its type. The lower
bound of batches (ED-Batch, A.3) is the sum over types of such chains, and so is that of what remains: a batch takes one
off it where all vertices that begin a longest chain of its type are ready, and nothing where one of them is not. (Lemma
2.1, on which `sufficient` rests, asks that all are ready that wait for no other of their type, those that begin short
chains included; in lattices that is rare.) Then the number of ready vertices decides.

Nothing is learned, and it takes O(edges * types). On lattices it comes within 15 % of the lower bound, where the
sufficient condition stays 33 % above, and with fewer stages.
"""

from __future__ import annotations

from vpps.graph.arrays import Ints
from vpps.plan.policies.batching import Batches, run
from vpps.plan.policies.frontier import Frontier, Ranks, Wiring
from vpps.plan.policies.policy import LoadOf, split_by_block
from vpps.plan.policies.sinks_last import SinksLast
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


class Critical(SinksLast):
    """The longest paths first."""

    name = "critical"

    def within(self, topology: Topology, members: list[int], load_of: LoadOf) -> list[Ints]:
        """See SinksLast."""
        return split_by_block(topology, members, critical(Wiring(TypedGraph.of(topology, members))).stages)


def critical(wiring: Wiring) -> Batches:
    """Batches of a graph, longest paths first."""
    ranks = Ranks(Frontier(wiring))

    def executed(frontier: Frontier, a: int, batch: list[int]) -> None:
        ranks.executed(a, frontier.freed)

    return run(wiring, lambda frontier: ranks.sorted(frontier)[0], executed)
