"""Horizontal fusion: products of one vector become one product with the stacked matrices.

A cell written gate by gate,

    i, f, o, u = (W[g] @ x + U[g] @ h + b[g] for g in "ifou")

has four products of `x` and four of `h`. One product with the four stacked matrices reads the vector once and keeps the
virtual processors busy four times as long. The result is split into the gates again, so one virtual processor owns the
same hidden units of all gates (compiler/prepare.py, `parts_of_units`), and the elementwise rest needs no barrier.

Equal operations on neighbouring parts become one operation too: a sum with parts of another product, a sum with a bias
each, a sigmoid of some gates. The order of the stacked matrices decides which parts are neighbours.
passes/cell_layout.py proposes orders, and the one with the fewest operations in all cells wins; ties go to the order
of use.

Every row of a product is summed over the columns in order, wherever the row is, so forward gives the same bits.
The vector's gradient is one sum over all rows; without the pass, it is a sum of sums.

The matrices must be stacked in the pool (placement/stacks.py), so all cells of a model have to agree. The pass stacks
parameters that always multiply the same vectors, share a shape of whole panels of rows (on GPUs a panel is one row),
are all trained or all frozen, and share one set of hyper-parameters. If a later cell uses only one of them, the handle
undoes the stack. A product repeated over a list (`vpps.each(lambda h: U @ h, hs)`) is one instruction anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vpps.compiler.passes.cell_layout import orders_of
from vpps.compiler.passes.common_subexpressions import COMMUTATIVE, by_bits
from vpps.compiler.prepare import live_nodes
from vpps.model.model import Parameter
from vpps.ops import OPS, Form
from vpps.placement.stacks import NO_STACKS, Stack, Stacks
from vpps.record.trace import Node, TracedCell

Group = dict[Parameter, int]  # product nodes of one vector, by matrix
Order = dict[Parameter, None]  # a set in order of appearance


def find_stacks(
    cells: Collection[TracedCell],
    parameters: Collection[Parameter],
    panel: int,
    rule_of: Callable[[Parameter], object] = lambda p: None,
    before: Iterable[tuple[Parameter, ...]] = (),
) -> Stacks:
    """Find stacks of parameters that suit all cells.

    Args:
        cells: all cells to be lowered, after the earlier passes.
        parameters: parameters that may be stacked.
        panel: rows of a packed panel.
        rule_of: function whose results are equal for parameters with the same update rule.
        before: current orders of matrices in memory, which are kept unless others are better.
    """
    allowed = set(parameters)

    def kind(p: Parameter) -> object:
        return p.shape, p.trainable, rule_of(p)

    fits = {p for p in allowed if len(p.shape) in (1, 2) and p.shape[0] % panel == 0}
    otherwise = {p for cell in cells for p in _read(cell, besides=(Form.MATVEC,))}
    classes = _together(cells, {p for p in fits if len(p.shape) == 2} - otherwise, kind)
    as_used = [tuple(c) for c in classes if len(c) > 1]
    if not as_used:
        return NO_STACKS
    placed = {frozenset(members): members for members in before}
    as_placed = [placed.get(frozenset(members), members) for members in as_used]
    orders = dict.fromkeys(map(tuple, (as_placed, as_used, *orders_of(cells, as_used))))
    return min((_agreed(cells, order, fits, kind) for order in orders), key=partial(_n_operations, cells))


def _agreed(
    cells: Collection[TracedCell],
    matrices: Sequence[tuple[Parameter, ...]],
    fits: Collection[Parameter],
    kind: Callable[[Parameter], object],
) -> Stacks:
    """Return the stacks of matrices, and of the vectors added to their products. A stack is left out if some cell reads
    one of its members separately."""
    vectors: dict[tuple[Parameter, ...], None] = {}
    stacks = Stacks.made_of(matrices)
    for cell in cells:
        vectors |= dict.fromkeys(_Fusion(cell, stacks, fits, kind).biases)
    taken: set[Parameter] = set()
    found = list(matrices)
    for biases in sorted(vectors, key=len, reverse=True):  # the longest stack of a vector wins
        if taken.isdisjoint(biases):
            found.append(biases)
            taken.update(biases)
    while True:  # removing a stack may invalidate others that were found on its results
        stacks = Stacks.made_of(found)
        alone = {p for cell in cells for p in _read(horizontal(cell, stacks)[0])}
        kept = [stack for stack in found if alone.isdisjoint(stack)]
        if len(kept) == len(found):
            break
        found = kept
    return replace(Stacks.made_of(found), orders=tuple(matrices))


def serves(stacks: Stacks, cell: TracedCell) -> bool:
    """Return True if a cell can run with stacks that were made without it, and with the current chip: it reads no
    member separately, and it uses matrices only to multiply vectors."""
    made = horizontal(cell, stacks)[0]
    return stacks.of.keys().isdisjoint(_read(made)) and not any(n.finds_matrix_in_memory for n in made.nodes)


def _n_operations(cells: Iterable[TracedCell], stacks: Stacks) -> int:
    """Return the total number of operations of the cells if they use the stacks."""
    n = 0
    for cell in cells:
        made = horizontal(cell, stacks)[0]
        live = live_nodes(made.nodes, made.outputs)
        n += sum(used and node.op.form in (Form.MATVEC, Form.MAP) for node, used in zip(made.nodes, live, strict=True))
    return n


def _read(cell: TracedCell, besides: Collection[Form] = ()) -> Iterable[Parameter]:
    """Return the parameters that a cell's live operations read, except operations of the forms in `besides`."""
    live = live_nodes(cell.nodes, cell.outputs)
    nodes = (n for n, used in zip(cell.nodes, live, strict=True) if used and n.op.form not in besides)
    return (n.parameter for n in nodes if n.parameter is not None)


