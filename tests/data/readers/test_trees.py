"""Penn trees to sets of graphs."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vpps.data import GraphSet, graphs_of_trees, read_treebank, read_trees, synthetic_treebank
from vpps.errors import DataError

pytestmark = pytest.mark.host

LINES = "(3 (2 a) (4 (3 b) (2 a)))\n\n(1 b)\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "trees.txt").write_text(LINES)
    return tmp_path / "trees.txt"


def test_vertices_are_in_post_order(file: Path) -> None:
    graphs = read_treebank(file, min_count=1)
    assert len(graphs) == 2
    tree = graphs[0]
    assert isinstance(tree.children, np.ndarray)
    assert tree.children.tolist() == [[-1, -1], [-1, -1], [-1, -1], [1, 2], [0, 3]]
    assert tree.kind is not None
    assert [graphs.kinds[k] for k in tree.kind] == ["leaf", "leaf", "leaf", "inner", "inner"]
    assert tree["label"].tolist() == [2, 3, 2, 4, 3]
    assert [graphs.vocabularies["word"].words[w] for w in tree["word"][:3]] == ["a", "b", "a"]
    assert tree["word"][3:].tolist() == [-1, -1]
    assert tree.levels.tolist() == [0, 0, 0, 1, 2]
    assert graphs[:].roots.tolist() == [4, 5]


def test_children_may_be_lists(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(0 (1 (2 a)) (3 b) (4 c))")
    assert read_treebank(tmp_path / "trees.txt").arity == 3
    ends, indices = read_treebank(tmp_path / "trees.txt", lists=True)[0].children
    assert (ends.tolist(), indices.tolist()) == ([0, 0, 1, 1, 1, 4], [0, 1, 2, 3])


def test_rare_words_are_unknown(file: Path) -> None:
    assert read_treebank(file, min_count=3)[0]["word"].tolist() == [0, 0, 0, -1, -1]


def test_several_files_make_one_set(file: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "more.txt.gz", "wt") as more:
        more.write("(2 (1 b) (0 c))\n")
    graphs = read_treebank(file, tmp_path / "more.txt.gz", min_count=1)
    assert graphs.sizes.tolist() == [5, 1, 3]
    assert "c" in graphs.vocabularies["word"]


def test_development_data_takes_words_and_arity_from_training(file: Path, tmp_path: Path) -> None:
    train = read_treebank(file, min_count=1)
    (tmp_path / "dev.txt").write_text("(2 zebra)\n(1 (0 b))\n")
    dev = read_treebank(tmp_path / "dev.txt", like=train)
    assert dev.vocabularies["word"] is train.vocabularies["word"]
    assert dev[:]["word"].tolist() == [0, train.vocabularies["word"]["b"], -1]
    assert dev.arity == 2


def test_node_with_more_children_than_training_is_located(file: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("(2 a)\n\n(1 (0 b) (1 c) (2 d))\n")
    with pytest.raises(DataError, match=r"dev\.txt:3: a vertex has 3 children, where there is room for 2"):
        read_treebank(tmp_path / "dev.txt", like=read_treebank(file))


def test_set_without_words_is_nothing_to_be_like(file: Path) -> None:
    with pytest.raises(DataError, match="the set to be like has no vocabulary for 'word': no columns"):
        read_treebank(file, like=GraphSet([1], [[-1]]))


def test_labels_are_checked_where_asked(file: Path) -> None:
    with pytest.raises(DataError, match=r"trees\.txt:1:11: expected a label smaller than 4, found 4"):
        read_treebank(file, n_classes=4)


def test_damaged_gzip_file_is_a_data_error(tmp_path: Path) -> None:
    whole = gzip.compress(LINES.encode() * 100)
    for name, content in (("cut.gz", whole[:-20]), ("text.gz", LINES.encode()), ("bits.gz", whole[:30] + b"~" * 30)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}:\d+: cannot be decompressed"):
            read_treebank(tmp_path / name)


@pytest.mark.parametrize(
    "text, place",
    [
        ("(1 " + "(1 a)" * 30_000 + ")\n", "trees.txt:1: a vertex has 30000 children, .* 30001 vertices takes 3.6 GB"),
        ("(1 (1 a) (1 b))\n" * 9 + "(1 " + "(1 a)" * 9000 + ")\n", "trees.txt:10: a vertex has 9000 children"),
    ],
    ids=["one tree", "among small trees"],
)
def test_a_table_that_one_wide_node_would_blow_up_is_refused(text: str, place: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(DataError, match=rf"{place}.*lists of children have room for any number \(lists=True"):
        read_treebank(file)
    assert read_treebank(file, lists=True).stat().fan_in.max >= 9000


def test_a_wide_table_that_is_full_or_small_is_made(file: Path) -> None:
    file.write_text("(1 " + "(1 a)" * 1000 + ")\n")
    assert read_treebank(file).arity == 1000


def test_no_file_is_a_data_error() -> None:
    with pytest.raises(DataError, match="no file given: expected one bracketed tree a line"):
        read_treebank()


def test_trees_of_a_program_make_a_set() -> None:
    trees = synthetic_treebank(30, 1).train
    graphs = graphs_of_trees(trees, min_count=1)
    assert graphs.sizes.tolist() == [len(tree) for tree in trees]
    for k, tree in enumerate(trees):
        batch = graphs[k]
        assert isinstance(batch.children, np.ndarray)
        assert [[c for c in row if c >= 0] for row in batch.children.tolist()] == list(tree.child_lists())
        assert batch["label"].tolist() == tree.labels.tolist()
        leaves = batch["word"][batch["word"] >= 0]
        assert tuple(graphs.vocabularies["word"].words[w] for w in leaves) == tree.tokens


def test_stanford_treebank(real_data: Callable[[str], Path]) -> None:
    path = real_data("sst/dev.txt")
    graphs = read_treebank(path, n_classes=5)
    trees = read_trees(path)
    assert (len(graphs), graphs.arity) == (1101, 2)
    assert graphs.sizes.tolist() == [len(tree) for tree in trees]
    assert graphs[:]["label"].tolist() == np.concatenate([tree.labels for tree in trees]).tolist()
    levels = graphs.stat().levels_per_graph
    assert (levels.min, levels.max, round(levels.mean, 1)) == (2, 28, 10.9)
    for k in (0, 17, 1100):
        tree = graphs.vocabularies["word"].encode(trees[k])
        assert tree.words is not None
        assert graphs[k]["word"].tolist() == tree.words.tolist()
