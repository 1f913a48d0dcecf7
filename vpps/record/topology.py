"""A graph as flat arrays: what its vertices read, and which cells read from each other, in cycles too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vpps.record.arrays import BlockArrays, Ints

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
        self.n_calls, self.n_values = graph.n_calls, graph.n_values
        if calls is not None and calls < graph.n_calls:
            self.n_calls = calls
            self.blocks = [b for b in (BlockArrays(b, calls) for b in graph.blocks.values()) if len(b.calls)]
            self.n_values = 1 + max(int(ids.max()) for b in self.blocks for ids in b.values)
        else:
            self.blocks = [BlockArrays(b) for b in graph.blocks.values()]
        self.outputs: list[tuple[int, int]] = []
        self.value_output: Ints = np.zeros(self.n_values, np.int64)
        self.value_call: Ints = np.zeros(self.n_values, np.int64)
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


class Recurrence:
    """What the blocks of a graph read.

    Args:
        operands: by block, for each of its operands in turn, which kinds of values are passed as it.
        outputs: (block, output) of each kind of value.

    Attributes:
        reads: by block, the blocks that it reads.
        component: of each block; blocks that read from each other, directly or not, are of one. Numbered so that what a
            component reads never comes later.
        recurrent: of each component, whether it reads itself.
    """

    def __init__(self, operands: Sequence[Sequence[set[int]]], outputs: Sequence[tuple[int, int]]) -> None:
        self._operands = operands
        self._outputs = outputs
        self.reads = [{outputs[v][0] for read in of_block for v in read} for of_block in operands]
        self.component = strongly_connected(self.reads)
        self.recurrent = [False] * (max(self.component, default=-1) + 1)
        for block, sources in enumerate(self.reads):
            if any(self.component[s] == self.component[block] for s in sources):
                self.recurrent[self.component[block]] = True

    @property
    def read(self) -> set[int]:
        """The kinds of values that are passed to anything."""
        return set().union(*(read for of_block in self._operands for read in of_block))

    @property
    def shared(self) -> list[list[int]]:
        """The blocks of each recurrence that several have in common."""
        found = [self.members(c) for c, recurrent in enumerate(self.recurrent) if recurrent]
        return [members for members in found if len(members) > 1]

    def members(self, component: int) -> list[int]:
        """The blocks of a component."""
        return [block for block, c in enumerate(self.component) if c == component]

    def gathered(self, block: int) -> list[int]:
        """Which operands of a block are passed values of its own component."""
        own = set(self.members(self.component[block]))
        reads = enumerate(self._operands[block])
        return [k for k, read in reads if any(self._outputs[v][0] in own for v in read)]

    def scattered(self, block: int) -> set[int]:
        """Which outputs of a block are passed to blocks of its own component."""
        readers = self.members(self.component[block])
        passed = set().union(*(read for reader in readers for read in self._operands[reader]))
        return {self._outputs[v][1] for v in passed if self._outputs[v][0] == block}


def strongly_connected(reads: list[set[int]]) -> list[int]:
    """Component of each node of a small graph, numbered so that a node's sources never come later (Tarjan 1972)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    component = [-1] * len(reads)
    n_components = 0
    for root in range(len(reads)):
        work = [(root, iter(sorted(reads[root])))] if root not in index else []
        while work:
            node, sources = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            for s in sources:
                if s not in index:
                    work.append((s, iter(sorted(reads[s]))))
                    break
                if component[s] < 0:
                    low[node] = min(low[node], index[s])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    while component[node] < 0:
                        component[stack.pop()] = n_components
                    n_components += 1
    return component
