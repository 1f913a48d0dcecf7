"""Synthetic tagged sentences: deterministic, tagged by their rules, and out of reach for one direction alone."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from vpps.data import synthetic_sentences
from vpps.data.synthetic_tags import _COMPANIES, _ENDINGS, _NAMES, _PLACES, _SPEECH, _TITLES, Token

pytestmark = pytest.mark.host


def names_in(sentence: list[Token]) -> list[tuple[int, int, str]]:
    """(first, behind, type) of the runs of one tag other than O."""
    found, first = [], 0
    for k in range(1, len(sentence) + 1):
        if k == len(sentence) or sentence[k][1] != sentence[first][1]:
            if sentence[first][1] != "O":
                found.append((first, k, sentence[first][1][2:]))
            first = k
    return found


def test_equal_seeds_give_equal_sentences() -> None:
    assert synthetic_sentences(20, 5, seed=7) == synthetic_sentences(20, 5, seed=7)
    assert synthetic_sentences(20, 5, seed=7) != synthetic_sentences(20, 5, seed=8)
    train, dev = synthetic_sentences(20, 5)
    assert (len(train), len(dev)) == (20, 5)
    assert {len(sentence) for sentence in synthetic_sentences()[0]} <= set(range(6, 32))


def test_every_name_has_the_type_that_its_cues_tell() -> None:
    for sentence in synthetic_sentences(500, 1, coined=True)[0]:
        words = [word for word, _ in sentence]
        for first, behind, kind in names_in(sentence):
            after = words[behind] if behind < len(words) else ""
            before = words[first - 1] if first else ""
            if words[first] not in _NAMES:
                assert words[first].endswith(_ENDINGS[kind])
            elif after in _COMPANIES:
                assert kind == "ORG"
            elif before in _TITLES or after in _SPEECH:
                assert kind == "PER"
            else:
                assert kind == "LOC"
                assert {before, *words[max(0, first - 3) : first - 2]} & set(_PLACES)


def test_neither_the_word_nor_what_precedes_it_tells_the_tag() -> None:
    by_word, by_left = defaultdict(Counter), defaultdict(Counter)
    for sentence in synthetic_sentences()[0]:
        for k, (word, tag) in enumerate(sentence):
            if tag != "O":
                by_word[word][tag] += 1
                by_left[tuple(w for w, _ in sentence[max(0, k - 3) : k])][tag] += 1
    assert all(max(tags.values()) < 0.6 * tags.total() for tags in by_word.values())
    seen_often = [tags for tags in by_left.values() if tags.total() > 20]
    assert any(max(tags.values()) < 0.75 * tags.total() for tags in seen_often)


def test_coined_names_are_rare() -> None:
    counts = Counter(word for sentence in synthetic_sentences(coined=True)[0] for word, _ in sentence)
    coined = [word for word in counts if any(word.endswith(ends) for ends in _ENDINGS.values()) and word not in _NAMES]
    assert len(coined) > 1000
    assert sum(counts[word] < 5 for word in coined) > 0.99 * len(coined)
    assert all(count >= 5 for word, count in counts.items() if word not in coined)
