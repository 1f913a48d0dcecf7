"""Batching policies on a typed graph: applied to the whole graph, as published, or to each component of its types.

Components are sets of types that lead to each other (vpps/planner/native/execution.h says why running them one after
the other loses nothing). This module reports only counts: batches launched, stages that a persistent kernel needs for
them, and states unknown to the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from edbatch_graphs import Vertices

from vpps.model.learned_policy import ENCODINGS, Automaton, Encoding
from vpps.planner.native.typed_graphs import Learned, LearningSettings, TypedGraph, batches, learn
from vpps.record.levels import find_levels
from vpps.record.topology import strongly_connected

PHASES = 8
"""For encodings with a phase: eighths of the vertices."""


class BatchCounts(NamedTuple):
    """The counts of a policy on a graph.

    Attributes:
        batches: number of batches chosen.
        stages: number of stages of a persistent kernel; a barrier ends each.
        unseen: number of choices made without the machine.
    """

    batches: int
    stages: int
    unseen: int = 0

    def __add__(self, other: tuple[object, ...]) -> BatchCounts:  # the sum of tuples would concatenate them
        """Add the counts of two graphs that run one after the other."""
        assert isinstance(other, BatchCounts)
        return BatchCounts(self.batches + other.batches, self.stages + other.stages, self.unseen + other.unseen)


Run = Callable[[TypedGraph], BatchCounts]


def typed(vertices: Vertices) -> TypedGraph:
    """Return a graph in the form that policies read."""
    levels = find_levels(len(vertices.type_of), vertices.readers, vertices.producers)
    return TypedGraph(vertices.type_of, levels, vertices.producers, vertices.readers, len(vertices.types))


def by(policy: str, machine: Automaton | None = None) -> Run:
    """Return a vpps policy; "fsm" needs a machine."""

    def run(graph: TypedGraph) -> BatchCounts:
        found = batches(graph, policy, machine)
        return BatchCounts(len(found.sequence), found.n_stages, found.unseen)

    return run


def by_machine(learned: Learned) -> Run:
    """Return the policy of a learned machine."""
    return by("fsm", learned.automaton)


by_depth = by("depth")


class Part(NamedTuple):
    """A component of the types.

    Attributes:
        types: its type numbers in the whole graph, ascending.
        graph: the component's own graph; its types are numbered in the order of `types`.
        recurrent: True if the component reads itself.
        rank: length of the longest path of components that leads to it.
    """

    types: tuple[int, ...]
    graph: TypedGraph
    recurrent: bool
    rank: int


def reads_of(graph: TypedGraph) -> list[set[int]]:
    """Return the types that each type reads."""
    reads: list[set[int]] = [set() for _ in range(graph.n_types)]
    ends = np.stack([graph.type_of[graph.readers], graph.type_of[graph.producers]])
    for reader, producer in np.unique(ends, axis=1).T.tolist():
        reads[reader].add(producer)
    return reads


def parts_of(graph: TypedGraph, reads: Sequence[set[int]] | None = None) -> Iterator[Part]:
    """Yield the components of a graph in topological order.

    Args:
        reads: the types that each type reads, in this graph and others; default: in this graph only.
    """
    reads = reads_of(graph) if reads is None else reads
    component = strongly_connected(list(reads))
    rank: list[int] = []
    for c in range(max(component) + 1):
        types = [a for a in range(graph.n_types) if component[a] == c]
        before = {component[b] for a in types for b in reads[a]}
        rank.append(max((rank[b] + 1 for b in before - {c}), default=0))
        yield Part(tuple(types), restricted(graph, types), c in before, rank[c])


def restricted(graph: TypedGraph, types: Sequence[int]) -> TypedGraph:
    """Return the subgraph of some types: their vertices, and the edges among them."""
    number = np.full(graph.n_types, -1)
    number[list(types)] = np.arange(len(types))
    inside = number[graph.type_of] >= 0
    place = np.cumsum(inside) - 1
    edges = inside[graph.readers] & inside[graph.producers]
    producers, readers = place[graph.producers[edges]], place[graph.readers[edges]]
    type_of = number[graph.type_of[inside]]
    return TypedGraph(type_of, find_levels(len(type_of), readers, producers), producers, readers, len(types))


def within(choose: Callable[[Part], Run], also: TypedGraph | None = None) -> Run:
    """Return a policy that runs each component of several types by its own policy. All other components run level by
    level, which takes the fewest batches possible. Components of the same rank share stages.

    Args:
        also: another graph with these types; types that form a component there also form one here.
    """

    def run(graph: TypedGraph) -> BatchCounts:
        reads = reads_of(graph)
        if also is not None:
            reads = [own | other for own, other in zip(reads, reads_of(also), strict=True)]
        total = BatchCounts(0, 0)
        stages: dict[int, int] = {}
        for part in parts_of(graph, reads):
            if part.graph.n:
                found = (choose(part) if len(part.types) > 1 else by_depth)(part.graph)
                total += found._replace(stages=0)
                stages[part.rank] = max(stages.get(part.rank, 0), found.stages)
        return total._replace(stages=sum(stages.values()))

    return run


AS_IS: dict[str, Run] = {"depth": by_depth, "agenda": by("agenda"), "sinks-last": within(lambda part: by_depth)}
"""Policies with one form only."""

PER_COMPONENT: dict[str, Run] = {"sufficient": by("sufficient"), "critical": by("critical")}
"""Policies that apply to the whole graph or within components."""


class Learner:
    """Machines of whole graphs and of components, learned from one graph.

    Args:
        graph: the graph to learn from.
        settings: settings for learning, except for the encoding.

    Attributes:
        learned: machines by (encoding, types); () as types stands for the whole graph.
    """

    def __init__(self, graph: TypedGraph, settings: LearningSettings | None = None) -> None:
        self._graph = graph
        self._settings = LearningSettings() if settings is None else settings
        self.learned: dict[tuple[Encoding, tuple[int, ...]], Learned] = {}

    def find(self, encoding: Encoding, types: tuple[int, ...] = ()) -> Learned:
        """Return the machine of a component, or of the whole graph."""
        key = encoding, types
        if key not in self.learned:
            graph = restricted(self._graph, types) if types else self._graph
            self.learned[key] = learn(graph, replace(self._settings, encoding=encoding))
        return self.learned[key]

    def whole(self, encoding: Encoding) -> Run:
        """Return the policy of a machine for the whole graph."""
        return lambda graph: by_machine(self.find(encoding))(graph)

    def parts(self, encoding: Encoding) -> Run:
        """Return the policy that uses a machine for each component."""
        return within(lambda part: by_machine(self.find(encoding, part.types)), self._graph)


def encodings() -> dict[str, Encoding]:
    """Return encodings by policy name: `fsm-sort` and so on; `fsm-sort-phase` for ED-Batch's encodings."""
    plain = {f"fsm-{kind}": Encoding(kind) for kind in ENCODINGS}
    published = {f"fsm-{kind}-phase": Encoding(kind, PHASES) for kind in ("base", "max", "sort")}
    return plain | published
