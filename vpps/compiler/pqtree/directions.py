"""Which order each node of a PQ tree has, where operands of batches have isomorphic subtrees.

Second pass of ED-Batch (DecideNodesOrder, algorithms 4 and 5): that two operands have one order says of each pair of
corresponding nodes which children correspond, so the order of one node decides that of the other. A union-find set
carries these correspondences along: permutations of the children of P nodes, and of two for the directions of Q nodes.
Where the nodes of a set are free, children are in the order of their smallest variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vpps.compiler.pqtree.links import TreeNode
from vpps.compiler.pqtree.shapes import Shape, ShapePart
from vpps.compiler.pqtree.tree import PQTree

Permutation = tuple[int, ...]

SAME: Permutation = (0, 1)  # of the two directions of a Q node
OPPOSITE: Permutation = (1, 0)


class Correspondences:
    """Nodes whose orders decide each other. A permutation tells which child of another node each child is."""

    def __init__(self) -> None:
        self._of: dict[TreeNode, tuple[TreeNode, Permutation]] = {}

    def find(self, x: TreeNode) -> tuple[TreeNode, Permutation | None]:
        """The node that decides about this one, and which of its children each child is; None: it decides itself."""
        path = []
        while x in self._of:
            path.append(x)
            x = self._of[x][0]
        to_root: Permutation | None = None
        for y in reversed(path):
            step = self._of[y][1]
            to_root = step if to_root is None else composed(step, to_root)
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
        through_y = which if from_y is None else composed(which, from_y)
        if root_x is root_y:
            return through_y == (from_x if from_x is not None else tuple(range(len(which))))
        self._of[root_x] = root_y, through_y if from_x is None else composed(inverse(from_x), through_y)
        return True


def composed(first: Permutation, then: Permutation) -> Permutation:
    """One after the other."""
    return tuple([then[k] for k in first])


def inverse(p: Sequence[int]) -> Permutation:
    """The other way round."""
    found = [0] * len(p)
    for k, to in enumerate(p):
        found[to] = k
    return tuple(found)


def correspondences(tree: PQTree, batches: Iterable[Sequence[Shape]]) -> Correspondences | None:
    """What it says about the nodes that the operands of each batch have one order.

    Args:
        batches: of each the shapes of its operands, which are isomorphic.

    Returns:
        None if that is contradictory: there is no such order.
    """
    index: dict[TreeNode, tuple[TreeNode, int]] = {}  # of a child: its parent, and which of its children it is
    for x, children in tree.inner_nodes():
        index.update(zip(children, [(x, k) for k in range(len(children))], strict=True))
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
    node_a, first_a = index[a.children[0]]
    node_b, first_b = index[b.children[0]]
    if a.is_p:
        by_places = dict(zip(b.places, range(len(b.places)), strict=True))
        return node_a, node_b, tuple([by_places[s] for s in a.places])
    turned_a = first_a > index[a.children[1]][1]
    turned_b = first_b > index[b.children[1]][1]
    mirrored = a.places[0] != b.places[0]
    return node_a, node_b, OPPOSITE if turned_a ^ turned_b ^ mirrored else SAME


def order(tree: PQTree, sets: Correspondences) -> list[int]:
    """The leaves from the first to the last, every node as its set wants it (algorithm 6)."""
    children = dict(tree.inner_nodes())
    smallest: dict[TreeNode, int] = {}
    for x in reversed(children):  # parents come before their children
        smallest[x] = min(c.leaf if c.kind == "leaf" else smallest[c] for c in children[x])

    def by_smallest(x: TreeNode) -> int:
        return x.leaf if x.kind == "leaf" else smallest[x]

    def turned(q: TreeNode) -> bool:
        return by_smallest(children[q][0]) > by_smallest(children[q][-1])

    ranks: dict[TreeNode, Permutation] = {}  # of the children of P nodes that decide
    found, todo = [], [tree.root]
    while todo:
        x = todo.pop()
        if x.kind == "leaf":
            found.append(x.leaf)
            continue
        decider, which = sets.find(x)
        arranged = children[x]
        if x.kind == "Q":
            if turned(decider) ^ (which == OPPOSITE):
                arranged = arranged[::-1]
        elif which is None:
            arranged = sorted(arranged, key=by_smallest)
        else:
            if decider not in ranks:
                of = children[decider]
                ranks[decider] = inverse(sorted(range(len(of)), key=lambda k: by_smallest(of[k])))
            rank = ranks[decider]
            arranged = [arranged[k] for k in sorted(range(len(which)), key=lambda k: rank[which[k]])]
        todo += reversed(arranged)
    return found
