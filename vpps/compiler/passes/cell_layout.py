"""The order of a cell's parameters and symbols in memory, and what it saves (ED-Batch, section 3).

A batch of primitives is one operation on contiguous memory if what its primitives read lies side by side, in their
order, operand by operand, and so does what they write. Otherwise the operand is copied before, or the result after: a
memory operation. Parameters and symbols are the variables of a PQ tree (compiler/pqtree), the batches its constraints.

Two things follow from that. Parameters that are stacked get the order in which most of what is done to their products
is done to neighbours (`orders_of`, for passes/horizontal.py). And `study` counts what a batched cell would copy, with
the variables as they are declared and as the tree orders them; a cell of vpps itself copies next to nothing, because
its instructions read through index lists and tails keep gates in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vpps.compiler.passes.common_subexpressions import COMMUTATIVE
from vpps.compiler.passes.primitives import Batch, PrimitiveBatching, Primitives
from vpps.compiler.pqtree.layouts import RowLayout, evaluate, layout
from vpps.compiler.prepare import OUTSIDE, offset_in_root, root
from vpps.model.model import Parameter
from vpps.ops import Form, size
from vpps.ops.element import FLOAT32
from vpps.record.trace import Node, TracedCell

FLOAT = FLOAT32.bytes


@dataclass(frozen=True, slots=True)
class Copies:
    """What batches copy.

    Attributes:
        operations: gathers before batches and scatters after them.
        bytes: that they copy.
    """

    operations: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Study:
    """A cell batched primitive by primitive.

    Attributes:
        primitives: how many there are.
        batching: the one of those tried that needs the fewest memory operations, then the fewest batches.
        declared: with every parameter by itself and symbols batch by batch, as DyNet allocates them.
        laid_out: in the order of the PQ tree.
    """

    primitives: int
    batching: PrimitiveBatching
    declared: Copies
    laid_out: Copies


@dataclass(frozen=True, slots=True)
class _Column:
    """An operand of a batch, a place for each primitive.

    Attributes:
        variables: what the tree orders; () where it cannot: a variable occurs twice, or comes from outside.
        offsets: into the one value of which all are parts, whose place the tree does not decide; or ().
        bytes: of all.
        has_parameters: some of it are parameters.
    """

    variables: tuple[int, ...]
    offsets: tuple[int, ...]
    bytes: int
    has_parameters: bool


class CellMemory:
    """Variables and constraints of batched cells.

    Args:
        cells: with the batches that they run in.
        rows: vertices that a batch of the graph has. A parameter is one for all of them.

    Attributes:
        variables: parameters, and (cell, node); numbered as they are allocated where nothing is laid out.
    """

    def __init__(self, cells: Sequence[tuple[Primitives, PrimitiveBatching]], rows: int) -> None:
        used = {p: None for primitives, _ in cells for p in primitives.cell.parameters}
        declared = {p: k for model in dict.fromkeys(p.model for p in used) for k, p in enumerate(model)}
        self.variables: dict[Hashable, int] = {p: k for k, p in enumerate(sorted(used, key=declared.__getitem__))}
        for c, (_, batching) in enumerate(cells):
            for batch in batching.batches:
                for i in batch:
                    self.variables[c, i] = len(self.variables)
        self._rows = rows
        self._batches = [
            _columns
            for c, (primitives, batching) in enumerate(cells)
            for batch in batching.batches
            if len(batch) > 1 and (_columns := self._columns(c, primitives, batch))
        ]
        self._constraints = [[c.variables for c in columns if c.variables] for columns in self._batches]
        self._weights = [[float(c.bytes) for c in columns if c.variables] for columns in self._batches]

    def laid_out(self) -> RowLayout:
        """The order of the PQ tree."""
        return layout(len(self.variables), self._constraints, self._weights)

    def copies(self, found: RowLayout, apart: bool = False) -> Copies:
        """What is copied with a layout.

        Args:
            apart: no parameters lie beside each other, whatever the layout says.
        """
        copied: list[int] = []
        for columns, lanes, aligned in zip(self._batches, found.lanes, found.aligned, strict=True):
            left = iter(aligned)
            for column in columns:
                in_place = next(left) if column.variables else _follow(column.offsets, lanes)
                if not in_place or (apart and column.has_parameters):
                    copied.append(column.bytes)
        return Copies(len(copied), sum(copied))

    def copies_as_declared(self) -> Copies:
        """What is copied with variables as they are numbered, and parameters apart."""
        weights = [[0.0 if c.has_parameters else float(c.bytes) for c in b if c.variables] for b in self._batches]
        return self.copies(evaluate(range(len(self.variables)), self._constraints, weights), apart=True)

    def _columns(self, c: int, primitives: Primitives, batch: Batch) -> list[_Column]:
        """The operands of a batch, and its result."""
        nodes = primitives.cell.nodes
        first = nodes[batch[0]]
        read = list(zip(*(_operands(primitives, i) for i in batch), strict=True))
        is_product = first.op.form in (Form.MATVEC, Form.PACKED_MATMUL)
        if primitives.one_vector and is_product:
            read = []  # it is one
        columns = [self._column(c, nodes, column) for column in (*read, batch)]
        if is_product:
            matrices = [p for i in batch if (p := nodes[i].parameter) is not None]
            variables = _distinct([self.variables[p] for p in matrices])
            columns.append(_Column(variables, (), sum(FLOAT * size(p.shape) for p in matrices), True))
        return columns

    def _column(self, c: int, nodes: Sequence[Node], column: Sequence[int]) -> _Column:
        roots = [root(nodes, j) for j in column]
        has_parameters = any(nodes[at].op.form is Form.PARAMETER for at in roots)
        variables: list[int] = []
        moved = 0
        for j, at in zip(column, roots, strict=True):
            is_parameter = nodes[at].op.form is Form.PARAMETER
            moved += FLOAT * size(nodes[j].shape) * (1 if is_parameter else self._rows)
            key: Hashable = nodes[at].parameter if is_parameter else (c, at)
            if nodes[j].shape == nodes[at].shape and key in self.variables:
                variables.append(self.variables[key])
        if len(variables) == len(column):
            return _Column(_distinct(variables), (), moved, has_parameters)
        one = len(set(roots)) == 1 and nodes[roots[0]].op.form not in OUTSIDE
        offsets = tuple(offset_in_root(nodes, j) // max(size(nodes[j].shape), 1) for j in column) if one else ()
        return _Column((), offsets, moved, has_parameters)


def _distinct(variables: Sequence[int]) -> tuple[int, ...]:
    """A variable that is read twice lies in one place."""
    return tuple(variables) if len(set(variables)) == len(variables) else ()


def _follow(offsets: Sequence[int], lanes: Sequence[int]) -> bool:
    """Whether parts of one value follow each other in the order of the primitives."""
    return bool(offsets) and all(offsets[b] == offsets[a] + 1 for a, b in pairwise(lanes))


def _operands(primitives: Primitives, i: int) -> list[int]:
    """What a primitive reads, without indices; of sums and products, where either operand may be the first one, sorted
    by what the operands are, as in other primitives of the batch."""
    nodes = primitives.cell.nodes
    read = [j for j in nodes[i].inputs if nodes[j].op.form is not Form.INDEX]
    if nodes[i].op.name in COMMUTATIVE:
        read.sort(key=lambda j: primitives.kind_of.get(root(nodes, j), len(nodes)))
    return read


# ---- what it is for


def orders_of(
    cells: Collection[TracedCell], stacks: Sequence[tuple[Parameter, ...]]
) -> Iterator[list[tuple[Parameter, ...]]]:
    """Orders for the members of stacks in which operations on neighbours can be one: one for each way of batching the
    cells that gives another order than those before."""
    primitives = [Primitives(cell, one_vector=True) for cell in cells]
    batchings = [p.batchings() for p in primitives]
    seen = [list(stacks)]
    for k in range(max(map(len, batchings), default=0)):
        batched = [(p, b[min(k, len(b) - 1)]) for p, b in zip(primitives, batchings, strict=True) if b]
        memory = CellMemory(batched, rows=1)
        position = memory.laid_out().position
        place = {p: position[v] for p, v in memory.variables.items()}
        rising = [place[a] < place[b] for stack in stacks for a, b in pairwise(stack)]
        # The reverse of an order saves as much: of the two, the one more like that of the stacks.
        backwards = (2 * sum(rising) - len(rising), rising[0]) < (0, True)
        found = [tuple(sorted(stack, key=place.__getitem__, reverse=backwards)) for stack in stacks]
        if found not in seen:
            seen.append(found)
            yield found


def study(cell: TracedCell, rows: int, one_vector: bool = True) -> Study | None:
    """What a cell would copy if every batch of its primitives were a kernel; None where it has no primitives.

    Args:
        rows: vertices of a batch.
        one_vector: only products of one vector are of one batch (Primitives).
    """
    primitives = Primitives(cell, one_vector)
    tried = []
    for batching in primitives.batchings():
        memory = CellMemory([(primitives, batching)], rows)
        tried.append((memory.copies(memory.laid_out()), batching, memory))
    if not tried:
        return None
    copies, batching, memory = min(tried, key=lambda one: (one[0].operations, len(one[1].batches)))
    return Study(len(primitives.nodes), batching, memory.copies_as_declared(), copies)
