"""A text made from a small grammar: nothing to download, and only a model with a memory learns to predict it.
Translations of it into a made-up language: only a model of the whole sentence learns them.

    sentence  ->  phrase VERB [adverb]
    phrase    ->  determiner [adjective] NOUN [clause]
    clause    ->  preposition phrase  |  that phrase VERB

A verb has the number of the noun that is its subject, and a noun that of its determiner; any number of phrases may
stand between them, so that the words near a verb do not tell how it ends:

    every author near the critics that this actor admires sleeps quietly

The verb that ends a clause is of the phrase within it, so clauses are brackets that close in reverse order.

In the other language

- the words come in the opposite order, so that what is said first is known last;
- nouns have a gender, which determiners and adjectives share: `this old author`, `this old critic` are
  `rohtuao dloo siho` and `citirca dloa siha`;
- nouns and all that goes with them end in -i or -e in the plural: `these old authors` are `rohtuai dloi esehti`.

Stems are the English words read backwards, so that a person can check them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from vpps.data.chance import pick

DETERMINERS = ("this every a one".split(), "these all some many".split())
NOUNS = "author critic actor pilot baker doctor lawyer painter singer farmer teacher sailor".split()
_VERBS = "sleep laugh wait sing run smile arrive listen".split()
_TRANSITIVE = "admire know help see follow trust".split()
ADJECTIVES = "old young tall quiet clever famous happy tired".split()
_PREPOSITIONS = "near behind beside with".split()
_ADVERBS = "quietly often again slowly today".split()

DEPTH = 3  # clauses within clauses

Sentences = list[list[str]]
Pairs = list[tuple[list[str], list[str]]]

_ENDINGS = {(False, 0): "o", (False, 1): "a", (True, 0): "i", (True, 1): "e"}  # by plural and gender


def synthetic_text(
    n_train: int = 2000, n_dev: int = 400, seed: int = 1, depth: int = DEPTH
) -> tuple[Sentences, Sentences]:
    """Random sentences to train and to judge by; equal arguments give equal sentences everywhere.

    They have 3 to 21 words, 8 or 9 on average, of 78 different ones.

    Args:
        depth: how many clauses may stand within each other.
    """
    rng = random.Random(seed)
    train, dev = ([list(_sentence(rng, depth)) for _ in range(count)] for count in (n_train, n_dev))
    return train, dev


def synthetic_parallel(n_train: int = 3000, n_dev: int = 300, seed: int = 1, depth: int = 1) -> tuple[Pairs, Pairs]:
    """Sentences and their translations, to train and to judge by; equal arguments give equal pairs everywhere.

    Args:
        depth: as of `synthetic_text`. With one clause they have up to 10 words, 6 on average.
    """
    train, dev = (
        [(sentence, translate(sentence)) for sentence in sentences]
        for sentences in synthetic_text(n_train, n_dev, seed, depth)
    )
    return train, dev


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


def _sentence(rng: random.Random, depth: int) -> Iterator[str]:
    plural = rng.random() < 0.5
    yield from _phrase(rng, plural, depth)
    yield _verb(rng, _VERBS, plural)
    if rng.random() < 0.4:
        yield pick(rng, _ADVERBS)


def _phrase(rng: random.Random, plural: bool, depth: int) -> Iterator[str]:
    yield pick(rng, DETERMINERS[plural])
    if rng.random() < 0.4:
        yield pick(rng, ADJECTIVES)
    noun = pick(rng, NOUNS)
    yield noun + "s" if plural else noun
    if not depth or rng.random() < 0.4:
        return
    other = rng.random() < 0.5
    if rng.random() < 0.5:
        yield pick(rng, _PREPOSITIONS)
        yield from _phrase(rng, other, depth - 1)
    else:
        yield "that"
        yield from _phrase(rng, other, depth - 1)
        yield _verb(rng, _TRANSITIVE, other)


def _verb(rng: random.Random, verbs: Sequence[str], plural: bool) -> str:
    verb = pick(rng, verbs)
    return verb if plural else verb + "s"
