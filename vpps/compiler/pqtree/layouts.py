"""The order of variables in memory in which batched operations read and write most without copies.

An operand of a batch needs no copy where its variables lie together and in the order in which the batch runs. The order
in which a batch runs is free. ED-Batch (section 3.2) calls a layout ideal in which all operands of all batches are so;
`layout` finds one whenever there is one, and otherwise leaves out batches, or operands of these, that save least.
"""

from __future__ import annotations

from collections.abc import Sequence

from vpps.compiler.pqtree.operands import Correspondences, Shape, correspondences, missing, order, shape
from vpps.compiler.pqtree.tree import any_order, reduced, set_of

Operand = Sequence[int]
Unit = Sequence[tuple[int, Operand]]  # operands to be kept all or none, each with the number of its batch


def layout(n: int, batches: Sequence[Sequence[Operand]], weights: Sequence[Sequence[float]]) -> list[int]:
    """Find an order of the variables 0 to n - 1 for batched operations.

    Args:
        n: variables.
        batches: of each batch its operands (sources and results alike), of each operand its variables, one for each
            operation of the batch: different ones, and as many in all operands of a batch.
        weights: of each batch and operand: bytes that are not copied if it is aligned.

    Returns:
        The variables as they lie in memory: an ideal layout if there is one. Otherwise the better of two that a greedy
        choice finds, the heaviest first: whole batches and then operands of those left out, or operands from the
        beginning; the best choice may save more. Never one that saves less than the order of declaration, which is
        kept where it saves as much.
    """
    declared = list(range(n))
    if saved(declared, batches, weights) == sum(map(sum, weights)):
        return declared
    by_weight = sorted(range(len(batches)), key=lambda b: -sum(weights[b]))
    batches_first = KeptOrders(n)
    refused = batches_first.add_most([[(b, operand) for operand in batches[b]] for b in by_weight])
    candidates = [batches_first]
    if refused:
        single = [(w, b, operand) for b in by_weight for w, operand in zip(weights[b], batches[b], strict=True)]
        single.sort(key=lambda weighed: -weighed[0])
        units = [[(b, operand)] for _, b, operand in single]
        of_refused = {b for unit in refused for b, _ in unit}
        batches_first.add_most([unit for unit in units if unit[0][0] in of_refused])
        one_by_one = KeptOrders(n)
        one_by_one.add_most(units)
        candidates.append(one_by_one)
    orders = [declared, *(kept.order() for kept in candidates)]
    return max(orders, key=lambda found: saved(found, batches, weights))


def saved(found: Sequence[int], batches: Sequence[Sequence[Operand]], weights: Sequence[Sequence[float]]) -> float:
    """The weights of the operands that need no copy in an order of the variables: they lie together, in the order in
    which their batch runs, which is the one that most weight of its operands has in memory."""
    position = {variable: k for k, variable in enumerate(found)}
    total = 0.0
    for batch, worth in zip(batches, weights, strict=True):
        by_lanes: dict[tuple[int, ...], float] = {}
        for operand, weight in zip(batch, worth, strict=True):
            at = [position[v] for v in operand]
            if max(at) - min(at) < len(at):
                lanes = tuple(sorted(range(len(at)), key=at.__getitem__))
                by_lanes[lanes] = by_lanes.get(lanes, 0.0) + weight
        total += max(by_lanes.values(), default=0.0)
    return total


class KeptOrders:
    """Some operands of some batches, which lie together, those of a batch in one order."""

    def __init__(self, n: int) -> None:
        self._tree = any_order(n)
        self._directions = Correspondences()
        self._batches: dict[int, tuple[Operand, ...]] = {}
        self._shapes: dict[int, list[Shape]] = {}  # of operands of batches that have several

    def order(self) -> list[int]:
        """An order of the variables in which all that was added is so."""
        return order(self._tree, self._directions)

    def add(self, unit: Unit) -> bool:
        """Keep some more operands; all or, without a trace, none: both passes of ED-Batch.

        Returns:
            Whether there is an order for them and for all that is kept. The answer is exact, which the paper does not
            say: all that the passes add to the tree holds in every such order; and where they come to an end, the
            subtrees of a batch's operands are isomorphic, so any order of the nodes that decide is one for all.
        """
        tree, batches, shapes = self._tree, self._batches.copy(), self._shapes.copy()
        for number, operand in unit:
            batches[number] = (*batches.get(number, ()), operand)
        variables = {number: set_of(v for operand in operands for v in operand) for number, operands in batches.items()}
        changed = dict.fromkeys(number for number, _ in unit)
        wanted = [set_of(operand) for _, operand in unit]
        while True:
            for together in wanted:
                made = reduced(tree, together)
                if made is None:
                    return False
                if made is not tree:
                    changed.update(dict.fromkeys(b for b, those in variables.items() if those & together))
                tree = made
            if not changed:
                break
            number, _ = changed.popitem()
            wanted = []
            if len(batches[number]) > 1:
                shapes[number] = [shape(tree, operand) for operand in batches[number]]
                wanted = missing(batches[number], shapes[number])
        directions = correspondences(tree, shapes.values())
        if directions is None:
            return False
        self._tree, self._directions, self._batches, self._shapes = tree, directions, batches, shapes
        return True

    def add_most(self, units: Sequence[Unit]) -> list[Unit]:
        """Keep unit after unit, each if it can be kept with those before it; all at once if they all can.

        Returns:
            The units refused.
        """
        if self.add([item for unit in units for item in unit]):
            return []
        return [unit for unit in units if not self.add(unit)]
