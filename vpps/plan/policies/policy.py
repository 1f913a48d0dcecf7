"""What a batching policy is: it says in which stage every vertex of a graph runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from vpps.graph.arrays import Ints
from vpps.plan.policies.cost import Load
from vpps.plan.policies.knowledge import Knowledge
from vpps.plan.topology import Topology

LoadOf = Callable[[int], Load]
"""What steps of a block have to do, by its number."""


class Policy(ABC):
    """A batching policy, as one planner uses it: what it has learned or decided stays with it.

    Attributes:
        name: that users know it by.
        at_once: eager and lazy parts of recurrent cells run in one stage each (plan/phases.py).
        knowledge: what it knows beside the graph.
    """

    name: ClassVar[str]
    at_once: ClassVar[bool]

    def __init__(self, knowledge: Knowledge | None = None) -> None:
        self.knowledge = Knowledge() if knowledge is None else knowledge

    def describe(self) -> list[str]:
        """What it has learned or decided so far, a sentence each."""
        return []

    @abstractmethod
    def stages(self, topology: Topology, load_of: LoadOf) -> list[Ints]:
        """The stage of every vertex, by block: later than those of all that it reads.

        Args:
            load_of: of the blocks; for policies that weigh costs.
        """


def by_block(topology: Topology, stages: Ints) -> list[Ints]:
    """Stages of all vertices of a graph, by block."""
    return split_by_block(topology, range(len(topology.blocks)), stages)


def split_by_block(topology: Topology, members: Sequence[int], stages: Ints) -> list[Ints]:
    """Stages of the vertices of some blocks, numbered block after block, by block."""
    sizes = [len(topology.blocks[number].calls) for number in members]
    return np.split(stages, np.cumsum(sizes)[:-1])
