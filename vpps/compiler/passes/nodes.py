"""Runs the passes that work on the nodes of a cell."""

from __future__ import annotations

from collections.abc import Callable

from vpps.compiler.passes.common_subexpressions import common_subexpressions
from vpps.compiler.passes.constants import fold_constants
from vpps.compiler.passes.horizontal import horizontal
from vpps.ops import OPS, Form
from vpps.placement.stacks import Stacks
from vpps.record.trace import Node, TracedCell

Note = tuple[str, str]  # name of a pass, and its effect on a cell
NodePass = Callable[[TracedCell], tuple[TracedCell, str]]

# Folding comes first: it can make duplicates.
NODE_PASSES: tuple[tuple[str, NodePass], ...] = (
    ("constants", fold_constants),
    ("common_subexpressions", common_subexpressions),
)


def simplified(cell: TracedCell) -> tuple[TracedCell, list[Note]]:
    """Return the cell after the passes that need no stacks, and the note of each pass."""
    notes: list[Note] = []
    for name, node_pass in NODE_PASSES:
        cell, said = node_pass(cell)
        notes.append((name, said))
    return cell, notes


def compiled(cell: TracedCell, stacks: Stacks) -> tuple[TracedCell, list[Note]]:
    """Return the cell after all passes over nodes; horizontal fusion needs the stacks that all cells agree on."""
    cell, notes = simplified(cell)
    cell, said = horizontal(cell, stacks)
    return _without_needless_transposes(cell), [*notes, ("horizontal", said)]


def _without_needless_transposes(cell: TracedCell) -> TracedCell:
    """Let products read transposed matrices in place; turn double transposes, and transposes of a row or column, into
    views. This runs before a cell is split: a value that crosses parts must be computed, and a view is not."""
    nodes = list(cell.nodes)
    for i, n in enumerate(nodes):
        if n.op.form is Form.TRANSPOSE:
            source = nodes[n.inputs[0]]
            twice = source.op.form is Form.TRANSPOSE
            if twice or 1 in n.shape:  # a row and a column hold the same floats
                viewed = source.inputs if twice else n.inputs
                nodes[i] = Node(OPS["reshape"], viewed, {"shape": n.shape}, n.shape, n.domain)
        elif n.op.name == "matmul":
            inputs, attrs = list(n.inputs), dict(n.attrs)
            for k, transposed in enumerate(("transposed_a", "transposed_b")):
                if nodes[inputs[k]].op.form is Form.TRANSPOSE:
                    inputs[k] = nodes[inputs[k]].inputs[0]
                    attrs[transposed] = not attrs[transposed]
            nodes[i] = Node(n.op, tuple(inputs), attrs, n.shape, n.domain)
    return cell if nodes == cell.nodes else cell.with_nodes(nodes, cell.outputs)
