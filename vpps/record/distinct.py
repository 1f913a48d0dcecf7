"""Common subexpressions of a map's vertices, computed once by `graph.map(..., distinct=True)`.

Words repeat: less than half of the words in 64 sentences are distinct. A recurrent cell multiplies each word by a
matrix as large as the recurrence's. So the recorder splits a cell in two. The first part depends only on ints and
contains at least one product; it gets one vertex per distinct combination of ints, before all other vertices. The
second part reads these results; many vertices read the same result.

Half of all children in a tree are leaves. Many parents now share a leaf, so they share its products, too. If this saves
enough products, they are split off as well: each is a vertex between a child and its parents. A tree's levels then
multiply only inner children.

Gradients of equal values are summed before they are multiplied; this is exact because multiplication is linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from vpps.ops import OPS, Form
from vpps.record.ranges import Ints
from vpps.record.trace import ArgKind, Int, Node, TracedCell, Vector, shared

PRODUCTS = (Form.MATVEC, Form.PACKED_MATMUL, Form.MATMUL)
VIEWS = (Form.SLICE, Form.RESHAPE)
OF_VERTEX = (Form.ARGUMENT, Form.DROPOUT, Form.INPUT)  # these differ even if all ints are equal

TABLE_FROM = 16
"""Up to this many table entries per vertex, a table finds equal ints faster than sorting."""

FEW = 64
"""Up to this many vertices, a dict is faster than a dozen NumPy calls."""


ONE_IN = 10
"""Products of children are split off only if at least one in this many is saved, because every level becomes two."""


@dataclass(frozen=True, slots=True)
class Products:
    """The products of one child result in a cell.

    Attributes:
        child, output: the child, and which of its results.
        program: the products, whose only argument is this result.
    """

    child: int
    output: int
    program: TracedCell


@dataclass(frozen=True, slots=True)
class Cut:
    """A cell split into parts.

    Attributes:
        once: the first part, which takes only ints; None if there is none.
        ints: the cell's ints that `once` takes.
        rest: the final part, whose trailing arguments are the other parts' results; None if nothing is left.
        rest_ints: the cell's ints that `rest` takes.
        crossing: the nodes that are the results of `once`.
        products: parts between children and the final part, if products are split off.
    """

    once: TracedCell | None
    ints: tuple[int, ...]
    rest: TracedCell | None
    rest_ints: tuple[int, ...]
    crossing: tuple[int, ...] = ()
    products: tuple[Products, ...] = ()


def cut(cell: TracedCell) -> Cut | None:
    """Split a cell. Returns None unless the whole cell, or a product in it, depends only on ints."""
    nodes = cell.nodes
    alone = [False] * len(nodes)  # the node depends only on ints
    worth = [False] * len(nodes)  # and includes a product and an int: constants belong to the model, not to vertices
    product, varies = [False] * len(nodes), [False] * len(nodes)
    for i, n in enumerate(nodes):
        alone[i] = n.op.form not in OF_VERTEX and not n.domain and all(alone[j] for j in n.inputs)
        product[i] = n.op.form in PRODUCTS or any(product[j] for j in n.inputs)
        varies[i] = "position" in n.attrs if n.op.form is Form.INDEX else any(varies[j] for j in n.inputs)
        worth[i] = alone[i] and product[i] and varies[i]
    all_ints = tuple(range(sum(isinstance(k, Int) for k in cell.kinds)))
    if all_ints and len(all_ints) == len(cell.kinds) and all(alone[o] and varies[o] for o in cell.outputs):
        return Cut(cell, all_ints, None, (), cell.outputs)
    read = [j for i in _reached(nodes, cell.outputs, ()) if not worth[i] for j in nodes[i].inputs]
    crossing = list(dict.fromkeys(_base(nodes, j) for j in (*read, *cell.outputs) if worth[j]))
    if not crossing:
        return None
    first, first_ints = _part(cell, f"{cell.name}.distinct", crossing, ())
    rest, rest_ints = _part(cell, cell.name, cell.outputs, crossing)
    return Cut(first, first_ints, rest, rest_ints, tuple(crossing))


def cut_products(cell: TracedCell, cut: Cut | None, children: Mapping[int, tuple[int, int]]) -> Cut | None:
    """Also split off products of children. Returns None if fewer than two children are multiplied, as in chains.

    Args:
        cut: the existing split of the cell.
        children: by argument position, the child, and which of its results is the argument.
    """
    if cut is not None and cut.rest is None:
        return None
    of_node = {cell.arguments[position]: child for position, child in children.items()}
    found: dict[int, list[int]] = {}  # by the multiplied node
    for i in _reached(cell.nodes, cell.outputs, ()):
        n = cell.nodes[i]
        if n.op.form is Form.MATVEC and len(n.inputs) == 1 and n.inputs[0] in of_node and not n.domain:
            found.setdefault(n.inputs[0], []).append(i)
    if len({of_node[x][0] for x in found}) < 2:
        return None
    crossing = () if cut is None else cut.crossing
    rest, rest_ints = _part(cell, cell.name, cell.outputs, (*crossing, *chain(*found.values())))
    products = tuple(Products(*of_node[x], _products(cell, x, nodes)) for x, nodes in found.items())
    if cut is None:
        return Cut(None, (), rest, rest_ints, (), products)
    return replace(cut, rest=rest, products=products)


def _products(cell: TracedCell, x: int, nodes: Sequence[int]) -> TracedCell:
    """Return the program that computes only node x's products."""
    shape, outputs = cell.nodes[x].shape, range(1, len(nodes) + 1)
    argument = Node(OPS["argument"], (), {"position": 0}, shape)
    made = [argument, *(replace(cell.nodes[i], inputs=(0,)) for i in nodes)]
    matrices = [p.name for i in nodes if (p := cell.nodes[i].parameter) is not None]
    name = ".".join([cell.name, *dict.fromkeys(matrices)])
    product = TracedCell(name, (Vector(shape),), made, [0], outputs=tuple(outputs), single=len(nodes) == 1)
    return shared(product, cell)


