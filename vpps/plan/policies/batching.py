"""Sequences of batches, and the stages in which a persistent kernel runs them.

An optimal sequence of a whole graph is one of each *component* of its types - cells that read each other, directly or
not - after the other, what is read first:

- Of any sequence of types that runs all of a graph, the types of one component alone run all of the component: what of
  it has run in the whole by some batch has run alone by then, too. For alone a vertex waits for fewer others, and those
  are of the component, of which that holds by induction.
- Sequences of components one after the other run all of the graph, as no earlier one reads of a later one.

A batch is of one type and so of one component, which makes a whole as long as its parts: none is shorter than the
shortest sequences of its components together. A component of a cell that is on no cycle is one batch, one of a single
cell its levels. Only recurrences of two cells or more leave anything to choose; there a policy need not see the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vpps.graph.arrays import Ints
from vpps.plan.policies.frontier import Frontier, Wiring

Chooser = Callable[[Frontier], int]
"""Which of the types that have a ready vertex is next."""

Executed = Callable[[Frontier, int, list[int]], None]
"""Is told of a batch: the frontier after it, its type and its vertices."""


@dataclass(frozen=True, slots=True)
class Batches:
    """What a policy makes of a typed graph.

    Attributes:
        sequence: type of each batch, as they were chosen.
        stages: of each vertex.
        n_stages: how many there are; a barrier ends each.
        n_steps: how many of (type, stage) there are, no more than batches.
    """

    sequence: list[int]
    stages: Ints
    n_stages: int
    n_steps: int


def run(wiring: Wiring, choose: Chooser, executed: Executed | None = None) -> Batches:
    """Run a graph, batch after batch, until it is empty (ED-Batch, Algorithm 1).

    Args:
        choose: the type of the next batch.
        executed: is told of every batch.
    """
    frontier = Frontier(wiring)
    sequence: list[int] = []
    while frontier.executed < wiring.n:
        a = choose(frontier)
        batch = frontier.execute(a)
        sequence.append(a)
        if executed is not None:
            executed(frontier, a, batch)
    stages = np.array(frontier.stages, np.int64)
    steps = np.bincount(stages * wiring.n_types + wiring.graph.type_of)
    return Batches(sequence, stages, frontier.n_stages, int(np.count_nonzero(steps)))
