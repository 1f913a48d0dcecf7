"""Batches the primitives inside a cell: the static subgraph of ED-Batch (section 3), batched like a graph of vertices.

Primitives of one type (operation, attributes, shapes, per list element or not) may run as one operation. A batching
policy decides which of them do, as for the vertices of a graph. A cell is small and traced once, so two policies are
tried, and the caller takes the one that suits the memory best (passes/cell_layout.py). `depth` goes level by level.
`search` looks for a short sequence of batches, breadth first over the next types. It replaces ED-Batch's grid search
(section 5.3), which the paper does not describe further. (Policies `agenda` and `sufficient` find nothing better for
the cells of ED-Batch and the zoo.)
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

WIDTH = 8  # beam width of the search: sets of executed primitives that are followed at a time

Batch = tuple[int, ...]


class Primitives:
    """The live operations of a cell as a graph with types. Products have the same type only if they multiply the same
    vector, as a product with stacked matrices does; in ED-Batch, products with equal shapes have the same type.

    Attributes:
        nodes: nodes of the primitives in the cell.
        type_of: type of each primitive, by node.
    """

    def __init__(self, cell: TracedCell) -> None:
        live = live_nodes(cell.nodes, cell.outputs)
        self.cell = cell
        self.nodes = [i for i, n in enumerate(cell.nodes) if live[i] and n.op.form not in (*OUTSIDE, *VIEWS)]
        numbers: dict[Any, int] = {}
        self.type_of = {i: numbers.setdefault(_type(cell.nodes, i), len(numbers)) for i in self.nodes}
        vertex = {i: v for v, i in enumerate(self.nodes)}
        edges = [(vertex[root(cell.nodes, j)], v) for i, v in vertex.items() for j in self.operands(i)]
        self._reads = [0] * len(self.nodes)  # vertex -> bit set of the vertices that it reads
        for producer, reader in edges:
            self._reads[reader] |= 1 << producer
        producers, readers = np.array(edges, np.int64).reshape(-1, 2).T
        self._levels: list[int] = find_levels(len(self.nodes), readers, producers).tolist()
        self._n_types = len(numbers)

    def operands(self, i: int) -> list[int]:
        """Return the operands of a primitive that other primitives compute, including views of their results."""
        nodes = self.cell.nodes
        return [j for j in nodes[i].inputs if nodes[root(nodes, j)].op.form not in OUTSIDE]

    def batchings(self) -> list[tuple[Batch, ...]]:
        """Return the different batchings by both policies, each with its batches in a valid order of execution."""
        if not self.nodes:
            return []
        by_depth, searched = self._batches(self._levels), self._searched()
        return [by_depth] if set(by_depth) == set(searched) else [by_depth, searched]

    def _batches(self, stages: Sequence[int]) -> tuple[Batch, ...]:
        """Batch the primitives of one type and stage, stage by stage."""
        found: dict[tuple[int, int], list[int]] = {}
        for i, stage in zip(self.nodes, stages, strict=True):
            found.setdefault((stage, self.type_of[i]), []).append(i)
        return tuple(tuple(found[key]) for key in sorted(found))

    def _searched(self) -> tuple[Batch, ...]:
        """Return the shortest sequence of batches that a beam search finds."""
        of_type: list[list[int]] = [[] for _ in range(self._n_types)]
        for v, i in enumerate(self.nodes):
            of_type[self.type_of[i]].append(v)
        complete, reads = (1 << len(self.nodes)) - 1, self._reads
        states: dict[int, tuple[Batch, ...]] = {0: ()}  # set of executed primitives -> their batches
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
    """Return a key that is equal for primitives that may share a batch."""
    n = nodes[i]
    shapes = tuple((nodes[j].shape, nodes[j].domain) for j in n.inputs)
    matrix = None if n.parameter is None else n.parameter.shape
    vector = n.inputs[0] if n.op.form in (Form.MATVEC, Form.PACKED_MATMUL) else -1
    return n.op.name, by_bits(n.attrs), n.shape, n.domain, shapes, matrix, vector
