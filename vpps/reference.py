"""Reference implementation of graphs in NumPy and float64, without scripts. It is slow but simple. Tests compare every
target with it, and users can compare a model that misbehaves.

It shares no code with planner/, script/ and kernel/, except for the op table's reference functions, the traced cells
and the arrays of the recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.graph.graph import Graph
from vpps.model.model import Model, Parameter
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops import Form, Shape
from vpps.ops.dropout import factors
from vpps.ops.operand import Expression
from vpps.ops.philox import LaunchKey, first_draw, launch_key
from vpps.ops.precision import EXACT, Precision
from vpps.ops.structure import list_sum
from vpps.record.arrays import BlockArrays, Lists
from vpps.record.examples import NONE, UNNUMBERED
from vpps.record.rows import Rows, value_ids
from vpps.record.trace import Int, Node, Vector

__all__ = ["Reference", "ReferenceBatch", "key_of", "weights_of"]
__dir__ = __all__.copy  # completion shows nothing else

Array = NDArray[Any]
_PRODUCTS = (Form.MATVEC, Form.PACKED_MATMUL)  # products with parameters


@dataclass
class ReferenceBatch:
    """Vertices of one block at one topological level, and the values of the cell's nodes for these vertices."""

    block: BlockArrays
    rows: Array
    args: list[Array]  # per vector argument, value ids
    ints: list[Array]
    lists: list[Lists]
    nodes: list[Array] = field(default_factory=list)

    def read(self) -> Iterator[tuple[int, Shape, Array]]:
        """For each argument that is not an int, yield its node, the shape of its values, and its value ids."""
        cell, vectors, lists = self.block.cell, iter(self.args), iter(self.lists)
        for kind, node in zip(cell.kinds, cell.arguments, strict=True):
            if not isinstance(kind, Int):
                assert kind.shape is not None
                yield node, kind.shape, next(vectors) if isinstance(kind, Vector) else next(lists).elements

    def offsets(self, domain: int) -> Array:
        return self.lists[self.block.cell.lists.index(domain)].ends


