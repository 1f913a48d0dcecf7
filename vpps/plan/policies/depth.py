"""Policy `depth`, that of TensorFlow Fold: a stage per level of the whole graph, the longest distance from a leaf."""

from __future__ import annotations

from vpps.graph.arrays import Ints
from vpps.plan.policies.policy import LoadOf, Policy
from vpps.plan.topology import Topology


class Depth(Policy):
    """Level by level."""

    name = "depth"
    at_once = False

    def stages(self, topology: Topology, load_of: LoadOf) -> list[Ints]:
        """See Policy."""
        return [b.levels for b in topology.blocks]
