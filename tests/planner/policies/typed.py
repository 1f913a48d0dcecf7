"""Typed graphs to batch: random graphs, trees, ED-Batch's examples; policies written from their definitions, and the
shortest sequence by search."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from vpps.model.learned_policy import Automaton
from vpps.planner.native.typed_graphs import TypedGraph


class GraphBuilder:
    """Builds a graph: vertices are added after their producers."""

    def __init__(self) -> None:
        self.types: list[int] = []
        self.levels: list[int] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, a: int, *reads: int) -> int:
        """Add a vertex of a type; returns the vertex's number."""
        self.types.append(a)
        self.levels.append(max((self.levels[p] + 1 for p in reads), default=0))
        self.edges += [(p, len(self.types) - 1) for p in reads]
        return len(self.types) - 1

    def graph(self, n_types: int | None = None) -> TypedGraph:
        """Return the finished graph."""
        ends = np.array(self.edges, np.int64).reshape(-1, 2)
        types, levels = np.array(self.types, np.int64), np.array(self.levels, np.int64)
        return TypedGraph(types, levels, ends[:, 0], ends[:, 1], n_types)


@st.composite
def typed_graphs(draw: st.DrawFn, most: int = 40, most_types: int = 5) -> TypedGraph:
    """Draw random graphs, including values that are read twice and types that do not occur."""
    n_types = draw(st.integers(1, most_types))
    made = GraphBuilder()
    for v in range(draw(st.integers(0, most))):
        reads = draw(st.lists(st.integers(0, v - 1), max_size=3)) if v else []
        made.add(draw(st.integers(0, n_types - 1)), *reads)
    return made.graph(n_types)


INTERNAL, OUTPUT, REDUCE = 0, 1, 2


def figure_1() -> TypedGraph:
    """Return the tree of ED-Batch, figure 1: four leaves, a chain of three inner vertices above them, an output of each
    inner vertex, and a chain of reductions of the outputs."""
    made = GraphBuilder()
    leaves = [made.add(INTERNAL) for _ in range(4)]
    inner = [leaves[0]]
    for leaf in leaves[1:]:
        inner.append(made.add(INTERNAL, inner[-1], leaf))
    made.add(REDUCE, *(made.add(OUTPUT, v) for v in leaves + inner[1:]))
    return made.graph(3)


Ready = dict[int, list[int]]
"""Vertices whose producers have all run, by type; only types with such vertices."""


class Remaining:
    """A graph's vertices that have not run, by slow definitions.

    Attributes:
        reads: producers of each vertex.
        types: type of each vertex.
        left: vertices that have not run.
        stages: stages of the vertices that have run.
    """

    def __init__(self, graph: TypedGraph) -> None:
        self.graph = graph
        self.reads: list[list[int]] = [[] for _ in range(graph.n)]
        for producer, reader in zip(graph.producers.tolist(), graph.readers.tolist(), strict=True):
            self.reads[reader].append(producer)
        self.types: list[int] = graph.type_of.tolist()
        self.left = frozenset(range(graph.n))
        self.stages = [0] * graph.n

    def ready(self) -> Ready:
        """Return the vertices that may run next."""
        found: Ready = {}
        for v in sorted(self.left):
            if self.left.isdisjoint(self.reads[v]):
                found.setdefault(self.types[v], []).append(v)
        return found

    def execute(self, batch: Iterable[int]) -> None:
        """Run vertices, each in the first stage after the stages of all its producers."""
        batch = list(batch)
        stage = max((self.stages[p] + 1 for v in batch for p in self.reads[v]), default=0)
        for v in batch:
            self.stages[v] = stage
        self.left -= set(batch)

    def chains(self, a: int | None = None, without: Iterable[int] = ()) -> dict[int, int]:
        """Return, for each remaining vertex, the most vertices of a type, or of all types, on a path from it."""
        found = dict.fromkeys(self.left.difference(without), 0)
        for v in sorted(found, reverse=True):  # vertices come after their producers
            found[v] += a in (None, self.types[v])
            for p in self.reads[v]:
                if p in found:
                    found[p] = max(found[p], found[v])
        return found

    def depth(self, a: int, without: Iterable[int] = ()) -> int:
        """Return the most remaining vertices of a type on one path."""
        return max(self.chains(a, without).values(), default=0)

    def could_be_first(self, a: int) -> int:
        """Return the number of remaining vertices of a type that depend on no other remaining vertex of that type."""
        below: set[int] = set()
        count = 0
        for v in sorted(self.left):
            above = any(p in below or (p in self.left and self.types[p] == a) for p in self.reads[v])
            count += self.types[v] == a and not above
            if above:
                below.add(v)
        return count


