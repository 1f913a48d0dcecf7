"""Which vertices each group of virtual processors runs: no group waits for another one but at barriers of all.

Vertices that depend on each other belong together: the connected components of the graph are dealt to groups. Two kinds
of vertices do not connect what they touch:

    sources read nothing (a row of a table, a graph input, zeros). Those with many readers, such as the initial state of
        all sequences, run before everything else where work would be uneven otherwise.
    joining vertices come last and have to do with scalars alone: the sum of the losses, its scale. They run after all.

Both are run by group 0 while the others wait; backward in the opposite order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.graph.arrays import BlockArrays, Ints
from vpps.plan.grouping import Grouping, floats_of, is_scalar
from vpps.plan.templates import CellTemplates
from vpps.plan.topology import Topology

Bools = NDArray[np.bool_]

# Sources with more readers than this do not connect them; the next smaller number is tried where components are uneven.
MOST_READERS = (1 << 62, 64, 16, 4, 0)
EVEN = 1.25  # time over that of equal shares: even enough
WORTH_A_BARRIER = 0.8  # time of a dealing with more shared sources over that of one with fewer, at most

DEALT_ONE_BY_ONE = 512  # components; those beyond, the smallest ones, fill up what room is left


def group_vertices(
    topology: Topology,
    cells: Sequence[CellTemplates],
    stages: Sequence[Ints],
    n_groups: int,
    runs: Bools,
) -> Grouping:
    """Deal the vertices of a graph to groups.

    Args:
        cells: of the blocks.
        stages: of each vertex, by block, under the policy.
        runs: by recording index, whether the vertex runs at all.
    """
    blocks, n = topology.blocks, topology.n_calls
    sources = [not (b.args.shape[1] or b.lists) for b in blocks]
    joining = _joining(topology, sources, runs)
    edges = _edges(topology, ~joining & runs)
    work = _work(topology, cells, joining, runs)
    readers = np.bincount(edges[0], minlength=n)
    for b, source in zip(blocks, sources, strict=True):
        if not source:
            readers[b.calls] = 0
    best: _Dealt | None = None
    for most in MOST_READERS:
        shared = readers > most
        if best is None or shared.sum() > best.shared.sum():
            dealt = _dealt(edges, work, shared, n_groups)
            if best is None or dealt.time < WORTH_A_BARRIER * best.time:
                best = dealt
            if best.time < EVEN * work.sum() / n_groups:
                break
    assert best is not None

    best.group[joining] = 0
    begin = int(best.first.any())
    top = max((int(s.max()) for s in stages if len(s)), default=0)
    moved = []
    for b, stage in zip(blocks, stages, strict=True):
        late = np.where(joining[b.calls], stage + begin + top + 1, stage + begin)
        moved.append(np.where(best.first[b.calls], 0, late) if begin else late)
    groups = [best.group[b.calls] for b in blocks]
    result = Grouping(groups, moved, begin, begin + top + 1, best.n_components, best.loads)
    result.note_idle()
    return result


@dataclass(frozen=True, slots=True)
class _Dealt:
    """One way to deal vertices to groups.

    Attributes:
        shared: sources that do not connect their readers.
        group: of each vertex.
        first: those of the shared sources that several groups read: they must be there before.
        loads: work of each group.
        time: work until the last group is ready.
        n_components: of the graph.
    """

    shared: Bools
    group: Ints
    first: Bools
    loads: NDArray[np.float64]
    time: float
    n_components: int


def _dealt(edges: tuple[Ints, Ints], work: NDArray[np.float64], shared: Bools, n_groups: int) -> _Dealt:
    """Deal components, where `shared` sources connect nothing."""
    producer, reader = edges
    n, apart = len(work), shared[producer]
    label = components(n, producer[~apart], reader[~apart])
    of_source, by = producer[apart], label[reader[apart]]
    own = np.where(shared, n, label)  # the component of each vertex; of a shared source, that of a reader
    np.minimum.at(own, of_source, by)
    of_root = np.bincount(own, weights=work, minlength=n)
    roots = np.flatnonzero(of_root)
    group_of = np.zeros(n, np.int64)  # by the vertex that is the root of a component
    group_of[roots] = _deal(of_root[roots], n_groups)
    group = group_of[own]
    first = np.zeros(n, bool)
    first[of_source[group_of[by] != group[of_source]]] = True
    group[first] = 0
    before = float(work[first].sum())
    loads = np.bincount(group, weights=work, minlength=n_groups).astype(np.float64)
    after = loads.copy()
    after[0] -= before
    return _Dealt(shared, group, first, loads, before + float(after.max()), len(roots))


def components(n: int, a: Ints, b: Ints) -> Ints:
    """The smallest vertex of each vertex's connected component, given the two ends of every edge.

    Trees of labels are hooked onto smaller ones, then flattened (Shiloach and Vishkin 1982): a few passes over the
    edges that still join different trees.
    """
    label = np.arange(n)
    while True:
        a, b = label[a], label[b]
        apart = a != b
        if not apart.any():
            return label
        a, b = a[apart], b[apart]
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while True:
            further = label[label]
            if (further == label).all():
                break
            label = further


def _edges(topology: Topology, connects: Bools) -> tuple[Ints, Ints]:
    """(producer, reader) of every value that one of the given vertices reads."""
    producers, readers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    everything = bool(connects.all())
    for b in topology.blocks:
        for rows, values in b.operands():
            reader, producer = b.calls[rows], topology.value_call[values]
            if not everything:
                kept = connects[reader]
                reader, producer = reader[kept], producer[kept]
            producers.append(producer)
            readers.append(reader)
    return np.concatenate(producers), np.concatenate(readers)


def _joining(topology: Topology, sources: Sequence[bool], runs: Bools) -> Bools:
    """By recording index: vertices that deal with scalars and no matrices, and that no other kind of vertex reads."""
    joining = np.zeros(topology.n_calls, bool)
    scalar = np.array([not s and is_scalar(b.cell) for b, s in zip(topology.blocks, sources, strict=True)], bool)
    for b, of_scalars in zip(topology.blocks, scalar.tolist(), strict=True):
        if of_scalars:
            joining[b.calls] = runs[b.calls]
    if not scalar.any():
        return joining
    read = [
        values[runs[b.calls[rows]]]
        for b, of_scalars in zip(topology.blocks, scalar.tolist(), strict=True)
        if not of_scalars
        for rows, values in b.operands()
    ]
    values = np.concatenate([np.zeros(0, np.int64), *read])
    if scalar[topology.value_block[values]].any():
        joining &= ~topology.reaching(values)
    return joining


def _work(topology: Topology, cells: Sequence[CellTemplates], joining: Bools, runs: Bools) -> NDArray[np.float64]:
    """By recording index: floats that a vertex computes with; none for joining vertices, which nobody chooses."""
    work = np.zeros(topology.n_calls)
    for b, cell in zip(topology.blocks, cells, strict=True):
        work[b.calls] = _work_of(b, cell)
    work[joining | ~runs] = 0
    return work


def _work_of(block: BlockArrays, cell: CellTemplates) -> NDArray[np.float64] | float:
    of_vertex, of_elements = floats_of(cell)
    work: NDArray[np.float64] | float = float(of_vertex)
    for xs, of_element in zip(block.lists, of_elements, strict=True):
        work = work + of_element * np.diff(xs.ends)
    return work


def _deal(work: NDArray[Any], n_groups: int) -> Ints:
    """Group of each component: the largest first, each to the group with the least so far (Graham 1969)."""
    order = np.argsort(-work, kind="stable")
    dealt = np.zeros(len(work), np.int64)
    loads = [(0.0, group) for group in range(n_groups)]
    for i, w in zip(order[:DEALT_ONE_BY_ONE].tolist(), work[order[:DEALT_ONE_BY_ONE]].tolist(), strict=True):
        load, group = loads[0]
        dealt[i] = group
        heapq.heapreplace(loads, (load + w, group))
    rest = order[DEALT_ONE_BY_ONE:]
    if len(rest):
        # What is left goes into the room below the mean, group after group.
        mean = max(work.sum() / n_groups, 1e-30)
        groups = np.array([group for _, group in loads])
        room = np.array([max(mean - load, 0.0) for load, _ in loads])
        middle = np.cumsum(work[rest]) - work[rest] / 2
        chosen = np.searchsorted(np.cumsum(room), middle * (room.sum() / max(work[rest].sum(), 1e-30)))
        dealt[rest] = groups[np.minimum(chosen, n_groups - 1)]
    return dealt