class Reference:
    """Values and gradients of one graph.

    Args:
        graph: the graph to compute.
        weights: float64 (or float32) arrays by parameter name.
        key: key for dropout's random numbers, such as `key_of(model)`; None, as in inference, turns dropout off.
        shard: the shard's number in its mini-batch; it decides the dropout masks of vertices that have no example.
        precisions: precisions of products with parameters. Only the factors of these products are rounded.

    Attributes:
        gradients: after `backward`, dense arrays by parameter name (trainable or not).
        nearest_tie: smallest distance of a product's vector from a rounding tie (`Precision.nearest_tie`). A float32
            target with an error of that size may round the vector in the other direction.
        reached: after `backward`, names of the parameters that the loss depends on. Other parameters have no gradient,
            not even a zero one.
        batches: the batches of vertices, in the order in which they are computed.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Array],
        key: LaunchKey | None = None,
        shard: int = 0,
        precisions: Precisions = ALL_EXACT,
    ) -> None:
        self.graph = graph
        self.precisions = precisions
        self.nearest_tie = np.inf
        self.key = key
        self._draws = _draws(graph, shard)
        self.weights = {k: np.asarray(v, np.float64) for k, v in weights.items()}
        self.gradients = {k: np.zeros_like(v) for k, v in self.weights.items()}
        self.reached: set[str] = set()
        self._blocks = [BlockArrays(block) for block in graph.blocks.values()]
        self._slot = np.zeros(graph.n_values, np.int64)
        counts: dict[Shape, int] = {}
        for block in self._blocks:
            for k, o in enumerate(block.cell.outputs):
                shape = block.cell.nodes[o].shape
                start = counts.get(shape, 0)
                self._slot[block.values[k]] = np.arange(start, start + len(block.calls))
                counts[shape] = start + len(block.calls)
        self._values = {s: np.zeros((n, *s)) for s, n in counts.items()}
        self._d_values = {s: np.zeros((n, *s)) for s, n in counts.items()}
        self.batches = self._schedule()
        for batch in self.batches:
            self._forward(batch)

    def _schedule(self) -> list[ReferenceBatch]:
        batches: list[tuple[int, int, ReferenceBatch]] = []
        for b, block in enumerate(self._blocks):
            for level in np.unique(block.levels):
                rows = np.flatnonzero(block.levels == level)
                lists = [xs.of(rows) for xs in block.lists]
                batch = ReferenceBatch(block, rows, list(block.args[rows].T), list(block.ints[rows].T), lists)
                batches.append((int(level), b, batch))
        return [batch for _, _, batch in sorted(batches, key=lambda t: t[:2])]

    def _forward(self, batch: ReferenceBatch) -> None:
        cell = batch.block.cell
        given = {node: self._rows(self._values, shape, ids) for node, shape, ids in batch.read()}
        ints = [node for kind, node in zip(cell.kinds, cell.arguments, strict=True) if isinstance(kind, Int)]
        given |= zip(ints, batch.ints, strict=True)
        for i, node in enumerate(cell.nodes):
            if i in given:
                value = given[i]
            elif node.op.form is Form.INDEX:
                value = np.full(len(batch.rows), node.attrs["constant"])
            elif node.op.form is Form.PARAMETER:
                assert node.parameter is not None
                weight = self.weights[node.parameter.name]
                value = np.broadcast_to(weight, (len(batch.rows), *weight.shape))
            elif node.op.form is Form.INPUT:
                value = batch.block.data[batch.rows].astype(np.float64).reshape(-1, *node.shape)
            elif node.op.form is Form.ZEROS:
                value = np.zeros((len(batch.rows), *node.shape))
            else:
                value = node.op.forward(node.attrs, *self._operands(batch, i))
            batch.nodes.append(value)
        for k, o in enumerate(cell.outputs):
            ids = batch.block.values[k][batch.rows]
            self._values[cell.nodes[o].shape][self._slot[ids]] = batch.nodes[o]

    def _rows(self, of: Mapping[Shape, Array], shape: Shape, ids: Array) -> Array:
        """Return the values, or gradients, with these ids. An empty list may have a shape that no value has."""
        return of[shape][self._slot[ids]] if len(ids) else np.zeros((0, *shape))

    def _operands(self, batch: ReferenceBatch, i: int) -> list[Array]:
        """Return node i's operands in the form that its reference functions expect."""
        nodes = batch.block.cell.nodes
        node = nodes[i]
        xs: list[Array] = [] if node.parameter is None else [self.weights[node.parameter.name]]
        for j in node.inputs:
            x = batch.nodes[j]
            if node.domain and not nodes[j].domain:  # a value of the vertex, used by each of its elements
                x = np.repeat(x, np.diff(batch.offsets(node.domain)), axis=0)
            xs.append(x)
        if node.op.form in _PRODUCTS:
            assert node.parameter is not None
            precision = self.precisions.of(node.parameter)
            xs[0] = precision.round(xs[0]).astype(np.float64) if precision.is_reduced else xs[0]
            xs[1] = self._rounded(precision, xs[1])
        if node.op.form in (Form.LIST_REDUCE, Form.LIST_MAP):
            xs.append(batch.offsets(nodes[node.inputs[0]].domain))
        elif node.op.form is Form.DROPOUT:
            draws, positions = self._draws[batch.block.calls[batch.rows]], np.zeros(len(batch.rows), np.int64)
            if node.domain:
                lengths = np.diff(batch.offsets(node.domain))
                draws = np.repeat(draws, lengths)
                positions = np.arange(len(draws)) - np.repeat(batch.offsets(node.domain)[:-1], lengths)
            xs.append(factors(self.key, node.attrs, node.shape, draws, positions))
        return xs

    def _rounded(self, precision: Precision, x: Array) -> Array:
        """Round vectors as products do."""
        if not precision.is_reduced:
            return x
        self.nearest_tie = min(self.nearest_tie, precision.nearest_tie(x))
        return precision.round(x).astype(np.float64)

    def _gradients(self, node: Node, xs: list[Array], y: Array, dy: Array) -> list[Array | None]:
        """Return the gradients of a node's operands."""
        precision = EXACT
        if node.op.form in _PRODUCTS:
            assert node.parameter is not None
            precision = self.precisions.of(node.parameter)
        grads = list(node.op.backward(node.attrs, xs, y, self._rounded(precision, dy)))
        if precision.is_reduced and len(grads) > 2:  # the gradient of a bias is not a product: not rounded
            grads[2:] = list(node.op.backward(node.attrs, xs, y, dy))[2:]
        return grads

    def value(self, expression: Expression | Rows) -> Array:
        """Return the value of an expression, of shape (n, ...) for rows."""
        return self._values[expression.shape][self._slot[value_ids(expression)]]  # type: ignore[no-any-return]

    def gradient(self, expression: Expression | Rows) -> Array:
        """After `backward`: return the loss's gradient with respect to an expression, of shape (n, ...) for rows."""
        return self._d_values[expression.shape][self._slot[value_ids(expression)]]  # type: ignore[no-any-return]

    def gradients_of(self, batch: ReferenceBatch) -> tuple[Array, list[Array]]:
        """After `backward`: return the gradients of a batch's outputs, as a flat array, and those of each argument."""
        cell = batch.block.cell
        given = [
            self._d_values[cell.nodes[o].shape][self._slot[ids[batch.rows]]].reshape(len(batch.rows), -1)
            for o, ids in zip(cell.outputs, batch.block.values, strict=True)
        ]
        taken = [self._rows(self._d_values, shape, ids) for _, shape, ids in batch.read()]
        return np.concatenate(given, axis=1), taken

    def backward(self, loss: Expression) -> dict[str, Array]:
        """Fill `gradients` with the gradients of a scalar loss and return them."""
        self._d_values[()][self._slot[loss.ref]] = 1.0
        self.reached.clear()
        self._rows_reached: dict[Parameter, list[int]] = {}
        self._useful = self._reaches(loss)
        for batch in reversed(self.batches):
            self._backward(batch)
        return self.gradients

    def _reaches(self, loss: Expression) -> Array:
        """Return a mask of the values that the loss depends on through ops that have gradients. No gradient flows into
        other values, not even zero times infinity."""
        useful = np.zeros(len(self._slot), bool)
        useful[loss.ref] = True
        for batch in reversed(self.batches):
            nodes = batch.block.cell.nodes
            leads = np.zeros((len(nodes), len(batch.rows)), bool)
            for o, ids in zip(batch.block.cell.outputs, batch.block.values, strict=True):
                leads[o] |= useful[ids[batch.rows]]
            for i in reversed(range(len(nodes))):
                node = nodes[i]
                leads[i] &= node.op.differentiable
                if node.parameter is not None and leads[i].any():
                    self.reached.add(node.parameter.name)
                    if node.op.form is Form.LOOKUP:
                        rows = batch.nodes[node.inputs[0]][leads[i]].tolist()
                        self._rows_reached.setdefault(node.parameter, []).extend(rows)
                for j in node.inputs[node.op.conditions :]:
                    leads[j] |= leads[i]
            for n, _, ids in batch.read():
                domain = nodes[n].domain
                useful[ids[np.repeat(leads[n], np.diff(batch.offsets(domain))) if domain else leads[n]]] = True
        return useful

    def _backward(self, batch: ReferenceBatch) -> None:
        cell = batch.block.cell
        used = np.any([self._useful[ids[batch.rows]] for ids in batch.block.values], axis=0)
        if not used.all():
            batch = self._subset(batch, used)
            if not len(batch.rows):
                return
        d: list[Array | None] = [None] * len(cell.nodes)
        for k, o in enumerate(cell.outputs):
            add: Array = self._d_values[cell.nodes[o].shape][self._slot[batch.block.values[k][batch.rows]]]
            before = d[o]
            d[o] = add if before is None else before + add
        for i in reversed(range(len(cell.nodes))):
            node, dy = cell.nodes[i], d[i]
            if dy is None:
                continue
            if node.op.form is Form.PARAMETER:
                assert node.parameter is not None
                self.gradients[node.parameter.name] += dy.sum(axis=0)
            if node.op.form in (Form.PARAMETER, Form.ARGUMENT, Form.INDEX, Form.INPUT, Form.ZEROS):
                continue
            grads = self._gradients(node, self._operands(batch, i), batch.nodes[i], dy)
            if node.parameter is not None:
                d_weights = grads.pop(0)
                assert d_weights is not None
                self.gradients[node.parameter.name] += d_weights
            for j, g in zip(node.inputs, grads, strict=False):
                if g is None or cell.nodes[j].op.form is Form.INDEX:
                    continue
                if node.domain and not cell.nodes[j].domain:
                    g = list_sum({}, g, batch.offsets(node.domain))
                d[j] = g if d[j] is None else d[j] + g
        for n, shape, ids in batch.read():
            d_argument = d[n]
            if d_argument is not None and len(ids):
                np.add.at(self._d_values[shape], self._slot[ids], d_argument)

    def touched_rows(self, table: Parameter) -> Array:
        """After `backward`: return the sorted rows of a table that the loss depends on, for lazy updates."""
        return np.unique(np.array(self._rows_reached.get(table, []), np.int64))

    def _subset(self, batch: ReferenceBatch, used: Array) -> ReferenceBatch:
        """Return the batch without the vertices that the loss does not depend on."""
        lists = [xs.of(np.flatnonzero(used)) for xs in batch.lists]
        smaller = ReferenceBatch(
            batch.block, batch.rows[used], [a[used] for a in batch.args], [a[used] for a in batch.ints], lists
        )
        domains = {d: batch.offsets(d) for d in batch.block.cell.lists}
        for node, value in zip(batch.block.cell.nodes, batch.nodes, strict=True):
            keep = np.repeat(used, np.diff(domains[node.domain])) if node.domain else used
            smaller.nodes.append(value[keep])
        return smaller


def weights_of(model: Model) -> dict[str, Array]:
    """Return the model's current weights in float64."""
    return {name: w.astype(np.float64) for name, w in model.numpy().items()}


def _draws(graph: Graph, shard: int) -> Array:
    """Return the number on which each vertex's random words depend, by recording index."""
    example = np.full(graph.n_calls, -1)
    for first, n, numbers in graph.examples:
        example[first : None if n is None else first + n] = numbers if isinstance(numbers, int) else numbers.numbers
    numbered = example != UNNUMBERED
    example[example == NONE] -= shard
    draws = np.zeros(graph.n_calls, np.int64)
    for k in np.unique(example[numbered]).tolist():
        own = np.flatnonzero((example == k) & numbered)
        draws[own] = (first_draw(k) + np.arange(len(own))) % 2**32
    return draws


def key_of(model: Model) -> LaunchKey:
    """Return the random-number key for the next `fb`, and for `gradients(train=True)` before it."""
    model.pull_weights()
    return launch_key(model.seed, model.step + 1, model.accumulated.calls if model.accumulated is not None else 0)
