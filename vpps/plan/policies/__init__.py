"""Batching policies: in which stage every vertex of a graph runs."""

from __future__ import annotations

from collections.abc import Mapping

from vpps.errors import GraphError
from vpps.plan.policies.agenda import Agenda
from vpps.plan.policies.auto import Auto
from vpps.plan.policies.critical import Critical
from vpps.plan.policies.depth import Depth
from vpps.plan.policies.fsm import Fsm
from vpps.plan.policies.knowledge import Knowledge
from vpps.plan.policies.policy import Policy
from vpps.plan.policies.sinks_last import SinksLast
from vpps.plan.policies.sufficient import Sufficient

__all__ = ["POLICIES", "WORTH_TRYING", "Knowledge", "Policy", "policy_named"]

POLICIES: Mapping[str, type[Policy]] = {
    policy.name: policy for policy in (SinksLast, Depth, Agenda, Sufficient, Critical, Fsm, Auto)
}

WORTH_TRYING = (SinksLast.name, Depth.name)
"""What tuning tries, for whatever model: the others differ inside recurrences of several cells alone, or are there to
compare with."""


def policy_named(name: str, knowledge: Knowledge | None = None) -> Policy:
    """A policy for a planner. Raises GraphError for an unknown name.

    Args:
        knowledge: what it may use; default: nothing yet, and a cpu with one virtual processor.
    """
    if name not in POLICIES:
        raise GraphError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name](knowledge)
