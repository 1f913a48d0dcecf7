"""Batching step by step (ED-Batch, Algorithm 1): the vertices that are ready, by type, and what becomes so.

Plain loops: a batch of a mini-batch is a few dozen vertices wide, for which they cost less than calls of NumPy.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from vpps.graph.levels import ragged
from vpps.plan.policies.typed_graph import TypedGraph


class Wiring:
    """The edges of a typed graph as lists, made once for all runs over it.

    Attributes:
        type_of: of each vertex.
        readers: of each vertex, one per edge.
        waits: of each vertex, how many edges lead to it.
    """

    def __init__(self, graph: TypedGraph) -> None:
        self.graph = graph
        self.n, self.n_types = graph.n, graph.n_types
        self.type_of: list[int] = graph.type_of.tolist()
        readers: list[int] = graph.reader.tolist()
        self.readers = [readers[begin:end] for begin, end in pairwise(graph.reader_ends.tolist())]
        self.waits: list[int] = np.diff(graph.read_ends).tolist()
        self.sources = [v for v, waits in enumerate(self.waits) if not waits]


class Frontier:
    """The vertices of a graph all of whose producers have run.

    A kernel pays for barriers rather than batches: a batch is of the first stage after those of everything that it
    reads, which may be an earlier one than that of the batch before it. Vertices of its own type that are there already
    are one step with it.

    Attributes:
        ready: by type, those vertices.
        executed: how many vertices have run.
        stages: of each vertex; of those that have not run, the first one that is possible so far.
        n_stages: of those that have run.
        done: by vertex, whether it has.
        freed: the vertices that became ready with the latest batch.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.executed = self.n_stages = 0
        self.stages = [0] * wiring.n
        self.done = bytearray(wiring.n)
        self.ready: list[list[int]] = [[] for _ in range(wiring.n_types)]
        for v in wiring.sources:
            self.ready[wiring.type_of[v]].append(v)
        self.freed = wiring.sources
        self._waits = wiring.waits.copy()

    @property
    def types(self) -> list[int]:
        """The types that have a ready vertex, rising."""
        return [a for a, ready in enumerate(self.ready) if ready]

    def execute(self, a: int) -> list[int]:
        """Run all ready vertices of a type; they are the batch."""
        ready, waits, done, stages = self.ready, self._waits, self.done, self.stages
        type_of, readers = self.wiring.type_of, self.wiring.readers
        batch, ready[a] = ready[a], []
        freed: list[int] = []
        stage = max(stages[v] for v in batch)
        after = stage + 1
        for v in batch:
            done[v] = 1
            stages[v] = stage
            for reader in readers[v]:
                if stages[reader] < after:
                    stages[reader] = after
                waits[reader] -= 1
                if not waits[reader]:
                    ready[type_of[reader]].append(reader)
                    freed.append(reader)
        self.freed = freed
        self.executed += len(batch)
        self.n_stages = max(self.n_stages, after)
        return batch


