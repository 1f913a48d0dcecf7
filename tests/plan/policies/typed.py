"""Typed graphs to batch: random ones, trees, the examples of ED-Batch, and the shortest sequence by search."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from vpps.plan.policies.frontier import Wiring
from vpps.plan.policies.typed_graph import TypedGraph


class Made:
    """A graph in the making: vertices are added after what they read."""

    def __init__(self) -> None:
        self.types: list[int] = []
        self.levels: list[int] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, a: int, *reads: int) -> int:
        """A vertex of a type; returns its number."""
        self.types.append(a)
        self.levels.append(max((self.levels[p] + 1 for p in reads), default=0))
        self.edges += [(p, len(self.types) - 1) for p in reads]
        return len(self.types) - 1

    def graph(self, n_types: int | None = None) -> TypedGraph:
        """What was made."""
        ends = np.array(self.edges, np.int64).reshape(-1, 2)
        types, levels = np.array(self.types, np.int64), np.array(self.levels, np.int64)
        return TypedGraph(types, levels, ends[:, 0], ends[:, 1], n_types)


@st.composite
def typed_graphs(draw: st.DrawFn, most: int = 40, most_types: int = 5) -> TypedGraph:
    """Random graphs, values that are read twice and types that do not occur included."""
    n_types = draw(st.integers(1, most_types))
    made = Made()
    for v in range(draw(st.integers(0, most))):
        reads = draw(st.lists(st.integers(0, v - 1), max_size=3)) if v else []
        made.add(draw(st.integers(0, n_types - 1)), *reads)
    return made.graph(n_types)


def only(graph: TypedGraph, kept: NDArray[np.bool_]) -> TypedGraph:
    """The kept vertices of a graph, and the edges between them."""
    number = np.cumsum(kept) - 1
    readers = np.repeat(np.arange(graph.n), np.diff(graph.read_ends))
    inside = kept[readers] & kept[graph.read]
    producers, readers = number[graph.read[inside]], number[readers[inside]]
    return TypedGraph(graph.type_of[kept], graph.levels[kept], producers, readers, graph.n_types)


INTERNAL, OUTPUT, REDUCE = 0, 1, 2


def figure_1() -> TypedGraph:
    """The tree of ED-Batch, figure 1: of four leaves, three inner vertices in a row above, an output of each, and
    reductions of the outputs one after the other."""
    made = Made()
    return _tree(made, INTERNAL, OUTPUT, ()).graph(3)


def _tree(made: Made, internal: int, output: int, below: Sequence[int]) -> Made:
    """A tree that leans to one side; leaves read what is `below`."""
    leaves = [made.add(internal, *below) for _ in range(4)]
    inner = [leaves[0]]
    for leaf in leaves[1:]:
        inner.append(made.add(internal, inner[-1], leaf))
    outputs = [made.add(output, v) for v in leaves + inner[1:]]
    made.add(REDUCE, *outputs)
    return made


def shortest(graph: TypedGraph) -> int:
    """The least number of batches: breadth first over all that may have run."""
    wiring = Wiring(graph)
    start = frozenset[int]()
    todo, found = deque([(start, 0)]), {start}
    while todo:
        done, batches = todo.popleft()
        if len(done) == graph.n:
            return batches
        ready: dict[int, set[int]] = {}
        for v in range(graph.n):
            if v not in done and all(p in done for p in graph.read_by(v)):
                ready.setdefault(wiring.type_of[v], set()).add(v)
        for batch in ready.values():
            after = done | batch
            if after not in found:
                found.add(after)
                todo.append((after, batches + 1))
    raise AssertionError("a cycle")


def swapped_trees() -> TypedGraph:
    """ED-Batch, A.4: a tree as of figure 1, and above it one in which inner vertices and outputs have each other's
    type."""
    made = _tree(Made(), INTERNAL, OUTPUT, ())
    return _tree(made, OUTPUT, INTERNAL, (len(made.types) - 1,)).graph(3)


def lattice(rng: np.random.Generator, sentences: int, length: int, ends: int = 2) -> TypedGraph:
    """Sentences of characters (type 0) and words over several of them (1), which those at which they end read (of type
    `ends`)."""
    made = Made()
    for _ in range(sentences):
        characters = [made.add(0)]
        for at in range(1, int(rng.integers(length // 2, length + 1))):
            begins = [k for k in range(max(0, at - 4), at) if rng.random() < 0.3]
            words = [made.add(1, characters[k]) for k in begins]
            characters.append(made.add(ends if words else 0, characters[-1], *words))
    return made.graph(3)
