"""Which cells a model has been trained with: that decides which parameters are stacked, and with it the order in which
gradients are summed. So it belongs to the model and its checkpoints: a resumed run has the bits of one without a break.

What a checkpoint says of cells only has a say in what is stacked, beside the cells that are really there: whatever it
says, no cell is given a stack that it cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vpps.model.model import Lookup, Parameter
from vpps.ops import OPS, Form
from vpps.record.trace import Node, TracedCell

# The form says whether a node has a parameter.
_OF_PARAMETERS = (Form.PARAMETER, Form.MATVEC, Form.PACKED_MATMUL, Form.LOOKUP)


@dataclass
class CellHistory:
    """What a model has been trained with.

    Attributes:
        cells: that have a say in what is stacked, as they were traced, in order of appearance; of equal ones the first.
        orders: of the matrices that cells let be stacked, as they lie.
        apart: names of parameters that are not stacked again, as they have taken other steps than the rest of a stack.
    """

    cells: list[TracedCell] = field(default_factory=list)
    orders: tuple[tuple[Parameter, ...], ...] = ()
    apart: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads: lists, numbers and strings."""

        def described(n: Node) -> tuple[Any, ...]:
            name = None if n.parameter is None else n.parameter.name
            return n.op.name, n.inputs, n.attrs, n.shape, n.domain, name

        cells = [[cell.outputs, list(map(described, cell.closed(cell.constants).nodes))] for cell in self.cells]
        orders = [[p.name for p in members] for members in self.orders]
        return {"cells": cells, "orders": orders, "apart": sorted(self.apart)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], parameters: Mapping[str, Parameter | None]) -> CellHistory:
        """The history of a model.

        Args:
            parameters: by name; None for one that is left out, with all cells that use it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: for what is none.
        """
        cells = [_cell(outputs, nodes, parameters) for outputs, nodes in raw["cells"]]
        orders = [[parameters[name] for name in members] for members in raw["orders"]]
        apart = {name for name in raw.get("apart", []) if parameters[name] is not None}
        return cls(
            [c for c in cells if c is not None], tuple(tuple(m for m in o if m is not None) for o in orders), apart
        )


def _cell(outputs: Any, listed: Any, parameters: Mapping[str, Parameter | None]) -> TracedCell | None:
    """A program; None where it uses a parameter that is left out. Raises as `from_json`."""
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
    """Whether a node can have that parameter."""
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
    """Attributes of a node: numbers, strings, shapes. Raises as `from_json`."""
    if not all(isinstance(value, int | float | str | list) for value in raw.values()):
        raise TypeError("attributes")
    return {name: _ints(value) if isinstance(value, list) else value for name, value in raw.items()}


def _ints(raw: Any, least: int = 0) -> tuple[int, ...]:
    """Numbers of nodes, or a shape. Raises as `from_json`."""
    if any(type(value) is not int or value < least for value in raw):
        raise ValueError("an int")
    return tuple(raw)
