"""Sentences whose rare words are spelled out in characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from vpps.data import SpelledBatch, SpelledSentences
from vpps.data.spelled import EDGE
from vpps.errors import DataError

pytestmark = pytest.mark.host

SENTENCES = [
    [("the", "O"), ("zab", "I-PER"), ("the", "O"), ("bad", "O")],
    [("zab", "I-PER")],
    [("the", "O"), ("the", "O")],
]


def spelled_words(batch: SpelledBatch) -> list[str]:
    """Return every word of a batch as the network sees it: from the vocabulary, or joined from the characters."""
    words = batch.sentences._graphs.vocabularies["word"].words
    letters = batch.all_spellings.vocabularies["character"].words
    ends = batch.spellings.offsets
    found = []
    for word, rare, spelling in zip(batch["word"], batch.rare, batch.spelling, strict=True):
        chain = batch.spellings["character"][ends[spelling] : ends[spelling + 1]] if rare else ()
        found.append("".join(letters[k] for k in chain) if rare else words[word])
    return found


def test_words_that_are_rare_are_spelled() -> None:
    data = SpelledSentences.of(SENTENCES, min_count=3)
    assert spelled_words(data[:]) == ["the", "<*><unk>ab<*>", "the", "<*>ba<unk><*>", "<*><unk>ab<*>", "the", "the"]
    assert data[:].rare.tolist() == [False, True, False, True, True, False, False]
    assert [data.sentences.classes["tag"][k] for k in data[1:]["tag"]] == ["I-PER", "O", "O"]
    assert (len(data), len(data[1:]), data[1:].n_vertices) == (3, 2, 3)


def test_every_distinct_rare_word_of_a_batch_is_spelled_once() -> None:
    data = SpelledSentences.of(SENTENCES, min_count=3)
    assert len(data[:].spellings) == 2
    assert spelled_words(data[[1, 1, 0]])[:2] == ["<*><unk>ab<*>"] * 2
    assert len(data[[1, 1]].spellings) == 1
    assert len(data[[2]].spellings) == 0
    assert not data[[2]].rare.any()


def test_all_words_may_be_frequent() -> None:
    data = SpelledSentences.of(SENTENCES, min_count=1)
    assert not data[:].rare.any()
    assert spelled_words(data[:])[1] == "zab"


def test_words_that_training_did_not_see_are_rare() -> None:
    train = SpelledSentences.of(SENTENCES * 2, min_count=2)
    dev = SpelledSentences.of([[("the", "O"), ("bazo", "O")]], like=train)
    assert spelled_words(dev[:]) == ["the", "<*><unk><unk><unk><unk><*>"], "no character of training was in a rare word"
    train = SpelledSentences.of(SENTENCES * 2, min_count=5)
    dev = SpelledSentences.of([[("the", "O"), ("bazo", "O")]], like=train)
    assert spelled_words(dev[:]) == ["the", f"{EDGE}ba<unk><unk>{EDGE}"]
    assert dev.sentences.classes == train.sentences.classes
    with pytest.raises(DataError, match=r"unknown tag 'I-LOC'"):
        SpelledSentences.of([[("the", "I-LOC")]], like=train)


def test_batches_have_every_sentence_once_and_subsets_some() -> None:
    data = SpelledSentences.of(SENTENCES, min_count=3)
    batches = list(data.batches(2, seed=1, epoch=3))
    assert sorted(k for batch in batches for k in batch.sentences.indices) == [0, 1, 2]
    assert [len(batch) for batch in batches] == [2, 1]
    part = data.subset(slice(1, 3))
    assert spelled_words(part[:]) == ["<*><unk>ab<*>", "the", "the"]


def test_files_are_read_as_by_read_tagged(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("the|O zab|I-PER\n\nthe|O\n")
    data = SpelledSentences.read(path, min_count=2)
    assert spelled_words(data[:]) == ["the", "<*><unk><unk><unk><*>", "the"]
    path.write_text("the|O\nthe zab|O\n")
    with pytest.raises(DataError, match=r"text:2: expected word\|TAG as token 1, found 'the'"):
        SpelledSentences.read(path)
