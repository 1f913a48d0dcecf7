"""Common subexpression elimination: a cell's equal operations on equal operands become one.

Cells are written for readers: `W @ x` appears in two formulas, a table row is looked up twice, results share a gate.
Only the first of several equal nodes is kept; all of their readers read it. Forward gives the same bits. Backward first
adds the gradients of all readers and then runs the operation's gradient once, instead of once for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vpps.ops import Form
from vpps.ops.operand import shown
from vpps.record.trace import Node, TracedCell
from vpps.values import float_word

# Swapping the operands of these changes no bit. For `maximum` it may: zeros of either sign are equal, and if its
# operands are equal, the first is the result and gets the gradient.
COMMUTATIVE = frozenset(("add", "mul", "dot"))

# Never equal to another node: each dropout has its own random numbers, and each argument and input its own source.
UNIQUE = (Form.DROPOUT, Form.ARGUMENT, Form.INPUT)


def common_subexpressions(cell: TracedCell) -> tuple[TracedCell, str]:
    """Return the cell with equal nodes replaced by the first of them, and a sentence about the replacements."""
    first: dict[Any, int] = {}
    same: list[int] = []  # node -> the node that is read in its place
    nodes: list[Node] = []
    found: Counter[str] = Counter()
    for i, node in enumerate(cell.nodes):
        inputs = tuple(same[j] for j in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        same.append(i if node.op.form in UNIQUE else first.setdefault(_key(nodes[i]), i))
        if same[i] != i and node.op.form is not Form.INDEX:
            found[shown(node.op.name)] += 1
    if not found:
        return cell, "no duplicate operations"
    names = ", ".join(f"{n} {name}" for name, n in found.items())
    return cell.with_nodes(nodes, [same[o] for o in cell.outputs]), f"duplicates removed: {names}"


def _key(node: Node) -> Any:
    """Return a key that is equal for nodes with equal results. The bits of constants count: 0.0 and -0.0 differ."""
    inputs = tuple(sorted(node.inputs)) if node.op.name in COMMUTATIVE else node.inputs
    return node.op.name, inputs, by_bits(node.attrs), node.shape, node.domain, node.parameter


def by_bits(attrs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return a key that is equal for attributes with the same bits."""
    return tuple(
        (name, float_word(value) if isinstance(value, float) else value) for name, value in sorted(attrs.items())
    )
