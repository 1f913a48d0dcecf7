"""What Python knows of a batching policy: what it has learned or decided. `planner/native/policies/` does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vpps.compiler.cost import StepLoad
from vpps.planner.native.automaton import Automaton
from vpps.planner.native.typed_graphs import TypedGraph
from vpps.planner.policies.knowledge import Knowledge, RecurrentCells, cells_of
from vpps.record.arrays import Ints
from vpps.record.topology import Topology

LoadOf = Callable[[int], StepLoad]
"""What steps of a block have to do, by its number."""


class RecurrenceChoice(NamedTuple):
    """How a recurrence of several cells runs.

    Attributes:
        policy: by which.
        recurrence: its cells.
        automaton: of a policy that learns.
    """

    policy: str
    recurrence: RecurrentCells
    automaton: Automaton | None = None

    def numbers(self) -> Ints:
        """For compiled code."""
        if self.automaton is None:
            return np.zeros(0, np.int64)
        return np.concatenate([self.recurrence.order, self.automaton.numbers()])


class Policy:
    """A batching policy, as one planner uses it: what it has learned or decided stays with it.

    Attributes:
        name: that users know it by.
        knowledge: what it knows beside the graph.
    """

    def __init__(self, name: str, knowledge: Knowledge | None = None) -> None:
        self.name = name
        self.knowledge = Knowledge() if knowledge is None else knowledge

    def describe(self) -> list[str]:
        """What it has learned or decided so far, a sentence each."""
        return []

    def choice(self, topology: Topology, members: Sequence[int], load_of: LoadOf) -> RecurrenceChoice:
        """How a recurrence of a graph runs.

        Args:
            members: numbers of its blocks, rising.
            load_of: of the blocks; for policies that weigh costs.
        """
        return RecurrenceChoice(self.name, self.knowledge.recurrence(cells_of(topology, members)))


class Fsm(Policy):
    """Policy `fsm`, ED-Batch's: as a learned automaton says.

    A recurrence is known by its cells. Its automaton is the one that was kept, where there is one, else it is learned
    from the first graph that has the recurrence, and kept.
    """

    def describe(self) -> list[str]:
        """See Policy."""
        return [f"policy fsm, {sentence}" for sentence in self.knowledge.describe()]

    def choice(self, topology: Topology, members: Sequence[int], load_of: LoadOf) -> RecurrenceChoice:
        """See Policy."""
        recurrence = self.knowledge.recurrence(cells_of(topology, members))
        arranged = recurrence.arranged(members)
        graph = TypedGraph.of(topology, arranged)
        return RecurrenceChoice("fsm", recurrence, self.knowledge.automaton(recurrence, graph))
