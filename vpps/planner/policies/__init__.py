"""Batching policies: in which stage every vertex of a graph runs. Here is what they know; what they do is in
`planner/native/policies/`."""

from __future__ import annotations

from collections.abc import Mapping

from vpps.errors import GraphError
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.policies.auto import Auto
from vpps.planner.policies.knowledge import Knowledge
from vpps.planner.policies.policy import Fsm, Policy

__all__ = ["POLICIES", "WORTH_TRYING", "Knowledge", "Policy", "policy_named"]

_THAT_KNOW: Mapping[str, type[Policy]] = {"fsm": Fsm, "auto": Auto}

WORTH_TRYING = ("sinks-last", "depth")
"""What tuning tries, for whatever model: the others differ inside recurrences of several cells alone, or are there to
compare with."""


def policy_named(name: str, knowledge: Knowledge | None = None) -> Policy:
    """A policy for a planner. Raises GraphError for an unknown name.

    Args:
        knowledge: what it may use; default: nothing yet, and a cpu with one virtual processor.
    """
    if name not in POLICIES:
        raise GraphError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return _THAT_KNOW.get(name, Policy)(name, knowledge)
