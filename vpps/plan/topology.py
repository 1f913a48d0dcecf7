"""A graph as flat arrays: what its vertices read, and what of them something depends on."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpps.graph.arrays import BlockArrays, Ints
from vpps.graph.graph import Graph
from vpps.graph.levels import ragged
from vpps.graph.trace import TracedCell
from vpps.plan.recurrence import Recurrence


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

    def leave_out(self, block: int, unread: Collection[int], cell: TracedCell) -> None:
        """Let a block have no values for some outputs, which nothing reads; `cell` has the others only."""
        arrays = self.blocks[block]
        kept = [k for k in range(len(arrays.values)) if k not in unread]
        arrays.cell, arrays.values = cell, [arrays.values[k] for k in kept]
        for kind, (number, k) in enumerate(self.outputs):
            if number == block:
                self.outputs[kind] = block, kept.index(k) if k in kept else -1

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

    @property
    def value_block(self) -> Ints:
        """Number of the block that produces each value."""
        found: Ints = np.array([number for number, _ in self.outputs], np.int64)[self.value_output]
        return found

    def reaching(self, values: Ints) -> NDArray[np.bool_]:
        """By recording index: whether any of the given values depends on the vertex."""
        needed = np.zeros(self.n_calls, bool)
        needed[self.value_call[values]] = True
        by_level: dict[int, list[tuple[BlockArrays, Ints]]] = {}
        for b in self.blocks:
            order = np.argsort(b.levels, kind="stable")
            levels, starts = np.unique(b.levels[order], return_index=True)
            for level, rows in zip(levels.tolist(), np.split(order, starts[1:]), strict=True):
                by_level.setdefault(level, []).append((b, rows))
        for level in sorted(by_level, reverse=True):
            for b, rows in by_level[level]:
                live = rows[needed[b.calls[rows]]]
                if not len(live):
                    continue
                needed[self.value_call[b.args[live].reshape(-1)]] = True
                for xs in b.lists:
                    needed[self.value_call[xs.elements[ragged(xs.ends, live)]]] = True
        return needed

    def all_reach(self, value: int) -> bool:
        """Whether every vertex leads to one value: no other vertex is left without a reader."""
        used = np.zeros(self.n_calls, bool)
        used[self.value_call[value]] = True
        for b in self.blocks:
            for _, values in b.operands():
                used[self.value_call[values]] = True
        return bool(used.all())
