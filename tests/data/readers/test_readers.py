"""Files of trees, sentences and lattices become graphs; `test_jsonlines.py` tests lines of JSON."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vpps.data import GraphBatch, GraphSet, SpelledSentences, read_parallel, synthetic_treebank
from vpps.data.lines import LinePart
from vpps.data.readers.conll import read_columns, read_conllu
from vpps.data.readers.jsonlines import read_jsonl
from vpps.data.readers.lattice import read_lattices
from vpps.data.readers.sentences import graphs_of_stream, graphs_of_text, read_stream, read_tagged, read_text
from vpps.data.readers.trees import graphs_of_trees, read_constituents, read_treebank
from vpps.data.treebank import load_treebank, read_trees
from vpps.errors import DataError

pytestmark = pytest.mark.host

TREES = "(3 (2 a) (4 (3 b) (2 a)))\n\n(1 b)\n"
PENN = "( (S\n    (NP-SBJ (DT The) (NN film))\n    (VP (VBZ works)) ))\n(S (NP (NN film)))  ((X (NN The)))\n"
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
# The characters 62, 480, 947 and the word 3395, which spans the first two; then a lattice of one character.
LATTICES = "2\n4\n0 7 9 3\n0\n1 0 62\n2 1 480 0 3395\n1 2 947\n\n2\n0 5\n0\n1 0 8\n"


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a file."""

    def write(text: str, name: str = "data") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        return tmp_path / name

    return write


File = Callable[..., Path]


def words(graphs: GraphSet, batch: GraphBatch, column: str = "word") -> list[str | None]:
    """Return a column as words; None for missing words."""
    names = graphs.classes[column] if column in graphs.classes else graphs.vocabularies[column].words
    return [names[k] if k >= 0 else None for k in batch[column]]


def kinds(graphs: GraphSet, batch: GraphBatch) -> list[str]:
    assert batch.kind is not None
    return [graphs.kinds[k] for k in batch.kind]


def children(batch: GraphBatch) -> list[list[int]]:
    if isinstance(batch.children, tuple):
        ends, indices = batch.children
        return [indices[a:b].tolist() for a, b in pairwise(ends.tolist())]
    return batch.children.tolist()


