"""Trees in brackets: `parse_tree` on good lines, its messages for bad ones, and the indices of words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpps.data.treebank import parse_tree
from vpps.data.vocabulary import UNK, Vocabulary
from vpps.errors import DataError

pytestmark = pytest.mark.host

REVIEW = "(3 (2 The) (4 (3 gorgeously) (2 elaborate)))"


@st.composite
def bracketed(draw: st.DrawFn, depth: int = 4) -> str:
    """Draw a random line: labels, words with odd characters, nodes of 1 to 4 children."""
    label = draw(st.integers(0, 9))
    if depth == 0 or draw(st.booleans()):
        word = draw(st.text(st.characters(exclude_characters="() \t\r\n", exclude_categories=["Cs"]), min_size=1))
        return f"({label} {word})"
    children = draw(st.lists(bracketed(depth - 1), min_size=1, max_size=4))
    return f"({label} {' '.join(children)})"


def test_nodes_are_in_post_order() -> None:
    tree = parse_tree(REVIEW)
    assert tree.labels.tolist() == [2, 3, 2, 4, 3]
    assert list(tree.child_lists()) == [[], [], [], [1, 2], [0, 3]]
    assert tree.tokens == ("The", "gorgeously", "elaborate")
    assert {a.dtype for a in (tree.labels, tree.offsets, tree.children)} == {np.dtype(np.int32)}
    assert (tree.labels.shape, tree.offsets.shape, tree.children.shape) == ((5,), (6,), (4,))


@pytest.mark.parametrize(
    "line, tokens, children, arity",
    [
        ("(4 Great)", ["Great"], [[]], 0),
        ("(0 (1 (2 a)) (3 b) (4 c))", ["a", "b", "c"], [[], [0], [], [], [1, 2, 3]], 3),
        ("  ( 3(2\ta)  (4 (3 b )(2 c) ) ) ", ["a", "b", "c"], [[], [], [], [1, 2], [0, 3]], 2),
        ("(2 8\N{NO-BREAK SPACE}1\\/2)", ["8\N{NO-BREAK SPACE}1\\/2"], [[]], 0),
        ("(2 (2 -LRB-) (2 -RRB-))", ["-LRB-", "-RRB-"], [[], [], [0, 1]], 2),
    ],
)
def test_good_lines(line: str, tokens: list[str], children: list[list[int]], arity: int) -> None:
    tree = parse_tree(line)
    assert (list(tree.tokens), list(tree.child_lists()), tree.arity) == (tokens, children, arity)


@given(bracketed())
def test_tree_prints_as_it_was_read(line: str) -> None:
    assert str(parse_tree(line)) == line


def test_depth_is_not_limited_by_the_stack() -> None:
    depth = 20_000
    line = "(1 (2 a) " * depth + "(0 z)" + ")" * depth
    tree = parse_tree(line)
    assert len(tree) == 2 * depth + 1
    assert str(tree) == line


@pytest.mark.parametrize(
    "line, message",
    [
        ("3", "1: expected '(' at the start of a tree, found '3'"),
        ("(", "2: expected an integer label after '(', found the end of the line with 0 open nodes"),
        ("()", "2: expected an integer label after '(', found ')'"),
        ("(S (2 a))", "2: expected an integer label after '(', found 'S'"),
        ("(-1 a)", "2: expected an integer label after '(', found '-1'"),
        ("(² a)", "2: expected an integer label after '(', found '²'"),
        ("(5 a)", "2: expected a label smaller than 5, found 5"),
        ("(3 (99999999999 a))", "5: expected a label smaller than 5, found 99999999999"),
        ("(3)", "3: expected a word or '(' after the label, found ')'"),
        ("(3 a b)", "6: expected ')' after the word, found 'b'"),
        ("(3 a (2 b))", "6: expected ')' after the word, found '('"),
        ("(3 (2 a) b)", "10: expected ')' or '(' after a child, found 'b'"),
        ("(3 (2 a) (2 b)", "15: expected ')' or '(' after a child, found the end of the line with 1 open nodes"),
        ("(3 a))", "6: expected the end of the line after the tree, found ')'"),
        ("(3 a) (2 b)", "7: expected the end of the line after the tree, found '('"),
        ("", "1: expected '(' at the start of a tree, found the end of the line with 0 open nodes"),
    ],
)
def test_malformed_line_names_column_and_expectation(line: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        parse_tree(line, n_classes=5, source="train.txt:17")
    assert str(error.value) == f"train.txt:17:{message}"


@given(st.text("()0 a", max_size=20))
def test_any_line_is_a_tree_or_a_data_error(line: str) -> None:
    try:
        tree = parse_tree(line)
    except DataError:
        return
    assert str(parse_tree(str(tree))) == str(tree)


SENTENCES = ["b a c a".split(), "a b d".split()]


class TestVocabulary:
    @pytest.mark.parametrize(
        "sentences, min_count, words",
        [
            (SENTENCES, 1, "a b c d"),  # frequent ones first, ties alphabetical
            (SENTENCES, 2, "a b"),
            ([[UNK, "a", UNK]], 1, "a"),
        ],
    )
    def test_words_are_those_that_are_frequent_enough(
        self, sentences: list[list[str]], min_count: int, words: str
    ) -> None:
        assert Vocabulary.from_sentences(sentences, min_count).words == (UNK, *words.split())

    def test_index_and_word_are_inverse_and_unknown_words_have_index_0(self) -> None:
        vocabulary = Vocabulary.from_sentences(SENTENCES)
        for found in (vocabulary, Vocabulary(list(vocabulary.words))):
            assert [found[word] for word in vocabulary.words] == list(range(len(found)))
            assert found["zebra"] == found[UNK] == 0
            assert "zebra" not in found
            assert "a" in found

    @pytest.mark.parametrize(
        "words, complaint",
        [
            ([], "begins with '<unk>'"),
            (["a", UNK], "begins with '<unk>'"),
            ([UNK, "a", "b", "a"], "'a' is in the vocabulary twice"),
        ],
    )
    def test_other_words_are_refused(self, words: list[str], complaint: str) -> None:
        with pytest.raises(DataError, match=complaint):
            Vocabulary(words)

    def test_encoding_a_tree_sets_words_at_leaves_and_minus_1_inside(self) -> None:
        tree = parse_tree("(3 (2 a) (4 (3 zebra) (2 b)))")
        encoded = Vocabulary.from_sentences(SENTENCES).encode(tree)
        assert encoded.words is not None
        assert encoded.words.tolist() == [1, 0, 2, -1, -1]
        assert list(encoded.nodes()) == [(1, []), (0, []), (2, []), (-1, [1, 2]), (-1, [0, 3])]
        assert tree.words is None, "the tree itself stays as it was"
        with pytest.raises(DataError, match=r"Vocabulary\.encode"):
            tree.nodes()
