"""Layouts: in which order the vertices of a step get their rows. Any order is right; some leave arguments in a row.

`recorded`: the user's order.
`readers`: what a step reads as one argument, where that is vertices of one step and each of them once, is a
*constraint* on that step: these vertices side by side, in the order of their readers. From the last stage to the first,
each step's vertices are put in the order of the constraints on it, the largest first; a vertex follows the first one
that it is in. So sequences of one batch get their rows by length, and every step reads the first rows of the one
before. Vertices of a cell that no recurrence waits for get the order of what they read first.
`pq`: all constraints that can be had at once, by a PQ tree (plan/pq_order.py). On sequences that is what `readers` has,
and on lattices more, but it takes seconds for a batch: it is there to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
from vpps.graph.arrays import BlockArrays, Ints
from vpps.plan.pq_order import places_by_pq_tree
from vpps.plan.topology import Topology

RECORDED, READERS, PQ = LAYOUTS = ("recorded", "readers", "pq")


def known_layout(layout: str) -> str:
    """The name of a layout. Raises GraphError for an unknown one."""
    if layout not in LAYOUTS:
        raise GraphError(f"unknown layout {layout!r}; known are {', '.join(LAYOUTS)}")
    return layout


class StepKeys(NamedTuple):
    """Of the vertices of a block.

    Attributes:
        step: a number for each; steps are in the order of these. -1: it is left out.
        stage: in which each runs.
    """

    step: Ints
    stage: Ints


def row_orders(layout: str, topology: Topology, keys: Sequence[StepKeys]) -> Sequence[Ints | None]:
    """The vertex in each row of every block, given the steps that each runs in; None for the user's order."""
    recorded: list[Ints | None] = [None] * len(keys)
    if layout == RECORDED:
        return recorded
    step, stage_of = _steps(topology, keys)
    if not len(stage_of) or np.bincount(step[step >= 0]).max() < 2:
        return recorded
    if layout == PQ:
        place = places_by_pq_tree(topology, step)
        return [_in_rows(b, of_block, place) for b, of_block in zip(topology.blocks, keys, strict=True)]
    return _by_readers(topology, keys, step, stage_of)


def _in_rows(b: BlockArrays, keys: StepKeys, place: Ints) -> Ints:
    """The vertex in each row, given places by recording index: by step, and in each step by place."""
    order = np.lexsort((place[b.calls], keys.step))
    found: Ints = order[keys.step[order] >= 0]
    return found


def _by_readers(topology: Topology, keys: Sequence[StepKeys], step: Ints, stage_of: Ints) -> list[Ints]:
    """The vertex in each row of every block; `step` is of each vertex, `stage_of` of each step."""
    waited_for = _waited_for(topology)
    # Where vertices come within their step: those that follow a constraint, below 0, then others in the user's order.
    place = np.arange(topology.n_calls)
    _follow_readers(_edges(topology, step, waited_for), step, stage_of, place)
    orders: list[Ints] = [np.zeros(0, np.int64)] * len(keys)
    row = np.zeros(topology.n_calls, np.int64)  # numbered through all blocks
    n_rows = np.cumsum([0, *(len(b.calls) for b in topology.blocks)])
    for number in sorted(range(len(keys)), key=lambda k: topology.recurrence.component[k]):
        b, first = topology.blocks[number], place
        if not waited_for[number] and b.args.shape[1] and len(b.calls):
            first = np.zeros_like(place)
            first[b.calls] = row[topology.value_call[b.args[:, 0]]]
        orders[number] = _in_rows(b, keys[number], first)
        row[b.calls[orders[number]]] = n_rows[number] + np.arange(len(orders[number]))
    return orders


class _Edges(NamedTuple):
    """Reads of vertices that follow a constraint, by those whose order it is. Vertices are given by recording index.

    Attributes:
        producer, reader: of each.
        element: its place in the reader's list.
        constraint: its number; those of a step's first arguments are smaller.
        size: vertices in the constraint.
    """

    producer: Ints
    reader: Ints
    element: Ints
    constraint: Ints
    size: Ints

    def only(self, those: NDArray[Any]) -> _Edges:
        """Some of them."""
        return _Edges(*(of_edge[those] for of_edge in self))


