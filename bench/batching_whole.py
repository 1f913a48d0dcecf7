"""Batching policies on a typed graph: on the whole of it, as published, or on each component of its types alone.

Components are types that lead to each other (vpps/planner/native/execution.h says why nothing is lost by taking them
one after the other). Of what a policy makes of a graph only numbers are of interest here: how many batches it launches,
how many stages a persistent kernel needs for them, and how many states its machine did not know.
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
"""Of the encodings that have a phase: eighths of the vertices."""


class Launched(NamedTuple):
    """What a policy makes of a graph.

    Attributes:
        batches: as they were chosen.
        stages: that a persistent kernel needs for them; a barrier ends each.
        unseen: how many choices had to be made without the machine.
    """

    batches: int
    stages: int
    unseen: int = 0

    def __add__(self, other: tuple[object, ...]) -> Launched:  # of a tuple it would append
        """One after the other."""
        assert isinstance(other, Launched)
        return Launched(self.batches + other.batches, self.stages + other.stages, self.unseen + other.unseen)


Run = Callable[[TypedGraph], Launched]


def typed(vertices: Vertices) -> TypedGraph:
    """A graph as policies see it."""
    levels = find_levels(len(vertices.type_of), vertices.readers, vertices.producers)
    return TypedGraph(vertices.type_of, levels, vertices.producers, vertices.readers, len(vertices.types))


def by(policy: str, machine: Automaton | None = None) -> Run:
    """One of vpps's policies; the machine is that of "fsm"."""

    def run(graph: TypedGraph) -> Launched:
        found = batches(graph, policy, machine)
        return Launched(len(found.sequence), found.n_stages, found.unseen)

    return run


def by_machine(learned: Learned) -> Run:
    """As a learned machine says."""
    return by("fsm", learned.automaton)


by_depth = by("depth")


class Part(NamedTuple):
    """A component.

    Attributes:
        types: of the whole graph, rising.
        graph: of the component alone; its types are numbered like them.
        recurrent: whether it reads itself.
        rank: longest path of components that lead to it.
    """

    types: tuple[int, ...]
    graph: TypedGraph
    recurrent: bool
    rank: int


def reads_of(graph: TypedGraph) -> list[set[int]]:
    """Of each type, the types that it reads."""
    reads: list[set[int]] = [set() for _ in range(graph.n_types)]
    ends = np.stack([graph.type_of[graph.readers], graph.type_of[graph.producers]])
    for reader, producer in np.unique(ends, axis=1).T.tolist():
        reads[reader].add(producer)
    return reads


def parts_of(graph: TypedGraph, reads: Sequence[set[int]] | None = None) -> Iterator[Part]:
    """The components of a graph, in an order in which they can run.

    Args:
        reads: what each type reads, in this graph and others; default: in this one.
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
    """The vertices of some types, and what they read of each other."""
    number = np.full(graph.n_types, -1)
    number[list(types)] = np.arange(len(types))
    inside = number[graph.type_of] >= 0
    place = np.cumsum(inside) - 1
    edges = inside[graph.readers] & inside[graph.producers]
    producers, readers = place[graph.producers[edges]], place[graph.readers[edges]]
    type_of = number[graph.type_of[inside]]
    return TypedGraph(type_of, find_levels(len(type_of), readers, producers), producers, readers, len(types))


def within(choose: Callable[[Part], Run], also: TypedGraph | None = None) -> Run:
    """Components of several types that lead to each other by a policy of their own, all others level by level, which
    takes as few batches as possible; components of one rank share stages.

    Args:
        also: another graph of these types: what leads to each other there is of one component here, too.
    """

    def run(graph: TypedGraph) -> Launched:
        reads = reads_of(graph)
        if also is not None:
            reads = [own | other for own, other in zip(reads, reads_of(also), strict=True)]
        total = Launched(0, 0)
        stages: dict[int, int] = {}
        for part in parts_of(graph, reads):
            if part.graph.n:
                found = (choose(part) if len(part.types) > 1 else by_depth)(part.graph)
                total += found._replace(stages=0)
                stages[part.rank] = max(stages.get(part.rank, 0), found.stages)
        return total._replace(stages=sum(stages.values()))

    return run


AS_IS: dict[str, Run] = {"depth": by_depth, "agenda": by("agenda"), "sinks-last": within(lambda part: by_depth)}
"""Policies that there are in one form."""

PER_COMPONENT: dict[str, Run] = {"sufficient": by("sufficient"), "critical": by("critical")}
"""Those that may be applied to the whole graph or within components."""


class Learner:
    """Machines of whole graphs and of components, learned from one graph.

    Args:
        graph: to learn from.
        settings: of learning, but for the encoding.

    Attributes:
        learned: by encoding and types; () for the whole graph.
    """

    def __init__(self, graph: TypedGraph, settings: LearningSettings | None = None) -> None:
        self._graph = graph
        self._settings = LearningSettings() if settings is None else settings
        self.learned: dict[tuple[Encoding, tuple[int, ...]], Learned] = {}

    def find(self, encoding: Encoding, types: tuple[int, ...] = ()) -> Learned:
        """The machine of a component, or of the whole graph."""
        key = encoding, types
        if key not in self.learned:
            graph = restricted(self._graph, types) if types else self._graph
            self.learned[key] = learn(graph, replace(self._settings, encoding=encoding))
        return self.learned[key]

    def whole(self, encoding: Encoding) -> Run:
        """A machine for the whole graph."""
        return lambda graph: by_machine(self.find(encoding))(graph)

    def parts(self, encoding: Encoding) -> Run:
        """A machine for each component."""
        return within(lambda part: by_machine(self.find(encoding, part.types)), self._graph)


def encodings() -> dict[str, Encoding]:
    """By the name of the policy: `fsm-sort` and so on; `fsm-sort-phase`, of ED-Batch's encodings."""
    plain = {f"fsm-{kind}": Encoding(kind) for kind in ENCODINGS}
    published = {f"fsm-{kind}-phase": Encoding(kind, PHASES) for kind in ("base", "max", "sort")}
    return plain | published
