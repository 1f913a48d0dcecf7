"""Finds cells that are a single linear op on scalars: they form the loss chain (planner/native/loss_chain.h)."""

from __future__ import annotations

from enum import IntEnum

from vpps.ops import Form
from vpps.record.trace import TracedCell

# Single ops on scalars with constant gradients, by their names in capital letters. One factor of a product must be a
# number: a graph input without a gradient.
Linear = IntEnum("Linear", "LIST_SUM LIST_MEAN ADD SUB NEG MUL NUMBER", start=0)

NUMBER = Linear.NUMBER
LINEAR = tuple(kind.name.lower() for kind in Linear if kind is not NUMBER)


def linear_kind(cell: TracedCell) -> int:
    """Return the Linear of a cell that is a single linear op on scalars, or a number; else -1."""
    nodes = [n for n in cell.nodes if n.op.form is not Form.ARGUMENT]
    if len(nodes) != 1 or any(n.shape for n in cell.nodes) or len(cell.outputs) != 1:
        return -1
    (node,) = nodes
    if node.op.form is Form.INPUT:
        return -1 if node.attrs["grad"] else NUMBER
    in_order = [cell.nodes[i].attrs.get("position") for i in node.inputs] == list(range(len(cell.kinds)))
    return LINEAR.index(node.op.name) if in_order and node.op.name in LINEAR else -1
