"""PQ trees: all orders of n elements in which each of some sets is contiguous (Booth and Lueker 1976).

A tree is immutable: `reduced` returns a tree for one more set, which shares all nodes that the set does not touch. So a
caller can go back to an earlier tree. A set is an int with a bit for each element. A reduction looks at all children of
the nodes between the root and the changed nodes; Booth and Lueker's reduction takes time linear in the set, but several
times as much code.

Nodes with two children are Q nodes, which saves special cases: two children have one order and its reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)
class TreeNode:
    """A leaf, a P node (three or more children in any order), or a Q node (two or more children in one order or its
    reverse).

    Attributes:
        leaves: the set of the elements below.
    """

    kind: Literal["leaf", "P", "Q"]
    children: tuple[TreeNode, ...]
    leaves: int

    @property
    def smallest(self) -> int:
        """The smallest element below; for a leaf, its own element."""
        return (self.leaves & -self.leaves).bit_length() - 1

    def inner_nodes(self) -> Iterator[TreeNode]:
        """Yield the nodes with children, starting with this one; each node comes before those below it."""
        todo = [self]
        while todo:
            x = todo.pop()
            if x.children:
                yield x
                todo += x.children


def set_of(elements: Iterable[int]) -> int:
    """Return the set of some elements."""
    found = 0
    for element in elements:
        found |= 1 << element
    return found


def any_order(n: int) -> TreeNode:
    """Return the tree of all orders of the elements 0 to n - 1, with n at least 1."""
    (root,) = _grouped([TreeNode("leaf", (), 1 << k) for k in range(n)])
    return root


def reduced(root: TreeNode, wanted: int) -> TreeNode | None:
    """Return the tree for those of `root`'s orders in which a set is contiguous.

    Returns:
        `root` itself if the set is contiguous in all of the tree's orders; None if it is contiguous in none.
    """
    x, above = _lowest(root, wanted)
    if x.leaves == wanted or not wanted:
        return root
    made: TreeNode | None = None
    if x.kind == "Q":
        made = _with_ends_sorted(x, wanted)
    else:
        empty, partial, full = _divided(x.children, wanted)
        line = [*partial[:1], *_grouped(full), *partial[1:]]
        if len(partial) <= 2:
            made = line[0] if len(line) == 1 else _with_ends_sorted(_q_node(line), wanted)
        if made is not None:
            (made,) = _grouped([*empty, made])
    if made is None:
        return None
    if made is x:
        return root
    for parent, k in reversed(above):
        made = TreeNode(parent.kind, (*parent.children[:k], made, *parent.children[k + 1 :]), parent.leaves)
    return made


def spanning(root: TreeNode, wanted: int) -> TreeNode:
    """Return the node whose elements are exactly those of a set; the set must be contiguous in every order. If they are
    some children of a Q node, return a new node of these children, which is not in the tree."""
    x, _ = _lowest(root, wanted)
    return x if x.leaves == wanted else _q_node([child for child in x.children if child.leaves & wanted])


def _lowest(root: TreeNode, wanted: int) -> tuple[TreeNode, list[tuple[TreeNode, int]]]:
    """Return the lowest node that has all of a set below it, and the path to it from the root: each node above with the
    number of the child on the path."""
    x, above = root, []
    while x.leaves != wanted:
        candidates = range(len(x.children) - 1, -1, -1)  # new nodes are at the end
        below = next((k for k in candidates if x.children[k].leaves & wanted == wanted), None)
        if below is None:
            break
        above.append((x, below))
        x = x.children[below]
    return x, above


def _with_ends_sorted(x: TreeNode, wanted: int) -> TreeNode | None:
    """Return a Q node with the set's elements made contiguous, or None if they cannot be. Several children must have
    elements of the set. Return the node itself if they are contiguous already."""
    hit = [k for k, child in enumerate(x.children) if child.leaves & wanted]
    first, last = hit[0], hit[-1]
    inside = x.children[first + 1 : last]
    left, right = _sorted(x.children[first], wanted), _sorted(x.children[last], wanted)
    if not left or not right or any(child.leaves & ~wanted for child in inside):
        return None
    if len(left) == len(right) == 1:
        return x
    return TreeNode("Q", (*x.children[:first], *left, *inside, *right[::-1], *x.children[last + 1 :]), x.leaves)


def _sorted(x: TreeNode, wanted: int) -> list[TreeNode]:
    """Return the nodes that replace a child of a Q node: nodes without elements of the set first, then nodes with no
    other elements. Return an empty list if there is no such order."""
    front: list[TreeNode] = []
    back: list[TreeNode] = []
    while x.leaves & ~wanted:
        empty, partial, full = _divided(x.children, wanted)
        if x.kind == "P":
            empty, full = _grouped(empty), _grouped(full)
        elif (*empty, *partial, *full) != x.children:
            empty, full = empty[::-1], full[::-1]
            if (*empty, *partial, *full) != x.children[::-1]:
                return []
        if len(partial) > 1:
            return []
        front, back = [*front, *empty], [*full, *back]
        if not partial:
            return front + back
        (x,) = partial
    return [x]


def _divided(nodes: Iterable[TreeNode], wanted: int) -> tuple[list[TreeNode], list[TreeNode], list[TreeNode]]:
    """Divide nodes into those without elements of the set, those with some, and those with no other elements."""
    empty: list[TreeNode] = []
    partial: list[TreeNode] = []
    full: list[TreeNode] = []
    for x in nodes:
        common = x.leaves & wanted
        (full if common == x.leaves else partial if common else empty).append(x)
    return empty, partial, full


def _grouped(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """Group nodes whose order is free under one node; return an empty list for no nodes."""
    if len(nodes) < 2:
        return list(nodes)
    return [TreeNode("P", tuple(nodes), sum(x.leaves for x in nodes))] if len(nodes) > 2 else [_q_node(nodes)]


def _q_node(nodes: Sequence[TreeNode]) -> TreeNode:
    return TreeNode("Q", tuple(nodes), sum(x.leaves for x in nodes))
