"""PQ trees: the orders that they stand for, against all permutations; that nothing is left of failures; linear time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vpps.compiler.pqtree import PQTree
from vpps.compiler.pqtree.links import TreeNode

pytestmark = pytest.mark.host

Ints = NDArray[np.int64]


@cache
def all_orders(n: int) -> Ints:
    """A row per permutation."""
    if n == 1:
        return np.zeros((1, 1), np.int64)
    smaller = all_orders(n - 1)
    return np.concatenate([np.insert(smaller, k, n - 1, axis=1) for k in range(n)])


@cache
def all_positions(n: int) -> Ints:
    """Where each element is in them."""
    return np.argsort(all_orders(n), axis=1)


def together(positions: Ints, elements: list[int]) -> NDArray[np.bool_]:
    """Which orders have some elements together."""
    of = positions[:, elements]
    return of.max(1) - of.min(1) == len(elements) - 1


def orders_below(x: TreeNode) -> Ints:
    """A row per order of the leaves below a node."""
    if x.kind == "leaf":
        return np.array([[x.leaf]])
    children = list(x.children)
    if x.kind == "P" and all(c.kind == "leaf" for c in children):
        return np.array([c.leaf for c in children])[all_orders(len(children))]
    below = [orders_below(c) for c in children]
    rows = np.array(list(product(*(range(len(orders)) for orders in below))))
    blocks = [orders[rows[:, k]] for k, orders in enumerate(below)]
    arranged = permutations(blocks) if x.kind == "P" else (blocks, blocks[::-1])
    return np.concatenate([np.concatenate(a, axis=1) for a in arranged])


def sorted_rows(orders: Ints) -> list[int]:
    """Rows as sorted numbers."""
    return sorted((orders @ 10 ** np.arange(orders.shape[1])).tolist())


@st.composite
def constraints(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Sets of up to 8 elements; most lie together in one order, so that many can be met."""
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
    tree, positions = PQTree(n), all_positions(n)
    for elements in sets:
        if not elements:
            assert tree.reduce(elements)
            continue
        before, fitting = str(tree), positions[together(positions, elements)]
        assert tree.reduce(elements) == bool(len(fitting))
        if len(fitting):
            assert tree.changed == (len(fitting) < len(positions)) == (str(tree) != before)
            assert sorted(leaf for x in tree.span(elements) for leaf in orders_below(x)[0]) == sorted(elements)
            positions = fitting
        else:
            assert not tree.changed
            assert str(tree) == before
            with pytest.raises(ValueError, match="together"):
                tree.span(elements)
        assert tree.count() == len(positions)
    assert sorted_rows(orders_below(tree.root)) == sorted_rows(np.argsort(positions, axis=1))
    assert tree.frontier() in orders_below(tree.root).tolist()


@settings(max_examples=60, deadline=None)
@given(constraints(), st.integers(0, 8), st.integers(0, 8))
def test_a_rollback_leads_back_to_its_checkpoint(case: tuple[int, list[list[int]]], first: int, second: int) -> None:
    n, sets = case
    tree = PQTree(n)
    first, second = sorted((first, second))
    before = []
    for k, elements in enumerate(sets + [[]] * 8):
        if k in (first, second):
            before.append((tree.checkpoint(), str(tree)))
        tree.reduce(elements)
    for checkpoint, text in reversed(before):
        tree.rollback(checkpoint)
        assert str(tree) == text
    again = PQTree(n)
    for elements in sets[:first]:
        again.reduce(elements)
    for elements in sets[first:]:  # what was undone has left nothing behind
        assert tree.reduce(elements) == again.reduce(elements)
        assert str(tree) == str(again)


def test_the_tree_of_the_papers_example_has_a_p_node_and_three_q_nodes() -> None:
    """ED-Batch, figure 4(a); its variables are numbered from 1."""
    tree = PQTree(8)
    for elements in [(3, 4), (0, 2), (1, 0), (7, 5, 6), (2, 3, 4)]:
        assert tree.reduce(elements)
    assert str(tree) == "[(7 5 6) [1 0 2 [3 4]]]"
    assert tree.count() == 2**3 * 6
    assert tree.frontier() == [7, 5, 6, 1, 0, 2, 3, 4]
    assert tree.reduce((6, 7))
    assert str(tree) == "[[5 [6 7]] [1 0 2 [3 4]]]"
    assert not tree.reduce((0, 3))


def test_elements_that_do_not_exist_are_refused() -> None:
    tree = PQTree(4)
    for elements in ((1, 4), (-1, 2)):
        with pytest.raises(IndexError):
            tree.reduce(elements)
    with pytest.raises(ValueError, match="has leaves"):
        PQTree(0)
    assert str(tree) == "(0 1 2 3)"
    assert str(PQTree(1)) == "0"


def test_deep_trees_need_no_recursion() -> None:
    n = 4000
    tree = PQTree(n)
    for size in (2, 3, 4):  # from the outside: each set lies inside those before it
        assert tree.reduce(range(size * n // 4 - n // 4, n))
    for begin in range(n - 1500, n - 1):
        assert tree.reduce((begin, begin + 1))
    assert len(str(tree).split()) == n
    assert sorted(tree.frontier()) == list(range(n))


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count every look at a node of a tree."""
    reads = [0]

    def counting(node: TreeNode, name: str) -> object:
        reads[0] += 1
        return object.__getattribute__(node, name)

    with monkeypatch.context() as patched:
        patched.setattr(TreeNode, "__getattribute__", counting, raising=False)
        yield reads


def reads_of(tree: PQTree, sets: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> float:
    """Looks at nodes for each element."""
    with counted_reads(monkeypatch) as reads:
        for elements in sets:
            tree.reduce(elements)
    return reads[0] / sum(map(len, sets))


@pytest.mark.parametrize("size", [10, 1000])
def test_the_time_of_a_reduction_is_that_of_its_set_not_of_the_tree(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets that overlap: they become one long Q node, whose inner children do not know their parent."""
    reads = []
    for n in (10_000, 60_000):
        hidden = np.random.default_rng(0).permutation(n)
        tree = PQTree(n)
        sets = [hidden[k : k + size].tolist() for k in range(0, 6 * size, size // 2)]
        reads.append(reads_of(tree, sets, monkeypatch))
        assert not tree.reduce([sets[0][0], sets[-1][-1]])
        failing = [[sets[0][0], sets[3][0], sets[-1][-1]]] * 3
        reads.append(reads_of(tree, failing, monkeypatch))
    assert reads[2:] == pytest.approx(reads[:2], rel=0.1)
    assert max(reads) < 50
