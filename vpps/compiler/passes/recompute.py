"""Recomputation: which values of forward backward computes again, from others that are kept for it.

A tail of backward that reads an elementwise result may read what that was made of instead, and call the same function
once more. What is kept is a vertex cut between what only forward can compute (products, sums of lists) and what
backward reads: one of least floats, and of those the nearest to backward, so that nothing is computed again that saves
no memory. Results of a cell, its arguments, and what gradients of weights read are there anyway.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence

_SOURCE, _SINK = (-1, False), (-1, True)
_Node = tuple[int, bool]  # a slab, where its value is made (False) and where it is read (True)


def recomputed(
    widths: Sequence[int], made_of: Mapping[int, Collection[int]], read: Collection[int], kept: Collection[int]
) -> set[int]:
    """Slabs of forward that backward need not find.

    Args:
        widths: of all slabs.
        made_of: the slabs that an elementwise one is computed from. One that is not here cannot be computed again.
        read: slabs that tails of backward read.
        kept: slabs that are there in any case.
    """
    slabs = set(read)
    queue = deque(read)
    while queue:
        for other in made_of.get(queue.popleft(), ()):
            if other not in slabs:
                slabs.add(other)
                queue.append(other)
    unlimited = 1 + sum(widths)
    room: dict[_Node, dict[_Node, int]] = defaultdict(lambda: defaultdict(int))
    for slab in slabs:
        room[slab, False][slab, True] = 0 if slab in kept else widths[slab]
        if slab in made_of:
            for other in made_of[slab]:
                room[other, True][slab, False] = unlimited
        else:
            room[_SOURCE][slab, False] = unlimited
        if slab in read:
            room[slab, True][_SINK] = unlimited
    while path := _path(room):
        flow = min(room[a][b] for a, b in path)
        for a, b in path:
            room[a][b] -= flow
            room[b][a] += flow
    reaching = _reaching_the_sink(room)
    return {slab for slab in slabs if (slab, False) in reaching and slab in made_of}


def _path(room: Mapping[_Node, Mapping[_Node, int]]) -> list[tuple[_Node, _Node]]:
    """A shortest way from source to sink on which there is room left; empty where there is none."""
    came_from: dict[_Node, _Node] = {}
    queue = deque([_SOURCE])
    while queue:
        a = queue.popleft()
        for b, left in room[a].items():
            if left and b not in came_from and b != _SOURCE:
                came_from[b] = a
                queue.append(b)
    steps = []
    node = _SINK
    while node in came_from:
        steps.append((came_from[node], node))
        node = came_from[node]
    return steps


def _reaching_the_sink(room: Mapping[_Node, Mapping[_Node, int]]) -> set[_Node]:
    """From where there is room left on some way to the sink."""
    before: dict[_Node, list[_Node]] = defaultdict(list)
    for a, successors in room.items():
        for b, left in successors.items():
            if left:
                before[b].append(a)
    found, queue = {_SINK}, deque([_SINK])
    while queue:
        for a in before[queue.popleft()]:
            if a not in found:
                found.add(a)
                queue.append(a)
    return found