def _groups(cell: TracedCell) -> list[Group]:
    """Return the products grouped by their vector. A matrix that multiplies the same vector twice is in no group."""
    live = live_nodes(cell.nodes, cell.outputs)
    found: dict[tuple[int, ...], list[tuple[Parameter, int]]] = {}
    for i, node in enumerate(cell.nodes):
        if live[i] and node.op.form is Form.MATVEC and node.parameter is not None:
            found.setdefault(node.inputs, []).append((node.parameter, i))
    return [{p: i for p, i in group if [q for q, _ in group].count(p) == 1} for group in found.values()]


def _together(
    cells: Iterable[TracedCell], matrices: set[Parameter], kind: Callable[[Parameter], object]
) -> list[Order]:
    """Partition the matrices of each kind into classes that always multiply the same vectors. This is the coarsest
    partition in which every group of products contains all of a class or none of it."""
    classes: dict[object, Order] = {}
    groups = [group for cell in cells for group in _groups(cell)]
    for group in groups:
        for p in group:
            if p in matrices:
                classes.setdefault(kind(p), {})[p] = None
    found = list(classes.values())
    for group in groups:
        split: list[Order] = []
        for members in found:
            inside = {p: None for p in members if p in group}
            outside = {p: None for p in members if p not in group}
            split.extend(part for part in (inside, outside) if part)
        found = split
    return found


def horizontal(cell: TracedCell, stacks: Stacks) -> tuple[TracedCell, str]:
    """Return the cell with products of stacked parameters and fused operations on their parts, and a note about both.

    A node that was fused into a larger one becomes a slice of it. New nodes are appended, although earlier nodes read
    them: `execution_order` (compiler/prepare.py) sorts them.
    """
    fusion = _Fusion(cell, stacks)
    if not fusion.said:
        many = [group for group in _groups(cell) if len(group) > 1]
        names = "; ".join(" and ".join(p.name for p in group) for group in many)
        return cell, f"unstacked, as their rows, training or other uses differ: {names}" if many else "nothing to stack"
    return cell.with_nodes(fusion.nodes, fusion.outputs), "; ".join(fusion.said)