def batched(graph: TypedGraph, choose: Callable[[Remaining, Ready], int]) -> tuple[list[int], list[int]]:
    """Return the batches' types and the vertices' stages, if `choose` returns the next type."""
    remaining, sequence = Remaining(graph), []
    while remaining.left:
        ready = remaining.ready()
        sequence.append(choose(remaining, ready))
        remaining.execute(ready[sequence[-1]])
    return sequence, remaining.stages


def _mean_level(remaining: Remaining, ready: Ready, a: int) -> Any:
    levels = [int(remaining.graph.levels[v]) for v in remaining.left if remaining.types[v] == a]
    return -Fraction(sum(levels), len(levels))


def _share(remaining: Remaining, ready: Ready, a: int) -> Any:
    return Fraction(len(ready[a]), remaining.could_be_first(a)), len(ready[a])


def _longest_path(remaining: Remaining, ready: Ready, a: int) -> Any:
    heights = remaining.chains()
    shortens = remaining.depth(a, without=ready[a]) < remaining.depth(a)
    return max(heights[v] for v in ready[a]), shortens, len(ready[a])


PREFERENCES: dict[str, Callable[[Remaining, Ready, int], Any]] = {
    "agenda": _mean_level, "sufficient": _share, "critical": _longest_path,
}  # fmt: skip
"""The value that each policy maximises; ties go to the smallest type."""


def ranked(policy: str, remaining: Remaining, ready: Ready) -> list[int]:
    """Return the types that can be next, best first."""
    return sorted(sorted(ready), key=lambda a: PREFERENCES[policy](remaining, ready, a), reverse=True)


def by_definition(graph: TypedGraph, policy: str) -> tuple[list[int], list[int]]:
    """Return the batches into which a policy divides a graph."""
    return batched(graph, lambda remaining, ready: ranked(policy, remaining, ready)[0])


def by_machine(graph: TypedGraph, machine: Automaton) -> tuple[list[int], list[int], int]:
    """Return the batches of policy `fsm`, and the number of states that the machine does not know."""
    kind, unseen = machine.encoding.kind, 0
    table = {tuple(state): chosen for *state, chosen in machine.states}

    def choose(remaining: Remaining, ready: Ready) -> int:
        nonlocal unseen
        types = sorted(ready)
        if kind == "critical":
            types = ranked("critical", remaining, ready)
        elif kind == "sort":
            types.sort(key=lambda a: -len(ready[a]))
        elif kind == "max" and len(types) > 1:
            types.append(max(types, key=lambda a: len(ready[a])))
        phase = (graph.n - len(remaining.left)) * machine.encoding.phases // graph.n
        found = table.get((phase, *types))
        unseen += found is None
        otherwise = "critical" if kind == "critical" else "sufficient"
        return ranked(otherwise, remaining, ready)[0] if found is None else found

    return *batched(graph, choose), unseen


def shortest(graph: TypedGraph) -> int:
    """Return the least number of batches, by breadth-first search over all sets of executed vertices."""
    remaining = Remaining(graph)
    todo, found = deque([(remaining.left, 0)]), {remaining.left}
    while todo:
        remaining.left, batches = todo.popleft()
        if not remaining.left:
            return batches
        for batch in remaining.ready().values():
            after = remaining.left.difference(batch)
            if after not in found:
                found.add(after)
                todo.append((after, batches + 1))
    raise AssertionError("a cycle")


def lattice(rng: np.random.Generator, sentences: int, length: int, ends: int = 2) -> TypedGraph:
    """Return sentences of characters (type 0) and words over several of them (1). Words are read through their last
    vertices, of type `ends`."""
    made = GraphBuilder()
    for _ in range(sentences):
        characters = [made.add(0)]
        for at in range(1, int(rng.integers(length // 2, length + 1))):
            begins = [k for k in range(max(0, at - 4), at) if rng.random() < 0.3]
            words = [made.add(1, characters[k]) for k in begins]
            characters.append(made.add(ends if words else 0, characters[-1], *words))
    return made.graph(3)
