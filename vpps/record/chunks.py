"""Vertices of one cell as arrays: what bulk recording appends to a block, and what planner and reference read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpps.values import Float32

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Lists:
    """One list argument of some vertices: the elements of vertex v are `elements[ends[v] : ends[v + 1]]`, value ids."""

    ends: Ints
    elements: Ints

    def of(self, rows: Ints, lengths: Ints | None = None) -> Lists:
        """The lists of some of the vertices, whose lengths may be known."""
        starts = self.ends.take(rows)
        if lengths is None:
            lengths = self.ends.take(rows + 1) - starts
        ends = np.zeros(len(rows) + 1, np.int64)
        lengths.cumsum(out=ends[1:])
        starts -= ends[:-1]
        places = starts.repeat(lengths)
        places += np.arange(len(places))
        return Lists(ends, self.elements.take(places))


@dataclass(slots=True)
class Chunk:
    """Some vertices of one cell, in the order in which they were recorded.

    Attributes:
        calls: (n,) recording index (design: policy, layout and schedule do not change it).
        first: (n,) value id of the first output; the others follow it.
        levels: (n,) longest distance from a leaf.
        args: (n, vector arguments) value ids.
        ints: (n, int arguments).
        lists: one per list argument.
        data: (n, floats) of graph inputs; no columns for anything else.
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
        """The vertices from one to before another."""
        rows = slice(start, stop)
        lists = []
        for xs in self.lists:
            ends = xs.ends[start : stop + 1]
            lists.append(Lists(ends - ends[0], xs.elements[ends[0] : ends[-1]]))
        data = self.data[rows] if self.data.shape[1] else NO_DATA
        return Chunk(
            self.calls[rows], self.first[rows], self.levels[rows], self.args[rows], self.ints[rows], lists, data
        )


NO_DATA: Float32 = np.zeros((0, 0), np.float32)


def merged(singles: Chunk, bulk: Sequence[tuple[int, Chunk]]) -> Chunk:
    """Vertices recorded one by one, and chunks of others with how many of those precede each, in one."""
    parts = []
    at = 0
    for place, chunk in bulk:
        if place > at:
            parts.append(singles.between(at, place))
            at = place
        parts.append(chunk)
    if at < len(singles):
        parts.append(singles.between(at, len(singles)))
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
    ends = [np.zeros(1, np.int64)]
    total = 0
    for xs in parts:
        ends.append(xs.ends[1:] + total)
        total += len(xs.elements)
    return Lists(np.concatenate(ends), np.concatenate([xs.elements for xs in parts]))
