"""Pairs of chains as one."""

from __future__ import annotations

import numpy as np
import pytest

from vpps.data import chain_pairs, graphs_of_text, graphs_of_trees, parse_tree, synthetic_parallel
from vpps.data.synthetic_text import NOUNS, translate
from vpps.errors import DataError

pytestmark = pytest.mark.host

SOURCE = graphs_of_text([["a", "b", "c"], ["d"]], min_count=1, targets=False)
TARGET = graphs_of_text([["x"], ["y", "z"]], min_count=1)


def test_target_goes_on_where_the_source_ends() -> None:
    pairs = chain_pairs(SOURCE, TARGET)
    assert pairs.sizes.tolist() == [5, 4]
    batch = pairs[[1, 0]]
    assert batch.kind is not None
    assert batch.kind.tolist() == [0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert np.asarray(batch.children)[:, 0].tolist() == [-1, 0, 1, 2, -1, 4, 5, 6, 7]
    assert batch.levels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    source, target = pairs.vocabularies["source"], pairs.vocabularies["target"]
    assert [source.words[k] for k in batch["source"][[0, 4, 5, 6]]] == ["d", "a", "b", "c"]
    assert [target.words[k] for k in batch["target"][batch.kind == 1]] == ["</s>", "y", "z", "</s>", "x"]
    assert [target.words[k] for k in batch["next"][batch.kind == 1]] == ["y", "z", "</s>", "x", "</s>"]


def test_source_backwards_ends_with_its_first_word() -> None:
    batch = chain_pairs(SOURCE.reversed(), TARGET)[:]
    assert np.asarray(batch.children)[:, 0].tolist() == [1, 2, -1, 0, 3, -1, 5, 6, 7]
    assert batch.levels.tolist() == [2, 1, 0, 3, 4, 0, 1, 2, 3]


def test_source_may_stand_alone() -> None:
    batch = chain_pairs(SOURCE.reversed())[:]
    assert batch.kind is not None
    assert not batch.kind.any()
    assert np.asarray(batch.children)[:, 0].tolist() == [1, 2, -1, -1]


def test_sets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="2 sources and 1 targets"):
        chain_pairs(SOURCE, TARGET.subset([0]))
    trees = graphs_of_trees([parse_tree("(1 (2 a) (2 b))"), parse_tree("(1 (2 a) (2 b))")])
    with pytest.raises(DataError, match="pairs are made of chains"):
        chain_pairs(SOURCE, trees)


def test_made_up_translation_agrees_with_its_nouns() -> None:
    assert translate(["this", "old", "author"]) == ["rohtuao", "dloo", "sihto"]
    assert translate("these old critics that every tall actor admires sleep".split()) == (
        "peels serimda rotcao llato yreveo taht citirce dloe esehte".split()
    )
    train, dev = synthetic_parallel(20, 5)
    assert (len(train), len(dev)) == (20, 5)
    assert all(target == translate(source) and len(source) == len(target) for source, target in train + dev)
    assert any(word.removesuffix("s") in NOUNS for word in train[0][0])
    assert synthetic_parallel(20, 5) == (train, dev)
