"""Sets derived from other sets: randomly drawn kinds, pairs of chains, pyramids."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import vpps
from vpps.data import GraphSet, Tree, graphs_of_text, graphs_of_trees, parse_tree, synthetic_treebank
from vpps.data.derived import chain_pairs, draw_kinds, pyramids_of_trees

pytestmark = pytest.mark.host

TYPES = ["inner 1", "inner 2"]
SOURCE = graphs_of_text([["a", "b", "c"], ["d"]], min_count=1, targets=False)
TARGET = graphs_of_text([["x"], ["y", "z"]], min_count=1)


@pytest.fixture(scope="module")
def trees() -> GraphSet:
    return graphs_of_trees(synthetic_treebank(n_train=300).train)


class TestDrawKinds:
    def test_every_inner_node_is_of_either_type_with_equal_odds_and_other_data_stay(self, trees: GraphSet) -> None:
        drawn = draw_kinds(trees, "inner", TYPES, seed=5)
        assert drawn.kinds == ("leaf", "inner 1", "inner 2")
        before, after = trees[:].kind, drawn[:].kind
        assert before is not None
        assert after is not None
        np.testing.assert_array_equal(after == 0, before == 0)
        inner = after[before == 1]
        second = np.count_nonzero(inner == 2)
        assert abs(second - len(inner) / 2) < 3 * (len(inner) / 4) ** 0.5  # within three standard deviations
        assert set(inner.tolist()) == {1, 2}
        for column in ("word", "label"):
            np.testing.assert_array_equal(drawn[:][column], trees[:][column])
        np.testing.assert_array_equal(drawn[:].children, trees[:].children)
        assert drawn.vocabularies == trees.vocabularies

    def test_kinds_follow_from_the_seed_and_a_limited_set_is_the_beginning_of_the_full_one(
        self, trees: GraphSet
    ) -> None:
        full, other = (draw_kinds(trees, "inner", TYPES, seed=seed)[:].kind for seed in (1, 2))
        assert (full != other).any()
        few = graphs_of_trees(synthetic_treebank(n_train=300).train[:20])
        for limited in (trees.subset(slice(20)), few):
            kinds = draw_kinds(limited, "inner", TYPES)[:].kind
            np.testing.assert_array_equal(kinds, full[: limited.n_vertices])

    @pytest.mark.parametrize(
        "kind, names, complaint",
        [
            ("word", TYPES, "no kind 'word' of vertices to draw: the set has leaf, inner"),
            ("inner", [], "are none: expected one or more new names"),
            ("inner", ["leaf", "inner"], "are leaf, inner: expected one or more new names"),
            ("inner", ["a", "a"], "are a, a: expected one or more new names"),
            ("inner", [f"inner {k}" for k in range(128)], "at most 128 kinds"),
        ],
    )
    def test_other_kinds_and_names_are_refused(
        self, trees: GraphSet, kind: str, names: list[str], complaint: str
    ) -> None:
        with pytest.raises(vpps.VppsError, match=complaint):
            draw_kinds(trees, kind, names)


class TestChainPairs:
    def test_target_goes_on_where_the_source_ends(self) -> None:
        pairs = chain_pairs(SOURCE, TARGET)
        assert pairs.sizes.tolist() == [5, 4]
        batch = pairs[[1, 0]]
        assert batch.kind is not None
        assert batch.kind.tolist() == [0, 1, 1, 1, 0, 0, 0, 1, 1]
        assert batch["target"][batch.kind == 0].tolist() == batch["next"][batch.kind == 0].tolist() == [0] * 4
        assert np.asarray(batch.children)[:, 0].tolist() == [-1, 0, 1, 2, -1, 4, 5, 6, 7]
        assert batch.levels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
        source, target = pairs.vocabularies["source"], pairs.vocabularies["target"]
        assert [source.words[k] for k in batch["source"][[0, 4, 5, 6]]] == ["d", "a", "b", "c"]
        assert [target.words[k] for k in batch["target"][batch.kind == 1]] == ["</s>", "y", "z", "</s>", "x"]
        assert [target.words[k] for k in batch["next"][batch.kind == 1]] == ["y", "z", "</s>", "x", "</s>"]

    def test_source_backwards_ends_with_its_first_word_and_may_stand_alone(self) -> None:
        batch = chain_pairs(SOURCE.reversed(), TARGET)[:]
        assert np.asarray(batch.children)[:, 0].tolist() == [1, 2, -1, 0, 3, -1, 5, 6, 7]
        assert batch.levels.tolist() == [2, 1, 0, 3, 4, 0, 1, 2, 3]
        alone = chain_pairs(SOURCE.reversed())[:]
        assert alone.kind is not None
        assert not alone.kind.any()
        assert np.asarray(alone.children)[:, 0].tolist() == [1, 2, -1, -1]

    def test_sets_that_do_not_fit_are_refused(self) -> None:
        trees = graphs_of_trees([parse_tree("(1 (2 a) (2 b))"), parse_tree("(1 (2 a) (2 b))")])
        for target, complaint in (
            (TARGET.subset([0]), "2 sources and 1 targets"), (trees, "pairs are made of chains")
        ):  # fmt: skip
            with pytest.raises(vpps.DataError, match=complaint):
                chain_pairs(SOURCE, target)


def pyramid(n: int) -> list[tuple[int, int]]:
    """Return the children of every vertex, level by level, as the definition says."""
    children = [(-1, -1)] * n
    level = list(range(n))
    while len(level) > 1:
        pairs = list(pairwise(level))
        level = [len(children) + k for k in range(len(pairs))]
        children += pairs
    return children


class TestPyramids:
    @pytest.mark.parametrize("lists", [False, True])
    def test_each_level_composes_the_neighbours_of_the_level_below(self, lists: bool) -> None:
        lines = ["(3 (2 a) (4 (2 b) (3 (2 c) (1 d))))", "(2 b)", "(4 (0 d) (1 (2 b) (2 e)))"]
        source = graphs_of_trees([parse_tree(line) for line in lines], lists=lists, min_count=1)
        pyramids, words = pyramids_of_trees(source), source.vocabularies["word"]
        assert pyramids.vocabularies["word"] is words
        assert pyramids[:]["label"].tolist() == [3, 2, 4]
        for k, sentence in enumerate(["abcd", "b", "dbe"]):
            children, found = pyramid(len(sentence)), pyramids[k]
            assert list(map(tuple, found.children)) == children
            assert found.kind.tolist() == [left >= 0 for left, _ in children]
            assert found.roots.tolist() == [len(children) - 1]
            of_words = [words[word] for word in sentence]
            assert found["word"].tolist() == of_words + [-1] * (len(children) - len(sentence))

    def test_a_long_sentence(self) -> None:
        n = 300
        offsets = np.concatenate([np.zeros(n + 1), [n]]).astype(np.int32)
        flat = Tree(np.zeros(n + 1, np.int32), offsets, np.arange(n, dtype=np.int32), tuple("w" * n))
        found = pyramids_of_trees(graphs_of_trees([flat], lists=True, min_count=1))
        assert found.n_vertices == n * (n + 1) // 2
        assert found[0].levels.max() == n - 1

    @pytest.mark.parametrize(
        "graphs, complaint",
        [
            (GraphSet([1], [[-1]], columns={"label": [0]}), "there is no column 'word'"),
            (
                GraphSet([2], [[-1], [-1]], columns={"word": [1, 2], "label": [0, 1]}),
                "1 graphs with 2 roots: a tree has exactly one",
            ),
        ],
    )
    def test_other_graphs_are_refused(self, graphs: GraphSet, complaint: str) -> None:
        with pytest.raises(vpps.DataError, match=complaint):
            pyramids_of_trees(graphs)