def _steps(topology: Topology, keys: Sequence[StepKeys]) -> tuple[Ints, Ints]:
    """The step of each vertex, numbered through all blocks, or -1; the stage of each step."""
    step = np.full(topology.n_calls, -1, np.int64)
    stages: list[Ints] = []
    n = 0
    for b, of_block in zip(topology.blocks, keys, strict=True):
        runs = np.flatnonzero(of_block.step >= 0)
        _, first, number = np.unique(of_block.step[runs], return_index=True, return_inverse=True)
        step[b.calls[runs]] = n + number
        stages.append(of_block.stage[runs[first]])
        n += len(first)
    return step, np.concatenate(stages) if stages else np.zeros(0, np.int64)


def _waited_for(topology: Topology) -> list[bool]:
    """By block, whether it is of a recurrence, or one reads what it leads to."""
    found = topology.recurrence
    waited_for = [found.recurrent[c] for c in found.component]
    for number in sorted(range(len(waited_for)), key=lambda k: found.component[k], reverse=True):
        if waited_for[number]:
            for source in found.reads[number]:
                waited_for[source] = True
    return waited_for


def _edges(topology: Topology, step: Ints, waited_for: Sequence[bool]) -> _Edges:
    """For each vertex that is in a constraint, its reader of the largest one."""
    operands = [
        (b.calls[rows], topology.value_call[values], k)
        for b, waits in zip(topology.blocks, waited_for, strict=True)
        for k, (rows, values) in enumerate(b.operands() if waits else ())
    ]
    if not any((step[edges[0]] >= 0).any() for edges in operands):
        return _Edges(*[np.zeros(0, np.int64)] * 5)
    reader, producer = (np.concatenate([edges[i] for edges in operands]) for i in (0, 1))
    number = np.repeat([k for *_, k in operands], [len(edges[0]) for edges in operands])
    element = np.arange(len(reader))  # of one list they come one after the other
    runs = step[reader] >= 0
    reader, producer, number, element = reader[runs], producer[runs], number[runs], element[runs]
    constraint = step[reader] * (int(number.max(initial=0)) + 1) + number
    found = _Edges(producer, reader, element, constraint, _sizes(constraint, producer, step))
    found = found.only(found.size > 1)
    # The first edge of each producer, by size and constraint, has the constraint that it follows.
    order = np.lexsort((found.constraint, -found.size, found.producer))
    leads = np.ones(len(order), bool)
    leads[1:] = found.producer[order[1:]] != found.producer[order[:-1]]
    followed = np.full(topology.n_calls, -1)
    followed[found.producer[order[leads]]] = found.constraint[order[leads]]
    return found.only(followed[found.producer] == found.constraint)


def _sizes(constraint: Ints, producer: Ints, step: Ints) -> Ints:
    """The size of each edge's constraint; 0 where that reads vertices of several steps, or one of them twice."""
    order = np.lexsort((producer, constraint))
    of_edge, vertex = constraint[order], producer[order]
    same = of_edge[1:] == of_edge[:-1]
    breaks = same & ((vertex[1:] == vertex[:-1]) | (step[vertex[1:]] != step[vertex[:-1]]))
    number = np.cumsum(np.concatenate([[0], ~same]))
    sizes = np.bincount(number)
    sizes[number[1:][breaks]] = 0
    found = np.zeros_like(constraint)
    found[order] = sizes[number]
    return found


def _follow_readers(edges: _Edges, step: Ints, stage_of: Ints, place: Ints) -> None:
    """Give producers their places, those of the last stage first: they are readers of the ones before."""
    stage = stage_of[step[edges.producer]]
    by_stage = np.argsort(-stage, kind="stable")
    ends = np.flatnonzero(np.diff(stage[by_stage])) + 1
    for found in np.split(by_stage, ends) if len(by_stage) else ():
        of_stage = edges.only(found)
        order = np.lexsort((of_stage.element, place[of_stage.reader], of_stage.constraint, -of_stage.size))
        place[of_stage.producer[order]] = np.arange(len(order)) - len(stage)
