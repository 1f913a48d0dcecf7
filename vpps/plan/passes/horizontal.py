"""Horizontal fusion: products of one vector are one product with the stacked matrices.

A cell written gate by gate,

    i, f, o, u = (W[g] @ x + U[g] @ h + b[g] for g in "ifou")

has four products of `x` and four of `h`. One product with the four matrices on top of each other reads the vector once
and keeps the virtual processors busy four times as long; and as its result is split into the gates again, one virtual
processor owns the same hidden units of all gates (plan/prepare.py, `parts_of_units`), so that the elementwise rest
needs no barrier. Sums of all parts of a product with all parts of another one, or with a bias each, become one sum
likewise.

Every row of a product is summed over the columns in order, wherever the row lies: forward gives the same bits. The
gradient of the vector is one sum over all rows, where it was a sum of sums.

The matrices must lie stacked in the pool (plan/stacks.py), so all cells of a model have to agree. Parameters are
stacked that are multiplied by the same vectors everywhere, have one shape of whole panels of rows (of the target: on
GPUs a panel is one row), are all trained or all not, and by one set of hyper-parameters. A cell that comes later and
uses one of them by itself makes the handle place them apart again.

A product repeated over a list (`vpps.each(lambda h: U @ h, hs)`) is one instruction anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from vpps.graph.trace import Node, TracedCell
from vpps.model import Parameter
from vpps.ops import OPS, Form
from vpps.plan.prepare import live_nodes
from vpps.plan.stacks import NO_STACKS, Stack, Stacks

Group = dict[Parameter, int]  # product nodes of one vector, by matrix
Order = dict[Parameter, None]  # a set in order of appearance


def find_stacks(
    cells: Collection[TracedCell],
    parameters: Collection[Parameter],
    panel: int,
    rule_of: Callable[[Parameter], object] = lambda p: None,
) -> Stacks:
    """The parameters that all the cells let be stacked.

    Args:
        cells: all that are going to be lowered, after the passes before this one.
        parameters: that may be stacked.
        panel: rows of a packed panel.
        rule_of: equal for parameters that are updated alike.
    """
    allowed = set(parameters)

    def kind(p: Parameter) -> object:
        return p.shape, p.trainable, rule_of(p)

    fits = {p for p in allowed if len(p.shape) in (1, 2) and p.shape[0] % panel == 0}
    otherwise = {p for cell in cells for p in _read(cell, besides=(Form.MATVEC,))}
    classes = _together(cells, {p for p in fits if len(p.shape) == 2} - otherwise, kind)
    matrices = [tuple(c) for c in classes if len(c) > 1]
    vectors: dict[tuple[Parameter, ...], None] = {}
    stacks = Stacks.made_of(matrices)
    for cell in cells if matrices else ():
        vectors |= dict.fromkeys(_Fusion(cell, stacks, fits, kind).biases)
    taken: set[Parameter] = set()
    found = list(matrices)
    for biases in vectors:  # of two ways to stack a vector the first one that was seen counts
        if taken.isdisjoint(biases):
            found.append(biases)
            taken.update(biases)
    while found:  # a stack that falls may take others with it, that were found on its results
        stacks = Stacks.made_of(found)
        alone = {p for cell in cells for p in _read(horizontal(cell, stacks)[0])}
        kept = [stack for stack in found if alone.isdisjoint(stack)]
        if len(kept) == len(found):
            return stacks
        found = kept
    return NO_STACKS


def _read(cell: TracedCell, besides: Collection[Form] = ()) -> Iterable[Parameter]:
    """Parameters that a cell's results depend on, by operations that are not of some forms."""
    live = live_nodes(cell.nodes, cell.outputs)
    nodes = (n for n, used in zip(cell.nodes, live, strict=True) if used and n.op.form not in besides)
    return (n.parameter for n in nodes if n.parameter is not None)


def _groups(cell: TracedCell) -> list[Group]:
    """Products by what they multiply. A matrix that is multiplied twice by one vector is in no group."""
    live = live_nodes(cell.nodes, cell.outputs)
    found: dict[tuple[int, ...], list[tuple[Parameter, int]]] = {}
    for i, node in enumerate(cell.nodes):
        if live[i] and node.op.form is Form.MATVEC and node.parameter is not None:
            found.setdefault(node.inputs, []).append((node.parameter, i))
    return [{p: i for p, i in group if [q for q, _ in group].count(p) == 1} for group in found.values()]


