"""Words to indices."""

from __future__ import annotations

import pytest

from vpps.data.treebank import parse_tree
from vpps.data.vocabulary import UNK, Vocabulary
from vpps.errors import DataError

pytestmark = pytest.mark.host

SENTENCES = ["b a c a".split(), "a b d".split()]


def test_frequent_words_come_first_and_ties_are_alphabetical() -> None:
    assert Vocabulary.from_sentences(SENTENCES).words == (UNK, "a", "b", "c", "d")


def test_rare_words_are_left_out() -> None:
    assert Vocabulary.from_sentences(SENTENCES, min_count=2).words == (UNK, "a", "b")


def test_index_and_word_are_inverse() -> None:
    vocabulary = Vocabulary.from_sentences(SENTENCES)
    assert [vocabulary[word] for word in vocabulary.words] == list(range(len(vocabulary)))


def test_unknown_word_has_index_0() -> None:
    vocabulary = Vocabulary.from_sentences(SENTENCES)
    assert vocabulary["zebra"] == vocabulary[UNK] == 0
    assert "zebra" not in vocabulary
    assert "a" in vocabulary


def test_corpus_that_writes_unk_itself_has_it_once() -> None:
    assert Vocabulary.from_sentences([[UNK, "a", UNK]]).words == (UNK, "a")


def test_vocabulary_is_rebuilt_from_its_words() -> None:
    vocabulary = Vocabulary.from_sentences(SENTENCES)
    again = Vocabulary(list(vocabulary.words))
    assert again.words == vocabulary.words
    assert again["b"] == vocabulary["b"]


@pytest.mark.parametrize("words", [[], ["a", UNK]])
def test_words_must_begin_with_unk(words: list[str]) -> None:
    with pytest.raises(DataError, match="begins with '<unk>'"):
        Vocabulary(words)


def test_words_must_differ() -> None:
    with pytest.raises(DataError, match="'a' is in the vocabulary twice"):
        Vocabulary([UNK, "a", "b", "a"])


def test_encoding_a_tree_sets_words_at_leaves_and_minus_1_inside() -> None:
    tree = parse_tree("(3 (2 a) (4 (3 zebra) (2 b)))")
    encoded = Vocabulary.from_sentences(SENTENCES).encode(tree)
    assert encoded.words is not None
    assert encoded.words.tolist() == [1, 0, 2, -1, -1]
    assert tree.words is None, "the tree itself stays as it was"
