"""Text as one stream, in windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vpps.data import GraphSet, graphs_of_stream, graphs_of_text, read_stream
from vpps.errors import DataError

pytestmark = pytest.mark.host


def words(graphs: GraphSet, column: str, which: int) -> str:
    return " ".join(graphs.vocabularies[column].words[k] for k in graphs[which][column])


def test_windows_follow_one_another_across_sentences() -> None:
    graphs = graphs_of_stream([["a", "b", "c"], ["d"], ["e", "f"]], steps=4, min_count=1)
    assert graphs.sizes.tolist() == [4, 4]  # the last word, the boundary after f, fills no window
    assert [words(graphs, "word", k) for k in range(2)] == ["</s> a b c", "</s> d </s> e"]
    assert [words(graphs, "next", k) for k in range(2)] == ["a b c </s>", "d </s> e f"]
    assert graphs[:].children[:, 0].tolist() == [-1, 0, 1, 2, -1, 4, 5, 6]


def test_windows_are_of_the_words_of_the_set_to_be_like() -> None:
    train = graphs_of_stream([["a", "b", "b", "a"]], steps=2)
    dev = graphs_of_stream([["a", "z"]], steps=3, like=train)
    assert words(dev, "word", 0) == "</s> a <unk>"
    assert dev.vocabularies["word"] is train.vocabularies["word"]


def test_too_few_words_are_an_error_that_says_how_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("one two\n\nthree\n")
    assert len(read_stream(path, steps=5)) == 1
    with pytest.raises(DataError, match=r"short\.txt: 5 words, .*, fill no window of 6: take fewer"):
        read_stream(path, steps=6)
    with pytest.raises(DataError, match="windows of 0 words"):
        read_stream(path, steps=0)


def test_no_sentence_is_an_error() -> None:
    with pytest.raises(DataError, match="at least one sentence"):
        graphs_of_text([])


def test_penn_treebank(real_data: Callable[[str], Path]) -> None:
    graphs = read_stream(real_data("ptb/valid.txt"))
    assert graphs.n_vertices == 64 * len(graphs) == 73728  # of 70390 words and 3370 ends of sentences
    stream = graphs[:]
    np.testing.assert_array_equal(stream["word"][1:], stream["next"][:-1])