class Subgraphs:
    """By type a, how many remaining vertices of it wait for no other of it: |Frontier(G^a)| of ED-Batch, 2.2.

    G^a has the vertices of type a alone, joined where a path through vertices of any type joins them. Of every vertex
    and type it is kept how many of the vertices that it reads have, or depend on, a remaining one of that type. A batch
    takes its type from what it led to and nothing else, so a whole run costs O(edges * types).

    Args:
        frontier: where it has come to.

    Attributes:
        counts: by type.
    """

    def __init__(self, frontier: Frontier) -> None:
        wiring = self._wiring = frontier.wiring
        graph, n_types = wiring.graph, wiring.n_types
        remaining = ~np.frombuffer(bytes(frontier.done), np.bool_)
        has = np.zeros((graph.n, n_types), bool)  # it is a remaining vertex of the type, or depends on one
        above = np.zeros((graph.n, n_types), np.int64)  # how many edges lead to it from such vertices
        for vertices in graph.by_level:
            sizes = graph.read_ends[vertices + 1] - graph.read_ends[vertices]
            reading, some = vertices[sizes > 0], sizes > 0
            if len(reading):
                starts = (np.cumsum(sizes) - sizes)[some]
                of_edges = has[graph.read[ragged(graph.read_ends, vertices)]].astype(np.int64)
                above[reading] = np.add.reduceat(of_edges, starts)
            has[vertices] = above[vertices] > 0
            has[vertices[remaining[vertices]], graph.type_of[vertices[remaining[vertices]]]] = True
        first = remaining & (above[np.arange(graph.n), graph.type_of] == 0)
        self.counts: list[int] = np.bincount(graph.type_of[first], minlength=n_types).tolist()
        self._above: list[list[int]] = above.T.tolist()

    def copy(self) -> Subgraphs:
        """Another one, of another run that has come as far."""
        made = object.__new__(Subgraphs)
        made._wiring, made.counts, made._above = self._wiring, self.counts.copy(), [n.copy() for n in self._above]
        return made

    def executed(self, a: int, batch: list[int]) -> None:
        """Take note of a batch."""
        above, type_of, readers = self._above[a], self._wiring.type_of, self._wiring.readers
        first = -len(batch)  # how many more vertices of the type wait for no other
        stack = batch.copy()
        while stack:
            for reader in readers[stack.pop()]:
                above[reader] -= 1
                if not above[reader]:
                    if type_of[reader] == a:
                        first += 1
                    else:
                        stack.append(reader)
        self.counts[a] += first


def nearest(frontier: Frontier, subgraphs: Subgraphs) -> int:
    """The type that maximises |Frontier_a(G)| / |Frontier(G^a)|; of equal ones the type with the most ready vertices,
    then the one of the smallest number."""
    ready, counts = frontier.ready, subgraphs.counts
    best, *others = frontier.types
    for a in others:
        own, other = len(ready[a]) * counts[best], len(ready[best]) * counts[a]  # ratios, compared exactly
        if own > other or (own == other and len(ready[a]) > len(ready[best])):
            best = a
    return best


class Ranks:
    """Which type policy `critical` (plan/policies/critical.py) prefers to which.

    What follows a vertex has not run where the vertex has not, so paths and chains that begin with it keep their
    length: it is enough to count the vertices that wait by the length of the chain of their type.

    Args:
        frontier: before anything has run.
    """

    def __init__(self, frontier: Frontier) -> None:
        wiring = frontier.wiring
        self._type_of = wiring.type_of
        self._heights, self._chains = wiring.graph.heights.tolist(), wiring.graph.chains.tolist()
        self._longest = wiring.graph.depths.copy()  # by type, the longest chain of remaining vertices
        self._waiting = [
            [0] * (depth + 1) for depth in self._longest
        ]  # vertices that are not ready, by type and length
        for a, length in zip(self._type_of, self._chains, strict=True):
            self._waiting[a][length] += 1
        self._no_longer_wait(frontier.freed)

    def copy(self) -> Ranks:
        """Another one, of another run that has come as far."""
        made = object.__new__(Ranks)
        made._type_of, made._heights, made._chains = self._type_of, self._heights, self._chains
        made._longest, made._waiting = self._longest.copy(), [n.copy() for n in self._waiting]
        return made

    def sorted(self, frontier: Frontier) -> list[int]:
        """The types that have a ready vertex, best first; of equal ones that of the smallest number."""
        return sorted(frontier.types, key=lambda a: self._key(a, frontier.ready[a]), reverse=True)

    def _key(self, a: int, ready: list[int]) -> tuple[int, bool, int, int]:
        return max(self._heights[v] for v in ready), self.shortens(a), len(ready), -a

    def shortens(self, a: int) -> bool:
        """Whether a batch of a type that has a ready vertex shortens the longest chain of the type for certain: all
        vertices that begin one of that length are ready."""
        return not self._waiting[a][self._longest[a]]

    def executed(self, a: int, freed: list[int]) -> None:
        """Take note of a batch of a type, and of the vertices that became ready with it."""
        self._longest[a] -= self.shortens(a)  # by one and no more: the next vertex of such a chain has not run
        self._no_longer_wait(freed)

    def _no_longer_wait(self, freed: list[int]) -> None:
        for v in freed:
            self._waiting[self._type_of[v]][self._chains[v]] -= 1
