"""The synthetic treebank: deterministic, labelled by its rules, and out of reach for a bag of words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from vpps.data.synthetic import _SCOPING, LENGTHS, N_CLASSES, compose_tree, synthetic_opinions, synthetic_treebank
from vpps.data.treebank import Tree, Treebank, parse_tree
from vpps.data.vocabulary import Vocabulary

pytestmark = pytest.mark.host


def labelled(tree: Tree) -> Tree:
    """The same words in the same brackets, labelled by the rules."""
    tokens = iter(tree.tokens)
    return compose_tree([None if children else next(tokens) for children in tree.child_lists()])


@pytest.fixture(scope="module")
def bank() -> Treebank:
    return synthetic_treebank()


@pytest.mark.parametrize(
    "phrase, labels",
    [
        ("(0 film)", [2]),
        ("(0 superb)", [4]),
        ("(0 (0 not) (0 good))", [2, 3, 1]),
        ("(0 (0 not) (0 terrible))", [2, 0, 3]),
        ("(0 (0 not) (0 film))", [2, 2, 2]),
        ("(0 (0 very) (0 bad))", [2, 1, 0]),
        ("(0 (0 slightly) (0 awful))", [2, 0, 1]),
        ("(0 (0 good) (0 bad))", [3, 1, 2]),
        ("(0 (0 great) (0 superb))", [4, 4, 4]),
        ("(0 (0 not) (0 (0 very) (0 good)))", [2, 2, 3, 4, 1]),
        ("(0 (0 dull) (0 (0 but) (0 funny)))", [1, 2, 3, 3, 3]),
        ("(0 (0 not) (0 (0 good) (0 film)))", [2, 3, 2, 3, 1]),
    ],
)
def test_rules_give_the_label_of_every_phrase(phrase: str, labels: list[int]) -> None:
    assert labelled(parse_tree(phrase)).labels.tolist() == labels


def test_same_words_in_another_bracketing_have_another_label() -> None:
    narrow = labelled(parse_tree("(0 (0 (0 not) (0 good)) (0 great))"))
    wide = labelled(parse_tree("(0 (0 not) (0 (0 good) (0 great)))"))
    assert narrow.tokens == wide.tokens
    assert (narrow.labels[-1], wide.labels[-1]) == (3, 1)


def test_every_tree_is_labelled_by_the_rules(bank: Treebank) -> None:
    assert all(str(labelled(tree)) == str(tree) for tree in bank.train[:200] + bank.dev)


def test_same_arguments_give_same_trees_and_another_seed_others() -> None:
    first, again, other = (synthetic_treebank(20, 10, seed) for seed in (5, 5, 6))
    assert list(map(str, first.train + first.dev)) == list(map(str, again.train + again.dev))
    assert list(map(str, first.train)) != list(map(str, other.train))


def test_trees_never_change_between_versions() -> None:
    # Figures in bench/results and the quickstart's expected losses stand on them.
    assert (
        str(synthetic_treebank(1, 0).train[0])
        == "(0 (0 (2 plays) (0 awful)) (0 (0 (2 extremely) (0 (2 .) (0 awful))) (2 about)))"
    )


def test_sizes_are_as_asked(bank: Treebank) -> None:
    assert (len(bank.train), len(bank.dev)) == (2000, 400)
    assert {len(tree.tokens) for tree in bank.train} == set(LENGTHS)
    assert all(len(tree) == 2 * len(tree.tokens) - 1 for tree in bank.train)


def test_classes_are_balanced_at_the_roots(bank: Treebank) -> None:
    counts = Counter(int(tree.labels[-1]) for tree in bank.train)
    assert set(counts) == set(range(N_CLASSES))
    assert max(counts.values()) / len(bank.train) < 0.25


def test_dev_trees_are_new(bank: Treebank) -> None:
    seen = set(map(str, bank.train))
    assert not any(str(tree) in seen for tree in bank.dev)


def test_counting_words_does_not_suffice(bank: Treebank) -> None:
    vocabulary = Vocabulary.from_sentences(tree.tokens for tree in bank.train)

    def counts(trees: list[Tree]) -> NDArray[np.float64]:
        bags = [np.bincount([vocabulary[word] for word in tree.tokens], minlength=len(vocabulary)) for tree in trees]
        return np.array(bags, np.float64)

    def roots(trees: list[Tree]) -> NDArray[np.int64]:
        return np.array([tree.labels[-1] for tree in trees], np.int64)

    # Ridge regression to one-hot labels, the best of a range of penalties.
    x, target = counts(bank.train), np.eye(N_CLASSES)[roots(bank.train)]
    accuracies = []
    for penalty in (1.0, 10.0, 100.0, 1000.0):
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ target)
        accuracies.append(np.mean((counts(bank.dev) @ weights).argmax(axis=1) == roots(bank.dev)))
    assert 0.25 < max(accuracies) < 0.45


def test_words_of_a_plain_sentence_say_its_tree() -> None:
    for tree in synthetic_opinions(300, 1).train:
        tokens = iter(tree.tokens)
        units = [f"(0 (0 {word}) (0 {next(tokens)}))" if word in _SCOPING else f"(0 {word})" for word in tokens]
        text = units[0]
        for unit in units[1:]:
            text = f"(0 {text} {unit})"
        expected = labelled(parse_tree(text))
        assert tree.labels.tolist() == expected.labels.tolist()
        assert tree.children.tolist() == expected.children.tolist()


def test_plain_sentences_are_deterministic_and_have_all_labels() -> None:
    sentences, again = synthetic_opinions(500, 10, seed=3), synthetic_opinions(500, 10, seed=3)
    assert [str(tree) for tree in sentences.train] == [str(tree) for tree in again.train]
    shares = Counter(int(tree.labels[-1]) for tree in sentences.train)
    assert set(shares) == set(range(N_CLASSES))
    assert max(shares.values()) < 0.4 * 500
    lengths = [len(tree.tokens) for tree in sentences.train]
    assert 2 <= min(lengths) <= max(lengths) <= 12