class _Fusion:
    """A cell during horizontal fusion.

    Args:
        fits, kind: parameters that may be stacked, and their kind, to also find vectors that could be stacked.

    Attributes:
        biases: vectors added to products that are stacked or could be stacked.
        said: sentences about the fused operations.
    """

    def __init__(
        self,
        cell: TracedCell,
        stacks: Stacks,
        fits: Collection[Parameter] = (),
        kind: Callable[[Parameter], object] | None = None,
    ) -> None:
        self.nodes = list(cell.nodes)
        self.outputs = list(cell.outputs)
        self.said: list[str] = []
        self.biases: list[tuple[Parameter, ...]] = []
        self._live = live_nodes(cell.nodes, cell.outputs)
        self._stacks = stacks
        self._fits = fits
        self._kind = kind
        self._part: dict[int, tuple[int, int]] = {}  # node -> (larger node that it is a part of, number of the part)
        self._n_parts: dict[int, int] = {}
        for group in _groups(cell):
            for stack in dict.fromkeys(stacks.of[p] for p in group if p in stacks.of):
                if all(p in group for p in stack.members):
                    products = [group[p] for p in stack.members]
                    first = self.nodes[products[0]]
                    self._replace(
                        products, Node(first.op, first.inputs, first.attrs, stack.shape[:1], first.domain, stack)
                    )
                    self.said.append(f"{len(products)} products are one: {stack.name}")
        while self._stack_alike():
            pass

    def _replace(self, parts: list[int], whole: Node) -> None:
        """Replace the first of some nodes by a new, larger node, and make all of them slices of it."""
        at, width = min(parts), self.nodes[parts[0]].shape[0]
        moved = len(self.nodes)
        for i, node in enumerate(self.nodes):
            if at in node.inputs:
                self.nodes[i] = replace(node, inputs=tuple(moved if j == at else j for j in node.inputs))
        self.outputs = [moved if o == at else o for o in self.outputs]
        self._added(self.nodes[at])
        self.nodes[at] = whole
        self._n_parts[at] = len(parts)
        for k, part in enumerate(parts):
            i = moved if part == at else part
            attrs = {"start": k * width, "stop": (k + 1) * width, "scalar": False}
            self.nodes[i] = Node(OPS["slice"], (at,), attrs, (width,), whole.domain)
            self._part[i] = at, k

    # ---- operations on parts

    def _stack_alike(self) -> bool:
        """Fuse equal operations on adjacent parts. Return True if there were any."""
        found: dict[Any, dict[int, list[int]]] = {}
        for i, node in enumerate(self.nodes):
            key = self._alike(i, node) if self._live[i] else None
            if key is not None:
                found.setdefault(key, {}).setdefault(self._part[self._operands(i)[0]][1], []).append(i)
        return any(self._stack_operations(key[0], run) for key, by_part in found.items() for run in _runs(by_part))

    def _operands(self, i: int) -> list[int]:
        """Return the operands of an elementwise node; those of a commutative operation are sorted, parts first."""
        inputs = list(self.nodes[i].inputs)
        if self.nodes[i].op.name in COMMUTATIVE:
            inputs.sort(key=lambda j: self._part.get(j, (len(self.nodes), 0)))
        return inputs

    def _alike(self, i: int, node: Node) -> Any:
        """Return a key that is equal for nodes that may be fused if their parts are neighbours; None if never."""
        inputs = self._operands(i)
        if node.op.form is not Form.MAP:
            return None
        if inputs[0] not in self._part or any(self.nodes[j].shape != node.shape for j in inputs):
            return None
        first = self._part[inputs[0]][1]
        wholes: list[tuple[int, int]] = []  # for each operand: its larger node, and its distance in parts
        for j in inputs:
            if j in self._part:
                wholes.append((self._part[j][0], self._part[j][1] - first))
            elif self.nodes[j].op.form is Form.PARAMETER and node.op.name == "add":
                wholes.append((-1, 0))
            else:
                return None
        return tuple(wholes), node.op.name, node.domain, by_bits(node.attrs)

    def _stack_operations(self, wholes: Sequence[tuple[int, int]], run: list[int]) -> bool:
        """Fuse the operations of a run. Return False if the vectors that they add are not stacked."""
        operands = list(zip(*map(self._operands, run), strict=True))
        vector: int | None = None
        if (-1, 0) in wholes:
            vector = self._stacked_vector(operands[wholes.index((-1, 0))])
            if vector is None:
                return False
        node, n = self.nodes[run[0]], len(run)
        inputs = tuple(
            vector if whole < 0 and vector is not None else self._range(whole, self._part[parts[0]][1], n)
            for (whole, _), parts in zip(wholes, operands, strict=True)
        )
        self._replace(run, Node(node.op, inputs, node.attrs, (n * node.shape[0],), node.domain))
        self.said.append(f"{n} sums are one" if node.op.name == "add" else f"{n} operations {node.op.name} are one")
        return True

    def _range(self, whole: int, first: int, n: int) -> int:
        """Return a node for `n` of another node's parts."""
        total = self._n_parts[whole]
        if n == total:
            return whole
        return self._slice(whole, first * self.nodes[whole].shape[0] // total, n * self.nodes[whole].shape[0] // total)

    def _slice(self, whole: int, start: int, width: int) -> int:
        attrs = {"start": start, "stop": start + width, "scalar": False}
        return self._added(Node(OPS["slice"], (whole,), attrs, (width,), self.nodes[whole].domain))

    def _added(self, node: Node) -> int:
        self.nodes.append(node)
        self._live.append(True)
        return len(self.nodes) - 1

    def _stacked_vector(self, added: Sequence[int]) -> int | None:
        """Return a node for vectors that are stacked or could be; None if they cannot."""
        vectors = tuple(self.nodes[i].parameter for i in added)
        members = tuple(p for p in vectors if p is not None)
        stack = self._stacks.of.get(members[0])
        if self._kind is not None and stack is None:
            alike = len({self._kind(p) for p in members}) == 1
            if len(set(members)) < len(members) or not alike or not all(p in self._fits for p in members):
                return None
            stack = Stack(members)
        if stack is None or not set(members) <= set(stack.members):
            return None
        first, n = stack.members.index(members[0]), len(members)
        if stack.members[first : first + n] != members:
            return None
        self.biases.append(members)
        node = self._added(Node(OPS["parameter"], (), {}, stack.shape, 0, stack))
        width = members[0].shape[0]
        return node if n == len(stack.members) else self._slice(node, first * width, n * width)


def _runs(by_part: Mapping[int, list[int]]) -> list[list[int]]:
    """Return runs of nodes on neighbouring parts, in order.

    If two nodes apply the same operation to a part, their neighbours are ambiguous, so neither is in a run.
    """
    runs: list[list[int]] = []
    for k in sorted(by_part):
        if len(by_part[k]) > 1:
            continue
        if k - 1 in by_part and len(by_part[k - 1]) == 1:
            runs[-1].append(by_part[k][0])
        else:
            runs.append([by_part[k][0]])
    return [run for run in runs if len(run) > 1]
