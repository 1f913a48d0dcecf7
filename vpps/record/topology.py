"""A graph as flat arrays: its vertices' operands, and the cells that read from each other, including cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vpps.record.arrays import BlockArrays, Ints

if TYPE_CHECKING:
    from vpps.graph.graph import Graph


class Topology:
    """All blocks of a graph, or of its first `calls` calls.

    Attributes:
        blocks: in the order of first use.
        outputs: (block, output) for each kind of value that vertices produce, numbered.
        value_output: each value's index in `outputs`.
        value_call: recording index of each value's producer.
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

    @property
    def recurrences(self) -> list[list[int]]:
        """The blocks of each recurrence with several blocks, which read from each other, directly or not."""
        block_of_value = np.array([number for number, _ in self.outputs], np.int64)[self.value_output]
        reads = [
            {block for _, values in b.operands() for block in np.unique(block_of_value[values]).tolist()}
            for b in self.blocks
        ]
        members: dict[int, list[int]] = {}
        for block, component in enumerate(strongly_connected(reads)):
            members.setdefault(component, []).append(block)
        return [found for found in members.values() if len(found) > 1]


def strongly_connected(reads: list[set[int]]) -> list[int]:
    """Return each node's component in a small graph, numbered so that sources never come later (Tarjan 1972)."""
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
