"""Common subexpressions: operations of a cell with equal operands are one.

Cells are written for readers: `W @ x` in two formulas, a table row looked up twice, a gate used by two results. Of
equal nodes the first one stays, and what read the others reads it. Forward gives the same bits; backward adds the
gradients of all readers before it goes through the operation, where it went through once for each before.
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

# Swapping the operands of these changes no bit. Of `maximum` it may: equal operands count as the first, zeros of either
# sign are equal, and it gets the gradient.
COMMUTATIVE = frozenset(("add", "mul", "dot"))

# Each dropout has random numbers of its own. What comes from outside is told apart by where it comes from.
UNIQUE = (Form.DROPOUT, Form.ARGUMENT, Form.INPUT)


def common_subexpressions(cell: TracedCell) -> tuple[TracedCell, str]:
    """The cell with equal nodes replaced by the first of them, and a sentence on what was found."""
    first: dict[Any, int] = {}
    same: list[int] = []  # of each node, the one that is read in its place
    nodes: list[Node] = []
    found: Counter[str] = Counter()
    for i, node in enumerate(cell.nodes):
        inputs = tuple(same[j] for j in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        same.append(i if node.op.form in UNIQUE else first.setdefault(_key(nodes[i]), i))
        if same[i] != i and node.op.form is not Form.INDEX:
            found[shown(node.op.name)] += 1
    if not found:
        return cell, "no operation is written twice"
    names = ", ".join(f"{n} {name}" for name, n in found.items())
    return cell.with_nodes(nodes, [same[o] for o in cell.outputs]), f"done once where written again: {names}"


def _key(node: Node) -> Any:
    """Equal for nodes with equal results. Constants by their bits: 0.0 and -0.0, 1 and True are equal to Python."""
    inputs = tuple(sorted(node.inputs)) if node.op.name in COMMUTATIVE else node.inputs
    return node.op.name, inputs, by_bits(node.attrs), node.shape, node.domain, node.parameter


def by_bits(attrs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Equal for attributes that are the same to the bit."""
    return tuple(
        (name, float_word(value) if isinstance(value, float) else value) for name, value in sorted(attrs.items())
    )
