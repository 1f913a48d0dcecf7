"""Makes the operands of a batch share one order in a PQ tree. A set of places is an int with a bit for each place.

First pass of ED-Batch (BroadcastConstraint, algorithm 3): places of an operand that are contiguous in every order must
be contiguous in the other operands of the batch too. At the end, the operands' subtrees are isomorphic.

Second pass (DecideNodesOrder, algorithms 4 and 5): if two operands share an order, the children of corresponding nodes
correspond, and the order of one node decides the order of the other. A union-find structure stores these
correspondences: permutations of the children of P nodes, and permutations of two for the directions of Q nodes. If the
order of a set of nodes is free, children are sorted by their smallest variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from vpps.compiler.pqtree.tree import TreeNode, set_of, spanning

Permutation = tuple[int, ...]

SAME: Permutation = (0, 1)  # permutation of the two directions of a Q node
OPPOSITE: Permutation = (1, 0)


class ShapePart(NamedTuple):
    """A node of an operand's subtree, and the places of the operand in each child. The topmost node may not be in the
    tree; see `spanning`."""

    node: TreeNode
    places: list[int]

    @property
    def together(self) -> list[int]:
        """Sets of places that this node makes contiguous: all of a P node, or each two neighbours in a Q node."""
        return [sum(self.places)] if self.node.kind == "P" else [a | b for a, b in pairwise(self.places)]


Shape = dict[int, ShapePart]  # the inner nodes by their places; each node after those below it


def shape(root: TreeNode, operand: Sequence[int]) -> Shape:
    """Return the subtree of an operand whose variables are contiguous in every order.

    The subtree is valid until the tree is reduced by a set that shares elements with the operand.
    """
    places = {1 << variable: 1 << k for k, variable in enumerate(operand)}  # by leaves
    parts: Shape = {}
    for x in reversed(list(spanning(root, set_of(operand)).inner_nodes())):
        of_children = [places[child.leaves] for child in x.children]
        places[x.leaves] = every = sum(of_children)
        parts[every] = ShapePart(x, of_children)
    return parts


def missing(operands: Sequence[Sequence[int]], shapes: Sequence[Shape]) -> list[int]:
    """Return the sets of variables that must become contiguous, so that constraints on one operand hold for all."""
    found = [{s for part in parts.values() for s in part.together} for parts in shapes]
    every = set().union(*found)
    return [
        set_of(v for k, v in enumerate(operand) if places >> k & 1)
        for operand, own in zip(operands, found, strict=True)
        for places in sorted(every - own)
    ]


class Correspondences:
    """Union-find structure of nodes whose orders decide each other; permutations map children to children."""

    def __init__(self) -> None:
        self._of: dict[TreeNode, tuple[TreeNode, Permutation]] = {}

    def find(self, x: TreeNode) -> tuple[TreeNode, Permutation]:
        """Return the node that decides the order of x (perhaps x itself), and the map from x's children to its own."""
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
        """Record that child k of x corresponds to child which[k] of y.

        Returns:
            False if this contradicts the known correspondences of both nodes. Then there is no order at all: only the
            identity maps an order of finitely many things to itself.
        """
        root_x, from_x = self.find(x)
        root_y, from_y = self.find(y)
        through_y = composed(which, from_y)
        if root_x is root_y:
            return through_y == from_x
        self._of[root_x] = root_y, composed(inverse(from_x), through_y)
        return True


def composed(first: Permutation, then: Permutation) -> Permutation:
    """Return the composition of two permutations, `first` applied first."""
    return tuple([then[k] for k in first])


def inverse(p: Permutation) -> Permutation:
    """Return the inverse permutation."""
    return tuple(sorted(range(len(p)), key=p.__getitem__))


def correspondences(root: TreeNode, batches: Iterable[Sequence[Shape]]) -> Correspondences | None:
    """Return the correspondences of nodes if the operands of each batch share one order.

    Args:
        batches: for each batch the shapes of its operands, which are isomorphic.

    Returns:
        None if the correspondences are contradictory, so that there is no such order.
    """
    # child -> its parent, and its number there
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
    """Return the nodes at the same places in two operands, and the permutation of their children or directions."""
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
    """Return the leaves in order, with each node's children in the order of its set (algorithm 6)."""
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
