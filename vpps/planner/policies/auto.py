"""Policy `auto`: inside each recurrence of several cells, the policy that is fastest by the cost model: `sinks-last`,
`critical`, or `fsm` where an automaton is known.

That is decided with the first graph of each size, to a factor of two, and looked up afterwards. Where there is nothing
to decide it is `sinks-last`, and where there is little to gain, too: it is planned the soonest, and a model of costs is
not that exact. Nothing is learned.

Where each batch has other cells, each would be decided anew, which takes longer than planning it. So after some
decisions further ones are as most of those were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vpps.planner.native import typed_graphs as compiled
from vpps.planner.native.automaton import Automaton
from vpps.planner.native.typed_graphs import TypedGraph
from vpps.planner.policies.knowledge import Cells, Knowledge, cells_of
from vpps.planner.policies.policy import Fsm, LoadOf, Policy, RecurrenceChoice
from vpps.record.topology import Topology

WORTH_IT = 0.95
"""Seconds of another policy over those of `sinks-last`, at most."""

MOST_WEIGHED = 64
"""Decisions that are made by the cost model."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a recurrence, and why.

    Attributes:
        policy: name of the chosen one.
        seconds: by the names of those considered, what the cost model says of the graph that it was decided with.
    """

    policy: str
    seconds: dict[str, float]


class Auto(Policy):
    """The fastest, by the cost model.

    Attributes:
        decisions: by the cells of a recurrence, in the order of their blocks, and the number of binary digits of its
            number of vertices.
    """

    def __init__(self, name: str = "auto", knowledge: Knowledge | None = None) -> None:
        super().__init__(name, knowledge)
        self.decisions: dict[tuple[Cells, int], Decision] = {}
        self._fsm = Fsm("fsm", self.knowledge)

    def describe(self) -> list[str]:
        """See Policy."""
        found = []
        for (cells, digits), decision in self.decisions.items():
            considered = ", ".join(f"{name} {1e6 * s:,.0f}" for name, s in decision.seconds.items())
            found.append(
                f"policy auto, {', '.join(cell.name for cell in cells)} in graphs with {1 << (digits - 1):,} to "
                f"{(1 << digits) - 1:,} of their vertices: {decision.policy} (us by the cost model: {considered})"
            )
        if any(decision.policy == "fsm" for decision in self.decisions.values()):
            found += self._fsm.describe()
        return found

    def choice(self, topology: Topology, members: Sequence[int], load_of: LoadOf) -> RecurrenceChoice:
        """See Policy."""
        policy = self.decision(topology, members, load_of).policy
        chosen = self._fsm if policy == "fsm" else Policy(policy, self.knowledge)
        return chosen.choice(topology, members, load_of)

    def decision(self, topology: Topology, members: Sequence[int], load_of: LoadOf) -> Decision:
        """What is decided for a recurrence of a graph, now or before."""
        n = sum(len(topology.blocks[number].calls) for number in members)
        key = cells_of(topology, members), n.bit_length()
        found = self.decisions.get(key)
        if found is None and len(self.decisions) >= MOST_WEIGHED:
            ((usual, _),) = Counter(made.policy for made in self.decisions.values()).most_common(1)
            return Decision(usual if usual != "fsm" else "critical", {})  # the automaton may not be known
        if found is None:
            found = self.decisions[key] = self._decide(topology, members, load_of)
        return found

    def _decide(self, topology: Topology, members: Sequence[int], load_of: LoadOf) -> Decision:
        recurrence = self.knowledge.recurrence(cells_of(topology, members))
        loads = {number: load_of(number) for number in members}
        considered: list[tuple[str, Sequence[int], Automaton | None]]
        considered = [(name, members, None) for name in ("sinks-last", "critical")]
        automaton = self.knowledge.known(recurrence)
        if automaton is not None:
            considered.append(("fsm", recurrence.arranged(members), automaton))
        seconds = {}
        for name, numbers, of_name in considered:
            costs = self.knowledge.costs.of(loads[number] for number in numbers)
            seconds[name] = compiled.batches(TypedGraph.of(topology, numbers), name, of_name, costs).seconds
        best = min(seconds, key=lambda name: seconds[name])
        return Decision(best if seconds[best] < WORTH_IT * seconds["sinks-last"] else "sinks-last", seconds)
