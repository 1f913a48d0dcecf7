"""Dead outputs: results of a cell that neither a vertex of the graph nor the user reads.

In training, they have no backward: no sum over missing readers, and no zeros through the nodes that only they depend
on. Their values are still computed, because `handle.value` may read them later, and their table rows count as used
(compiler/used_rows.py). In inference, nodes that only dead outputs depend on are not computed.

The graph, not the cell, decides which outputs are read, so a cell is compiled once for each set that occurs.
"""

from __future__ import annotations

from vpps.record.trace import TracedCell

Unread = frozenset[int]
ALL_READ: Unread = frozenset()


def without(cell: TracedCell, unread: Unread) -> TracedCell:
    """Return the cell without some of its outputs."""
    kept = [o for k, o in enumerate(cell.outputs) if k not in unread]
    return cell.with_nodes(cell.nodes, kept)


def said(cell: TracedCell, unread: Unread, training: bool) -> str:
    """Return a sentence about the dead outputs."""
    names = ", ".join(str(k + 1) for k in sorted(unread))
    outputs = f"output{'s' if len(unread) > 1 else ''} {names} of {len(cell.outputs)}"
    return f"nothing reads {outputs}: {'no backward' if training else 'not computed in inference'}"
