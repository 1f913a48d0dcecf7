"""Kinds of vertices that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.data import GraphSet, draw_kinds, graphs_of_trees, synthetic_treebank

pytestmark = pytest.mark.host

TYPES = ["inner 1", "inner 2"]


@pytest.fixture(scope="module")
def trees() -> GraphSet:
    return graphs_of_trees(synthetic_treebank(n_train=300).train)


def test_every_inner_node_is_of_either_type_with_equal_odds(trees: GraphSet) -> None:
    drawn = draw_kinds(trees, "inner", TYPES, seed=5)
    assert drawn.kinds == ("leaf", "inner 1", "inner 2")
    before, after = trees[:].kind, drawn[:].kind
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(after == 0, before == 0)
    inner = after[before == 1]
    second = np.count_nonzero(inner == 2)
    assert abs(second - len(inner) / 2) < 3 * (len(inner) / 4) ** 0.5  # three standard deviations
    assert set(inner.tolist()) == {1, 2}


def test_other_data_stay(trees: GraphSet) -> None:
    drawn = draw_kinds(trees, "inner", TYPES)
    for column in ("word", "label"):
        np.testing.assert_array_equal(drawn[:][column], trees[:][column])
    np.testing.assert_array_equal(drawn[:].children, trees[:].children)
    assert drawn.vocabularies == trees.vocabularies


def test_what_is_drawn_follows_from_the_seed(trees: GraphSet) -> None:
    kinds = [draw_kinds(trees, "inner", TYPES, seed=seed)[:].kind for seed in (1, 1, 2)]
    np.testing.assert_array_equal(kinds[0], kinds[1])
    assert (kinds[0] != kinds[2]).any()


def test_a_limited_set_is_the_beginning_of_the_full_one(trees: GraphSet) -> None:
    full = draw_kinds(trees, "inner", TYPES)
    few = graphs_of_trees(synthetic_treebank(n_train=300).train[:20])
    for limited in (trees.subset(slice(20)), few):
        np.testing.assert_array_equal(draw_kinds(limited, "inner", TYPES)[:].kind, full[:20].kind)


@pytest.mark.parametrize(
    "kind, names, complaint",
    [
        ("word", TYPES, "no kind 'word' of vertices to draw: there are leaf, inner"),
        ("inner", [], "are none: expected one or more new names"),
        ("inner", ["leaf", "inner"], "are leaf, inner: expected one or more new names"),
        ("inner", ["a", "a"], "are a, a: expected one or more new names"),
        ("inner", [f"inner {k}" for k in range(128)], "at most 128 kinds"),
    ],
)
def test_what_cannot_be_drawn_is_refused(trees: GraphSet, kind: str, names: list[str], complaint: str) -> None:
    with pytest.raises(vpps.VppsError, match=complaint):
        draw_kinds(trees, kind, names)