class TestTrees:
    def test_vertices_are_in_post_order(self, file: File) -> None:
        graphs = read_treebank(file(TREES), min_count=1)
        assert len(graphs) == 2
        tree = graphs[0]
        assert children(tree) == [[-1, -1], [-1, -1], [-1, -1], [1, 2], [0, 3]]
        assert kinds(graphs, tree) == ["leaf"] * 3 + ["inner"] * 2
        assert tree["label"].tolist() == [2, 3, 2, 4, 3]
        assert words(graphs, tree) == ["a", "b", "a", None, None]
        assert tree.levels.tolist() == [0, 0, 0, 1, 2]
        assert graphs[:].roots.tolist() == [4, 5]
        assert read_treebank(file(TREES), min_count=3)[0]["word"].tolist() == [0, 0, 0, -1, -1]

    def test_children_may_be_lists(self, file: File) -> None:
        path = file("(0 (1 (2 a)) (3 b) (4 c))")
        assert read_treebank(path).arity == 3
        assert children(read_treebank(path, lists=True)[0]) == [[], [0], [], [], [1, 2, 3]]

    def test_several_files_make_one_set(self, file: File, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "more.txt.gz", "wt") as more:
            more.write("(2 (1 b) (0 c))\n")
        graphs = read_treebank(file(TREES), tmp_path / "more.txt.gz", min_count=1)
        assert graphs.sizes.tolist() == [5, 1, 3]
        assert "c" in graphs.vocabularies["word"]

    def test_development_data_takes_words_and_arity_from_training(self, file: File) -> None:
        train = read_treebank(file(TREES), min_count=1)
        dev = read_treebank(file("(2 zebra)\n(1 (0 b))\n"), like=train)
        assert dev.vocabularies["word"] is train.vocabularies["word"]
        assert dev[:]["word"].tolist() == [0, train.vocabularies["word"]["b"], -1]
        assert dev.arity == 2
        with pytest.raises(DataError, match=r"data:3: a vertex has 3 children, but the training data have at most 2"):
            read_treebank(file("(2 a)\n\n(1 (0 b) (1 c) (2 d))\n"), like=train)
        with pytest.raises(DataError, match="the set in like= has no vocabulary for 'word': no columns"):
            read_treebank(file(TREES), like=GraphSet([1], [[-1]]))

    @pytest.mark.parametrize(
        "text, place",
        [
            ("(1 " + "(1 a)" * 30_000 + ")\n", "data:1: a vertex has 30000 children, .* 30001 vertices and is almost"),
            ("(1 (1 a) (1 b))\n" * 9 + "(1 " + "(1 a)" * 9000 + ")\n", "data:10: a vertex has 9000 children"),
        ],
        ids=["one tree", "among small trees"],
    )
    def test_a_table_that_one_wide_node_would_blow_up_is_refused(self, text: str, place: str, file: File) -> None:
        path = file(text)
        with pytest.raises(DataError, match=rf"{place}.*lists of children have room for any number \(lists=True"):
            read_treebank(path)
        assert read_treebank(path, lists=True).stat().fan_in.max >= 9000
        assert (
            read_treebank(file("(1 " + "(1 a)" * 1000 + ")\n")).arity == 1000
        )  # a table that is full or small is accepted

    def test_trees_of_a_program_make_a_set(self) -> None:
        trees = synthetic_treebank(30, 1).train
        graphs = graphs_of_trees(trees, min_count=1)
        assert graphs.sizes.tolist() == [len(tree) for tree in trees]
        for k, tree in enumerate(trees):
            batch = graphs[k]
            assert [[c for c in row if c >= 0] for row in children(batch)] == list(tree.child_lists())
            assert batch["label"].tolist() == tree.labels.tolist()
            assert tuple(word for word in words(graphs, batch) if word is not None) == tree.tokens

    def test_trees_are_read_one_a_line(self, file: File, tmp_path: Path) -> None:
        path = file("\ufeff(3 a)\n\n(2 (1 b) (0 c))\r\n  \n(4 d)")
        assert [str(tree) for tree in read_trees(path)] == ["(3 a)", "(2 (1 b) (0 c))", "(4 d)"]
        with pytest.raises(DataError, match=r"train\.txt: cannot be read: No such file"):
            load_treebank(tmp_path)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_trees_with_names(ends: str, file: File) -> None:
    path = file(PENN.replace("\n", ends))
    graphs = read_constituents(path, min_count=1)
    assert graphs.sizes.tolist() == [6, 3, 2]
    assert words(graphs, graphs[0], "label") == ["DT", "NN", "NP-SBJ", "VBZ", "VP", "S"]
    assert words(graphs, graphs[0]) == ["The", "film", None, "works", None, None]
    assert children(graphs[0]) == [[], [], [0, 1], [], [3], [2, 4]]
    assert read_constituents(path, like=graphs)[:]["label"].tolist() == graphs[:]["label"].tolist()
    assert read_constituents(path, lists=False).arity == 2


def test_dependencies_are_trees_of_words(file: File) -> None:
    path = file(UD)
    graphs = read_conllu(path, min_count=1)
    assert graphs.sizes.tolist() == [3, 1]
    assert words(graphs, graphs[0]) == ["vamos", "nos", "New York"]
    assert words(graphs, graphs[0], "relation") == ["root", "obj", "obl"]
    assert children(graphs[0]) == [[1, 2], [], []]
    assert read_conllu(path, like=graphs)[:]["tag"].tolist() == graphs[:]["tag"].tolist()


def test_columns_of_words_and_tags(file: File) -> None:
    path = file(COLUMNS)
    graphs = read_columns(path, min_count=1)
    assert [words(graphs, graphs[k], "tag") for k in (0, 1)] == [["B-ORG", "O"], ["S-ORG"]]
    assert read_columns(path, tag=1).classes["tag"] == ("NNP", "VBZ")


