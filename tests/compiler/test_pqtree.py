"""PQ trees: the orders that they represent, compared with all permutations."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vpps.compiler.pqtree.tree import TreeNode, any_order, reduced, set_of, spanning

pytestmark = pytest.mark.host

Ints = NDArray[np.int64]


@cache
def all_orders(n: int) -> Ints:
    """Return a row per permutation."""
    if n == 1:
        return np.zeros((1, 1), np.int64)
    smaller = all_orders(n - 1)
    return np.concatenate([np.insert(smaller, k, n - 1, axis=1) for k in range(n)])


@cache
def all_positions(n: int) -> Ints:
    """Return each element's position in these orders."""
    return np.argsort(all_orders(n), axis=1)


def together(positions: Ints, elements: list[int]) -> NDArray[np.bool_]:
    """Return True for the orders that keep some elements together."""
    of = positions[:, elements]
    found: NDArray[np.bool_] = of.max(1) - of.min(1) == len(elements) - 1
    return found


def orders_below(x: TreeNode) -> Ints:
    """Return a row per order of the leaves below a node."""
    if x.kind == "leaf":
        return np.array([[x.smallest]])
    if x.kind == "P" and all(c.kind == "leaf" for c in x.children):
        return np.array([c.smallest for c in x.children])[all_orders(len(x.children))]
    below = [orders_below(c) for c in x.children]
    rows = np.array(list(product(*(range(len(orders)) for orders in below))))
    blocks = [orders[rows[:, k]] for k, orders in enumerate(below)]
    arranged = permutations(blocks) if x.kind == "P" else (blocks, blocks[::-1])
    return np.concatenate([np.concatenate(a, axis=1) for a in arranged])


def count(x: TreeNode) -> int:
    """Return the number of orders."""
    return prod(factorial(len(node.children)) if node.kind == "P" else 2 for node in x.inner_nodes())


def sorted_rows(orders: Ints) -> list[int]:
    """Return rows as sorted numbers."""
    return sorted((orders @ 10 ** np.arange(orders.shape[1])).tolist())


@st.composite
def constraints(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Draw sets of up to 8 elements; most are contiguous in one order, so that many can be satisfied."""
    n = draw(st.integers(1, 8))
    hidden = draw(st.permutations(range(n)))
    sets = []
    for _ in range(draw(st.integers(0, 8))):
        begin, end = sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n))))
        some = hidden[begin:end] if draw(st.integers(0, 4)) else draw(st.permutations(range(n)))[begin:end]
        sets.append(draw(st.permutations(some)))
    return n, sets


@settings(max_examples=120, deadline=None)
@given(constraints())
def test_a_tree_stands_for_the_orders_that_have_all_sets_together(case: tuple[int, list[list[int]]]) -> None:
    n, sets = case
    tree, positions = any_order(n), all_positions(n)
    for elements in sets:
        made = reduced(tree, set_of(elements))
        if not elements:
            assert made is tree
            continue
        fitting = positions[together(positions, elements)]
        assert (made is None) == (len(fitting) == 0)
        if made is not None:
            assert (made is tree) == (len(fitting) == len(positions))
            assert sorted(orders_below(spanning(made, set_of(elements)))[0]) == sorted(elements)
            tree, positions = made, fitting
        assert count(tree) == len(positions)
        assert all(x.leaves == set_of(orders_below(x)[0].tolist()) for x in tree.inner_nodes())
        assert all(len(x.children) > 1 + (x.kind == "P") for x in tree.inner_nodes())
    assert sorted_rows(orders_below(tree)) == sorted_rows(np.argsort(positions, axis=1))


def test_deep_trees_need_no_recursion() -> None:
    n = 1500
    tree: TreeNode | None = any_order(n)
    for begin in range(n - 2, -1, -1):  # each set contains all earlier sets
        assert tree is not None
        tree = reduced(tree, (1 << n) - (1 << begin))
    assert tree is not None
    assert len(list(tree.inner_nodes())) == n - 1
    tree = reduced(tree, set_of((0, n - 1)))  # a set that spans all of them
    assert tree is not None
    assert reduced(tree, set_of((1, n - 1))) is None
