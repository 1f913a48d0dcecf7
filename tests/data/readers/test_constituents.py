"""Penn trees with names, and the formats of CoNLL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vpps.data import read_columns, read_conllu, read_constituents
from vpps.errors import DataError

pytestmark = pytest.mark.host

PENN = """( (S
    (NP-SBJ (DT The) (NN film))
    (VP (VBZ works)) ))
(S (NP (NN film)))  ((X (NN The)))
"""
UD = """# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t0:root\t_
2\tnos\tnos\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tgo\tgo\tVERB\t_\t_\t_\t_\t1:conj\t_
3\tNew York\tmar\tNOUN\t_\t_\t1\tobl\t_\t_

# second
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
"""
COLUMNS = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ I-VP O\n\n\nEU\tNNP I-NP\tS-ORG"


def write(folder: Path, text: str) -> Path:
    (folder / "data").write_text(text, encoding="utf-8", newline="")
    return folder / "data"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_trees_with_names(ends: str, tmp_path: Path) -> None:
    graphs = read_constituents(write(tmp_path, PENN.replace("\n", ends)), min_count=1)
    assert graphs.sizes.tolist() == [6, 3, 2]
    graph, names = graphs[0], graphs.classes["label"]
    assert [names[k] for k in graph["label"]] == ["DT", "NN", "NP-SBJ", "VBZ", "VP", "S"]
    words = graphs.vocabularies["word"].words
    assert [words[k] if k >= 0 else None for k in graph["word"]] == ["The", "film", None, "works", None, None]
    assert [x.tolist() for x in graph.children] == [[0, 0, 0, 2, 2, 3, 5], [0, 1, 3, 2, 4]]
    assert read_constituents(tmp_path / "data", like=graphs)[:]["label"].tolist() == graphs[:]["label"].tolist()
    assert read_constituents(tmp_path / "data", lists=False).arity == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("(S (NN a)", "data:1: the tree that begins here does not end: 1 brackets are open"),
        ("\n(S)", "data:2:3: expected a word or '(' after the name, found ')'"),
        ("(S (NN a)) b", "data:1:12: expected '(' at the start of a tree, found 'b'"),
        ("(NN a b)", "data:1:7: expected '(' or ')', found 'b'"),
        ("(NN a (NN b))", "data:1:7: expected ')' after the word, found '('"),
        ("()", "data:1:2: expected one child of a node without a name, found 0"),
        ("((A a) (B b))", "expected one child of a node without a name, found 2"),
        ("((A a) b)", "data:1:8: expected '(' or ')', found 'b'"),
        ("\n", "expected bracketed trees with names"),
    ],
)
def test_malformed_trees_are_located(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_constituents(write(tmp_path, text))
    assert message in str(error.value)


def test_dependencies_are_trees_of_words(tmp_path: Path) -> None:
    graphs = read_conllu(write(tmp_path, UD), min_count=1)
    assert graphs.sizes.tolist() == [3, 1]
    words, relations = graphs.vocabularies["word"].words, graphs.classes["relation"]
    assert [words[k] for k in graphs[0]["word"]] == ["vamos", "nos", "New York"]
    assert [relations[k] for k in graphs[0]["relation"]] == ["root", "obj", "obl"]
    assert [x.tolist() for x in graphs[0].children] == [[0, 2, 2, 2], [1, 2]]
    assert read_conllu(tmp_path / "data", like=graphs)[:]["tag"].tolist() == graphs[:]["tag"].tolist()


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("3\tNew", "4\tNew", "data:6: expected word 3 of the sentence"),
        ("\t_\t_\t1\tobl", "\t_\t1\tobl", "data:6: expected word 3 of the sentence, with 10 columns"),
        ("1\tobl", "7\tobl", "data:6: expected the head, 0 to 3, found '7'"),
        ("1\tobl", "3\tobl", "cycle"),
    ],
)
def test_malformed_dependencies_are_located(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_conllu(write(tmp_path, UD.replace(old, new)))
    assert message in str(error.value)


def test_columns_of_words_and_tags(tmp_path: Path) -> None:
    graphs = read_columns(write(tmp_path, COLUMNS), min_count=1)
    tags = graphs.classes["tag"]
    assert [[tags[k] for k in graph["tag"]] for graph in (graphs[0], graphs[1])] == [["B-ORG", "O"], ["S-ORG"]]
    assert read_columns(tmp_path / "data", tag=1).classes["tag"] == ("NNP", "VBZ")


@pytest.mark.parametrize("tag, text", [(-1, "a\n"), (4, COLUMNS), (0, COLUMNS), (-4, COLUMNS)])
def test_a_column_that_is_not_there_is_located(tag: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data:\d: expected a word and its tag in column"):
        read_columns(write(tmp_path, text), tag=tag)
