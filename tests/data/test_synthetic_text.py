"""The made-up text has the agreement that its docstring promises."""

from __future__ import annotations

import pytest

from vpps.data import synthetic_text
from vpps.data.synthetic_text import _ADVERBS, _TRANSITIVE, _VERBS, DETERMINERS, NOUNS

pytestmark = pytest.mark.host


def test_every_verb_has_the_number_of_its_subject() -> None:
    train, dev = synthetic_text(300, 20)
    far = 0  # verbs whose nearest noun has another number
    for sentence in train + dev:
        open_phrases: list[bool] = []  # number of the subjects that wait for a verb
        nearest = False
        subject = True  # whether the next noun begins to wait
        for word in sentence:
            if word in DETERMINERS[0] or word in DETERMINERS[1]:
                plural = word in DETERMINERS[1]
            elif word.removesuffix("s") in NOUNS:
                assert word.endswith("s") == plural
                nearest = plural
                if subject:
                    open_phrases.append(plural)
            elif word == "that":
                subject = True
            elif word in ("near", "behind", "beside", "with"):
                subject = False
            elif word.removesuffix("s") in (*_VERBS, *_TRANSITIVE):
                number = open_phrases.pop()
                assert word.endswith("s") != number, " ".join(sentence)
                assert (word.removesuffix("s") in _VERBS) == (not open_phrases)
                far += number != nearest
        assert not open_phrases
    assert far > 50


def test_text_is_the_same_everywhere() -> None:
    train, dev = synthetic_text(3, 1)
    assert synthetic_text(3, 1) == (train, dev)
    assert synthetic_text(3, 1, seed=2) != (train, dev)
    assert all(3 <= len(sentence) <= 21 for sentence in synthetic_text()[0])
    assert any(sentence[-1] in _ADVERBS for sentence in synthetic_text(50)[0])
