"""Dead outputs: results of a cell that no vertex of a graph reads, and nobody asked for.

In training nothing flows back from them: no sum over readers that do not exist, no zeros through what leads to them
alone. Their values are there all the same, as `handle.value` may ask for them afterwards, and rows of tables that lead
to them count as used (plan/used_rows.py). In inference what leads to them alone is not computed.

Which outputs are read is a fact of the graph, not of the cell: a cell is compiled once for each set of them that
occurs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vpps.graph.arrays import Ints
from vpps.graph.trace import TracedCell
from vpps.plan.topology import Topology

Unread = frozenset[int]
ALL_READ: Unread = frozenset()


def unread_outputs(topology: Topology, needed: NDArray[np.bool_], asked: Ints) -> list[Unread]:
    """By block, the outputs of its cell that no needed vertex reads.

    Args:
        needed: by recording index, whether what was asked for depends on the vertex.
        asked: ids of values that count as read.
    """
    if all(len(b.values) == 1 for b in topology.blocks):
        return [ALL_READ] * len(topology.blocks)
    read = set(topology.value_output[asked].tolist())
    if needed.all():
        read |= topology.recurrence.read
    else:
        found = np.zeros(len(topology.outputs), bool)
        for b in topology.blocks:
            runs = needed[b.calls]
            for rows, values in b.operands():
                found[topology.value_output[values[runs[rows]]]] = True
        read.update(np.flatnonzero(found).tolist())
    unread: list[set[int]] = [set() for _ in topology.blocks]
    for kind, (number, k) in enumerate(topology.outputs):
        if kind not in read:
            unread[number].add(k)
    # Of a block that nothing is asked of, nothing runs that could be left out.
    return [frozenset(k) if len(k) < len(b.values) else ALL_READ for k, b in zip(unread, topology.blocks, strict=True)]


def without(cell: TracedCell, unread: Unread) -> TracedCell:
    """The cell without some of its outputs."""
    kept = [o for k, o in enumerate(cell.outputs) if k not in unread]
    return cell.with_nodes(cell.nodes, kept)


def said(cell: TracedCell, unread: Unread, training: bool) -> str:
    """A sentence on them."""
    return f"nothing reads {_numbered(sorted(unread), len(cell.outputs))}: " + (
        "no backward" if training else "not computed in inference"
    )


def _numbered(outputs: Sequence[int], n: int) -> str:
    names = ", ".join(str(k + 1) for k in outputs)
    return f"output{'s' if len(outputs) > 1 else ''} {names} of {n}"
