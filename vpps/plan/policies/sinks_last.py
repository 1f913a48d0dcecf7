"""Policy `sinks-last`: recurrences level by level, what they wait for before, what nothing recurrent waits for after.

Components of cells (plan/policies/batching.py) are ranked by the longest path in the graph of "reads from", cycles
contracted. The vertices of a cell that is on no cycle are one stage; those of a cycle have stages of their own, one per
level within the cycle. On trees and chains this launches as few batches as possible, with no more levels than
`depth`. Recurrences of one rank share stages: they do not read each other.
"""

from __future__ import annotations

import numpy as np

from vpps.graph.arrays import Ints
from vpps.graph.levels import ragged
from vpps.plan.policies.policy import LoadOf, Policy
from vpps.plan.topology import Topology


class SinksLast(Policy):
    """Level by level within recurrences. Subclasses run those of several cells in another order."""

    name = "sinks-last"
    at_once = True

    def stages(self, topology: Topology, load_of: LoadOf) -> list[Ints]:
        """See Policy."""
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
                members = found.members(c)
                alone = len(members) == 1
                within = levels_within(topology, members) if alone else self.within(topology, members, load_of)
                for number, stages in zip(members, within, strict=True):
                    local[number] = stages
        # Stages of one rank follow each other; all of them precede the next rank.
        depth = max((int(x.max()) + 1 for x in local if len(x)), default=1)
        return [rank[found.component[n]] * depth + local[n] for n in range(len(blocks))]

    def within(self, topology: Topology, members: list[int], load_of: LoadOf) -> list[Ints]:
        """Stages of the vertices of a recurrence of several cells, by block, from 0, none of them empty.

        Args:
            members: numbers of its blocks, rising.
            load_of: see Policy.
        """
        return levels_within(topology, members)


def levels_within(topology: Topology, members: list[int]) -> list[Ints]:
    """Longest distance of each vertex of the member blocks from the first of its kind, counting members only."""
    value_level = np.full(topology.n_values, -1, np.int64)
    local = {number: np.zeros(len(topology.blocks[number].calls), np.int64) for number in members}
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
    return list(local.values())
