"""Policy `agenda`, DyNet's: of the types that have a ready vertex, the one whose vertices lie lowest is next.

Neubig, Goldberg and Dyer, "On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017, section 3; the mean
is that of the vertices that have not run, as ED-Batch describes it in section 2.1. It is applied to the whole graph, as
published.
"""

from __future__ import annotations

import numpy as np

from vpps.graph.arrays import Ints
from vpps.plan.policies.batching import Batches, run
from vpps.plan.policies.frontier import Frontier, Wiring
from vpps.plan.policies.policy import LoadOf, Policy, by_block
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology


class Agenda(Policy):
    """Least mean depth first."""

    name = "agenda"
    at_once = False

    def stages(self, topology: Topology, load_of: LoadOf) -> list[Ints]:
        """See Policy."""
        return by_block(topology, agenda(Wiring(TypedGraph.of(topology))).stages)


def agenda(wiring: Wiring) -> Batches:
    """Batches of a graph, lowest mean level of what remains first; of equal means the type of the smallest number."""
    graph = wiring.graph
    levels: list[int] = graph.levels.tolist()
    sums = [0] * graph.n_types  # of the levels of remaining vertices
    for a, level in zip(wiring.type_of, levels, strict=True):
        sums[a] += level
    counts: list[int] = np.bincount(graph.type_of, minlength=graph.n_types).tolist()

    def lowest(frontier: Frontier) -> int:
        best, *others = frontier.types
        for a in others:
            if sums[a] * counts[best] < sums[best] * counts[a]:  # means, compared exactly
                best = a
        return best

    def executed(_: Frontier, a: int, batch: list[int]) -> None:
        sums[a] -= sum(levels[v] for v in batch)
        counts[a] -= len(batch)

    return run(wiring, lowest, executed)
