"""History of the cells that a model has been trained with. It decides which parameters are stacked, and so the order in
which gradients are summed. It belongs to the model and its checkpoints, so that resuming a run changes no bits.

A checkpoint's cells, like the program's cells, only influence the choice of stacks. No checkpoint can give a
cell a stack that the cell cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vpps.model.model import Lookup, Parameter
from vpps.ops import OPS, Form
from vpps.record.trace import Node, TracedCell

# Forms of nodes that have a parameter; nodes of other forms have none.
_OF_PARAMETERS = (Form.PARAMETER, Form.MATVEC, Form.PACKED_MATMUL, Form.LOOKUP)


@dataclass
class CellHistory:
    """The training history of a model.

    Attributes:
        cells: traced cells that influence stacking, in order of appearance, without duplicates.
        orders: orders in which stacked matrices are stored in memory.
        apart: names of parameters that must not be stacked again: their steps differed from their stack's.
    """

    cells: list[TracedCell] = field(default_factory=list)
    orders: tuple[tuple[Parameter, ...], ...] = ()
    apart: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """Return the history as lists, numbers and strings, for `from_json`."""

        def described(n: Node) -> tuple[Any, ...]:
            name = None if n.parameter is None else n.parameter.name
            return n.op.name, n.inputs, n.attrs, n.shape, n.domain, name

        cells = [[cell.outputs, list(map(described, cell.closed(cell.constants).nodes))] for cell in self.cells]
        orders = [[p.name for p in members] for members in self.orders]
        return {"cells": cells, "orders": orders, "apart": sorted(self.apart)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], parameters: Mapping[str, Parameter | None]) -> CellHistory:
        """Read the history of a model.

        Args:
            parameters: parameters by name; None for a parameter that is left out, as are all cells that use it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: `raw` is not a history.
        """
        cells = [_cell(outputs, nodes, parameters) for outputs, nodes in raw["cells"]]
        orders = [[parameters[name] for name in members] for members in raw["orders"]]
        apart = {name for name in raw.get("apart", []) if parameters[name] is not None}
        return cls(
            [c for c in cells if c is not None], tuple(tuple(m for m in o if m is not None) for o in orders), apart
        )


def _cell(outputs: Any, listed: Any, parameters: Mapping[str, Parameter | None]) -> TracedCell | None:
    """Read a cell's program; return None if it uses a parameter that is left out. Raises what `from_json` raises."""
    cell = TracedCell("of a checkpoint", ())
    complete = True
    for op, inputs, attrs, shape, domain, name in listed:
        parameter = None if name is None else parameters[name]
        complete = complete and (name is None or parameter is not None)
        node = Node(OPS[op], _ints(inputs), _attributes(attrs), _ints(shape, least=1), domain, parameter)
        if (
            any(j >= len(cell.nodes) for j in node.inputs)
            or type(domain) is not int
            or (name is not None) != (node.op.form in _OF_PARAMETERS)
            or (parameter is not None and not _suits(node, parameter, [cell.nodes[j].shape for j in node.inputs]))
        ):
            raise ValueError(op)
        cell.nodes.append(node)
    cell.outputs = _ints(outputs)
    if any(o >= len(cell.nodes) for o in cell.outputs):
        raise ValueError("outputs")
    return cell.opened() if complete else None


def _suits(node: Node, p: Parameter, operands: Sequence[tuple[int, ...]]) -> bool:
    """Return True if the shapes allow the node to use the parameter."""
    if node.op.form is Form.LOOKUP:
        return isinstance(p, Lookup) or len(p.shape) == 2
    if isinstance(p, Lookup):
        return False
    if node.op.form is Form.PARAMETER:
        return p.shape == node.shape
    if node.op.form is Form.MATVEC:
        return p.shape[:1] == node.shape and len(p.shape) == 2 and operands == [p.shape[1:]]
    return True


def _attributes(raw: Any) -> dict[str, Any]:
    """Read a node's attributes: numbers, strings, shapes. Raises what `from_json` raises."""
    if not all(isinstance(value, int | float | str | list) for value in raw.values()):
        raise TypeError("attributes")
    return {name: _ints(value) if isinstance(value, list) else value for name, value in raw.items()}


def _ints(raw: Any, least: int = 0) -> tuple[int, ...]:
    """Read node numbers, or a shape. Raises what `from_json` raises."""
    if any(type(value) is not int or value < least for value in raw):
        raise ValueError("an int")
    return tuple(raw)