def _base(nodes: Sequence[Node], i: int) -> int:
    """Return the node that a view is part of; views of values passed between parts are free."""
    while nodes[i].op.form in VIEWS:
        i = nodes[i].inputs[0]
    return i


def _reached(nodes: Sequence[Node], wanted: Iterable[int], given: Iterable[int]) -> list[int]:
    """Return the nodes that `wanted` are computed from, in order, if the values of `given` are known."""
    found: set[int] = set()
    known = set(given)
    todo = list(wanted)
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            todo += () if i in known else nodes[i].inputs
    return sorted(found)


def _part(
    cell: TracedCell, name: str, outputs: Sequence[int], given: Sequence[int]
) -> tuple[TracedCell, tuple[int, ...]]:
    """Return a part's cell, and which of the whole cell's ints it takes. Its arguments are all of the whole cell's
    other arguments, or only ints if nothing is given; the given values come last."""
    reached = _reached(cell.nodes, outputs, given)
    taken = [p for p, k in enumerate(cell.kinds) if cell.arguments[p] in reached or (given and not isinstance(k, Int))]
    kept = sorted({*reached, *(cell.arguments[p] for p in taken)})
    number = {i: k for k, i in enumerate(kept)}
    position = {p: k for k, p in enumerate(taken)}
    kinds: list[ArgKind] = [cell.kinds[p] for p in taken]
    made = TracedCell(name, ())
    for i in kept:
        node = cell.nodes[i]
        attrs = node.attrs
        if "position" in attrs and node.op.form in (Form.ARGUMENT, Form.INDEX):
            attrs = attrs | {"position": position[attrs["position"]]}
        inputs = () if i in given else tuple(number[j] for j in node.inputs)
        made.nodes.append(replace(node, inputs=inputs, attrs=attrs))
    for i in given:
        made.nodes[number[i]] = Node(OPS["argument"], (), {"position": len(kinds)}, cell.nodes[i].shape)
        kinds.append(Vector(cell.nodes[i].shape))
    made.kinds = tuple(kinds)
    made.arguments = [number[cell.arguments[p]] for p in taken] + [number[i] for i in given]
    made.outputs = tuple(number[o] for o in outputs)
    made.single = len(outputs) == 1
    made.n_domains = cell.n_domains if given else 0
    made.list_domains = {position[p]: d for p, d in cell.list_domains.items()} if given else {}
    made.lists = tuple(made.list_domains.values())
    made.index_limits = {position[p]: limit for p, limit in cell.index_limits.items() if p in position}
    made.int_limits = tuple(made.index_limits.get(p) for p, k in enumerate(kinds) if isinstance(k, Int))
    return shared(made, cell), tuple(cell.place(p) for p in taken if isinstance(cell.kinds[p], Int))


def find_distinct(ints: Ints) -> tuple[Ints, Ints]:
    """Find the distinct rows of a table.

    Args:
        ints: (n, columns), at least one row and one column.

    Returns:
        The index of each distinct row's first occurrence, in order of appearance; and for each of the n rows, the
        number of its distinct row.
    """
    n = len(ints)
    if n <= FEW:
        return _find_few(ints)
    codes = ints[:, 0]
    for k in range(1, ints.shape[1]):
        span = int(ints[:, k].max()) - int(low := ints[:, k].min()) + 1
        if int(np.abs(codes).max()) >= 2**62 // span:  # renumber the codes before they overflow
            codes = find_distinct(codes[:, None])[1]
        codes = codes * span + (ints[:, k] - low)
    low, high = int(codes.min()), int(codes.max())
    if high - low < TABLE_FROM * n + 1024:
        first = np.empty(high - low + 1, np.int64)
        codes = codes - low if low else codes
        first[codes[::-1]] = np.arange(n - 1, -1, -1)  # the last assignment to an entry wins
        first_of = first[codes]
    else:
        _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
        first_of = firsts[inverse]
    distinct = np.flatnonzero(first_of == np.arange(n))
    number = np.empty(n, np.int64)
    number[distinct] = np.arange(len(distinct))
    return distinct, number[first_of]


def _find_few(ints: Ints) -> tuple[Ints, Ints]:
    """Find the distinct rows of a short table, like `find_distinct`."""
    keys: list[Any] = ints[:, 0].tolist() if ints.shape[1] == 1 else list(map(tuple, ints.tolist()))
    number: dict[Any, int] = {}
    own = [number.setdefault(key, len(number)) for key in keys]
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    return np.array([first[key] for key in number], np.int64), np.array(own, np.int64)
