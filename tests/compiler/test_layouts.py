"""The order of variables for batched operations: optimal where possible, compared with all permutations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpps.compiler.pqtree.layouts import KeptOrders, layout, saved
from vpps.compiler.pqtree.operands import Correspondences, composed, inverse
from vpps.compiler.pqtree.tree import TreeNode, any_order

pytestmark = pytest.mark.host

Batch = list[tuple[int, ...]]

# ---- the paper's example (ED-Batch, figures 3 and 4); its variables are numbered from 1

B1: Batch = [(3, 4), (0, 2), (1, 0)]
B2: Batch = [(7, 5, 6), (2, 3, 4)]


def evenly(batches: list[Batch]) -> list[list[float]]:
    """Return a weight of 1 for each variable."""
    return [[float(len(operand)) for operand in batch] for batch in batches]


def test_the_papers_example_needs_no_copies() -> None:
    weights = evenly([B1, B2])
    assert layout(8, [B1, B2], weights) == [1, 0, 2, 3, 4, 7, 5, 6]  # the order that the paper shows
    assert saved([1, 0, 2, 3, 4, 7, 5, 6], [B1, B2], weights) == 3 * 2 + 2 * 3 > saved(range(8), [B1, B2], weights)


# ---- against all permutations


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> tuple[int, list[Batch], list[list[float]]]:
    """Draw batches whose operands are runs in one hidden order, with occasional exceptions; also draw weights."""
    n = draw(st.integers(2, most))
    hidden = draw(st.permutations(range(n)))
    noisy = draw(st.booleans())
    batches, weights = [], []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, n))
        lanes = draw(st.permutations(range(size)))
        batch = []
        for _ in range(draw(st.integers(1, 3))):
            begin = draw(st.integers(0, n - size))
            of = draw(st.permutations(range(n))) if noisy and draw(st.booleans()) else hidden[begin:]
            batch.append(tuple(of[k] for k in lanes))
        batches.append(batch)
        weights.append([float(draw(st.sampled_from([1, 2, 5, 100]))) for _ in batch])
    return n, batches, weights


def best_possible(
    n: int, batches: list[Batch], weights: list[list[float]], orders: Iterable[Sequence[int]] = ()
) -> float:
    """Return the most that any order saves; only among `orders`, if given."""
    position = np.argsort(np.array(list(orders) or list(permutations(range(n)))), axis=1)
    total = np.zeros(len(position))
    for batch, worth in zip(batches, weights, strict=True):
        by_lanes: dict[tuple[int, ...], np.ndarray] = {}
        for operand, weight in zip(batch, worth, strict=True):
            at = position[:, operand]
            near = at.max(1) - at.min(1) < len(operand)
            for lanes in set(map(tuple, np.argsort(at[near], axis=1).tolist())):
                ordered = (np.diff(at[:, lanes], axis=1) == 1).all(1)
                by_lanes[lanes] = by_lanes.get(lanes, 0) + weight * ordered
        total += np.max([np.zeros(len(position)), *by_lanes.values()], axis=0)
    return float(total.max())


@settings(max_examples=80, deadline=None)
@given(problems())
def test_a_layout_is_ideal_if_any_order_is_and_never_worse_than_the_declared_one(
    case: tuple[int, list[Batch], list[list[float]]],
) -> None:
    n, batches, weights = case
    found = layout(n, batches, weights)
    assert sorted(found) == list(range(n))
    worth, best = saved(found, batches, weights), best_possible(n, batches, weights)
    assert worth == best_possible(n, batches, weights, [found])
    assert saved(range(n), batches, weights) <= worth <= best
    assert (worth == best) or best < sum(map(sum, weights))
    assert worth >= max(max(each) for each in weights)  # a single operand is always possible


@settings(max_examples=60, deadline=None)
@given(problems(most=5))
def test_operands_are_kept_exactly_if_there_is_an_order_for_them_and_those_before(
    case: tuple[int, list[Batch], list[list[float]]],
) -> None:
    n, batches, _ = case
    kept = KeptOrders(n)
    so_far: dict[int, Batch] = {}
    for k in range(max(map(len, batches))):
        for number, batch in enumerate(batches):
            if k >= len(batch):
                continue
            together = {**so_far, number: [*so_far.get(number, []), batch[k]]}
            some = list(together.values())
            worth = [[1.0] * len(b) for b in some]
            possible = best_possible(n, some, worth) == sum(map(len, some))
            assert kept.add([(number, batch[k])]) == possible
            if possible:
                so_far = together
            weights = [[1.0] * len(b) for b in so_far.values()]
            assert saved(kept.order(), list(so_far.values()), weights) == sum(map(sum, weights))


def test_of_conflicting_batches_the_heavier_one_is_kept_and_of_the_other_what_fits() -> None:
    light: Batch = [(0, 1), (2, 3)]
    heavy: Batch = [(1, 2), (4, 5)]
    assert saved(layout(6, [light, heavy], [[1, 1], [50, 60]]), [light, heavy], [[1, 1], [50, 60]]) == 112
    crossed: Batch = [(0, 2), (1, 3), (4, 5)]
    batches, weights = [light, heavy, crossed], [[1.0, 1.0], [50.0, 60.0], [10.0, 0.0, 3.0]]
    found = layout(6, batches, weights)
    assert saved(found, [heavy], [[50, 60]]) == 110
    assert saved(found, batches, weights) == best_possible(6, batches, weights)


def test_a_batch_that_contradicts_itself_keeps_one_operand() -> None:
    """Operands order three variables so that each rotates the next: their P node would have to differ from itself."""
    rotated: list[Batch] = [[(0, 1, 2), (1, 2, 0)], [(0, 1), (1, 0)]]
    for batch in rotated:
        assert saved(layout(4, [batch], evenly([batch])), [batch], evenly([batch])) == len(batch[0])


def test_the_order_of_declaration_stays_where_it_saves_as_much() -> None:
    assert layout(5, [[(3, 1)], [(0, 3, 2)], [(2, 3, 4)]], [[0], [0], [1]]) == [0, 1, 2, 3, 4]
    assert layout(3, [], []) == layout(3, [[]], [[]]) == [0, 1, 2]


# ---- the union-find set of orders


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 4))
def test_chains_of_unions_give_permutations_that_agree(data: st.DataObject, size: int) -> None:
    """All nodes' children have hidden names. Unions that respect the names are consistent; all others are not."""
    orders = st.permutations(range(size)).map(tuple)
    hidden = data.draw(st.lists(orders, min_size=2, max_size=8))
    nodes = [TreeNode("P", any_order(size).children, 0) for _ in hidden]
    sets = Correspondences()
    joined = {k: {k} for k in range(len(nodes))}
    numbers = st.integers(0, len(nodes) - 1)
    for x, y in data.draw(st.lists(st.tuples(numbers, numbers), max_size=12)):
        which = composed(hidden[x], inverse(hidden[y]))
        other = data.draw(orders)
        if y in joined[x] and other != which:
            assert not sets.union(nodes[x], nodes[y], other)
        assert sets.union(nodes[x], nodes[y], which)
        if y not in joined[x]:
            both = joined[x] | joined[y]
            joined.update((k, both) for k in both)
        for k, node in enumerate(nodes):
            root, to_root = sets.find(node)
            decider = nodes.index(root)
            assert decider in joined[k]
            assert to_root == composed(hidden[k], inverse(hidden[decider]))
