"""Finds an order of variables in memory for which batched operations copy the fewest bytes.

An operand of a batch needs no copy if its variables are contiguous and in the order in which the batch runs (any order
will do). In an ideal layout (ED-Batch, section 3.2) no operand of any batch needs a copy. `layout` finds such a layout
if there is one; otherwise it drops the batches, or their operands, that save least.
"""

from __future__ import annotations

from collections.abc import Sequence

from vpps.compiler.pqtree.operands import Correspondences, Shape, correspondences, missing, order, shape
from vpps.compiler.pqtree.tree import any_order, reduced, set_of

Operand = Sequence[int]
Unit = Sequence[tuple[int, Operand]]  # operands to keep all together or not at all, each with its batch number


def layout(n: int, batches: Sequence[Sequence[Operand]], weights: Sequence[Sequence[float]]) -> list[int]:
    """Find an order of the variables 0 to n - 1 for batched operations.

    Args:
        n: number of variables.
        batches: for each batch its operands (sources and results alike); for each operand its variables, one for each
            operation of the batch. The variables of an operand are distinct.
        weights: for each batch and operand, the bytes that are not copied if the operand is aligned.

    Returns:
        The variables in memory order: an ideal layout if there is one. Otherwise the better of two greedy layouts: one
        keeps the heaviest whole batches and then operands of the other batches; the other keeps the heaviest operands.
        Neither need be optimal. If neither saves more than the order of declaration, that order is returned.
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
    """Return the total weight of the operands that need no copy in an order of the variables. Each batch runs in the
    order of the heaviest set of contiguous operands that share an order."""
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
    """The orders that satisfy the kept operands: each operand is contiguous, and those of a batch share an order."""

    def __init__(self, n: int) -> None:
        self._tree = any_order(n)
        self._directions = Correspondences()
        self._batches: dict[int, tuple[Operand, ...]] = {}
        self._shapes: dict[int, list[Shape]] = {}  # batch with several operands -> their shapes

    def order(self) -> list[int]:
        """Return an order of the variables that satisfies all kept operands."""
        return order(self._tree, self._directions)

    def add(self, unit: Unit) -> bool:
        """Keep more operands by ED-Batch's two passes: either all of them, or none, which changes nothing.

        Returns:
            True if some order satisfies these operands and all kept ones. The answer is exact, although the paper
            does not say so. Every such order satisfies all constraints that the passes add to the tree. At the end, the
            subtrees of a batch's operands are isomorphic, so any order of the deciding nodes is valid for all.
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
        """Keep all units at once if possible; otherwise one by one, each if it is compatible with those kept before it.

        Returns:
            The units that are not kept.
        """
        if self.add([item for unit in units for item in unit]):
            return []
        return [unit for unit in units if not self.add(unit)]
