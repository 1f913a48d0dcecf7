"""A graph as batching policies see it: vertices of a few types, and who reads whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from vpps.graph.arrays import Ints
from vpps.graph.levels import ragged
from vpps.plan.topology import Topology


class TypedGraph:
    """Vertices, each of a type, and an edge for every value that one computes and another reads.

    Args:
        type_of: (n,) type of each vertex, from 0.
        levels: (n,) of each vertex, above those of all that it reads; its depth where a policy asks for that.
        producers, readers: (edges,) the two ends of every edge; one that passes twice counts twice.
        n_types: types that there are; default: as many as occur.

    Attributes:
        n: vertices.
        read_ends, read: what vertex v reads is `read[read_ends[v] : read_ends[v + 1]]`.
        reader_ends, reader: who reads it, likewise.
    """

    def __init__(self, type_of: Ints, levels: Ints, producers: Ints, readers: Ints, n_types: int | None = None) -> None:
        self.n = len(type_of)
        self.type_of, self.levels = type_of, levels
        self.n_types = int(type_of.max(initial=-1)) + 1 if n_types is None else n_types
        self.read_ends, self.read = _rows(self.n, readers, producers)
        self.reader_ends, self.reader = _rows(self.n, producers, readers)

    @classmethod
    def of(cls, topology: Topology, members: Sequence[int] | None = None) -> TypedGraph:
        """The vertices of some blocks of a graph, and what they read of each other.

        Args:
            members: numbers of the blocks; the first one is type 0, and so on. Default: all, in order.

        Vertices are numbered block after block.
        """
        numbers = range(len(topology.blocks)) if members is None else members
        blocks = [topology.blocks[number] for number in numbers]
        sizes = [len(b.calls) for b in blocks]
        firsts = np.cumsum([0, *sizes])
        vertex_of = np.full(topology.n_values, -1, np.int64)  # that produces a value
        for first, b in zip(firsts, blocks, strict=False):
            for values in b.values:
                vertex_of[values] = np.arange(first, first + len(values))
        producers, readers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for first, b in zip(firsts, blocks, strict=False):
            for rows, values in b.operands():
                producer = vertex_of[values]
                inside = producer >= 0
                producers.append(producer[inside])
                readers.append(first + rows[inside])
        type_of = np.repeat(np.arange(len(blocks)), sizes)
        levels = np.concatenate([np.zeros(0, np.int64), *(b.levels for b in blocks)])
        return cls(type_of, levels, np.concatenate(producers), np.concatenate(readers), len(blocks))

    def read_by(self, v: int) -> list[int]:
        """What a vertex reads."""
        found: list[int] = self.read[self.read_ends[v] : self.read_ends[v + 1]].tolist()
        return found

    @cached_property
    def by_level(self) -> list[Ints]:
        """The vertices of each level that has any, lowest first: what a vertex reads is of earlier ones."""
        order = np.argsort(self.levels, kind="stable")
        starts = np.flatnonzero(np.diff(self.levels[order], prepend=-1))
        return np.split(order, starts[1:]) if self.n else []

    @property
    def heights(self) -> Ints:
        """(n,) of each vertex, how many vertices lie on the longest path that begins with it."""
        return self._of_paths[0]

    @property
    def chains(self) -> Ints:
        """(n,) of each vertex, the most vertices of its type that lie on one path that begins with it, through whatever
        other types."""
        return self._of_paths[1]

    @cached_property
    def _of_paths(self) -> tuple[Ints, Ints]:
        most = np.zeros(
            (self.n, self.n_types + 1), np.int64
        )  # on a path that begins with a vertex: by type, of all types
        for vertices in reversed(self.by_level):
            positions = ragged(self.reader_ends, vertices)
            if len(positions):
                sizes = self.reader_ends[vertices + 1] - self.reader_ends[vertices]
                starts = (np.cumsum(sizes) - sizes)[sizes > 0]
                most[vertices[sizes > 0]] = np.maximum.reduceat(most[self.reader[positions]], starts)
            most[vertices, self.type_of[vertices]] += 1
            most[vertices, -1] += 1
        return most[:, -1], most[np.arange(self.n), self.type_of]

    @cached_property
    def depths(self) -> list[int]:
        """By type, the most vertices of it that lie on one path, each of another batch: Depth(G_t) of ED-Batch, A.3."""
        found = np.zeros(self.n_types, np.int64)
        np.maximum.at(found, self.type_of, self.chains)
        depths: list[int] = found.tolist()
        return depths

    @property
    def lower_bound(self) -> int:
        """No sequence of batches is shorter (ED-Batch, A.3)."""
        return sum(self.depths)


def _rows(n: int, of: Ints, entries: Ints) -> tuple[Ints, Ints]:
    """Ends (n + 1,) and entries of a CSR structure, given as pairs."""
    ends = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(of, minlength=n), out=ends[1:])
    return ends, entries[np.argsort(of, kind="stable")]
