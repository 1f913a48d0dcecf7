"""Lattices of an invented language."""

from __future__ import annotations

import numpy as np
import pytest

from vpps.data import GraphSet, synthetic_lattices
from vpps.data.synthetic_lattices import N_TAGS, longest_words, tag_of

pytestmark = pytest.mark.host

LEXICON = {"ab": 0, "abc": 1, "bc": 2}


def test_words_that_end_somewhere_come_longest_first() -> None:
    assert longest_words("vabcb", LEXICON) == [[], [], ["ab"], ["abc", "bc"], []]


@pytest.mark.parametrize(
    "sentence, tags", [("abc", [0, 1, 2]), ("vabc", [0, 0, 2, 3]), ("vbc", [0, 0, 1]), ("aavaab", [0, 0, 0, 0, 0, 1])]
)
def test_tag_is_the_category_of_the_longest_word_turned_on_by_a_mark(sentence: str, tags: list[int]) -> None:
    words = longest_words(sentence, LEXICON)
    assert [tag_of(sentence, end, some, LEXICON) for end, some in enumerate(words, start=1)] == tags


def spelled(graphs: GraphSet, graph: int) -> None:
    """Every word's edges hold it between the characters that spell it, and the characters form a chain."""
    batch = graphs[graph]
    offsets, indices = batch.children
    characters = graphs.vocabularies["character"].words
    words = graphs.vocabularies["word"].words
    before, text = -1, ""
    place_of = {-1: 0}  # how many characters come before what reads this vertex
    for vertex in range(batch.n_vertices):
        children = indices[offsets[vertex] : offsets[vertex + 1]].tolist()
        if batch["word"][vertex] >= 0:
            assert len(children) == 1
            continue
        text += characters[batch["character"][vertex]]
        assert children[0] == before
        for word in children[1:]:
            (start,) = indices[offsets[word] : offsets[word + 1]].tolist()
            assert text[place_of[start] :] == words[batch["word"][word]]
        before, place_of[vertex] = vertex, len(text)


def test_sets_are_lattices_of_one_language() -> None:
    train, dev = synthetic_lattices(60, 20)
    assert len(train), len(dev) == (60, 20)
    assert train.vocabularies["word"].words == dev.vocabularies["word"].words
    for graph in range(60):
        spelled(train, graph)
    tags = train[:]["tag"]
    counts = np.bincount(tags[tags >= 0], minlength=N_TAGS)
    assert counts.min() > 0.05 * counts.sum()
    assert train.stat().fan_in.max >= 3  # words that end at one character


def test_equal_seeds_give_equal_lattices() -> None:
    first, second, other = (synthetic_lattices(5, 5, seed=seed)[1][:]["tag"].tolist() for seed in (3, 3, 4))
    assert first == second != other
