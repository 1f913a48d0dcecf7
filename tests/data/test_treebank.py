"""The bracket reader: what it makes of good lines, what it says of bad ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpps.data.treebank import Tree, load_treebank, parse_tree, read_trees
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError

pytestmark = pytest.mark.host

DATA = Path(os.environ.get("VPPS_DATA", Path(__file__).parents[3] / "shared" / "data"))
REVIEW = "(3 (2 The) (4 (3 gorgeously) (2 elaborate)))"


@st.composite
def bracketed(draw: st.DrawFn, depth: int = 4) -> str:
    """A random line: labels, words with odd characters, nodes of 1 to 4 children."""
    label = draw(st.integers(0, 9))
    if depth == 0 or draw(st.booleans()):
        word = draw(st.text(st.characters(exclude_characters="() \t\r\n", exclude_categories=["Cs"]), min_size=1))
        return f"({label} {word})"
    children = draw(st.lists(bracketed(depth - 1), min_size=1, max_size=4))
    return f"({label} {' '.join(children)})"


class TestGoodLine:
    def test_nodes_are_in_post_order(self) -> None:
        tree = parse_tree(REVIEW)
        assert tree.labels.tolist() == [2, 3, 2, 4, 3]
        assert list(tree.child_lists()) == [[], [], [], [1, 2], [0, 3]]
        assert tree.tokens == ("The", "gorgeously", "elaborate")

    def test_arrays_are_int32(self) -> None:
        tree = parse_tree(REVIEW)
        assert {a.dtype for a in (tree.labels, tree.offsets, tree.children)} == {np.dtype(np.int32)}
        assert (tree.labels.shape, tree.offsets.shape, tree.children.shape) == ((5,), (6,), (4,))

    def test_single_word_is_a_tree(self) -> None:
        tree = parse_tree("(4 Great)")
        assert (len(tree), tree.tokens, list(tree.child_lists()), tree.arity) == (1, ("Great",), [[]], 0)

    def test_nodes_may_have_any_number_of_children(self) -> None:
        tree = parse_tree("(0 (1 (2 a)) (3 b) (4 c))")
        assert list(tree.child_lists()) == [[], [0], [], [], [1, 2, 3]]
        assert tree.arity == 3

    def test_blanks_between_brackets_do_not_matter(self) -> None:
        assert str(parse_tree("  ( 3(2\tThe)  (4 (3 gorgeously )(2 elaborate) ) ) ")) == REVIEW

    def test_no_break_space_belongs_to_its_word(self) -> None:
        assert parse_tree("(2 8\N{NO-BREAK SPACE}1\\/2)").tokens == ("8\N{NO-BREAK SPACE}1\\/2",)

    def test_escaped_brackets_are_kept_as_written(self) -> None:
        assert parse_tree("(2 (2 -LRB-) (2 -RRB-))").tokens == ("-LRB-", "-RRB-")

    @given(bracketed())
    def test_tree_prints_as_it_was_read(self, line: str) -> None:
        assert str(parse_tree(line)) == line

    def test_depth_is_not_limited_by_the_stack(self) -> None:
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


class TestFile:
    def write(self, path: Path, content: bytes) -> Path:
        path.write_bytes(content)
        return path

    def test_one_tree_a_line_blank_lines_skipped(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "trees.txt", b"(3 a)\n\n(2 (1 b) (0 c))\r\n  \n(4 d)")
        assert [str(tree) for tree in read_trees(path)] == ["(3 a)", "(2 (1 b) (0 c))", "(4 d)"]

    def test_byte_order_mark_is_ignored(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "trees.txt", b"\xef\xbb\xbf(3 a)\n")
        assert [str(tree) for tree in read_trees(path)] == ["(3 a)"]

    def test_malformed_line_names_file_and_line(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "trees.txt", b"(3 a)\n\n(2 (1 b) c)\n")
        with pytest.raises(DataError, match=r"trees\.txt:3:10: expected '\)' or '\(' after a child, found 'c'"):
            read_trees(path)

    def test_label_beyond_the_classes_is_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "trees.txt", b"(5 a)\n")
        with pytest.raises(DataError, match="expected a label smaller than 5"):
            read_trees(path, n_classes=5)
        assert len(read_trees(path)) == 1

    def test_label_of_thousands_of_digits_is_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "trees.txt", b"(" + b"1" * 5000 + b" a)\n")
        with pytest.raises(DataError, match=r"trees\.txt:1:2: expected a label smaller than"):
            read_trees(path)

    def test_file_without_trees_is_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "trees.txt", b"\n")
        with pytest.raises(DataError, match=r"trees\.txt: expected one bracketed tree a line, found none"):
            read_trees(path)

    def test_missing_file_is_a_data_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"train\.txt: cannot be read: No such file"):
            load_treebank(tmp_path)

    def test_nodes_need_word_indices(self) -> None:
        with pytest.raises(DataError, match=r"Vocabulary\.encode"):
            parse_tree(REVIEW).nodes()

    def test_nodes_give_word_and_children(self) -> None:
        tree = Vocabulary(["<unk>", "elaborate", "gorgeously"]).encode(parse_tree(REVIEW))
        assert list(tree.nodes()) == [(0, []), (2, []), (1, []), (-1, [1, 2]), (-1, [0, 3])]


@pytest.fixture(scope="module")
def train() -> list[Tree]:
    return read_trees(DATA / "sst" / "train.txt", n_classes=5)


@pytest.mark.skipif(not (DATA / "sst").is_dir(), reason=f"no Stanford treebank in {DATA} (set VPPS_DATA)")
class TestStanfordTreebank:
    def test_has_its_published_size(self, train: list[Tree]) -> None:
        assert len(train) == 8544
        assert len(read_trees(DATA / "sst" / "dev.txt", n_classes=5)) == 1101

    def test_trees_have_37_nodes_and_19_words_on_average(self, train: list[Tree]) -> None:
        assert round(np.mean([len(tree) for tree in train])) == 37
        assert round(np.mean([len(tree.tokens) for tree in train])) == 19

    def test_every_tree_is_binary(self, train: list[Tree]) -> None:
        assert all(len(tree) == 2 * len(tree.tokens) - 1 and tree.arity in (0, 2) for tree in train)

    def test_prints_as_it_was_read(self, train: list[Tree]) -> None:
        text = (DATA / "sst" / "train.txt").read_bytes().decode()
        assert "".join(f"{tree}\n" for tree in train) == text
