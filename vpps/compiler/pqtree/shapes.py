"""What a PQ tree says about the order of an operand, in words of the operand: which of its places lie together.

First pass of ED-Batch (BroadcastConstraint, algorithm 3): operands of a batch are to have one order, so whatever lies
together in every order of one has to in the others. At the end their subtrees are isomorphic.

Places are bits of a number, sets of places are numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpps.compiler.pqtree.links import TreeNode
from vpps.compiler.pqtree.tree import PQTree


@dataclass(frozen=True, slots=True)
class ShapePart:
    """A node of the subtree of an operand.

    Attributes:
        node: None for a Q node some of whose children are the operand.
        children: of the node, or those; a Q node's in their order or its reverse.
        places: of each child, the places of the operand that it has.
    """

    node: TreeNode | None
    children: list[TreeNode]
    places: list[int]

    @property
    def is_p(self) -> bool:
        """Whether the children have any order."""
        return self.node is not None and self.node.kind == "P"

    @property
    def together(self) -> list[int]:
        """Sets of places that lie together because of this node alone: all children, or each two neighbours."""
        if self.is_p:
            return [sum(self.places)]
        return [a | b for a, b in zip(self.places, self.places[1:], strict=False)]


Shape = dict[int, ShapePart]  # the inner nodes by their places; a node after those below it


def shape(tree: PQTree, operand: Sequence[int]) -> Shape:
    """The subtree of an operand whose variables lie together in every order.

    It stays true until a reduction changes the tree whose set has elements in common with the operand.

    Raises:
        ValueError: they do not.
    """
    place = {variable: 1 << k for k, variable in enumerate(operand)}
    roots = tree.span(operand)
    inner: list[tuple[TreeNode | None, list[TreeNode]]] = []
    if len(roots) > 1:
        inner.append((None, roots))
    todo = list(roots)
    while todo:
        x = todo.pop()
        if x.kind != "leaf":
            children = list(x.children)
            inner.append((x, children))
            todo += children
    of_node: dict[TreeNode, int] = {}
    parts: Shape = {}
    for node, children in reversed(inner):
        places = [place[c.leaf] if c.kind == "leaf" else of_node[c] for c in children]
        every = sum(places)
        parts[every] = ShapePart(node, children, places)
        if node is not None:
            of_node[node] = every
    return parts


def missing(operands: Sequence[Sequence[int]], shapes: Sequence[Shape]) -> list[list[int]]:
    """Sets of variables that have to lie together so that what holds for one operand holds for all of them."""
    found = [{s for part in parts.values() for s in part.together} for parts in shapes]
    every = set().union(*found)
    return [_chosen(operand, s) for operand, own in zip(operands, found, strict=True) for s in sorted(every - own)]


def _chosen(operand: Sequence[int], places: int) -> list[int]:
    """The variables at some places."""
    chosen = []
    while places:
        lowest = places & -places
        chosen.append(operand[lowest.bit_length() - 1])
        places ^= lowest
    return chosen
