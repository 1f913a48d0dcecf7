"""Character-word lattices to graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from vpps.data import GraphSet, read_lattices
from vpps.errors import DataError

pytestmark = pytest.mark.host

# The characters 62, 480, 947 and the word 3395, which is the first two of them; then one character alone.
LATTICE = """2
4
0 7 9 3
0
1 0 62
2 1 480 0 3395
1 2 947

2
0 5
0
1 0 8
"""


def children(graphs: GraphSet, graph: int) -> list[list[int]]:
    ends, indices = graphs[graph].children
    return [indices[a:b].tolist() for a, b in pairwise(ends.tolist())]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "weibo.txt").write_text(LATTICE)
    return tmp_path / "weibo.txt"


def test_words_stand_between_characters(file: Path) -> None:
    graphs = read_lattices(file)
    assert graphs.sizes.tolist() == [4, 1]
    sentence = graphs[0]
    assert sentence.kind is not None
    assert [graphs.kinds[k] for k in sentence.kind] == ["character", "word", "character", "character"]
    # The word begins at the start of the sentence, of which there is no state to read.
    assert children(graphs, 0) == [[-1], [-1], [0, 1], [2]]
    assert sentence["character"].tolist() == [62, -1, 480, 947]
    assert sentence["word"].tolist() == [-1, 3395, -1, -1]
    assert sentence["tag"].tolist() == [7, -1, 9, 3]
    assert sentence.levels.tolist() == [0, 0, 1, 2]
    assert graphs[1]["tag"].tolist() == [5]


def test_vocabularies_number_what_is_frequent_enough(file: Path, tmp_path: Path) -> None:
    file.write_text(LATTICE.replace("1 2 947", "1 2 480"))
    train = read_lattices(file, min_count=2)
    assert train.vocabularies["character"].words == ("<unk>", "480")
    assert train[0]["character"].tolist() == [0, -1, 1, 1]
    assert train[0]["word"].tolist() == [-1, 0, -1, -1]
    (tmp_path / "dev.txt").write_text("1\n3\n0 0 0\n0\n1 0 7\n2 1 480 0 3395\n")
    dev = read_lattices(tmp_path / "dev.txt", like=train)
    assert dev[0]["character"].tolist() == [0, -1, 1]
    with pytest.raises(DataError, match="has no vocabulary for 'character'"):
        read_lattices(file, like=read_lattices(file))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("2\n4", "two\n4", "1: expected the number of sentences, found 'two'"),
        ("2\n4", "3\n4", "13: expected the number of positions of sentence 3 of 3, found the end of the file"),
        ("2\n4", "1\n4", "9: expected the end after 1 sentences, found '2'"),
        ("0 7 9 3", "0 7 9", "3: expected 4 tags, found '0 7 9'"),
        ("0\n1 0 62", "1 0 3\n1 0 62", "4: expected 0 arcs at the beginning"),
        ("2 1 480 0 3395", "2 1 480", "6: expected 4 numbers after 2, the number of arcs, found '2 1 480'"),
        ("2 1 480 0 3395", "1 0 3395", "6: expected one arc from position 1, the character"),
        ("2 1 480 0 3395", "2 1 480 2 3395", "6: expected one arc from position 1, the character, and all others fr"),
        ("2 1 480 0 3395", "2 1 480 0 -1", "6: expected a number of arcs, then a position and a number for each"),
        ("2 1 480 0 3395", "2 1 480 0 3333333395", "6: expected a number of arcs, then a position and a number"),
        ("2\n0 5", "1\n0", "9: expected at least 2 positions"),
    ],
)
def test_malformed_file_is_located(old: str, new: str, message: str, file: Path) -> None:
    assert old in LATTICE
    file.write_text(LATTICE.replace(old, new, 1))
    with pytest.raises(DataError) as error:
        read_lattices(file)
    assert f"weibo.txt:{message}" in str(error.value)


def test_file_without_sentences_is_an_error(file: Path) -> None:
    file.write_text("0\n")
    with pytest.raises(DataError, match="found none"):
        read_lattices(file)


def test_weibo(real_data: Callable[[str], Path]) -> None:
    """Every arc of the file is an edge, those from the mark of the beginning aside."""
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
    words = arcs - characters  # each character has one arc of its own
    assert found.graphs == 113
    assert found.kinds == {"character": characters, "word": words}
    assert found.columns["tag"].max <= 17
    _, indices = graphs[:].children
    assert len(indices) == characters + 2 * words  # a character reads the one before it and words; a word a character
    assert found.levels_per_graph.max <= found.vertices_per_graph.max
