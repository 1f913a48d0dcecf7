"""One cell's vertices as arrays: bulk recording appends them to a block; the planner and the reference read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpps.record.ranges import Ints, ragged, running_sum
from vpps.values import Float32


@dataclass(slots=True)
class Lists:
    """One list argument of some vertices: vertex v's elements have value ids `elements[ends[v] : ends[v + 1]]`."""

    ends: Ints
    elements: Ints

    def of(self, rows: Ints, lengths: Ints | None = None) -> Lists:
        """Select the lists of some of the vertices; `lengths` are these lists' lengths, if known."""
        starts = self.ends.take(rows)
        if lengths is None:
            lengths = self.ends.take(rows + 1) - starts
        ends = running_sum(lengths)
        return Lists(ends, self.elements.take(ragged(starts, lengths, ends)))


@dataclass(slots=True)
class Chunk:
    """Some vertices of one cell, in recorded order.

    Attributes:
        calls: (n,) recording index (by design, independent of policy and schedule).
        first: (n,) value id of the first output; the others follow it.
        levels: (n,) longest distance from a leaf.
        args: (n, vector arguments) value ids.
        ints: (n, int arguments).
        lists: one item per list argument.
        data: (n, floats) for graph inputs; empty for all other cells.
    """

    calls: Ints
    first: Ints
    levels: Ints
    args: Ints
    ints: Ints
    lists: Sequence[Lists]
    data: Float32

    def __len__(self) -> int:
        return len(self.calls)

    def between(self, start: int, stop: int) -> Chunk:
        """Return the vertices `start` to `stop - 1`."""
        rows = slice(start, stop)
        lists = [
            Lists(xs.ends[start : stop + 1] - xs.ends[start], xs.elements[xs.ends[start] : xs.ends[stop]])
            for xs in self.lists
        ]
        data = self.data[rows] if self.data.shape[1] else NO_DATA
        return Chunk(
            self.calls[rows], self.first[rows], self.levels[rows], self.args[rows], self.ints[rows], lists, data
        )


NO_DATA: Float32 = np.zeros((0, 0), np.float32)


def merged(singles: Chunk, bulk: Sequence[tuple[int, Chunk]]) -> Chunk:
    """Merge single vertices and chunks; each chunk comes with the number of single vertices before it."""
    parts = []
    at = 0
    for place, chunk in bulk:
        parts += [singles.between(at, place), chunk]
        at = place
    parts.append(singles.between(at, len(singles)))
    parts = [part for part in parts if len(part)]
    return Chunk(
        np.concatenate([p.calls for p in parts]),
        np.concatenate([p.first for p in parts]),
        np.concatenate([p.levels for p in parts]),
        np.concatenate([p.args for p in parts]),
        np.concatenate([p.ints for p in parts]),
        [_joined([p.lists[k] for p in parts]) for k in range(len(singles.lists))],
        np.concatenate([p.data for p in parts]) if parts[0].data.shape[1] else NO_DATA,
    )


def _joined(parts: Sequence[Lists]) -> Lists:
    lengths = np.concatenate([np.diff(xs.ends) for xs in parts])
    return Lists(running_sum(lengths), np.concatenate([xs.elements for xs in parts]))
