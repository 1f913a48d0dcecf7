"""Dead outputs: results of a cell that no vertex of a graph reads, and nobody asked for.

In training nothing flows back from them: no sum over readers that do not exist, no zeros through what leads to them
alone. Their values are there all the same, as `handle.value` may ask for them afterwards, and rows of tables that lead
to them count as used (compiler/used_rows.py). In inference what leads to them alone is not computed.

Which outputs are read is a fact of the graph, not of the cell: a cell is compiled once for each set of them that
occurs.
"""

from __future__ import annotations

from vpps.record.trace import TracedCell

Unread = frozenset[int]
ALL_READ: Unread = frozenset()


def without(cell: TracedCell, unread: Unread) -> TracedCell:
    """The cell without some of its outputs."""
    kept = [o for k, o in enumerate(cell.outputs) if k not in unread]
    return cell.with_nodes(cell.nodes, kept)


def said(cell: TracedCell, unread: Unread, training: bool) -> str:
    """A sentence on them."""
    names = ", ".join(str(k + 1) for k in sorted(unread))
    outputs = f"output{'s' if len(unread) > 1 else ''} {names} of {len(cell.outputs)}"
    return f"nothing reads {outputs}: {'no backward' if training else 'not computed in inference'}"
