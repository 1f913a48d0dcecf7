"""Levels in a structure given as edges: each vertex's longest distance from a vertex without children."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpps.record.chunks import Lists
from vpps.record.ranges import Ints, running_sum

NARROW = 32
"""Below this many ready vertices, a plain loop is faster than a few NumPy calls per level."""


def find_levels(n: int, parents: Ints, children: Ints) -> Ints:
    """Return the level of every vertex: its longest distance from a vertex without children.

    A frontier of ready vertices rises one level per step, with O(n + edges) work in all. If the frontier is narrow,
    plain loops take over: a chain of 100 000 steps has only one ready vertex at a time.

    Args:
        n: the number of vertices.
        parents, children: (edges,) the ends of every edge; the parent reads the child's results.

    Returns:
        (n,) levels; -1 for vertices on a cycle and for vertices that depend on one.
    """
    pending = np.bincount(parents, minlength=n)  # number of children that have no level yet
    readers = Lists(running_sum(np.bincount(children, minlength=n)), parents[np.argsort(children, kind="stable")])
    levels = np.full(n, -1, np.int64)
    ready = np.flatnonzero(pending == 0)
    level = 0
    while len(ready) >= NARROW:
        levels[ready] = level
        level += 1
        above = readers.of(ready).elements
        np.subtract.at(pending, above, 1)
        ready = np.unique(above[pending[above] == 0])
    if len(ready):
        _climb(ready.tolist(), level, pending, readers, levels)
    return levels


def _climb(ready: list[int], level: int, pending: Ints, readers: Lists, levels: Ints) -> None:
    """Continue `find_levels` from the vertices in `ready`, vertex by vertex."""
    waits_for, reader, begin = pending.tolist(), readers.elements.tolist(), readers.ends.tolist()
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
    levels[done] = np.arange(level, level + len(sizes)).repeat(sizes)


def find_cycle(levels: NDArray[np.integer], parents: Ints, children: Ints) -> list[int]:
    """Return one cycle's vertices, each the parent of the next. Some `levels` must be -1, as from `find_levels`."""
    stuck = (levels[parents] < 0) & (levels[children] < 0)
    below = dict(zip(parents[stuck].tolist(), children[stuck].tolist(), strict=True))
    vertex = next(iter(below))
    seen: dict[int, int] = {}  # in walk order; the walk never leaves the vertices without a level, so it returns to one
    while vertex not in seen:
        seen[vertex] = len(seen)
        vertex = below[vertex]
    return list(seen)[seen[vertex] :]


def raise_levels(order_by: Ints, floor: Ints, parents: Ints, children: Ints, step: int = 1) -> Ints:
    """Return the levels of vertices whose lowest levels are set by operands other than children.

    Args:
        order_by: (n,) levels, lower for a child than for its parent; may be higher than those from `find_levels`.
        floor: (n,) lowest level of each vertex.
        parents, children: (edges,) the ends of every edge, sorted by parent.
        step: minimum distance of a parent above its children.
    """
    n = len(floor)
    levels = floor.copy()
    below = Lists(running_sum(np.bincount(parents, minlength=n)), children)
    order = np.argsort(order_by, kind="stable")
    starts = np.flatnonzero(np.diff(order_by[order], prepend=-1))
    if n < NARROW * len(starts):
        return _raise_one_by_one(order.tolist(), levels.tolist(), below.ends.tolist(), children.tolist(), step)
    for vertices in np.split(order, starts[1:])[1:]:  # vertices at the first level have no children
        vertices = vertices[below.ends[vertices] < below.ends[vertices + 1]]  # given levels may be too high
        if not len(vertices):
            continue
        own = below.of(vertices)
        highest = np.maximum.reduceat(levels[own.elements], own.ends[:-1]) + step
        levels[vertices] = np.maximum(levels[vertices], highest)
    return levels


def _raise_one_by_one(
    order: Sequence[int], levels: list[int], ends: Sequence[int], children: Sequence[int], step: int
) -> Ints:
    for vertex in order:
        level = levels[vertex]
        for child in children[ends[vertex] : ends[vertex + 1]]:
            if levels[child] + step > level:
                level = levels[child] + step
        levels[vertex] = level
    return np.array(levels, np.int64)
