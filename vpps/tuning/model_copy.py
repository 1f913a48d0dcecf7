"""A copy of a model, and graphs of the original that run on the copy; the original stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from vpps.graph.graph import Graph
from vpps.model.model import Lookup, Model, Parameter
from vpps.ops.operand import Expression
from vpps.record.trace import TracedCell
from vpps.values import Float32


class ModelCopy:
    """A model with the same parameters, weights copied, and step number; without moments and averages.

    Args:
        model: the original, which may be in training.
        weights: by name, where they are known already; default: those of now.

    Attributes:
        model: the copy.
    """

    def __init__(self, model: Model, weights: Mapping[str, Float32] | None = None) -> None:
        values = model.numpy() if weights is None else weights
        self.model = Model(seed=model.seed)
        self.model.step = model.step
        self._parameters: dict[Parameter, Parameter] = {}
        for p in model:
            declare = self.model.lookup if isinstance(p, Lookup) else self.model.parameter
            self._parameters[p] = own = declare(p.name, p.shape, values[p.name], p.trainable)
            own.is_transposed = p.is_transposed
        self._cells: dict[TracedCell, TracedCell] = {}

    def of(self, graph: Graph, loss: Expression) -> tuple[Graph, Expression]:
        """The graph as one of the copy, and its loss. Neither graph may grow afterwards."""
        copied = Graph()
        for name in Graph.__slots__:
            if name != "__weakref__" and hasattr(graph, name):  # a graph without bare ops has no last block yet
                setattr(copied, name, getattr(graph, name))
        copied.blocks = {}
        copied.recorders = {}
        for cell, block in graph.blocks.items():
            own = self._cell(cell)
            copied.blocks[own] = same = copy(block)
            same.cell = same.pattern = own
        return copied, Expression(copied, loss.ref, loss.shape)

    def _cell(self, cell: TracedCell) -> TracedCell:
        own = self._cells.get(cell)
        if own is None:
            nodes = [
                node if node.parameter is None else replace(node, parameter=self._parameters[node.parameter])
                for node in cell.nodes
            ]
            own = self._cells[cell] = cell.with_nodes(nodes, cell.outputs)
        return own
