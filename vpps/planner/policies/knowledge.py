"""What policies know beside the graph: costs of the target, and automata for recurrences, learned or stored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from vpps.compiler.cost import Costs, costs_on
from vpps.planner.native import typed_graphs as compiled
from vpps.planner.native.automaton import Automaton, Learned, LearningSettings
from vpps.planner.native.typed_graphs import TypedGraph
from vpps.record.topology import Topology
from vpps.record.trace import TracedCell, digest_of
from vpps.targets import CPU

_log = logging.getLogger(__name__)

Cells = tuple[TracedCell, ...]
"""Of a recurrence, as the user made them."""

Digests = tuple[str, ...]
"""Of its programs, rising: what a recurrence is known by in all processes, whatever was recorded first."""

AT_FIRST_USE = 50_000_000
"""Vertices times types of all trials of learning, at most, while a batch waits for it: seconds."""

MOST_LEARNED = 16
"""Recurrences for which automata are learned in a process: where each batch has other cells, each would wait for it."""


class KeptAutomata(Protocol):
    """Where automata outlive a process."""

    def find(self, digests: Digests) -> Automaton | None:
        """The automaton of a recurrence, if there is one."""
        ...

    def keep(self, digests: Digests, names: Sequence[str], learned: Learned, settings: LearningSettings) -> None:
        """Store one. It is a gain and no condition: where that fails, nothing happens.

        Args:
            names: of its cells, for people.
        """
        ...


class RecurrentCells(NamedTuple):
    """The cells of a recurrence in the order that is the same in all graphs.

    Attributes:
        order: position of each in the order of the blocks.
        cells: in that order; their places are the types of its automaton.
        digests: likewise.
    """

    order: tuple[int, ...]
    cells: Cells
    digests: Digests

    @property
    def names(self) -> str:
        """Of its cells, for people."""
        return ", ".join(cell.name for cell in self.cells)

    def arranged(self, members: Sequence[int]) -> list[int]:
        """Numbers of its blocks, which rise, in that order."""
        return [members[k] for k in self.order]


@dataclass
class Knowledge:
    """Automata that policies have found, and how they come to them.

    Attributes:
        costs: of the target.
        kept: where automata outlive a process; None: nowhere.
        settings: of learning.
        automata: found so far.
        learned: what came of learning, of those that were learned here.
        unseen: of each recurrence, how many steps began in a state that its automaton does not know.
    """

    costs: Costs = field(default_factory=lambda: costs_on(CPU.name, 1))
    kept: KeptAutomata | None = None
    settings: LearningSettings = field(default_factory=LearningSettings)
    automata: dict[Digests, Automaton] = field(default_factory=dict)
    learned: dict[Digests, Learned] = field(default_factory=dict)
    unseen: dict[Digests, int] = field(default_factory=dict)
    _recurrences: dict[Cells, RecurrentCells] = field(default_factory=dict)

    def recurrence(self, cells: Cells) -> RecurrentCells:
        """The recurrence of some cells, given in the order of their blocks."""
        found = self._recurrences.get(cells)
        if found is None:
            digests = [digest_of(cell) for cell in cells]
            order = sorted(range(len(cells)), key=lambda k: digests[k])
            found = self._recurrences[cells] = RecurrentCells(
                tuple(order), tuple(cells[k] for k in order), tuple(digests[k] for k in order)
            )
        return found

    def known(self, recurrence: RecurrentCells) -> Automaton | None:
        """The automaton of a recurrence where there is one already."""
        found = self.automata.get(recurrence.digests)
        if found is None and self.kept is not None:
            found = self.kept.find(recurrence.digests)
            if found is not None:
                self.automata[recurrence.digests] = found
        return found

    def automaton(self, recurrence: RecurrentCells, graph: TypedGraph) -> Automaton:
        """The automaton of a recurrence, learned where there is none, in seconds at most. After MOST_LEARNED of them it
        is one that knows no state.

        Args:
            graph: to learn from, its types in the recurrence's order.
        """
        found = self.known(recurrence)
        if found is None and len(self.learned) >= MOST_LEARNED:
            found = self.automata[recurrence.digests] = Automaton(self.settings.encoding, {})
        elif found is None:
            trials = min(self.settings.trials, AT_FIRST_USE // max(1, graph.n * graph.n_types))
            learned = compiled.learn(graph, replace(self.settings, trials=trials))
            self.learned[recurrence.digests] = learned
            found = self.automata[recurrence.digests] = learned.automaton
            _log.info(
                "learned in %.2f s to batch the recurrence of %s: %d batches, at least %d",
                learned.seconds,
                recurrence.names,
                learned.batches,
                learned.lower_bound,
            )
            if self.kept is not None:
                self.kept.keep(recurrence.digests, [cell.name for cell in recurrence.cells], learned, self.settings)
        return found

    def describe(self) -> list[str]:
        """What is known of each recurrence that has an automaton, a sentence each."""
        found, without = [], 0
        for recurrence in {r.digests: r for r in self._recurrences.values()}.values():
            automaton = self.automata.get(recurrence.digests)
            if automaton is None:
                continue
            learned, how = self.learned.get(recurrence.digests), "as kept in the tuning database"
            if learned is None and not automaton.table:
                without += 1
                continue
            if learned is not None:
                how = (
                    f"learned in {learned.seconds:.2f} s, {learned.trials} trials: {learned.batches} batches in "
                    f"{learned.stages} stages, at least {learned.lower_bound} batches"
                )
            found.append(
                f"{recurrence.names}: a machine of {len(automaton.table)} states, {how}; "
                f"{self.unseen.get(recurrence.digests, 0)} steps so far began in a state that it does not know"
            )
        if without:
            found.append(
                f"{without} more recurrences, of other cells: no machines, as {MOST_LEARNED} have been learned"
            )
        return found

    def let_go(self) -> None:
        """Forget recurrences, and those automata that know no state."""
        self._recurrences.clear()
        for digests in [digests for digests, found in self.automata.items() if not found.table]:
            del self.automata[digests]
            self.unseen.pop(digests, None)

    def note_unseen(self, recurrence: RecurrentCells, steps: int) -> None:
        """Count steps that began in a state that the automaton does not know."""
        self.unseen[recurrence.digests] = self.unseen.get(recurrence.digests, 0) + steps


def cells_of(topology: Topology, members: Sequence[int]) -> Cells:
    """The cells of some blocks as the user made them: inference goes without outputs that nothing reads."""
    return tuple(topology.blocks[number].block.pattern for number in members)
