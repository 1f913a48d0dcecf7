"""Operands that an order of variables keeps free of copies, added for as long as there is such an order."""

from __future__ import annotations

from collections.abc import Sequence

from vpps.compiler.pqtree.directions import Correspondences, correspondences, order
from vpps.compiler.pqtree.shapes import Shape, missing, shape
from vpps.compiler.pqtree.tree import PQTree

Operand = tuple[int, ...]
Unit = Sequence[tuple[int, Operand]]  # operands to be kept all or none, each with the number of its batch


class KeptOrders:
    """Some operands of some batches, which lie together, those of a batch in one order."""

    def __init__(self, n: int) -> None:
        self._tree = PQTree(n)
        self._directions = Correspondences()
        self._batches: dict[int, list[Operand]] = {}
        self._shapes: dict[int, list[Shape]] = {}  # of operands of batches that have several
        self._readers: list[list[int]] = [[] for _ in range(n)]  # of each variable: batches of the operands

    def order(self) -> list[int]:
        """An order of the variables in which all that was added is so."""
        return order(self._tree, self._directions)

    def add(self, unit: Unit) -> bool:
        """Keep some more operands; all or, without a trace, none.

        Returns:
            Whether there is an order for them and for all that is kept. The answer is exact, which the paper does not
            say: all that the passes add to the tree holds in every such order; and where they come to an end, the
            subtrees of a batch's operands are isomorphic, so any order of the nodes that decide is one for all.
        """
        start = self._tree.checkpoint()
        for number, operand in unit:
            self._batches.setdefault(number, []).append(operand)
            for v in operand:
                self._readers[v].append(number)
        shapes = self._shapes.copy()
        found = self._solve(unit)
        if found is not None:
            self._directions = found
            self._tree.commit()
            return True
        self._tree.rollback(start)
        self._shapes = shapes
        for number, operand in reversed(unit):
            self._batches[number].pop()
            for v in operand:
                self._readers[v].pop()
        return False

    def add_most(self, units: Sequence[Unit], hopeless: bool = False) -> list[Unit]:
        """Keep unit after unit, each if it can be kept with those before it.

        Halves are tried as a whole and divided only when they do not fit, so few refusals cost few trials.

        Args:
            hopeless: it is known that they do not fit all.

        Returns:
            The units refused.
        """
        refused: list[Unit] = []
        todo = [(units, hopeless)]
        while todo:
            some, hopeless = todo.pop()
            if not hopeless and self.add([item for unit in some for item in unit]):
                continue
            if len(some) == 1:
                refused += some
                continue
            left, right = some[: len(some) // 2], some[len(some) // 2 :]
            if self.add([item for unit in left for item in unit]):
                todo.append((right, True))
            else:
                todo += [(right, False), (left, True)]
        return refused

    def _solve(self, unit: Unit) -> Correspondences | None:
        """Both passes of ED-Batch, after operands have been added; None if there is no order."""
        tree = self._tree
        changed = dict.fromkeys(number for number, _ in unit)
        for _, operand in unit:
            if not tree.reduce(operand):
                return None
            if tree.changed:
                changed.update(dict.fromkeys(b for v in operand for b in self._readers[v]))
        while changed:
            number, _ = changed.popitem()
            operands = self._batches[number]
            if len(operands) < 2:
                continue
            self._shapes[number] = [shape(tree, operand) for operand in operands]
            for variables in missing(operands, self._shapes[number]):
                if not tree.reduce(variables):
                    return None
                if tree.changed:
                    changed.update(dict.fromkeys(b for v in variables for b in self._readers[v]))
        return correspondences(tree, self._shapes.values())
