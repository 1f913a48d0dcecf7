"""Entities in tags, and taggers' scores."""

from __future__ import annotations

import numpy as np
import pytest

from vpps.zoo.tasks.spans import Spans, are_spans, tag_scores

pytestmark = pytest.mark.host


def spans_in(*sentences: str) -> list[str]:
    """Return entities as `first-end type`, in order."""
    tags = [sentence.split() for sentence in sentences]
    names = sorted({tag for sentence in tags for tag in sentence} | {"O"})
    types = sorted({name[2:] for name in names if name != "O"})
    offsets = np.cumsum([0, *map(len, tags)])
    numbers = np.array([names.index(tag) for sentence in tags for tag in sentence])
    return [f"{first}-{behind} {types[kind]}" for first, behind, kind in Spans(names).of(numbers, offsets).tolist()]


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("O O", []), ("I-PER I-PER O I-LOC", ["0-2 PER", "3-4 LOC"]), ("I-PER I-LOC", ["0-1 PER", "1-2 LOC"]),
        ("B-PER I-PER B-PER", ["0-2 PER", "2-3 PER"]), ("I-PER B-PER I-PER", ["0-1 PER", "1-3 PER"]),
        ("O I-PER I-PER", ["1-3 PER"]), ("B-PER M-PER E-PER S-PER", ["0-3 PER", "3-4 PER"]),
        ("B-PER L-PER U-LOC I-LOC", ["0-2 PER", "2-3 LOC", "3-4 LOC"]), ("B-A-1 I-A-1", ["0-2 A-1"]),
    ],
)  # fmt: skip
def test_an_entity_is_a_longest_run_of_one_type(tags: str, expected: list[str]) -> None:
    assert spans_in(tags) == expected


def test_an_entity_ends_with_its_sentence() -> None:
    assert spans_in("O I-PER", "I-PER O", "I-PER", "I-PER") == ["1-2 PER", "2-3 PER", "4-5 PER", "5-6 PER"]


def test_tags_that_mark_no_entities_are_known() -> None:
    assert are_spans(["B-PER", "I-PER", "O"])
    assert not are_spans(["NN", "O", "VB"])
    assert not are_spans(["I-PER", "I-LOC"])
    assert not are_spans(["O"])


def test_f1_counts_entities_and_accuracy_tags() -> None:
    names = ["I-LOC", "I-PER", "O"]
    first = (np.array([0, 3, 5]), np.array([1, 1, 2, 0, 2], np.int32), np.array([1, 2, 2, 0, 1]))
    second = (np.array([0, 1]), np.array([1], np.int32), np.array([1]))
    scores = tag_scores([first, second], names)
    # Right: PER 0-2, LOC 3-4, PER 0-1; found: PER 0-1, LOC 3-4, PER 4-5, PER 0-1; common: the LOC and the last PER.
    assert scores == {"dev entity F1": pytest.approx(2 * 2 / (3 + 4)), "dev accuracy": pytest.approx(4 / 6)}
    assert next(iter(scores)) == "dev entity F1", "the best epoch is the one that finds most entities"


def test_f1_is_zero_where_nothing_is_found_and_absent_where_tags_mark_none() -> None:
    result = (np.array([0, 2]), np.array([0, 1], np.int32), np.array([1, 1]))
    assert tag_scores([result], ["I-PER", "O"]) == {"dev entity F1": 0.0, "dev accuracy": 0.5}
    assert tag_scores([result], ["NN", "VB"]) == {"dev accuracy": 0.5}
