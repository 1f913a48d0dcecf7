"""Batches of primitives inside a cell: the static subgraph of ED-Batch (section 3), batched like a graph of vertices.

Primitives of one type - operation, attributes, shapes, list elements or not - may run as one operation. Which of them
do is for a batching policy to say, as it does for the vertices of a graph; a cell is small and traced once, so two are
tried and the caller takes what suits the memory best (passes/cell_layout.py). `depth` goes level by level; `search`
finds a sequence of few batches: breadth first over the types that may be next, in the place of ED-Batch's grid search
(section 5.3), of which the paper says no more than that. (Policies `agenda` and `sufficient` find nothing better in
ED-Batch's cells, nor in those of the zoo.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vpps.compiler.passes.common_subexpressions import by_bits
from vpps.compiler.prepare import OUTSIDE, VIEWS, live_nodes, root
from vpps.ops import Form
from vpps.record.levels import find_levels
from vpps.record.trace import Node, TracedCell

WIDTH = 8  # of the search: how many sets of executed primitives are followed at a time

Batch = tuple[int, ...]


class Primitives:
    """The operations of a cell that results depend on, as a graph with types. Products are of one type only if they
    multiply the same vector, as a product with stacked matrices does; in ED-Batch any products of equal shapes are.

    Attributes:
        nodes: those of the cell.
        type_of: of each, by node.
    """

    def __init__(self, cell: TracedCell) -> None:
        live = live_nodes(cell.nodes, cell.outputs)
        self.cell = cell
        self.nodes = [i for i, n in enumerate(cell.nodes) if live[i] and n.op.form not in (*OUTSIDE, *VIEWS)]
        numbers: dict[Any, int] = {}
        self.type_of = {i: numbers.setdefault(_type(cell.nodes, i), len(numbers)) for i in self.nodes}
        vertex = {i: v for v, i in enumerate(self.nodes)}
        edges = [(vertex[root(cell.nodes, j)], v) for i, v in vertex.items() for j in self.operands(i)]
        self._reads = [0] * len(self.nodes)  # of each vertex, a set of bits
        for producer, reader in edges:
            self._reads[reader] |= 1 << producer
        producers, readers = np.array(edges, np.int64).reshape(-1, 2).T
        self._levels: list[int] = find_levels(len(self.nodes), readers, producers).tolist()
        self._n_types = len(numbers)

    def operands(self, i: int) -> list[int]:
        """Nodes that a primitive reads and others compute, perhaps as a part of what they compute."""
        nodes = self.cell.nodes
        return [j for j in nodes[i].inputs if nodes[root(nodes, j)].op.form not in OUTSIDE]

    def batchings(self) -> list[tuple[Batch, ...]]:
        """What both make of the cell, each batching once: batches in an order in which they can run."""
        if not self.nodes:
            return []
        by_depth, searched = self._batches(self._levels), self._searched()
        return [by_depth] if set(by_depth) == set(searched) else [by_depth, searched]

    def _batches(self, stages: Sequence[int]) -> tuple[Batch, ...]:
        """Primitives of one type and stage together, stage by stage."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, stage in zip(self.nodes, stages, strict=True):
            found.setdefault((stage, self.type_of[i]), []).append(i)
        return tuple(tuple(found[key]) for key in sorted(found))

    def _searched(self) -> tuple[Batch, ...]:
        """A sequence with the fewest batches of those that a search of limited width meets."""
        of_type: list[list[int]] = [[] for _ in range(self._n_types)]
        for v, i in enumerate(self.nodes):
            of_type[self.type_of[i]].append(v)
        complete, reads = (1 << len(self.nodes)) - 1, self._reads
        states: dict[int, tuple[Batch, ...]] = {0: ()}  # by what has run, the batches that came first
        while complete not in states:
            after: dict[int, tuple[Batch, ...]] = {}
            for done, batches in states.items():
                for vertices in of_type:
                    batch = tuple(v for v in vertices if not done >> v & 1 and not reads[v] & ~done)
                    if batch:
                        after.setdefault(done | sum(1 << v for v in batch), (*batches, batch))
            furthest = sorted(after, key=int.bit_count, reverse=True)[:WIDTH]
            states = {done: after[done] for done in furthest}
        return tuple(tuple(self.nodes[v] for v in batch) for batch in states[complete])


def _type(nodes: Sequence[Node], i: int) -> Any:
    """Equal for primitives that may be of one batch."""
    n = nodes[i]
    shapes = tuple((nodes[j].shape, nodes[j].domain) for j in n.inputs)
    matrix = None if n.parameter is None else n.parameter.shape
    vector = n.inputs[0] if n.op.form in (Form.MATVEC, Form.PACKED_MATMUL) else -1
    return n.op.name, by_bits(n.attrs), n.shape, n.domain, shapes, matrix, vector
