"""What a PQ tree says about the orders of operands, and how operands of one batch come to have one order.

First pass of ED-Batch (BroadcastConstraint, algorithm 3): whatever places of an operand lie together in every order has
to in the others of its batch. At the end their subtrees are isomorphic. Sets of places are numbers whose bits they are.

Second pass (DecideNodesOrder, algorithms 4 and 5): that two operands have one order says of each pair of corresponding
nodes which children correspond, so the order of one node decides that of the other. A union-find set carries these
correspondences along: permutations of the children of P nodes, and of two for the directions of Q nodes. Where the
nodes of a set are free, children are in the order of their smallest variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from vpps.compiler.pqtree.tree import TreeNode, set_of, spanning

Permutation = tuple[int, ...]

SAME: Permutation = (0, 1)  # of the two directions of a Q node
OPPOSITE: Permutation = (1, 0)


class ShapePart(NamedTuple):
    """A node of the subtree of an operand, and of each child the places of the operand that it has. (The topmost node
    need not be of the tree, see `spanning`.)"""

    node: TreeNode
    places: list[int]

    @property
    def together(self) -> list[int]:
        """Sets of places that lie together because of this node alone: all children, or each two neighbours."""
        return [sum(self.places)] if self.node.kind == "P" else [a | b for a, b in pairwise(self.places)]


Shape = dict[int, ShapePart]  # the inner nodes by their places; a node after those below it


def shape(root: TreeNode, operand: Sequence[int]) -> Shape:
    """The subtree of an operand whose variables lie together in every order.

    It stays true until a reduction changes the tree whose set has elements in common with the operand.
    """
    places = {1 << variable: 1 << k for k, variable in enumerate(operand)}  # by leaves
    parts: Shape = {}
    for x in reversed(list(spanning(root, set_of(operand)).inner_nodes())):
        of_children = [places[child.leaves] for child in x.children]
        places[x.leaves] = every = sum(of_children)
        parts[every] = ShapePart(x, of_children)
    return parts


def missing(operands: Sequence[Sequence[int]], shapes: Sequence[Shape]) -> list[int]:
    """Sets of variables that have to lie together so that what holds for one operand holds for all of them."""
    found = [{s for part in parts.values() for s in part.together} for parts in shapes]
    every = set().union(*found)
    return [
        set_of(v for k, v in enumerate(operand) if places >> k & 1)
        for operand, own in zip(operands, found, strict=True)
        for places in sorted(every - own)
    ]


class Correspondences:
    """Nodes whose orders decide each other. A permutation tells which child of another node each child is."""

    def __init__(self) -> None:
        self._of: dict[TreeNode, tuple[TreeNode, Permutation]] = {}

    def find(self, x: TreeNode) -> tuple[TreeNode, Permutation]:
        """The node that decides about this one, perhaps itself, and which of its children each child is."""
        path = []
        while x in self._of:
            path.append(x)
            x = self._of[x][0]
        to_root = SAME if x.kind == "Q" else tuple(range(len(x.children)))
        for y in reversed(path):
            to_root = composed(self._of[y][1], to_root)
            self._of[y] = x, to_root
        return x, to_root

    def union(self, x: TreeNode, y: TreeNode, which: Permutation) -> bool:
        """Child k of x is child which[k] of y.

        Returns:
            False if that contradicts what is known: both nodes follow from one, but otherwise. Then there is no order
            at all, as a permutation other than the identity leaves no order of finitely many things as it is.
        """
        root_x, from_x = self.find(x)
        root_y, from_y = self.find(y)
        through_y = composed(which, from_y)
        if root_x is root_y:
            return through_y == from_x
        self._of[root_x] = root_y, composed(inverse(from_x), through_y)
        return True


def composed(first: Permutation, then: Permutation) -> Permutation:
    """One after the other."""
    return tuple([then[k] for k in first])


def inverse(p: Permutation) -> Permutation:
    """The other way round."""
    return tuple(sorted(range(len(p)), key=p.__getitem__))


def correspondences(root: TreeNode, batches: Iterable[Sequence[Shape]]) -> Correspondences | None:
    """What it says about the nodes that the operands of each batch have one order.

    Args:
        batches: of each the shapes of its operands, which are isomorphic.

    Returns:
        None if that is contradictory: there is no such order.
    """
    # Of a child: its parent, and which of its children it is.
    index = {child: (x, k) for x in root.inner_nodes() for k, child in enumerate(x.children)}
    sets = Correspondences()
    for first, *others in batches:
        for other in others:
            for places, part in first.items():
                if not sets.union(*_corresponding(part, other[places], index)):
                    return None
    return sets


def _corresponding(
    a: ShapePart, b: ShapePart, index: dict[TreeNode, tuple[TreeNode, int]]
) -> tuple[TreeNode, TreeNode, Permutation]:
    """Two nodes with the same places of two operands, and which children, or directions, correspond."""
    node_a, first_a = index[a.node.children[0]]
    node_b, first_b = index[b.node.children[0]]
    if a.node.kind == "P":
        by_places = {s: k for k, s in enumerate(b.places)}
        return node_a, node_b, tuple([by_places[s] for s in a.places])
    turned_a = first_a > index[a.node.children[1]][1]
    turned_b = first_b > index[b.node.children[1]][1]
    mirrored = a.places[0] != b.places[0]
    return node_a, node_b, OPPOSITE if turned_a ^ turned_b ^ mirrored else SAME


def order(root: TreeNode, sets: Correspondences) -> list[int]:
    """The leaves from the first to the last, every node as its set wants it (algorithm 6)."""
    found, todo = [], [root]
    while todo:
        x = todo.pop()
        if x.kind == "leaf":
            found.append(x.smallest)
            continue
        decider, which = sets.find(x)
        arranged = list(x.children)
        if x.kind == "Q":
            if (decider.children[0].smallest > decider.children[-1].smallest) ^ (which == OPPOSITE):
                arranged.reverse()
        else:
            smallest = [decider.children[k].smallest for k in which]
            arranged = [arranged[k] for k in sorted(range(len(which)), key=smallest.__getitem__)]
        todo += reversed(arranged)
    return found
