"""A made-up language and translations into it: nothing to download, and only a model of the whole sentence learns them.

The source is `synthetic_text`. In the other language

- the words come in the opposite order, so that what is said first is known last;
- nouns have a gender, which determiners and adjectives share: `this old author`, `this old critic` are
  `rohtuao dloo siho` and `citirca dloa siha`;
- nouns and all that goes with them end in -i or -e in the plural: `these old authors` are `rohtuai dloi esehti`.

Stems are the English words read backwards, so that a person can check them.
"""

from __future__ import annotations

from collections.abc import Iterable

from vpps.data.synthetic_text import ADJECTIVES, DETERMINERS, NOUNS, Sentences, synthetic_text

_ENDINGS = {(False, 0): "o", (False, 1): "a", (True, 0): "i", (True, 1): "e"}  # by plural and gender

Pairs = list[tuple[list[str], list[str]]]


def synthetic_parallel(n_train: int = 3000, n_dev: int = 300, seed: int = 1, depth: int = 1) -> tuple[Pairs, Pairs]:
    """Sentences and their translations, to train and to judge by; equal arguments give equal pairs everywhere.

    Args:
        depth: as of `synthetic_text`. With one clause they have up to 10 words, 6 on average.
    """
    train, dev = synthetic_text(n_train, n_dev, seed, depth)
    return _translated(train), _translated(dev)


def _translated(sentences: Sentences) -> Pairs:
    return [(sentence, translate(sentence)) for sentence in sentences]


def translate(sentence: Iterable[str]) -> list[str]:
    """A sentence of `synthetic_text` in the other language."""
    translation: list[str] = []
    ending = ""  # of the noun that follows: known before its determiner, as words come last first
    for word in reversed(list(sentence)):
        singular = word.removesuffix("s")
        if singular in NOUNS:
            ending = _ENDINGS[singular != word, NOUNS.index(singular) % 2]
            translation.append(singular[::-1] + ending)
        elif word in ADJECTIVES or any(word in determiners for determiners in DETERMINERS):
            translation.append(word[::-1] + ending)
        else:
            translation.append(word[::-1])
    return translation
