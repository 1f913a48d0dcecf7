"""Lowers the ops that look at all elements of a list together. Their instructions count vertices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpps.compiler.instr import Ends, View
from vpps.record.trace import Node

if TYPE_CHECKING:
    from vpps.compiler.lower_backward import Backward
    from vpps.compiler.lower_forward import Forward


def forward(low: Forward, i: int, node: Node, source: View, dst: View) -> None:
    """A row per element (softmax) or per vertex (maximum) from the rows of the elements."""
    _emit(low, node.op.name, i, node, {"a": source}, dst, False)


def backward(low: Backward, i: int, node: Node, a: View, dy: View) -> None:
    """Gradient of the elements, from `a`: the results where the op has one for each element, else the elements."""
    _emit(low, f"{node.op.name}.grad0", i, node, {"a": a, "dy": dy}, *low.claim(node.inputs[0]))


def _emit(low: Forward, name: str, i: int, node: Node, views: dict[str, View], dst: View, accumulate: bool) -> None:
    domain = low.nodes[node.inputs[0]].domain
    low.emit(name, i, dst, {"elements": Ends(domain)}, accumulate=accumulate, operands=views, lists_of=domain)