class TestTagged:
    def test_words_read_those_before_them(self, file: File) -> None:
        graphs = read_tagged(file("A|DT b|NN\n\n c|NN a|b|DT d|X \n"), min_count=1)
        assert graphs.sizes.tolist() == [2, 3]
        batch = graphs[:]
        assert children(batch) == [[-1], [0], [-1], [2], [3]]
        assert batch.levels.tolist() == [0, 1, 0, 1, 2]
        assert words(graphs, batch) == ["A", "b", "c", "a|b", "d"]
        assert words(graphs, batch, "tag") == ["DT", "NN", "NN", "DT", "X"]

    def test_development_data_takes_words_and_tags_from_training(self, file: File) -> None:
        train = read_tagged(file("a|X b|Y\n"))
        assert read_tagged(file("a|Y"), like=train)[0]["tag"].tolist() == [1]
        path = file("a|X\n\nb|Z\n")
        with pytest.raises(DataError, match=r"data:3: unknown tag 'Z': the known ones are X, Y"):
            read_tagged(path, like=train)
        with pytest.raises(DataError, match="has no classes for 'tag': columns word, next per vertex"):
            read_tagged(path, like=read_text(path))


class TestText:
    def test_each_word_predicts_the_next(self, file: File) -> None:
        path = file("a b\n\nc\n")
        graphs = read_text(path, min_count=1)
        assert words(graphs, graphs[:]) == ["</s>", "a", "b", "</s>", "c"]
        assert words(graphs, graphs[:], "next") == ["a", "b", "</s>", "c", "</s>"]
        assert graphs[:].levels.tolist() == [0, 1, 2, 0, 1]
        of_encoder = read_text(path, min_count=1, targets=False)
        assert words(of_encoder, of_encoder[:]) == ["a", "b", "c"]
        assert of_encoder.column_names() == "columns word per vertex"

    def test_words_are_as_they_are_written(self, file: File) -> None:
        assert read_text(file("<unk> a a"))[0]["word"].tolist()[1] == 0
        graphs = read_text(file("8\N{NO-BREAK SPACE}%\tof\n"), min_count=1, targets=False)
        assert words(graphs, graphs[0]) == ["8\N{NO-BREAK SPACE}%", "of"]

    def test_reversed_chain_reads_from_the_right(self, file: File) -> None:
        batch = read_text(file("a b c\nd"), targets=False).reversed()[:]
        assert children(batch) == [[1], [2], [-1], [-1]]
        assert batch.levels.tolist() == [2, 1, 0, 0]

    def test_no_sentence_is_an_error(self) -> None:
        with pytest.raises(DataError, match="at least one sentence"):
            graphs_of_text([])


class TestStream:
    def test_windows_follow_one_another_across_sentences(self) -> None:
        graphs = graphs_of_stream([["a", "b", "c"], ["d"], ["e", "f"]], steps=4, min_count=1)
        assert graphs.sizes.tolist() == [4, 4]  # the last word, the boundary after f, fills no window
        assert words(graphs, graphs[:]) == "</s> a b c </s> d </s> e".split()
        assert words(graphs, graphs[:], "next") == "a b c </s> d </s> e f".split()
        assert children(graphs[:]) == [[-1], [0], [1], [2], [-1], [4], [5], [6]]

    def test_windows_are_of_the_words_of_the_set_to_be_like(self) -> None:
        train = graphs_of_stream([["a", "b", "b", "a"]], steps=2)
        dev = graphs_of_stream([["a", "z"]], steps=3, like=train)
        assert words(dev, dev[0]) == ["</s>", "a", "<unk>"]
        assert dev.vocabularies["word"] is train.vocabularies["word"]

    def test_too_few_words_are_an_error_that_says_how_many_there_are(self, file: File) -> None:
        path = file("one two\n\nthree\n")
        assert len(read_stream(path, steps=5)) == 1
        with pytest.raises(DataError, match=r"data: 5 words, .*, do not fill a window of 6: reduce steps"):
            read_stream(path, steps=6)
        with pytest.raises(DataError, match="windows of 0 words"):
            read_stream(path, steps=0)


