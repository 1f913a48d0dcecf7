"""Batching policies: in which stage every vertex of a graph runs. Here is what they know, in C++ what they do.

A **stage** is what runs together; the vertices of a cell in a stage are a **step**, a batch in the words of other
systems. What a persistent kernel pays for is barriers, so policies report stages beside batches.

Types of vertices are cells. Components of cells that read each other can be batched one after the other without loss
(`native/execution.h` has the proof). So cells are ranked by "reads from", cycles contracted; a cell on no cycle is one
batch; a recurrence of one cell is its levels; leaves come first and losses last, all of them at once. There is
something to choose only in recurrences of several cells - trees with two kinds of nodes, lattices:

    sinks-last      level by level, all its cells side by side: the fewest stages
    sufficient      the type of which the largest share of what waits for no other of its type is ready (lemma 2.1)
    critical        the type of the ready vertex at which the longest path begins
    fsm             as an automaton says, learned for this recurrence (ED-Batch 2.3): states are the types ready,
                    ranked as `critical` ranks them, or one of the paper's three encodings, with the phase or without
    auto            `sinks-last`, unless a model of barriers and of steps, each of which costs a vertex more than it
                    has, promises 5 % of another one; decided with the first graph of a size
    depth, agenda   published baselines, on the whole graph: by level; the type of least mean depth first (DyNet)

Automata know a recurrence by its cells' programs, and lie in the tuning database (`tuning/automata.py`). A state that a
automaton does not know is decided as `sufficient` would, or as `critical` where states are ranked so, and counted.
Learning has a budget where a batch waits for it, and models whose recurrence has other cells in every batch learn for
16 of them.
"""

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
