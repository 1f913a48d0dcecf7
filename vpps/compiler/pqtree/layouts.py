"""The order of variables in memory in which batched operations read and write most without copies.

An operand of a batch needs no copy where its variables lie together and in the order in which the batch runs. The order
in which a batch runs is free. ED-Batch (section 3.2) calls a layout ideal in which all operands of all batches are so;
`layout` finds one whenever there is one, and otherwise leaves out batches, or operands of these, that save least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpps.compiler.pqtree.kept import KeptOrders, Operand


@dataclass(frozen=True, slots=True)
class RowLayout:
    """An order of variables, and what of each batch needs no copies with it.

    Attributes:
        order: the variables as they lie in memory.
        position: of each variable in the order.
        lanes: of each batch, the places of its operands in the order in which the batch should run: element k of an
            operand is its variable `operand[lanes[k]]`.
        contiguous: of each batch and operand: whether its variables lie together.
        aligned: of each batch and operand: whether they do, in the order of `lanes`, so that no copy is needed.
        saved: the sum of the weights of the aligned operands.
    """

    order: tuple[int, ...]
    position: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]
    contiguous: tuple[tuple[bool, ...], ...]
    aligned: tuple[tuple[bool, ...], ...]
    saved: float

    @property
    def ideal(self) -> bool:
        """Whether nothing needs a copy."""
        return all(all(operands) for operands in self.aligned)


def layout(
    n: int,
    batches: Sequence[Sequence[Sequence[int]]],
    weights: Sequence[float | Sequence[float]] | None = None,
) -> RowLayout:
    """Find an order of the variables 0 to n - 1 for batched operations.

    Args:
        n: variables.
        batches: of each batch its operands (sources and results alike), of each operand its variables, one for each
            operation of the batch: different ones, and as many in all operands of a batch.
        weights: of each batch, bytes that are not copied if the whole batch is aligned, or these of each of its
            operands; one number is shared evenly. By default 1 for each variable of an operand.

    Returns:
        An ideal layout if there is one. Otherwise the better of two that a greedy choice finds, the heaviest first:
        whole batches and then operands of those left out, or operands from the beginning; the best choice may save
        more. Never one that saves less than the order of declaration, which is kept where it saves as much.

    Raises:
        ValueError: operands of a batch differ in length, or have a variable twice, or one that does not exist; weights
            do not fit.
    """
    wanted = [[tuple(operand) for operand in batch] for batch in batches]
    _check(n, wanted)
    worth = _worth(wanted, weights)
    declared = evaluate(range(n), wanted, worth)
    if declared.ideal:
        return declared
    by_weight = sorted(range(len(wanted)), key=lambda b: -sum(worth[b]))
    batches_first = KeptOrders(n)
    refused = batches_first.add_most([[(b, operand) for operand in wanted[b]] for b in by_weight])
    candidates = [batches_first]
    if refused:
        single = [(w, b, operand) for b in by_weight for w, operand in zip(worth[b], wanted[b], strict=True)]
        single.sort(key=lambda weighed: -weighed[0])
        units = [[(b, operand)] for _, b, operand in single]
        of_refused = {b for unit in refused for b, _ in unit}
        batches_first.add_most([unit for unit in units if unit[0][0] in of_refused])
        one_by_one = KeptOrders(n)
        one_by_one.add_most(units, hopeless=True)
        candidates.append(one_by_one)
    found = [evaluate(kept.order(), wanted, worth) for kept in candidates]
    return max([declared, *found], key=lambda layout: layout.saved)


def evaluate(
    order: Sequence[int], batches: Sequence[Sequence[Operand]], weights: Sequence[Sequence[float]]
) -> RowLayout:
    """What an order of variables is worth. A batch runs in the order that most weight of its operands has in memory."""
    position = [0] * len(order)
    for k, variable in enumerate(order):
        position[variable] = k
    all_lanes, contiguous, aligned = [], [], []
    saved = 0.0
    for batch, worth in zip(batches, weights, strict=True):
        size = len(batch[0]) if batch else 0
        by_lanes: dict[tuple[int, ...], float] = {}
        of_operands: list[tuple[int, ...] | None] = []
        for operand, bytes_ in zip(batch, worth, strict=True):
            at = [position[v] for v in operand]
            lanes = None
            if not at or max(at) - min(at) < size:
                lanes = tuple(sorted(range(size), key=at.__getitem__))
                by_lanes[lanes] = by_lanes.get(lanes, 0.0) + bytes_
            of_operands.append(lanes)
        best = max(by_lanes, key=by_lanes.__getitem__, default=tuple(range(size)))
        saved += by_lanes.get(best, 0.0)
        all_lanes.append(best)
        contiguous.append(tuple(lanes is not None for lanes in of_operands))
        aligned.append(tuple(lanes == best for lanes in of_operands))
    return RowLayout(tuple(order), tuple(position), tuple(all_lanes), tuple(contiguous), tuple(aligned), saved)


def _check(n: int, batches: Sequence[Sequence[Operand]]) -> None:
    """Refuse what is no batch."""
    for number, batch in enumerate(batches):
        for operand in batch:
            if len(operand) != len(batch[0]):
                raise ValueError(
                    f"batch {number} has operands of {len(batch[0])} and {len(operand)} variables; it has one for each "
                    "of its operations"
                )
            if len(set(operand)) < len(operand):
                raise ValueError(f"an operand of batch {number} has a variable twice: {operand}")
            if operand and not 0 <= min(operand) <= max(operand) < n:
                raise ValueError(f"an operand of batch {number} has a variable that is not one of {n}: {operand}")


def _worth(
    batches: Sequence[Sequence[Operand]], weights: Sequence[float | Sequence[float]] | None
) -> list[list[float]]:
    """The weight of each operand of each batch."""
    if weights is None:
        return [[float(len(operand)) for operand in batch] for batch in batches]
    if len(weights) != len(batches):
        raise ValueError(f"{len(weights)} weights of {len(batches)} batches")
    worth = []
    for number, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
        if isinstance(weight, Sequence):
            if len(weight) != len(batch):
                raise ValueError(f"batch {number} has {len(batch)} operands, and {len(weight)} weights")
            worth.append([float(w) for w in weight])
        else:
            worth.append([weight / len(batch)] * len(batch))
    return worth
