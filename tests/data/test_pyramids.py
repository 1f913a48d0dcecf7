"""Pyramids over the sentences of a treebank."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.data.graphs import assert_as_checked
from vpps.data import GraphSet, Tree, graphs_of_trees, parse_tree, pyramids_of_trees, read_treebank
from vpps.errors import DataError

pytestmark = pytest.mark.host

SENTENCES = ["(3 (2 a) (4 (2 b) (3 (2 c) (1 d))))", "(2 b)", "(4 (0 d) (1 (2 b) (2 e)))"]


def trees(lists: bool = True) -> GraphSet:
    return graphs_of_trees([parse_tree(line) for line in SENTENCES], lists=lists, min_count=1)


def expected_children(n: int) -> list[tuple[int, int]]:
    """By the definition: levels as lists of vertices."""
    children = [(-1, -1)] * n
    level = list(range(n))
    while len(level) > 1:
        above = []
        for left, right in pairwise(level):
            above.append(len(children))
            children.append((left, right))
        level = above
    return children


@pytest.mark.parametrize("lists", [False, True])
def test_each_level_composes_the_neighbours_of_the_level_below(lists: bool) -> None:
    pyramids = pyramids_of_trees(trees(lists))
    for k, n in enumerate([4, 1, 3]):
        children = expected_children(n)
        pyramid = pyramids[k]
        assert list(map(tuple, pyramid.children)) == children
        assert pyramid.kind.tolist() == [left >= 0 for left, _ in children]
        assert pyramid.roots.tolist() == [len(children) - 1]


def test_words_are_below_and_labels_those_of_the_roots() -> None:
    source = trees()
    pyramids = pyramids_of_trees(source)
    words = source.vocabularies["word"]
    assert pyramids.vocabularies["word"] is words
    assert pyramids[:]["label"].tolist() == [3, 2, 4]
    assert pyramids[0]["word"].tolist() == [words[word] for word in "abcd"] + [-1] * 6
    assert pyramids[2]["word"].tolist() == [words[word] for word in "dbe"] + [-1] * 3


def test_the_set_is_the_one_that_checks_and_finds_levels(real_data: Callable[[str], Path]) -> None:
    assert_as_checked(pyramids_of_trees(read_treebank(real_data("sst") / "dev.txt", lists=True)))


def test_a_set_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="there is no column 'word'"):
        pyramids_of_trees(GraphSet([1], [[-1]], columns={"label": [0]}))


def test_a_graph_with_two_roots_is_refused() -> None:
    two = GraphSet([2], [[-1], [-1]], columns={"word": [1, 2], "label": [0, 1]})
    with pytest.raises(DataError, match="1 graphs with 2 roots: a tree has one"):
        pyramids_of_trees(two)


def test_a_long_sentence() -> None:
    n = 300
    offsets = np.concatenate([np.zeros(n + 1), [n]]).astype(np.int32)
    flat = Tree(np.zeros(n + 1, np.int32), offsets, np.arange(n, dtype=np.int32), tuple("w" * n))
    pyramid = pyramids_of_trees(graphs_of_trees([flat], lists=True, min_count=1))
    assert pyramid.n_vertices == n * (n + 1) // 2
    assert pyramid[0].levels.max() == n - 1
