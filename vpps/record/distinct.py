"""What vertices of a map have in common: computed once by `graph.map(..., distinct=True)`.

Words repeat: of 64 sentences less than half of the words are distinct, and a recurrent cell multiplies each by a matrix
as large as that of the recurrence. So a cell is cut in two. The first part has what follows from ints alone, products
above all; it gets a vertex for each distinct combination of them, before all others. The second one reads the results,
many vertices the same ones.

Half of all children in a tree are leaves, which now are the same ones for many parents, and so are the products that
parents make of them. Those are cut off as well, each a vertex of its own between child and parents, where enough of
them are saved: then the levels of a tree multiply inner children only.

Gradients of equal values are summed before they are multiplied, which is exact: multiplication is linear.
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
OF_VERTEX = (Form.ARGUMENT, Form.DROPOUT, Form.INPUT)  # differ even where all ints are equal

TABLE_FROM = 16
"""A table of so many entries per vertex finds equal ints faster than sorting them does."""

FEW = 64
"""Up to so many vertices a dict finds them sooner than a dozen calls of NumPy."""


ONE_IN = 10
"""Products of children are computed apart where one in so many is saved at least: every level becomes two."""


@dataclass(frozen=True, slots=True)
class Products:
    """What a cell multiplies one child's result by.

    Attributes:
        child, output: which result of which child.
        program: the products, of that result alone.
    """

    child: int
    output: int
    program: TracedCell


@dataclass(frozen=True, slots=True)
class Cut:
    """A cell in parts.

    Attributes:
        once: the first part: takes ints only; None where nothing follows from those.
        ints: which of the cell's ints it takes.
        rest: the last part, whose last arguments are the results of the others; None where nothing is left.
        rest_ints: which of the cell's ints the last part takes.
        crossing: the nodes that are the results of the first part.
        products: parts between children and the last part, where those are made apart.
    """

    once: TracedCell | None
    ints: tuple[int, ...]
    rest: TracedCell | None
    rest_ints: tuple[int, ...]
    crossing: tuple[int, ...] = ()
    products: tuple[Products, ...] = ()


def cut(cell: TracedCell) -> Cut | None:
    """Cut a cell; None where nothing follows from ints alone that is worth it: all of it, or a product."""
    nodes = cell.nodes
    alone = [False] * len(nodes)  # it follows from ints alone
    worth = [False] * len(nodes)  # and from a product, and from some int: constants are no matter of vertices
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
    """Cut products of children off as well; None where there are none of two children or more, as in chains.

    Args:
        cut: of the cell.
        children: by position of an argument that is one, which child's and which result of it.
    """
    if cut is not None and cut.rest is None:
        return None
    of_node = {cell.arguments[position]: child for position, child in children.items()}
    found: dict[int, list[int]] = {}  # by what is multiplied
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
    """The program of some products of node x alone."""
    shape, outputs = cell.nodes[x].shape, range(1, len(nodes) + 1)
    argument = Node(OPS["argument"], (), {"position": 0}, shape)
    made = [argument, *(replace(cell.nodes[i], inputs=(0,)) for i in nodes)]
    matrices = [p.name for i in nodes if (p := cell.nodes[i].parameter) is not None]
    name = ".".join([cell.name, *dict.fromkeys(matrices)])
    product = TracedCell(name, (Vector(shape),), made, [0], outputs=tuple(outputs), single=len(nodes) == 1)
    return shared(product, cell)


def _base(nodes: Sequence[Node], i: int) -> int:
    """What a view is part of: views of what crosses cost nothing."""
    while nodes[i].op.form in VIEWS:
        i = nodes[i].inputs[0]
    return i


def _reached(nodes: Sequence[Node], wanted: Iterable[int], given: Iterable[int]) -> list[int]:
    """The nodes that some are computed from, in order, given the values of others."""
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
    """The cell of a part, and which of the whole's ints it takes. It has all other arguments of the whole, unless it
    takes ints only, and last what is given."""
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
    """The distinct rows of a table.

    Args:
        ints: (n, columns), at least one row and one column.

    Returns:
        By distinct row, in the order in which they appear, the first vertex that has it; and for each of n vertices,
        which of them is its own.
    """
    n = len(ints)
    if n <= FEW:
        return _find_few(ints)
    codes = ints[:, 0]
    for k in range(1, ints.shape[1]):
        span = int(ints[:, k].max()) - int(low := ints[:, k].min()) + 1
        if int(np.abs(codes).max()) >= 2**62 // span:  # number them anew before they get too large
            codes = find_distinct(codes[:, None])[1]
        codes = codes * span + (ints[:, k] - low)
    low, high = int(codes.min()), int(codes.max())
    if high - low < TABLE_FROM * n + 1024:
        first = np.empty(high - low + 1, np.int64)
        codes = codes - low if low else codes
        first[codes[::-1]] = np.arange(n - 1, -1, -1)  # of equal entries the last one assigned stays
        first_of = first[codes]
    else:
        _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
        first_of = firsts[inverse]
    distinct = np.flatnonzero(first_of == np.arange(n))
    number = np.empty(n, np.int64)
    number[distinct] = np.arange(len(distinct))
    return distinct, number[first_of]


def _find_few(ints: Ints) -> tuple[Ints, Ints]:
    """The same, for a short table."""
    keys: list[Any] = ints[:, 0].tolist() if ints.shape[1] == 1 else list(map(tuple, ints.tolist()))
    number: dict[Any, int] = {}
    own = [number.setdefault(key, len(number)) for key in keys]
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    return np.array([first[key] for key in number], np.int64), np.array(own, np.int64)
