"""A graph as flat arrays: what its vertices read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vpps.record.arrays import BlockArrays, Ints
from vpps.record.recurrence import Recurrence

if TYPE_CHECKING:
    from vpps.graph.graph import Graph


class Topology:
    """All blocks of a graph, or of its first so many calls.

    Attributes:
        blocks: in the order of first use.
        outputs: (block, output) of each kind of value that vertices produce, numbered.
        value_output: which of those each value is.
        value_call: recording index of the vertex that produces each value.
    """

    def __init__(self, graph: Graph, calls: int | None = None) -> None:
        self.blocks = [BlockArrays(b) for b in graph.blocks.values()]
        self.n_calls = graph.n_calls
        n_values = graph.n_values
        if calls is not None and calls < graph.n_calls:
            self.n_calls = calls
            for b in self.blocks:
                b.keep(int(b.calls.searchsorted(calls)))
            self.blocks = [b for b in self.blocks if len(b.calls)]
            n_values = 1 + max(int(ids.max()) for b in self.blocks for ids in b.values)
        self.n_values = n_values
        self.outputs: list[tuple[int, int]] = []
        self.value_output: Ints = np.zeros(n_values, np.int64)
        self.value_call: Ints = np.zeros(n_values, np.int64)
        for number, b in enumerate(self.blocks):
            for k, values in enumerate(b.values):
                self.value_output[values] = len(self.outputs)
                self.value_call[values] = b.calls
                self.outputs.append((number, k))

    @cached_property
    def recurrence(self) -> Recurrence:
        """Which blocks read which, and in cycles."""
        reads: list[list[set[int]]] = []
        for b in self.blocks:
            of_block = []
            for _, values in b.operands():
                found = self.value_output[values]
                # A set of few is quicker than sorting, counting many is quicker than either.
                of_block.append(
                    set(found.tolist() if len(found) < 256 else np.flatnonzero(np.bincount(found)).tolist())
                )
            reads.append(of_block)
        return Recurrence(reads, self.outputs)
