"""PQ trees: all orders of n elements in which each of some sets lies together (Booth and Lueker 1976).

`reduce` adds a set. Its bubble pass goes up from the set's leaves and finds their parents; inner children of Q nodes,
which do not know theirs, ask a neighbour that does, or wait in blocks. Then the templates L1, P1 to P6, Q1 to Q3 change
the tree from the leaves up to the pertinent root. However large the tree is, both touch O(|set|) nodes with two or more
children that matter, and on the way up nodes with one, which the templates take away: a series of reductions takes time
linear in the sum of the sets (and n, once). A reduction that fails has taken none away, and may cost the tree's depth.
What it has changed until then is undone along a trail.

Nodes with two children are Q nodes, which saves special cases: any order of two is an order or its reverse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import factorial, prod

from vpps.compiler.pqtree.links import Links, TreeNode


class PQTree:
    """The orders of the leaves 0 to n - 1 that all reductions so far allow.

    Attributes:
        n: leaves.
        changed: whether the last reduction changed the tree: False where all orders had that set together anyway, or
            where it failed. A reduction changes the relative order of the elements of another set only if the two have
            elements in common.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"a PQ tree has leaves; not {n}")
        self.n = n
        self.changed = False
        self._leaves = [TreeNode("leaf", i) for i in range(n)]
        root = self._leaves[0] if n == 1 else TreeNode("P" if n > 2 else "Q")
        self._links = Links(root)
        if n > 1:
            for leaf in self._leaves:
                self._links.append(root, leaf)
            self._links.trail.clear()
        self._recording = False
        self._pseudo = TreeNode("Q")  # stands for the unknown Q node of a block that is a whole constraint
        self._round = 0

    @property
    def root(self) -> TreeNode:
        """Of the tree; to be read only."""
        root = self._links.top.first
        assert root is not None
        return root

    # ---- trials

    def checkpoint(self) -> int:
        """Begin to remember what reductions change; `rollback` leads back here, at the cost of those changes."""
        self._recording = True
        return len(self._links.trail)

    def rollback(self, checkpoint: int) -> None:
        """Undo all reductions since."""
        self._links.rollback(checkpoint)

    def commit(self) -> None:
        """Forget all checkpoints."""
        self._recording = False
        self._links.trail.clear()

    # ---- reduction

    def reduce(self, constraint: Collection[int]) -> bool:
        """Keep the orders only in which the given elements lie together; in time linear in their number, see above.

        Returns:
            Whether there are any. If not, the tree is as before.

        Raises:
            IndexError: no such element.
        """
        links = self._links
        before = len(links.trail)
        leaves = self._find(constraint)
        links.edit += 1
        fits = len(leaves) < 2 or len(leaves) == self.n or (self._bubble(leaves) and self._apply_templates(leaves))
        if not fits:
            links.rollback(before)
        self.changed = len(links.trail) > before
        if not self._recording:
            links.trail.clear()
        return fits

    def _find(self, constraint: Collection[int]) -> list[TreeNode]:
        """Its leaves, each once."""
        if len(constraint) and min(constraint) < 0:
            raise IndexError(f"elements are numbered from 0, not {min(constraint)}")
        leaves = self._leaves
        return [leaves[i] for i in dict.fromkeys(constraint)]

    def _bubble(self, leaves: list[TreeNode]) -> bool:
        """Find the parent of every pertinent node below the pertinent root, and count pertinent children.

        Returns:
            False if leaves lie under inner children of several Q nodes, so that no order has them together.
        """
        self._round += 5
        queued, blocked, placed = self._round + 1, self._round + 2, self._round + 3
        queue = list(leaves)
        waiting: list[TreeNode] = []
        pieces = len(queue)  # nodes in the queue, blocks, and the root of the tree if it was reached
        for x in queue:  # grows
            if pieces == 1:
                break
            above = x.parent
            if above is None:
                a, b = x.a, x.b
                if a is None or b is None:  # the root
                    x.mark = placed
                    continue
                if a.mark == placed:
                    above = a.above
                elif b.mark == placed:
                    above = b.above
                else:
                    x.mark = blocked
                    waiting.append(x)
                    pieces -= (a.mark == blocked) + (b.mark == blocked)
                    continue
                assert above is not None
            x.mark = placed
            x.above = above
            if above.mark < queued:
                above.mark = queued
                _clear(above)
                queue.append(above)
            else:
                pieces -= 1
            above.pertinent += 1
            if above.kind == "P":
                continue
            for beside in (x.a, x.b):
                if beside is None or beside.mark != blocked:
                    continue
                pieces -= 1
                before: TreeNode = x
                z: TreeNode | None = beside
                while z is not None and z.mark == blocked:
                    z.mark = placed
                    z.above = above
                    above.pertinent += 1
                    before, z = z, z.beyond(before)
        if pieces > 1:
            return False
        pseudo = self._pseudo
        _clear(pseudo)
        for x in waiting:
            if x.mark == blocked:
                x.above = pseudo
                pseudo.pertinent += 1
        return True

    def _apply_templates(self, leaves: list[TreeNode]) -> bool:
        """Change the tree from the leaves up to the pertinent root; False where a template does not fit."""
        full = self._round + 4
        queue = list(leaves)
        pieces = len(queue)  # pertinent nodes whose parents are still to come
        for x in queue:  # grows
            above = x.above
            if x.kind == "leaf":
                assert above is not None
                x.mark = full
                above.full.append(x)
            else:
                pieces -= len(x.full) + len(x.partial) - 1
                is_root = pieces == 1
                found = self._at_p(x, is_root) if x.kind == "P" else self._at_q(x, is_root)
                if is_root or found is None:
                    return found is not None
                assert above is not None
                (above.full if found.mark == full else above.partial).append(found)
            above.pertinent -= 1
            if not above.pertinent:
                queue.append(above)
        raise AssertionError("a constraint without a pertinent root")

    # A partial node that a template returns is a Q node: empty children first, full ones last.

    def _at_p(self, x: TreeNode, is_root: bool) -> TreeNode | None:
        """Templates P1 to P6. Returns what is in the place of the P node then, None if no template fits."""
        full, partial, links = x.full, x.partial, self._links
        if len(full) == x.count:  # P1
            x.mark = self._round + 4
            return x
        if len(partial) > 1 + is_root:
            return None
        if is_root and not partial:  # P2
            links.append(x, self._gathered(full))
            return self._settled(x)
        for q in partial:
            links.unlink(q)
        core = partial[0] if partial else links.new("Q")  # P4 to P6, else P3
        if full:
            links.append(core, self._gathered(full))
        if len(partial) == 2:  # P6
            links.concatenate(core, partial[1])
        if is_root and x.count:  # empty children stay what they are
            links.append(x, core)
            return self._settled(x)
        links.replace(x, core)
        if x.count == 1:
            rest = x.first
            assert rest is not None
            links.unlink(rest)
            links.prepend(core, rest)
        elif x.count:
            links.prepend(core, self._settled(x))
        return core

    def _settled(self, x: TreeNode) -> TreeNode:
        """A P node that has lost children: with two, it is a Q node."""
        if x.count == 2:
            self._links.make_q(x)
        return x

    def _gathered(self, nodes: list[TreeNode]) -> TreeNode:
        """One node for some children of a P node, taken from it."""
        links = self._links
        for x in nodes:
            links.unlink(x)
        if len(nodes) == 1:
            return nodes[0]
        group = links.new("P" if len(nodes) > 2 else "Q")
        for x in nodes:
            links.append(group, x)
        return group

    def _at_q(self, x: TreeNode, is_root: bool) -> TreeNode | None:
        """Templates Q1 to Q3. Returns the Q node, None if no template fits."""
        full, partial, links = x.full, x.partial, self._links
        if not full:
            return self._at_q_of_partial(x, is_root)
        sides = self._run(full)
        if sides is None:
            return None
        beside = [(outer, inner) for outer, inner in sides if outer in partial]
        if len(beside) < len(partial):
            return None
        ends = [inner for outer, inner in sides if outer is None]
        if len(ends) == 2:  # Q1
            x.mark = self._round + 4
            return x
        if not is_root:  # Q2
            if not ends:
                return None
            if x.last is not ends[0]:
                links.reverse(x)
        for q, inner in beside:
            assert q is not None
            links.dissolve(q, x, inner)
        return x

    def _at_q_of_partial(self, x: TreeNode, is_root: bool) -> TreeNode | None:
        """Templates Q2 and Q3 where no child is full."""
        links, q = self._links, x.partial[0]
        if is_root:
            if len(x.partial) != 2 or x.partial[1] not in (q.a, q.b):
                return None
            other = x.partial[1]
            links.dissolve(q, x, other)
            links.dissolve(other, x, q.last)
            return x
        if len(x.partial) > 1 or q not in (x.first, x.last):
            return None
        if x.last is not q:
            links.reverse(x)
        links.dissolve(q, x, None)
        return x

    def _run(self, full: list[TreeNode]) -> list[tuple[TreeNode | None, TreeNode]] | None:
        """The two ends of adjacent full children of a Q node: what is beyond, and the last one. None if they are not
        adjacent."""
        mark, n = self._round + 4, 1
        sides: list[tuple[TreeNode | None, TreeNode]] = []
        for outer in (full[0].a, full[0].b):
            inner = full[0]
            while outer is not None and outer.mark == mark:
                n += 1
                inner, outer = outer, outer.beyond(inner)
            sides.append((outer, inner))
        return sides if n == len(full) else None

    # ---- reading

    def span(self, constraint: Collection[int]) -> list[TreeNode]:
        """The nodes whose leaves are the given elements, which lie together in every order; in linear time.

        Returns:
            One node; or several but not all children of a Q node, in their order or its reverse.

        Raises:
            IndexError: no such element.
            ValueError: an order does not have them together.
        """
        leaves = self._find(constraint)
        if len(leaves) == 1:
            return leaves
        if not self._bubble(leaves):
            raise ValueError("these elements do not lie together")
        full = self._round + 4
        queue = list(leaves)
        pieces = len(queue)
        for x in queue:  # grows
            if x.kind != "leaf":
                pieces -= len(x.full) - 1
                if x.kind == "P":
                    whole = len(x.full) == x.count
                else:
                    sides = self._run(x.full)
                    if sides is None:
                        break
                    (outside, first), (beyond, last) = sides
                    whole = outside is None and beyond is None
                    if pieces == 1 and not whole:
                        return list(_walk(outside, first, last))
                if pieces == 1 and whole:
                    return [x]
                if not whole:
                    break
            above = x.above
            assert above is not None
            x.mark = full
            above.full.append(x)
            above.pertinent -= 1
            if not above.pertinent:
                queue.append(above)
        raise ValueError("these elements do not lie together")

    def inner_nodes(self) -> Iterator[tuple[TreeNode, list[TreeNode]]]:
        """All nodes with children, and these; a node before those below it."""
        todo = [self.root]
        while todo:
            x = todo.pop()
            if x.kind != "leaf":
                children = list(x.children)
                yield x, children
                todo += children

    def frontier(self) -> list[int]:
        """One of the orders."""
        order, todo = [], [self.root]
        while todo:
            x = todo.pop()
            if x.kind == "leaf":
                order.append(x.leaf)
            todo += reversed(list(x.children))
        return order

    def count(self) -> int:
        """How many orders there are."""
        return prod(factorial(len(children)) if x.kind == "P" else 2 for x, children in self.inner_nodes())

    def __str__(self) -> str:
        """Leaves in (a b c) of a P node, [a b c] of a Q node."""
        words: list[str] = []
        todo: list[TreeNode | str] = [self.root]
        while todo:
            x = todo.pop()
            if isinstance(x, str):
                words.append(x)
            elif x.kind == "leaf":
                words.append(f"{x.leaf} ")
            else:
                begin, end = "()" if x.kind == "P" else "[]"
                words.append(begin)
                todo.append(f"{end} ")
                todo += reversed(list(x.children))
        return "".join(words).replace(" )", ")").replace(" ]", "]").strip()


def _clear(x: TreeNode) -> None:
    """Forget earlier reductions."""
    x.pertinent = 0
    x.full = []
    x.partial = []


def _walk(before: TreeNode | None, first: TreeNode, last: TreeNode) -> Iterator[TreeNode]:
    """From one node to another, both included, away from the neighbour before the first."""
    x: TreeNode | None = first
    while x is not None:
        yield x
        if x is last:
            return
        before, x = x, x.beyond(before)
