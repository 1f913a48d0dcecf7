"""The nodes of a PQ tree and how they hang together; every edit can be undone.

Children form a list whose two neighbours per node have no left and right: whoever walks it knows where it came from.
So a Q node is reversed, and its children become those of another Q node, in constant time. For the same reason inner
children of a Q node do not know their parent:

    parent is set    child of a P node, or first or last child of a Q node
    parent is None   inner child of a Q node (two neighbours), or the root (none)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

Kind = Literal["leaf", "P", "Q"]

_Saved = tuple[
    "TreeNode", Kind, "TreeNode | None", "TreeNode | None", "TreeNode | None", "TreeNode | None", "TreeNode | None", int
]  # a node and its fields from `kind` to `count`


class TreeNode:
    """A leaf; a P node, whose three or more children have any order; or a Q node, whose two or more have one or its
    reverse.

    Attributes:
        parent: where it is known, see above.
        a, b: neighbours.
        first, last: outermost children.
        count: children of a P node; meaningless elsewhere.
        leaf: the number of a leaf, -1 elsewhere.
        edit: the last edit that changed the node.

    The others belong to the reduction that runs, and are stale unless `mark` is one of its marks:
        above: the parent.
        pertinent: children with leaves of the constraint, still to come.
        full, partial: children all or some of whose leaves are the constraint's.
    """

    __slots__ = (
        "a",
        "above",
        "b",
        "count",
        "edit",
        "first",
        "full",
        "kind",
        "last",
        "leaf",
        "mark",
        "parent",
        "partial",
        "pertinent",
    )

    def __init__(self, kind: Kind, leaf: int = -1) -> None:
        self.kind: Kind = kind
        self.leaf: Final = leaf
        self.parent: TreeNode | None = None
        self.a: TreeNode | None = None
        self.b: TreeNode | None = None
        self.first: TreeNode | None = None
        self.last: TreeNode | None = None
        self.count = 0
        self.edit = 0
        self.mark = 0
        self.pertinent = 0
        self.above: TreeNode | None = None
        self.full: list[TreeNode] = []
        self.partial: list[TreeNode] = []

    def beyond(self, neighbour: TreeNode | None) -> TreeNode | None:
        """The neighbour on the other side."""
        return self.b if self.a is neighbour else self.a

    @property
    def children(self) -> Iterator[TreeNode]:
        """From the first to the last."""
        before, child = None, self.first
        while child is not None:
            yield child
            before, child = child, child.beyond(before)


class Links:
    """Edits of a tree, on a trail that leads back.

    Attributes:
        top: its `first` is the root of the tree.
        trail: nodes as they were before each edit.
        edit: the number of the edit that goes on; of each the trail has a node once.
    """

    def __init__(self, root: TreeNode) -> None:
        self.top = TreeNode("Q")
        self.top.first = root
        self.trail: list[_Saved] = []
        self.edit = 1

    def new(self, kind: Kind) -> TreeNode:
        """A node without children, which the trail need not have."""
        x = TreeNode(kind)
        x.edit = self.edit
        return x

    def save(self, x: TreeNode) -> None:
        """Remember a node that is about to be changed."""
        if x.edit != self.edit:
            x.edit = self.edit
            self.trail.append((x, x.kind, x.parent, x.a, x.b, x.first, x.last, x.count))

    def rollback(self, length: int) -> None:
        """Undo all edits after the trail had this length, and end the one that goes on."""
        self.edit += 1
        trail = self.trail
        x: TreeNode
        while len(trail) > length:
            x, x.kind, x.parent, x.a, x.b, x.first, x.last, x.count = trail.pop()

    def make_q(self, x: TreeNode) -> None:
        """A P node with two children is a Q node."""
        self.save(x)
        x.kind = "Q"

    def reverse(self, x: TreeNode) -> None:
        """Exchange the first and the last child."""
        self.save(x)
        x.first, x.last = x.last, x.first

    def append(self, owner: TreeNode, x: TreeNode) -> None:
        """Make a node without parent the last child."""
        self.save(owner)
        self.save(x)
        owner.count += 1
        x.parent = owner
        old = owner.last
        owner.last = x
        if old is None:
            owner.first = x
            return
        self._join(old, x)
        if owner.kind == "Q" and old is not owner.first:
            old.parent = None

    def prepend(self, owner: TreeNode, x: TreeNode) -> None:
        """Make a node without parent the first child."""
        self.reverse(owner)
        self.append(owner, x)
        owner.first, owner.last = owner.last, owner.first

    def unlink(self, x: TreeNode) -> None:
        """Take a child from its P node."""
        owner, a, b = x.parent, x.a, x.b
        assert owner is not None
        self.save(owner)
        self.save(x)
        owner.count -= 1
        if a is not None:
            self._exchange(a, x, b)
        if b is not None:
            self._exchange(b, x, a)
        if owner.first is x:
            owner.first = a if b is None else b
        if owner.last is x:
            owner.last = a if b is None else b
        x.parent = x.a = x.b = None

    def replace(self, x: TreeNode, new: TreeNode) -> None:
        """Put a node without parent into the place of another one, which has none then."""
        self.save(x)
        self.save(new)
        new.parent, new.a, new.b = x.parent, x.a, x.b
        if x.a is not None:
            self._exchange(x.a, x, new)
        if x.b is not None:
            self._exchange(x.b, x, new)
        owner = x.parent
        if owner is None and x.a is None:
            owner = self.top
        if owner is not None:
            self.save(owner)
            if owner.first is x:
                owner.first = new
            if owner.last is x:
                owner.last = new
        x.parent = x.a = x.b = None

    def dissolve(self, x: TreeNode, owner: TreeNode, inner: TreeNode | None) -> None:
        """Put the children of a Q node into its place in its parent, the last one towards the neighbour `inner`."""
        outer = x.beyond(inner)
        first, last = x.first, x.last
        assert first is not None
        assert last is not None
        self._put(first, x, owner, outer)
        self._put(last, x, owner, inner)

    def _put(self, child: TreeNode, x: TreeNode, owner: TreeNode, neighbour: TreeNode | None) -> None:
        """Let an outermost child of x take the place of x beside a neighbour, or at an end of the owner."""
        if neighbour is not None:
            self._exchange(neighbour, x, child)
            self.save(child)
            child.parent = None
            _fill(child, neighbour)
            return
        self.save(owner)
        self.save(child)
        child.parent = owner
        if owner.first is x:
            owner.first = child
        else:
            owner.last = child

    def concatenate(self, q: TreeNode, other: TreeNode) -> None:
        """Give the children of a Q node without parent to another one: last to last, its first is the new last."""
        old, joined, end = q.last, other.last, other.first
        assert old is not None
        assert joined is not None
        assert end is not None
        self.save(q)
        self._join(old, joined)
        old.parent = joined.parent = None
        self.save(end)
        end.parent = q
        q.last = end

    def _join(self, x: TreeNode, y: TreeNode) -> None:
        """Make two ends of lists neighbours."""
        self.save(x)
        self.save(y)
        _fill(x, y)
        _fill(y, x)

    def _exchange(self, x: TreeNode, old: TreeNode, new: TreeNode | None) -> None:
        """Another neighbour in the place of one."""
        self.save(x)
        if x.a is old:
            x.a = new
        else:
            x.b = new


def _fill(x: TreeNode, neighbour: TreeNode) -> None:
    """A neighbour on a side where there is none."""
    if x.a is None:
        x.a = neighbour
    else:
        x.b = neighbour
