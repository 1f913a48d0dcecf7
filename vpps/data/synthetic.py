"""A sentiment treebank made from rules: nothing to download, and yet only a model of the tree can learn it.

Every phrase has a value from -2 to 2, and its label is `value + 2`. Words have their own; a phrase gets its value
from its two parts:

    negator     X      -sign(X)          not (very good)              -1
    intensifier X      2 sign(X)         very good                     2
    diminisher  X      sign(X)           slightly terrible            -1
    X     (but Y)      Y                 dull (but (very funny))       2
    X           Y      X + Y, clipped    (good acting) (bad plot)      0

The same words in another bracketing may have another label, so that counting words does not suffice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np

from vpps.data.chance import pick
from vpps.data.treebank import Tree, Treebank

N_CLASSES = 5
LENGTHS = range(4, 25)

_WORDS = {
    -2: "terrible awful dreadful horrible atrocious abysmal worst unbearable disastrous hideous",
    -1: "bad dull weak boring clumsy flat silly tedious shallow stale bland messy tired lame predictable",
    1: "good funny charming clever fresh solid warm smart lively engaging pleasant touching bright sharp tender",
    2: "great brilliant wonderful superb masterful dazzling unforgettable best magnificent stunning",
    0: "the a this that its of in with and for film movie story plot acting script director cast scene ending "
    "camera music dialogue character actor comedy drama thriller sequel audience hour moment idea role screen "
    "is was has makes seems feels plays tells gives finds , . -- about again still two",
}
_MODIFIERS = {
    "negator": "not never hardly no without",
    "intensifier": "very really extremely truly utterly so",
    "diminisher": "slightly somewhat rather fairly mildly",
    "contrast": "but yet though",
}

_POLAR = [word for value, words in _WORDS.items() if value for word in words.split()]
_NEUTRAL = _WORDS[0].split()
_SCOPING = [word for role, words in _MODIFIERS.items() if role != "contrast" for word in words.split()]
_CONTRAST = _MODIFIERS["contrast"].split()

# What a phrase contributes to the phrase around it: its role and its value.
Meaning = tuple[str, int]
_LEXICON: dict[str, Meaning] = {
    **{word: ("phrase", value) for value, words in _WORDS.items() for word in words.split()},
    **{word: (role, 0) for role, words in _MODIFIERS.items() for word in words.split()},
}


def synthetic_treebank(n_train: int = 2000, n_dev: int = 400, seed: int = 1) -> Treebank:
    """Random labelled trees, binary, five classes; equal arguments give equal trees everywhere.

    The sentences have 4 to 24 words, 14 on average, of 121 different ones; SST has 8544 and 1101 trees of 19 words on
    average, of some 18000.
    """
    rng = random.Random(seed)
    return Treebank(*([compose_tree(_random_phrase(rng)) for _ in range(count)] for count in (n_train, n_dev)))


def synthetic_opinions(n_train: int = 2000, n_dev: int = 400, seed: int = 1) -> Treebank:
    """The same for models that are given no trees: here the brackets follow from the words.

    A negator, intensifier or diminisher always takes the one word behind it; values are then added from left to right:
    `(((the (not funny)) (very dull)) plot)`. The sentences have 2 to 12 words.
    """
    rng = random.Random(seed)
    return Treebank(*([compose_tree(_plain_sentence(rng)) for _ in range(count)] for count in (n_train, n_dev)))


def _compose(left: Meaning, right: Meaning) -> Meaning:
    """The rules of the module's docstring."""
    (role, value), (right_role, right_value) = left, right
    sign = (right_value > 0) - (right_value < 0)
    match role, right_role:
        case "negator", _:
            return "phrase", -sign
        case "intensifier", _:
            return "phrase", 2 * sign
        case "diminisher", _:
            return "phrase", sign
        case "contrast", _:
            return "contrasting phrase", right_value
        case _, "contrasting phrase":
            return "phrase", right_value
        case _:
            return "phrase", max(-2, min(2, value + right_value))


def _random_phrase(rng: random.Random) -> Iterator[str | None]:
    """A phrase as `compose_tree` takes it."""

    pending: list[int | str | None] = [pick(rng, LENGTHS)]  # the top comes first; a number is a phrase of so many words
    while pending:
        item = pending.pop()
        if not isinstance(item, int):
            yield item
        elif item == 1:
            yield pick(rng, _POLAR if rng.random() < 0.45 else _NEUTRAL)
        elif rng.random() < 0.3:
            pending += [None, item - 1, pick(rng, _SCOPING)]
        elif item >= 4 and rng.random() < 0.15:
            before = pick(rng, range(1, item - 2))
            pending += [None, None, item - 1 - before, pick(rng, _CONTRAST), before]
        else:
            left = pick(rng, range(1, item))
            pending += [None, item - left, left]


def _plain_sentence(rng: random.Random) -> Iterator[str | None]:
    """A sentence of `synthetic_opinions` as `compose_tree` takes it."""
    for k in range(pick(rng, range(2, 7))):
        modified = rng.random() < 0.4
        if modified:
            yield pick(rng, _SCOPING)
        yield pick(rng, _POLAR if modified or rng.random() < 0.3 else _NEUTRAL)
        if modified:
            yield None
        if k:
            yield None


def compose_tree(post_order: Iterable[str | None]) -> Tree:
    """The tree of a phrase in reverse Polish notation, labelled by the rules.

    Args:
        post_order: words of this language, and None where the last two phrases become one.
    """
    labels: list[int] = []
    tokens: list[str] = []
    offsets = [0]
    children: list[int] = []
    orphans: list[tuple[int, Meaning]] = []  # finished nodes that have no parent yet: node number and meaning
    for word in post_order:
        if word is None:
            (left, left_meaning), (right, right_meaning) = orphans[-2:]
            del orphans[-2:]
            children += [left, right]
            meaning = _compose(left_meaning, right_meaning)
        else:
            tokens.append(word)
            meaning = _LEXICON[word]
        orphans.append((len(labels), meaning))
        labels.append(meaning[1] + 2)
        offsets.append(len(children))
    return Tree(np.array(labels, np.int32), np.array(offsets, np.int32), np.array(children, np.int32), tuple(tokens))
