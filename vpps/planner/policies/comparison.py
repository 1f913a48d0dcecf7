"""What each policy makes of a graph: batches and stages, beside the lower bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vpps.planner.native import typed_graphs as compiled
from vpps.planner.native.stages import stages
from vpps.planner.native.typed_graphs import TypedGraph
from vpps.planner.policies import POLICIES, policy_named
from vpps.planner.policies.auto import Auto
from vpps.planner.policies.knowledge import Knowledge, cells_of
from vpps.planner.policies.policy import LoadOf, Policy
from vpps.record.topology import Topology


@dataclass(frozen=True, slots=True)
class Order:
    """A graph as a policy orders it, forward.

    Attributes:
        policy: its name.
        batches: pairs of a cell and a stage, cells whole.
        stages: after each of which there are barriers.
        unseen: batches that began in a state that a learned automaton does not know.
    """

    policy: str
    batches: int
    stages: int
    unseen: int


def orders(topology: Topology, policy: Policy, load_of: LoadOf) -> list[Order]:
    """What policies make of a graph: one that is in use, as it is; and the others, but those that had to learn or to
    decide first.

    Args:
        load_of: see Policy.
    """
    knowledge = replace(policy.knowledge, unseen={})
    known = all(knowledge.known(knowledge.recurrence(cells_of(topology, m))) for m in topology.recurrence.shared)
    names = [name for name in POLICIES if name != "auto" and (name != "fsm" or (topology.recurrence.shared and known))]
    others = [policy_named(name, knowledge) for name in names]
    if isinstance(policy, Auto):
        others.append(policy)
    return [_order(topology, other, load_of, knowledge) for other in others]


def compared(topology: Topology, policy: Policy, load_of: LoadOf) -> str:
    """What policies make of a graph, in a sentence; arguments as of `orders`."""
    found = [f"{order.policy} {order.batches:,} in {order.stages:,}" for order in orders(topology, policy, load_of)]
    return f"by policy, with stages: {', '.join(found)}; no policy has fewer than {lower_bound(topology):,}"


def _order(topology: Topology, policy: Policy, load_of: LoadOf, knowledge: Knowledge) -> Order:
    before = sum(knowledge.unseen.values())
    found = [np.unique(of_block) for of_block in stages(topology, policy, load_of)]
    n_stages = len(np.unique(np.concatenate(found))) if found else 0
    return Order(policy.name, sum(map(len, found)), n_stages, sum(knowledge.unseen.values()) - before)


def lower_bound(topology: Topology) -> int:
    """No order has fewer batches: components of cells have theirs one by one (planner/native/execution.h)."""
    found = topology.recurrence
    bound = 0
    for c, recurrent in enumerate(found.recurrent):
        members = found.members(c)
        bound += compiled.lower_bound(TypedGraph.of(topology, members)) if recurrent else 1
    return bound
