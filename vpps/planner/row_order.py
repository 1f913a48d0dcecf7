"""Layouts: in which order the vertices of a step get their rows. Any order is right; some leave arguments in a row.

`recorded`: the user's order.
`readers`: what a step reads as one argument, where that is vertices of one step and each of them once, is a
*constraint* on that step: these vertices side by side, in the order of their readers. From the last stage to the first,
each step's vertices are put in the order of the constraints on it, the largest first; a vertex follows the first one
that it is in. So sequences of one batch get their rows by length, and every step reads the first rows of the one
before. Vertices of a cell that no recurrence waits for get the order of what they read first.
`pq`: all constraints that can be had at once, by a PQ tree whose operands are what each step reads (ED-Batch, section
3.2). On sequences that is what `readers` has, and on lattices more, but it takes seconds for a batch: it is there to
compare with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.pqtree.layouts import layout
from vpps.ops import size
from vpps.ops.element import FLOAT32
from vpps.record.arrays import BlockArrays, Ints
from vpps.record.topology import Topology
from vpps.record.trace import Vector

RECORDED, READERS, PQ = LAYOUTS = ("recorded", "readers", "pq")


def places_by_block(topology: Topology, step: NDArray[Any]) -> Ints:
    """As `places_by_pq_tree`, of vertices that are given block after block."""
    calls = np.concatenate([b.calls for b in topology.blocks])
    by_call = np.empty(topology.n_calls, np.int64)
    by_call[calls] = step
    places: Ints = places_by_pq_tree(topology, by_call)[calls]
    return places


def places_by_pq_tree(topology: Topology, step: Ints) -> Ints:
    """Where each vertex comes, by recording index. Seconds for thousands of vertices.

    A step is a batch whose result is its own rows; its operands are arguments that read several vertices of one step,
    each of them once. They weigh the bytes that they read; where they conflict, the lighter ones are left out. A step's
    own rows weigh more than all else: they are side by side in any case.

    Args:
        step: of each vertex; -1: it is left out.
    """
    batches: list[list[Ints]] = []
    weights: list[list[float]] = []
    for b in topology.blocks:
        for rows in _steps_of(b, step):
            reads = _reads(topology, b, rows, step)
            if reads:
                batches.append([b.calls[rows], *(producers for producers, _ in reads)])
                weights.append([0.0, *(bytes_ for _, bytes_ in reads)])
    total = sum(map(sum, weights))
    found = layout(
        topology.n_calls,
        [[operand.tolist() for operand in batch] for batch in batches],
        [[total + 1, *of_operands[1:]] for of_operands in weights],
    )
    return np.array(found.position, np.int64)


def _steps_of(b: BlockArrays, step: Ints) -> Iterator[Ints]:
    """The rows of a block's arrays, by step; those of one vertex are left out."""
    of_row = step[b.calls]
    order = np.argsort(of_row, kind="stable")
    order = order[of_row[order] >= 0]
    for rows in np.split(order, np.flatnonzero(np.diff(of_row[order])) + 1):
        if len(rows) > 1:
            yield rows


def _reads(topology: Topology, b: BlockArrays, rows: Ints, step: Ints) -> list[tuple[Ints, float]]:
    """What some vertices read of one step, each vertex of it once: by argument, with its bytes."""
    found = []
    shapes = [kind.shape for kind in b.cell.kinds if isinstance(kind, Vector)]
    for k, shape in enumerate(shapes):
        producers = topology.value_call[b.args[rows, k]]
        if (step[producers] == step[producers[0]]).all() and len(np.unique(producers)) == len(producers):
            found.append((producers, float(FLOAT32.bytes * len(rows) * size(shape))))
    return found
