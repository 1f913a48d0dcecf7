"""A graph as batching policies see it: vertices of a few types, and who reads whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpps.record.arrays import Ints
from vpps.record.topology import Topology


class TypedGraph:
    """Vertices, each of a type, and an edge for every value that one computes and another reads.

    Args:
        type_of: (n,) type of each vertex, from 0.
        levels: (n,) of each vertex, above those of all that it reads; its depth where a policy asks for that.
        producers, readers: (edges,) the two ends of every edge; one that passes twice counts twice.
        n_types: types that there are; default: as many as occur.

    Attributes:
        n: vertices.
    """

    def __init__(self, type_of: Ints, levels: Ints, producers: Ints, readers: Ints, n_types: int | None = None) -> None:
        self.n = len(type_of)
        self.type_of, self.levels = type_of, levels
        self.producers, self.readers = producers, readers
        self.n_types = int(type_of.max(initial=-1)) + 1 if n_types is None else n_types

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
