"""Chooses the order of a cell's parameters in memory (ED-Batch, section 3).

A batch of primitives is one operation on contiguous memory if each operand's variables, and the results, are side by
side in the order of the primitives. Otherwise an operand is copied beforehand, or a result afterwards. Parameters and
symbols are the variables of a PQ tree (compiler/pqtree), and the batches are its constraints.

If parameters are stacked in this order, most operations on their products can be fused (passes/horizontal.py). The
copies themselves hardly matter in vpps: instructions read through index lists, and tails keep gates in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import pairwise

from vpps.compiler.passes.common_subexpressions import COMMUTATIVE
from vpps.compiler.passes.primitives import Batch, Primitives
from vpps.compiler.pqtree.layouts import layout
from vpps.compiler.prepare import root
from vpps.model.model import Parameter
from vpps.ops import Form, size
from vpps.ops.element import FLOAT32
from vpps.record.trace import TracedCell

FLOAT = FLOAT32.bytes


def orders_of(
    cells: Collection[TracedCell], stacks: Sequence[tuple[Parameter, ...]]
) -> Iterator[list[tuple[Parameter, ...]]]:
    """Yield orders of the stacks' members that allow operations on neighbours to be fused. Each way of batching the
    cells gives one order; repeated orders are left out."""
    primitives = [Primitives(cell) for cell in cells]
    batchings = [p.batchings() for p in primitives]
    seen = [list(stacks)]
    for k in range(max(map(len, batchings), default=0)):
        batched = [(p, b[min(k, len(b) - 1)]) for p, b in zip(primitives, batchings, strict=True) if b]
        place = _laid_out(batched)
        rising = [place[a] < place[b] for stack in stacks for a, b in pairwise(stack)]
        # An order and its reverse save equally much: take the one that is closer to the stacks' order.
        backwards = (2 * sum(rising) - len(rising), rising[0]) < (0, True)
        found = [tuple(sorted(stack, key=place.__getitem__, reverse=backwards)) for stack in stacks]
        if found not in seen:
            seen.append(found)
            yield found


def _laid_out(cells: Sequence[tuple[Primitives, Sequence[Batch]]]) -> dict[Parameter, int]:
    """Return the position of each of the batched cells' parameters in the PQ tree's order."""
    used = {p: None for primitives, _ in cells for p in primitives.cell.parameters}
    declared = {p: k for model in dict.fromkeys(p.model for p in used) for k, p in enumerate(model)}
    parameters = sorted(used, key=declared.__getitem__)
    variables: dict[Hashable, int] = {p: k for k, p in enumerate(parameters)}
    for c, (_, batches) in enumerate(cells):
        for i in (i for batch in batches for i in batch):
            variables[c, i] = len(variables)
    constraints, weights = [], []
    for c, (primitives, batches) in enumerate(cells):
        for batch in batches:
            if len(batch) > 1:
                columns = [column for column in _columns(c, primitives, batch, variables) if column[0]]
                constraints.append([members for members, _ in columns])
                weights.append([float(n_bytes) for _, n_bytes in columns])
    order = layout(len(variables), constraints, weights)
    return {p: order.index(variables[p]) for p in parameters}


def _columns(
    c: int, primitives: Primitives, batch: Batch, variables: dict[Hashable, int]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """For each operand of a batch, and for its result, yield the variables (one per primitive) and their bytes.

    An operand that the tree cannot order has no variables: a value occurs twice, or comes from outside the cell."""
    nodes = primitives.cell.nodes
    is_product = nodes[batch[0]].op.form in (Form.MATVEC, Form.PACKED_MATMUL)  # products of one vector
    read = [] if is_product else zip(*(_operands(primitives, i) for i in batch), strict=True)
    for column in (*read, batch):
        keys: list[Hashable] = []
        for j in column:
            at = root(nodes, j)
            key: Hashable = nodes[at].parameter if nodes[at].op.form is Form.PARAMETER else (c, at)
            if nodes[j].shape == nodes[at].shape and key in variables:
                keys.append(key)
        members = tuple(variables[key] for key in keys) if len(set(keys)) == len(column) else ()
        yield members, sum(FLOAT * size(nodes[j].shape) for j in column)
    if is_product:
        matrices = [p for i in batch if (p := nodes[i].parameter) is not None]
        members = tuple(variables[p] for p in matrices) if len(set(matrices)) == len(matrices) else ()
        yield members, sum(FLOAT * size(p.shape) for p in matrices)


def _operands(primitives: Primitives, i: int) -> list[int]:
    """Return the operands of a primitive, without indices. Operands of commutative operations are sorted by type, so
    that they match those of other primitives of the batch."""
    nodes = primitives.cell.nodes
    read = [j for j in nodes[i].inputs if nodes[j].op.form is not Form.INDEX]
    if nodes[i].op.name in COMMUTATIVE:
        read.sort(key=lambda j: primitives.type_of.get(root(nodes, j), len(nodes)))
    return read
