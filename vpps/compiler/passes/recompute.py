"""Recomputation: which values of forward backward computes again, from others that are kept for it.

A tail of backward that reads an elementwise result may read what that was made of instead, and call the same function
once more. What is kept is a vertex cut between what only forward can compute (products, sums of lists) and what
backward reads: one of least floats, and of those the nearest to backward, so that nothing is computed again that saves
no memory. Results of a cell, its arguments, and what gradients of weights read are there anyway.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

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
    room: dict[_Node, dict[_Node, int]] = defaultdict(lambda: defaultdict(int))  # to a node from another one
    for slab in slabs:
        room[slab, True][slab, False] = 0 if slab in kept else widths[slab]
        if slab in made_of:
            for other in made_of[slab]:
                room[slab, False][other, True] = unlimited
        else:
            room[slab, False][_SOURCE] = unlimited
        if slab in read:
            room[_SINK][slab, True] = unlimited
    following = _ways_to_the_sink(room)
    while _SOURCE in following:
        nodes = [_SOURCE]
        while nodes[-1] != _SINK:
            nodes.append(following[nodes[-1]])
        flow = min(room[b][a] for a, b in pairwise(nodes))
        for a, b in pairwise(nodes):
            room[b][a] -= flow
            room[a][b] += flow
        following = _ways_to_the_sink(room)
    return {slab for slab in slabs if (slab, False) in following and slab in made_of}


def _ways_to_the_sink(room: Mapping[_Node, Mapping[_Node, int]]) -> dict[_Node, _Node]:
    """Of the nodes from where there is room left on some way to the sink, the next one on a shortest."""
    following = {_SINK: _SINK}
    queue = deque([_SINK])
    while queue:
        b = queue.popleft()
        for a, left in room[b].items():
            if left and a not in following:
                following[a] = b
                queue.append(a)
    return following