class TestParallel:
    def test_pairs_stay_pairs(self, file: File) -> None:
        files = file("a b\n\nc\nd\n", "en"), file("x\ny\n\nz z z\n", "vi")
        source, target = train = read_parallel(*files, min_count=1)
        assert (source.sizes.tolist(), target.sizes.tolist()) == ([2, 1], [2, 4])
        assert words(source, source[1]) == ["d"]
        assert words(target, target[1]) == ["</s>", "z", "z", "z"]
        assert "next" not in source.arrays.columns
        for dev, own in zip(read_parallel(*files, like=train), train, strict=True):
            assert dev.vocabularies["word"] is own.vocabularies["word"]

    @pytest.mark.parametrize(
        "first, second, skip, complaint",
        [
            ("a\nb\n", "x\n", 0, r"en has 2 lines and .*vi 1: parallel texts have equal"),
            ("a\nb\n", "x\ny\n\nz\n", 0, "vi:3: the other text has no such line"),
            ("a\nb\n", "x\ny\n\nz\n", 1, "vi:4: the other text has no such line"),
            ("a\n\n", "\nx\n", 0, "expected one sentence a line, found none"),
        ],
    )
    def test_texts_that_do_not_belong_together_are_refused(
        self, first: str, second: str, skip: int, complaint: str, file: File
    ) -> None:
        with pytest.raises(DataError, match=complaint):
            read_parallel(file(first, "en"), LinePart(file(second, "vi"), skip))


class TestLattices:
    def test_words_stand_between_characters(self, file: File) -> None:
        graphs = read_lattices(file(LATTICES))
        assert graphs.sizes.tolist() == [4, 1]
        sentence = graphs[0]
        assert kinds(graphs, sentence) == ["character", "word", "character", "character"]
        # The word begins at the start of the sentence, which has no state to read.
        assert children(sentence) == [[-1], [-1], [0, 1], [2]]
        assert sentence["character"].tolist() == [62, -1, 480, 947]
        assert sentence["word"].tolist() == [-1, 3395, -1, -1]
        assert sentence["tag"].tolist() == [7, -1, 9, 3]
        assert sentence.levels.tolist() == [0, 0, 1, 2]
        assert graphs[1]["tag"].tolist() == [5]

    def test_vocabularies_number_what_is_frequent_enough(self, file: File) -> None:
        path = file(LATTICES.replace("1 2 947", "1 2 480"))
        train = read_lattices(path, min_count=2)
        assert train.vocabularies["character"].words == ("<unk>", "480")
        assert train[0]["character"].tolist() == [0, -1, 1, 1]
        assert train[0]["word"].tolist() == [-1, 0, -1, -1]
        dev = read_lattices(file("1\n3\n0 0 0\n0\n1 0 7\n2 1 480 0 3395\n", "dev"), like=train)
        assert dev[0]["character"].tolist() == [0, -1, 1]
        with pytest.raises(DataError, match="has no vocabulary for 'character'"):
            read_lattices(path, like=read_lattices(path))


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


ARCS = "2 1 480 0 3395"
NO_TAG = r"data:2: expected word|TAG as token 2, found '"