def _together(
    cells: Iterable[TracedCell], matrices: set[Parameter], kind: Callable[[Parameter], object]
) -> list[Order]:
    """Matrices that are always multiplied by the same vectors, and alike: the coarsest classes such that every group of
    products has all of a class or nothing."""
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
    """The cell with products and sums of stacked parameters, and a sentence on what they were.

    Nodes that have become part of a larger one are slices of it. New nodes come after the others, although these read
    them: `execution_order` (plan/prepare.py) puts them where they belong.
    """
    fusion = _Fusion(cell, stacks)
    if not fusion.said:
        many = [group for group in _groups(cell) if len(group) > 1]
        names = "; ".join(" and ".join(p.name for p in group) for group in many)
        return cell, f"apart, as their rows, training or other uses differ: {names}" if many else "nothing to stack"
    return cell.with_nodes(fusion.nodes, fusion.outputs), "; ".join(fusion.said)


class _Fusion:
    """A cell in the making.

    Args:
        fits, kind: to look for vectors that might be stacked as well, not only for those that are.

    Attributes:
        biases: stacked or to be stacked vectors that have been added to products.
        said: what was done.
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
        self._part: dict[int, tuple[int, int]] = {}  # node -> (node that it is a part of, number of the part)
        self._n_parts: dict[int, int] = {}
        for group in _groups(cell):
            for stack in dict.fromkeys(stacks.of[p] for p in group if p in stacks.of):
                if all(p in group for p in stack.members):
                    self._stack_products([group[p] for p in stack.members], stack)
        while self._stack_sums():
            pass

    def _stack_products(self, products: list[int], stack: Stack) -> None:
        node = self.nodes[products[0]]
        whole = Node(node.op, node.inputs, node.attrs, stack.shape[:1], node.domain, stack)
        self._replace(products, whole)
        self.said.append(f"{len(products)} products are one: {stack.name}")

    def _replace(self, parts: list[int], whole: Node) -> None:
        """Let nodes be slices of a new one, which takes the place of the first of them."""
        at, width = min(parts), self.nodes[parts[0]].shape[0]
        moved = len(self.nodes)
        for i, node in enumerate(self.nodes):
            if at in node.inputs:
                self.nodes[i] = replace(node, inputs=tuple(moved if j == at else j for j in node.inputs))
        self.outputs = [moved if o == at else o for o in self.outputs]
        self.nodes.append(self.nodes[at])
        self._live.append(True)
        self.nodes[at] = whole
        self._n_parts[at] = len(parts)
        for k, part in enumerate(parts):
            i = moved if part == at else part
            attrs = {"start": k * width, "stop": (k + 1) * width, "scalar": False}
            self.nodes[i] = Node(OPS["slice"], (at,), attrs, (width,), whole.domain)
            self._part[i] = at, k

    # ---- sums

    def _stack_sums(self) -> bool:
        """Make one sum of sums of all parts of a node with as many others; whether there were any."""
        found: dict[tuple[int, int, int], dict[int, list[tuple[int, int]]]] = {}
        for i, node in enumerate(self.nodes):
            if not self._live[i] or node.op.name != "add":
                continue
            a, b = sorted(node.inputs, key=lambda j: self._part.get(j, (len(self.nodes), 0)))
            if a not in self._part or self.nodes[a].shape != self.nodes[b].shape:
                continue
            whole, k = self._part[a]
            if self.nodes[b].op.form is Form.PARAMETER:
                found.setdefault((whole, -1, node.domain), {}).setdefault(k, []).append((i, b))
            elif self._part.get(b, (0, -1))[1] == k:
                found.setdefault((whole, self._part[b][0], node.domain), {}).setdefault(k, []).append((i, b))
        for (whole, other, _), by_part in found.items():
            n = self._n_parts[whole]
            if len(by_part) < n or any(len(sums) > 1 for sums in by_part.values()):
                continue
            sums = [by_part[k][0][0] for k in range(n)]
            added = [by_part[k][0][1] for k in range(n)]
            if other >= 0 and self._n_parts[other] == n:
                self._stack_sum(sums, whole, other)
                return True
            if other < 0 and (stacked := self._stacked_vector(added)) is not None:
                self._stack_sum(sums, whole, stacked)
                return True
        return False

    def _stack_sum(self, sums: list[int], whole: int, other: int) -> None:
        node = self.nodes[sums[0]]
        made = Node(OPS["add"], (whole, other), {}, self.nodes[whole].shape, node.domain)
        self._replace(sums, made)
        self.said.append(f"so are {len(sums)} sums")

    def _stacked_vector(self, added: list[int]) -> int | None:
        """A node for vectors that are stacked or may be, in the place of the first one's; None if they are not."""
        vectors = tuple(self.nodes[i].parameter for i in added)
        members = tuple(p for p in vectors if p is not None)
        stack = self._stacks.of.get(members[0])
        if self._kind is not None and stack is None:
            alike = len({self._kind(p) for p in members}) == 1
            if len(set(members)) < len(members) or not alike or not all(p in self._fits for p in members):
                return None
            stack = Stack(members)
        if stack is None or stack.members != members:
            return None
        self.biases.append(members)
        self.nodes.append(Node(OPS["parameter"], (), {}, stack.shape, 0, stack))
        self._live.append(True)
        return len(self.nodes) - 1
