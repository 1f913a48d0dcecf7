"""A graph as flat arrays, and the order in which its vertices run: levels, ranks, stages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
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


# ---- policies: the stage of every vertex


def stages_by_depth(topology: Topology) -> list[Ints]:
    """Policy `depth`: a stage per level, the longest distance from a leaf."""
    return [b.levels for b in topology.blocks]


def stages_sinks_last(topology: Topology) -> list[Ints]:
    """Policy `sinks-last`: recurrent cells as soon as possible, level by level; what they wait for, all of it, before;
    what nothing recurrent waits for, all of it, after.

    Cells are ranked by the longest path in the graph of "reads from" between cells, cycles contracted. The vertices of
    a cell that is on no cycle are one stage; those of a cycle have one stage per level within the cycle. On trees and
    chains this launches as few batches as possible, with no more levels than `depth`.
    """
    blocks, found = topology.blocks, topology.recurrence
    n_components = len(found.recurrent)
    rank = [0] * n_components
    for c in range(n_components):  # components come in topological order: producers first
        for number, sources in enumerate(found.reads):
            if found.component[number] == c:
                before = [rank[found.component[s]] for s in sources if found.component[s] != c]
                rank[c] = max([rank[c], *(r + 1 for r in before)])
    local = [np.zeros(len(b.calls), np.int64) for b in blocks]
    for c in range(n_components):
        if found.recurrent[c]:
            _levels_within(topology, found.members(c), local)
    # Stages of one rank follow each other by level; all of them precede the next rank.
    depth = max((int(x.max()) + 1 for x in local if len(x)), default=1)
    return [rank[found.component[n]] * depth + local[n] for n in range(len(blocks))]


def _levels_within(topology: Topology, members: list[int], local: list[Ints]) -> None:
    """Longest distance of each vertex of the member blocks from the first of its kind, counting members only."""
    inside = np.zeros(len(topology.blocks), bool)
    inside[members] = True
    value_level = np.full(len(topology.value_block), -1, np.int64)
    work: list[tuple[int, int, Ints]] = []
    for number in members:
        b = topology.blocks[number]
        order = np.argsort(b.levels, kind="stable")
        levels, starts = np.unique(b.levels[order], return_index=True)
        work.extend(
            (level, number, rows) for level, rows in zip(levels.tolist(), np.split(order, starts[1:]), strict=True)
        )
    for _, number, rows in sorted(work, key=lambda w: w[:2]):
        b = topology.blocks[number]
        level = np.full(len(rows), -1, np.int64)
        if b.args.shape[1]:
            level = value_level[b.args[rows]].max(axis=1)
        for xs in b.lists:
            lengths = xs.ends[rows + 1] - xs.ends[rows]
            owner = np.repeat(np.arange(len(rows)), lengths)
            np.maximum.at(level, owner, value_level[xs.elements[ragged(xs.ends, rows)]])
        level += 1
        local[number][rows] = level
        for values in b.values:
            value_level[values[rows]] = level


class Policy(NamedTuple):
    """A batching policy.

    Attributes:
        stages: gives the stage of each vertex, by block.
        at_once: eager and lazy parts of cells run in one stage each (plan/phases.py).
    """

    stages: Callable[[Topology], list[Ints]]
    at_once: bool


POLICIES = {"sinks-last": Policy(stages_sinks_last, True), "depth": Policy(stages_by_depth, False)}


def known_policy(policy: str) -> Policy:
    """The policy of a name. Raises GraphError for an unknown one."""
    try:
        return POLICIES[policy]
    except KeyError:
        raise GraphError(f"unknown policy {policy!r}; known are {', '.join(POLICIES)}") from None