@pytest.mark.parametrize(
    "read, text, message",
    [
        (read_treebank, "(3 a)\n\n(2 (1 b) c)\n", "data:3:10: expected ')' or '(' after a child, found 'c'"),
        (read_treebank, "(5 a)\n", "data:1:2: expected a label smaller than 5, found 5"),
        (read_treebank, f"({'1' * 5000} a)\n", "data:1:2: expected a label smaller than 5"),
        (read_treebank, "\n", "data: expected one bracketed tree a line, found none"),
        (read_constituents, "(S (NN a)", "data:1: the tree that begins here does not end: 1 brackets are open"),
        (read_constituents, "\n(S)", "data:2:3: expected a word or '(' after the name, found ')'"),
        (read_constituents, "(S (NN a)) b", "data:1:12: expected '(' at the start of a tree, found 'b'"),
        (read_constituents, "(NN a b)", "data:1:7: expected '(' or ')', found 'b'"),
        (read_constituents, "(NN a (NN b))", "data:1:7: expected ')' after the word, found '('"),
        (read_constituents, "()", "data:1:2: expected one child of a node without a name, found 0"),
        (read_constituents, "((A a) (B b))", "expected one child of a node without a name, found 2"),
        (read_constituents, "((A a) b)", "data:1:8: expected '(' or ')', found 'b'"),
        (read_constituents, "\n", "expected bracketed trees with names"),
        (read_conllu, changed(UD, "3\tNew", "4\tNew"), "data:6: expected word 3 of the sentence"),
        (read_conllu, changed(UD, "_\t_\t1\tobl", "_\t1\tobl"), "data:6: expected word 3 of the sentence, with 10"),
        (read_conllu, changed(UD, "1\tobl", "7\tobl"), "data:6: expected the head, 0 to 3, found '7'"),
        (read_conllu, changed(UD, "1\tobl", "3\tobl"), "cycle"),
        *((read_tagged, f"a|X\nb|Y {token} c|Z\n", NO_TAG) for token in ("word", "word|", "|TAG", "|")),
        (read_tagged, "\n", "expected one sentence of word|TAG a line, found none"),
        (read_text, "a b\n\nc </s> d\n", "data:3: '</s>' is the mark of a sentence's end"),
        (lambda path: read_parallel(path, path), "a b\n\nc </s> d\n", "data:3: '</s>' is the mark"),
        (read_stream, "a b\n\nc </s> d\n", "sentence 1: '</s>' is the mark"),
        (read_text, "a\0b\0", "data:1:2: expected UTF-8 text, found byte 0x0"),  # looks like UTF-16
        (read_lattices, changed(LATTICES, "2\n4", "two\n4"), "data:1: expected the number of sentences, found 'two'"),
        (read_lattices, changed(LATTICES, "2\n4", "3\n4"),
         "data:13: expected the number of positions of sentence 3 of 3, found the end of the file"),
        (read_lattices, changed(LATTICES, "2\n4", "1\n4"), "data:9: expected the end after 1 sentences, found '2'"),
        (read_lattices, changed(LATTICES, "0 7 9 3", "0 7 9"), "data:3: expected 4 tags, found '0 7 9'"),
        (read_lattices, changed(LATTICES, "0\n1 0 62", "1 0 3\n1 0 62"), "data:4: expected 0 arcs at the beginning"),
        (read_lattices, changed(LATTICES, ARCS, "2 1 480"),
         "data:6: expected 4 numbers after 2, the number of arcs, found '2 1 480'"),
        (read_lattices, changed(LATTICES, ARCS, "1 0 3395"), "data:6: expected one arc from position 1, the character"),
        (read_lattices, changed(LATTICES, ARCS, "2 1 480 2 3395"),
         "data:6: expected one arc from position 1, the character, and all others fr"),
        *((read_lattices, changed(LATTICES, ARCS, f"2 1 480 0 {number}"),
           "data:6: expected a number of arcs, then a position and a number for each") for number in (-1, 3333333395)),
        (read_lattices, changed(LATTICES, "2\n0 5", "1\n0"), "data:9: expected at least 2 positions"),
        (read_lattices, "0\n", "found none"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_located(read: Any, text: str, message: str, file: File) -> None:
    with pytest.raises(DataError) as error:
        read(file(text), **{"n_classes": 5} if read is read_treebank else {})
    assert message in str(error.value)


@pytest.mark.parametrize("tag, text", [(-1, "a\n"), (4, COLUMNS), (0, COLUMNS), (-4, COLUMNS)])
def test_a_column_that_is_not_there_is_located(tag: Any, text: str, file: File) -> None:
    with pytest.raises(DataError, match=r"data:\d: expected a word and its tag in column"):
        read_columns(file(text), tag=tag)


@pytest.mark.parametrize(
    "read", [read_tagged, read_text, read_treebank, read_stream, read_jsonl, read_lattices, SpelledSentences.read]
)
def test_a_count_beside_a_vocabulary_is_refused(read: Any, file: File) -> None:
    texts = {
        "read_tagged": "a|X b|Y\n", "read_treebank": "(1 (2 a) (2 b))\n", "read_lattices": "1\n2\n0 0\n0\n1 0 5\n",
        "read_jsonl": '{"children": [[]], "columns": {"word": ["a"]}}\n', "read": "a|X b|Y\n",
    }  # fmt: skip
    path = file(texts.get(read.__name__, "a b\n" * 64))
    train = read(path, min_count=1)
    assert len(read(path, like=train)) == len(train)
    with pytest.raises(DataError, match="min_count=1 beside like=, which already gives the words"):
        read(path, min_count=1, like=train)
    with pytest.raises(DataError, match="min_count=0: expected an int, at least 1"):
        read(path, min_count=0)


def test_no_file_is_a_data_error() -> None:
    with pytest.raises(DataError, match="no file given: expected one bracketed tree a line"):
        read_treebank()


class TestPublishedData:
    @pytest.mark.parametrize(
        "read, name, graphs, vertices",
        [
            (read_treebank, "sst/train.txt", 8544, None),
            (read_treebank, "sst/dev.txt", 1101, None),
            (read_tagged, "wikiner/en.txt", 1696, None),
            (read_text, "ptb/valid.txt", 3370, 70390 + 3370),
            (read_stream, "ptb/valid.txt", 1152, 73728),  # windows of 64
            (read_text, "iwslt15/tst2012.vi", 1553, 34297 + 1553),
        ],
    )
    def test_has_its_published_size(
        self, read: Any, name: str, graphs: int, vertices: int | None, real_data: Callable[[str], Path]
    ) -> None:
        found = read(real_data(name))
        assert len(found) == graphs
        assert found.n_vertices == vertices or vertices is None
        if read is read_stream:
            np.testing.assert_array_equal(found[:]["word"][1:], found[:]["next"][:-1])

    def test_stanford_treebank(self, real_data: Callable[[str], Path]) -> None:
        path = real_data("sst/train.txt")
        trees = read_trees(path, n_classes=5)
        assert "".join(f"{tree}\n" for tree in trees) == path.read_bytes().decode()
        assert all(len(tree) == 2 * len(tree.tokens) - 1 and tree.arity in (0, 2) for tree in trees)
        assert [round(np.mean([len(x) for x in of])) for of in (trees, [tree.tokens for tree in trees])] == [37, 19]
        graphs = read_treebank(real_data("sst/dev.txt"), n_classes=5)
        levels = graphs.stat().levels_per_graph
        assert (graphs.arity, levels.min, levels.max, round(levels.mean, 1)) == (2, 2, 28, 10.9)

    def test_wikiner(self, real_data: Callable[[str], Path]) -> None:
        path = real_data("wikiner/en.txt")
        graphs = read_tagged(path, min_count=1)
        assert set(graphs.classes["tag"]) == {"O", "I-LOC", "I-MISC", "I-ORG", "I-PER"}
        lines = path.read_text().splitlines()
        for k in (0, 100, 1695):
            pairs = zip(words(graphs, graphs[k]), words(graphs, graphs[k], "tag"), strict=True)
            assert [f"{word}|{tag}" for word, tag in pairs] == lines[k].split()

    def test_weibo(self, real_data: Callable[[str], Path]) -> None:
        """Every arc of the file is an edge, except those from the start mark."""
        path = real_data("weibo/dev.txt")
        graphs = read_lattices(path)
        found = graphs.stat()
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        arcs, characters, at = 0, 0, 1
        while at < len(lines):
            n = int(lines[at][0])
            arcs += sum(int(line[0]) for line in lines[at + 2 : at + 2 + n])
            characters += n - 1
            at += 2 + n
        n_words = arcs - characters  # each character has one arc
        assert found.graphs == 113
        assert found.kinds == {"character": characters, "word": n_words}
        assert found.columns["tag"].max <= 17
        _, indices = graphs[:].children
        assert len(indices) == characters + 2 * n_words  # a character reads the one before it and words; a word one
        assert found.levels_per_graph.max <= found.vertices_per_graph.max
