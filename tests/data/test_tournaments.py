"""Complete trees whose label is the winner of a tournament."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data.graphs import assert_as_checked
from vpps.data import tournaments
from vpps.errors import DataError

pytestmark = pytest.mark.host

WINS = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}


@pytest.mark.parametrize("leaves", [2, 4, 32])
def test_the_label_is_the_winner(leaves: int) -> None:
    trees = tournaments(50, leaves)
    names = trees.classes["label"]
    for k in range(50):
        tree = trees[k]
        plays: list[str] = []
        for word, (left, right) in zip(tree["word"].tolist(), tree.children.tolist(), strict=True):
            if word >= 0:
                plays.append(names[word % 3])
            else:
                first, second = plays[left], plays[right]
                plays.append(second if (second, first) in WINS else first)
        assert tree.roots.tolist() == [2 * leaves - 2]
        assert names[tree["label"][0]] == plays[-1]


@pytest.mark.parametrize("leaves", [2, 8, 256])
def test_the_set_is_the_one_that_checks_and_finds_levels(leaves: int) -> None:
    assert_as_checked(tournaments(3, leaves))


def test_trees_are_reproducible_and_their_seed_matters() -> None:
    first, again, other = (tournaments(20, 16, seed=seed)[:]["word"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_every_play_wins_as_often() -> None:
    counts = np.bincount(tournaments(3000, 8)[:]["label"])
    assert counts.min() > 900


@pytest.mark.parametrize("leaves", [0, 1, 3, 12])
def test_other_numbers_of_leaves_are_refused(leaves: int) -> None:
    with pytest.raises(DataError, match=f"a complete binary tree has 2, 4, 8, ... leaves, not {leaves}"):
        tournaments(5, leaves)


def test_no_trees_are_refused() -> None:
    with pytest.raises(DataError, match="0 trees of 30 words"):
        tournaments(0, 4)
