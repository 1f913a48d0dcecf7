"""Tagged sentences made from rules: what a name names is told by the words before it and by those behind it.

Names themselves tell nothing, and may be several words long:

    title       NAME             mr arden vale            PER
                NAME  speech     arden vale said          PER
    place       NAME             near the old arden       LOC, but
                NAME  company    near the old arden inc   ORG, whatever precedes it

So a model needs both directions: the first word of a name may have its cue three words further right, or three to the
left. With `coined` there are also names that occur nowhere else, have no cue, and tell by their ending what they are:

    -ov -sen -escu PER           -burg -ville -wick LOC          -tec -soft -corp ORG
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from vpps.data.chance import pick

Token = tuple[str, str]
"""A word and its tag."""

LENGTHS = range(6, 25)

_NAMES = (
    "arden vale moreno lindal castor orly brandt halden merrow tavis quill sorrel denby marsh weller dorn fenwick "
    "galt harrow ives jarrow kestrel lorne maddox"
).split()
_TITLES, _SPEECH = "mr mrs president doctor judge".split(), "said told asked replied".split()
_PLACES, _COMPANIES = "in near from at around".split(), "inc ltd bank group".split()
_ADJECTIVES = "old new small famous former".split()
_FILLERS = (
    "a an and the of to was were is had has with after before this that it they she he on by for , ; - year game "
    "week house river film party match report season"
).split()
_ENDINGS = {"PER": ("ov", "sen", "escu"), "LOC": ("burg", "ville", "wick"), "ORG": ("tec", "soft", "corp")}
_SYLLABLES = "ba ke lo mi nu pra ste dri vo gu ha je zi fla tro ry".split()


def synthetic_sentences(
    n_train: int = 1500, n_dev: int = 300, seed: int = 1, *, coined: bool = False
) -> tuple[list[list[Token]], list[list[Token]]]:
    """Random tagged sentences to train on and to judge by; equal arguments give equal sentences everywhere.

    Tags are O and, in all words of a name, I-PER, I-LOC or I-ORG. Sentences have 6 to 31 words, 16 on average.

    Args:
        coined: a third of the names are made up.
    """
    rng = random.Random(seed)
    train, dev = ([_sentence(rng, coined) for _ in range(count)] for count in (n_train, n_dev))
    return train, dev


def _sentence(rng: random.Random, coined: bool) -> list[Token]:
    length = pick(rng, LENGTHS)
    tokens: list[Token] = []
    while len(tokens) < length:
        if rng.random() < 0.4:
            tokens += _name(rng, coined)
        tokens.append((pick(rng, _FILLERS), "O"))  # so that no two names are neighbours
    return tokens


def _name(rng: random.Random, coined: bool) -> list[Token]:
    """A name and its cue."""
    if coined and rng.random() < 1 / 3:
        kind = pick(rng, tuple(_ENDINGS))
        stem = "".join(pick(rng, _SYLLABLES) for _ in range(pick(rng, range(2, 5))))
        return [(stem + pick(rng, _ENDINGS[kind]), f"I-{kind}")]
    name = [pick(rng, _NAMES) for _ in range(pick(rng, range(1, 4)))]
    place = [pick(rng, _PLACES), *(("the", pick(rng, _ADJECTIVES)) if rng.random() < 0.5 else ())]
    cue = rng.random()
    if cue < 0.2:
        return _tagged([pick(rng, _TITLES)], name, "PER")
    if cue < 0.4:
        return _tagged([], name, "PER", [pick(rng, _SPEECH)])
    if cue < 0.7:
        return _tagged(place, name, "LOC")
    return _tagged(place if rng.random() < 0.5 else [], name, "ORG", [pick(rng, _COMPANIES)])


def _tagged(before: Sequence[str], name: Sequence[str], kind: str, behind: Sequence[str] = ()) -> list[Token]:
    return [(word, "O") for word in before] + [(word, f"I-{kind}") for word in name] + [(word, "O") for word in behind]
