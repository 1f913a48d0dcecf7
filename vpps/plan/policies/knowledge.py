"""What policies know beside the graph: costs of the target, and machines for recurrences, learned or stored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vpps.graph.trace import TracedCell
from vpps.plan.policies.cost import Costs, costs_on
from vpps.plan.policies.learning import Learn, Learned, Settings, learn
from vpps.plan.policies.machine import Machine
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.topology import Topology

_log = logging.getLogger(__name__)

Cells = tuple[TracedCell, ...]
"""Of a recurrence, as the user made them, in the order of the types."""


class Machines(Protocol):
    """Where machines outlive a process."""

    def find(self, cells: Cells) -> Machine | None:
        """The machine of a recurrence, if there is one."""
        ...

    def keep(self, cells: Cells, learned: Learned, settings: Settings) -> None:
        """Store one."""
        ...


class NoMachines:
    """Keeps none."""

    def find(self, cells: Cells) -> Machine | None:
        """None."""
        return None

    def keep(self, cells: Cells, learned: Learned, settings: Settings) -> None:
        """Forget it."""


@dataclass
class Knowledge:
    """Machines that policies have found, by the cells of their recurrences, and how they come to them.

    Attributes:
        costs: of the target.
        stored: where machines outlive a process.
        settings: of learning.
        learn: how they are learned.
        machines: found so far.
        learned: those of them that were learned here.
        unseen: by recurrence, how many steps were in a state that its machine does not know.
    """

    costs: Costs = field(default_factory=lambda: costs_on("cpu", 1))
    stored: Machines = field(default_factory=NoMachines)
    settings: Settings = field(default_factory=Settings)
    learn: Learn = learn
    machines: dict[Cells, Machine] = field(default_factory=dict)
    learned: dict[Cells, Learned] = field(default_factory=dict)
    unseen: dict[Cells, int] = field(default_factory=dict)

    def machine(self, cells: Cells, graph: TypedGraph, work: Sequence[float]) -> Machine:
        """The machine of a recurrence.

        Args:
            graph: to learn from.
            work: of its types, see WorkOf.
        """
        found = self.machines.get(cells)
        if found is None:
            found = self.stored.find(cells)
            if found is None:
                learned = self.learn(graph, self.settings, self.costs.of(work))
                self.learned[cells] = learned
                found = learned.machine
                _log.info(
                    "learned to batch %s in %.2f s: %d batches, at least %d",
                    ", ".join(cell.name for cell in cells),
                    learned.seconds,
                    learned.batches,
                    learned.lower_bound,
                )
                self.stored.keep(cells, learned, self.settings)
            self.machines[cells] = found
        return found


def cells_of(topology: Topology, members: Sequence[int]) -> Cells:
    """The cells of some blocks as the user made them: inference goes without outputs that nothing reads."""
    return tuple(topology.blocks[number].block.cell for number in members)
