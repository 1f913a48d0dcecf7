"""Sentences to chains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vpps.data import (
    GraphBatch,
    GraphSet,
    SpelledSentences,
    Vocabulary,
    read_jsonl,
    read_lattices,
    read_parallel,
    read_stream,
    read_tagged,
    read_text,
    read_treebank,
)
from vpps.data.lines import LinePart
from vpps.errors import DataError

pytestmark = pytest.mark.host


def words(batch: GraphBatch, vocabulary: Vocabulary, column: str = "word") -> list[str]:
    return [vocabulary.words[k] for k in batch[column]]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


class TestTagged:
    def test_words_read_those_before_them(self, tmp_path: Path) -> None:
        graphs = read_tagged(write(tmp_path / "en.txt", "A|DT b|NN\n\n c|NN a|b|DT d|X \n"), min_count=1)
        assert graphs.sizes.tolist() == [2, 3]
        batch = graphs[:]
        assert isinstance(batch.children, np.ndarray)
        assert batch.children.tolist() == [[-1], [0], [-1], [2], [3]]
        assert batch.levels.tolist() == [0, 1, 0, 1, 2]
        assert words(batch, graphs.vocabularies["word"]) == ["A", "b", "c", "a|b", "d"]
        assert [graphs.classes["tag"][k] for k in batch["tag"]] == ["DT", "NN", "NN", "DT", "X"]

    @pytest.mark.parametrize("token", ["word", "word|", "|TAG", "|"])
    def test_token_without_word_or_tag_is_located(self, token: str, tmp_path: Path) -> None:
        path = write(tmp_path / "en.txt", f"a|X\nb|Y {token} c|Z\n")
        with pytest.raises(DataError, match=r"en\.txt:2: expected word\|TAG as token 2, found '"):
            read_tagged(path)

    def test_tag_that_training_did_not_have_is_located(self, tmp_path: Path) -> None:
        train = read_tagged(write(tmp_path / "train.txt", "a|X b|Y\n"))
        with pytest.raises(DataError, match=r"dev\.txt:3: unknown tag 'Z': the known ones are X, Y"):
            read_tagged(write(tmp_path / "dev.txt", "a|X\n\nb|Z\n"), like=train)
        dev = read_tagged(write(tmp_path / "dev.txt", "a|Y"), like=train)
        assert dev[0]["tag"].tolist() == [1]

    def test_set_without_tags_is_nothing_to_be_like(self, tmp_path: Path) -> None:
        path = write(tmp_path / "en.txt", "a|X")
        with pytest.raises(DataError, match="has no classes for 'tag': columns word, next per vertex"):
            read_tagged(path, like=read_text(path))

    def test_file_without_sentences_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"expected one sentence of word\|TAG a line, found none"):
            read_tagged(write(tmp_path / "en.txt", "\n"))

    def test_wikiner(self, real_data: Callable[[str], Path]) -> None:
        path = real_data("wikiner/en.txt")
        graphs = read_tagged(path, min_count=1)
        assert len(graphs) == 1696
        assert set(graphs.classes["tag"]) == {"O", "I-LOC", "I-MISC", "I-ORG", "I-PER"}
        lines = path.read_text().splitlines()
        for k in (0, 100, 1695):
            pairs = zip(words(graphs[k], graphs.vocabularies["word"]), graphs[k]["tag"], strict=True)
            assert [f"{word}|{graphs.classes['tag'][tag]}" for word, tag in pairs] == lines[k].split()


class TestText:
    def test_each_word_predicts_the_next(self, tmp_path: Path) -> None:
        graphs = read_text(write(tmp_path / "text", "a b\n\nc\n"), min_count=1)
        vocabulary = graphs.vocabularies["word"]
        assert words(graphs[:], vocabulary) == ["</s>", "a", "b", "</s>", "c"]
        assert words(graphs[:], vocabulary, "next") == ["a", "b", "</s>", "c", "</s>"]
        assert graphs[:].levels.tolist() == [0, 1, 2, 0, 1]

    def test_encoders_chain_has_no_boundary(self, tmp_path: Path) -> None:
        graphs = read_text(write(tmp_path / "text", "a b\n\nc\n"), min_count=1, targets=False)
        assert words(graphs[:], graphs.vocabularies["word"]) == ["a", "b", "c"]
        assert graphs.column_names() == "columns word per vertex"

    def test_unknown_words_of_the_text_are_unknown(self, tmp_path: Path) -> None:
        assert read_text(write(tmp_path / "text", "<unk> a a"))[0]["word"].tolist()[1] == 0

    def test_no_break_space_belongs_to_its_word(self, tmp_path: Path) -> None:
        graphs = read_text(write(tmp_path / "text", "8\N{NO-BREAK SPACE}%\tof\n"), min_count=1, targets=False)
        assert words(graphs[0], graphs.vocabularies["word"]) == ["8\N{NO-BREAK SPACE}%", "of"]

    def test_reversed_chain_reads_from_the_right(self, tmp_path: Path) -> None:
        backward = read_text(write(tmp_path / "text", "a b c\nd"), targets=False).reversed()
        batch = backward[:]
        assert isinstance(batch.children, np.ndarray)
        assert batch.children.tolist() == [[1], [2], [-1], [-1]]
        assert batch.levels.tolist() == [2, 1, 0, 0]

    def test_penn_treebank(self, real_data: Callable[[str], Path]) -> None:
        path = real_data("ptb/valid.txt")
        graphs = read_text(path, min_count=1)
        assert (len(graphs), graphs.n_vertices) == (3370, 73760)  # 70390 words
        train, held_out = graphs.split(0.9)
        assert (len(train), len(held_out)) == (3033, 337)
        lines = path.read_text().splitlines()
        assert words(held_out[-1], graphs.vocabularies["word"])[1:] == lines[-1].split()


class TestParallel:
    def test_pairs_stay_pairs(self, tmp_path: Path) -> None:
        source, target = read_parallel(
            write(tmp_path / "en", "a b\n\nc\nd\n"), write(tmp_path / "vi", "x\ny\n\nz z z\n"), min_count=1
        )
        assert (source.sizes.tolist(), target.sizes.tolist()) == ([2, 1], [2, 4])
        assert words(source[1], source.vocabularies["word"]) == ["d"]
        assert words(target[1], target.vocabularies["word"]) == ["</s>", "z", "z", "z"]
        assert "next" not in source.arrays.columns

    def test_texts_of_other_lengths_are_an_error(self, tmp_path: Path) -> None:
        files = write(tmp_path / "en", "a\nb\n"), write(tmp_path / "vi", "x\n")
        with pytest.raises(DataError, match=r"en has 2 lines and .*vi 1: parallel text has as many"):
            read_parallel(*files)

    def test_the_first_line_that_has_none_beside_it_is_named(self, tmp_path: Path) -> None:
        first, second = write(tmp_path / "en", "a\nb\n"), write(tmp_path / "vi", "x\ny\n\nz\n")
        with pytest.raises(DataError, match=r"vi:3: the other text has no such line"):
            read_parallel(first, second)
        with pytest.raises(DataError, match=r"vi:4: the other text has no such line"):
            read_parallel(first, LinePart(second, 1))

    def test_texts_without_a_pair_are_an_error(self, tmp_path: Path) -> None:
        files = write(tmp_path / "en", "a\n\n"), write(tmp_path / "vi", "\nx\n")
        with pytest.raises(DataError, match="expected one sentence a line, found none"):
            read_parallel(*files)

    def test_development_data_takes_both_vocabularies(self, tmp_path: Path) -> None:
        files = write(tmp_path / "en", "a\n"), write(tmp_path / "vi", "x\n")
        train = read_parallel(*files, min_count=1)
        dev: tuple[GraphSet, GraphSet] = read_parallel(*files, like=train)
        for k in range(2):
            assert dev[k].vocabularies["word"] is train[k].vocabularies["word"]

    def test_iwslt(self, real_data: Callable[[str], Path]) -> None:
        source, target = read_parallel(real_data("iwslt15/tst2012.en"), real_data("iwslt15/tst2012.vi"))
        assert len(source) == len(target) == 1553
        assert (source.n_vertices, target.n_vertices) == (27983, 34297 + 1553)


@pytest.mark.parametrize(
    "read", [read_tagged, read_text, read_treebank, read_stream, read_jsonl, read_lattices, SpelledSentences.read]
)
def test_a_count_beside_a_vocabulary_is_refused(read: Any, tmp_path: Path) -> None:
    texts = {
        "read_tagged": "a|X b|Y\n", "read_treebank": "(1 (2 a) (2 b))\n", "read_lattices": "1\n2\n0 0\n0\n1 0 5\n",
        "read_jsonl": '{"children": [[]], "columns": {"word": ["a"]}}\n', "read": "a|X b|Y\n",
    }  # fmt: skip
    path = write(tmp_path / "data", texts.get(read.__name__, "a b\n" * 64))
    train = read(path, min_count=1)
    assert len(read(path, like=train)) == len(train)
    with pytest.raises(DataError, match="min_count=1 beside like=, which has its words already"):
        read(path, min_count=1, like=train)
    with pytest.raises(DataError, match="min_count=0: expected an int, at least 1"):
        read(path, min_count=0)


def test_the_mark_of_ends_is_no_word(tmp_path: Path) -> None:
    path = write(tmp_path / "text", "a b\n\nc </s> d\n")
    with pytest.raises(DataError, match="text:3: '</s>' is the mark of a sentence's end"):
        read_text(path)
    with pytest.raises(DataError, match="text:3: '</s>' is the mark"):
        read_parallel(path, path)
    with pytest.raises(DataError, match="sentence 1: '</s>' is the mark"):
        read_stream(path, steps=2)
    assert len(read_text(path, targets=False)) == 2


def test_zeros_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("a b".encode("utf-16-le"))
    with pytest.raises(DataError, match="text:1:2: expected UTF-8 text, found byte 0x0"):
        read_text(tmp_path / "text")
