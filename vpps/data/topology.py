"""Levels and orders of many directed acyclic graphs at once, from flat arrays of edges. Nothing recurses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NARROW = 32
"""Below so many ready vertices a plain loop is faster than a few calls of NumPy per level."""


def ragged(starts: NDArray[np.int64], sizes: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges `starts[k]:starts[k] + sizes[k]` one after the other.

    Args:
        offsets: (k + 1,) where each range begins in the result: 0 and the running sum of `sizes`.
    """
    rows = (starts - offsets[:-1]).repeat(sizes)
    rows += np.arange(len(rows))
    return rows


def running_sum(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, sizes[0], sizes[0] + sizes[1], ..."""
    offsets = np.empty(len(sizes) + 1, np.int64)
    offsets[0] = 0
    sizes.cumsum(out=offsets[1:])
    return offsets


def find_levels(n: int, parents: NDArray[np.int64], children: NDArray[np.int64]) -> NDArray[np.int32]:
    """The level of every vertex: its longest distance from a vertex without children.

    A frontier of ready vertices moves up through all graphs at once, O(n + edges) work in all. Where it is narrow (a
    chain of 100 000 steps has one ready vertex at a time) plain loops take over.

    Args:
        n: the number of vertices.
        parents, children: (edges,) the ends of every edge; the parent reads what the child computes.

    Returns:
        (n,) levels, -1 for vertices on a cycle and for those that depend on one.
    """
    pending = np.bincount(parents, minlength=n)  # children whose level is not known yet
    fan_out = np.bincount(children, minlength=n)
    offsets = running_sum(fan_out)
    readers = parents[np.argsort(children, kind="stable")]  # those of vertex v from offsets[v] on
    levels = np.full(n, -1, np.int32)
    place = np.empty(n, np.int64)
    ready = np.flatnonzero(pending == 0)
    level = 0
    while len(ready) >= NARROW:
        levels[ready] = level
        level += 1
        sizes = fan_out[ready]
        above = readers[ragged(offsets[ready], sizes, running_sum(sizes))]
        np.subtract.at(pending, above, 1)
        above = above[pending[above] == 0]
        # Whoever reads two ready vertices is there twice: the last to sign keeps the place.
        signature = np.arange(len(above))
        place[above] = signature
        ready = above[place[above] == signature]
    if len(ready):
        _climb(ready.tolist(), level, pending, readers, offsets, levels)
    return levels


def _climb(
    ready: list[int],
    level: int,
    pending: NDArray[np.int64],
    readers: NDArray[np.int64],
    offsets: NDArray[np.int64],
    levels: NDArray[np.int32],
) -> None:
    """What `find_levels` does, vertex by vertex from `ready` on."""
    waits_for, reader, begin = pending.tolist(), readers.tolist(), offsets.tolist()
    done: list[int] = []
    sizes: list[int] = []
    while ready:
        done += ready
        sizes.append(len(ready))
        above = []
        for vertex in ready:
            for parent in reader[begin[vertex] : begin[vertex + 1]]:
                waits_for[parent] -= 1
                if not waits_for[parent]:
                    above.append(parent)
        ready = above
    levels[done] = np.arange(level, level + len(sizes), dtype=np.int32).repeat(sizes)


def find_cycle(levels: NDArray[np.int32], parents: NDArray[np.int64], children: NDArray[np.int64]) -> list[int]:
    """The vertices of one cycle, each the parent of the next; `levels` has -1 somewhere, as `find_levels` leaves it."""
    stuck = (levels[parents] < 0) & (levels[children] < 0)
    below = dict(zip(parents[stuck].tolist(), children[stuck].tolist(), strict=True))
    vertex = next(iter(below))
    seen: dict[int, int] = {}  # in the order of the walk; it never leaves the stuck vertices, so it comes back
    while vertex not in seen:
        seen[vertex] = len(seen)
        vertex = below[vertex]
    return list(seen)[seen[vertex] :]


def level_order(levels: NDArray[np.int32], graph_of_vertex: NDArray[np.int64]) -> NDArray[np.int64]:
    """All vertices, graph by graph, those of one graph by level: children before parents."""
    return np.lexsort((levels, graph_of_vertex))
