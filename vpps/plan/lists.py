"""Lowers the ops that look at all elements of a list together. Their instructions count vertices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpps.graph.trace import Node
from vpps.plan.instr import Ends, View

if TYPE_CHECKING:
    from vpps.plan.lower import Lowering


def forward(low: Lowering, i: int, node: Node, dst: View) -> None:
    """A row per element (softmax) or per vertex (maximum) from the rows of the elements."""
    (j,) = node.inputs
    _emit(low, node.op.name, i, {"a": low.view_of(j)}, dst, False)


def backward(low: Lowering, i: int, node: Node, dy: View) -> None:
    """Gradient of the elements: from those of the elements and their results, or from the vertex's and the elements."""
    (j,) = node.inputs
    operands = {"a": low.view_of(i if node.domain else j), "dy": dy}
    _emit(low, f"{node.op.name}.grad0", i, operands, *low.claim(j))


def _emit(low: Lowering, name: str, i: int, operands: dict[str, View], dst: View, accumulate: bool) -> None:
    domain = low.nodes[low.nodes[i].inputs[0]].domain
    values = {"elements": Ends(domain)}
    low.emit(name, i, dst, values, accumulate=accumulate, operands=operands, lists_of=domain)
