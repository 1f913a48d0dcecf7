"""Generates data sets from rules: they need no download, and only a suitable network can learn each set.

| generator             | an example                           | a network must use                                 |
| --------------------- | ------------------------------------ | -------------------------------------------------- |
| `synthetic_treebank`  | a tree with labels                   | the tree: labels depend on the brackets            |
| `synthetic_opinions`  | a tree that its words determine      | the order of words                                 |
| `synthetic_sentences` | words and their tags                 | both directions; spelling, if names are coined     |
| `synthetic_text`      | a sentence                           | a memory: verbs agree with distant subjects        |
| `synthetic_parallel`  | a sentence and its translation       | the whole sentence                                 |
| `synthetic_lattices`  | a lattice of characters and words    | edges between words and characters                 |
| `tournaments`         | a complete tree with one label       | the tree up to its root                            |

The same arguments give the same data on every machine and with every Python version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vpps.data.graphset import GraphSet
from vpps.data.readers.lattice import Lattices
from vpps.data.readers.sentences import Token
from vpps.data.readers.trees import KINDS
from vpps.data.treebank import Treebank, parse_tree
from vpps.data.vocabulary import UNK, Vocabulary
from vpps.errors import DataError

T = TypeVar("T")


def pick(rng: random.Random, choices: Sequence[T]) -> T:
    """Returns one of the choices, each equally likely."""
    # Python guarantees the same numbers in all versions only for Random.random().
    return choices[int(rng.random() * len(choices))]


def _draw(one: Callable[[random.Random], T], n_train: int, n_dev: int, seed: int) -> tuple[list[T], list[T]]:
    """Draws a training set and a development set."""
    rng = random.Random(seed)
    train, dev = ([one(rng) for _ in range(count)] for count in (n_train, n_dev))
    return train, dev


# Trees: every phrase has a value from -2 to 2; its label is the value + 2. Words have fixed values. A longer phrase's
# value follows from its two parts:
#
#     negator     X      -sign(X)          not (very good)              -1
#     intensifier X      2 sign(X)         very good                     2
#     diminisher  X      sign(X)           slightly terrible            -1
#     X     (but Y)      Y                 dull (but (very funny))       2
#     X           Y      X + Y, clipped    (good acting) (bad plot)      0

N_CLASSES = 5
TREE_LENGTHS = range(4, 25)

_WORDS = {
    -2: "terrible awful dreadful horrible atrocious abysmal worst unbearable disastrous hideous",
    -1: "bad dull weak boring clumsy flat silly tedious shallow stale bland messy tired lame predictable",
    1: "good funny charming clever fresh solid warm smart lively engaging pleasant touching bright sharp tender",
    2: "great brilliant wonderful superb masterful dazzling unforgettable best magnificent stunning",
    0: "the a this that its of in with and for film movie story plot acting script director cast scene ending "
    "camera music dialogue character actor comedy drama thriller sequel audience hour moment idea role screen "
    "is was has makes seems feels plays tells gives finds , . -- about again still two",
}
_SCOPES = {
    "not never hardly no without": -1,
    "very really extremely truly utterly so": 2,
    "slightly somewhat rather fairly mildly": 1,
}
_VALUES = {word: value for value, words in _WORDS.items() for word in words.split()}
_FACTORS = {word: factor for words, factor in _SCOPES.items() for word in words.split()}
_POLAR, _NEUTRAL = [word for word, value in _VALUES.items() if value], _WORDS[0].split()
SCOPING, _CONTRAST = [*_FACTORS], "but yet though".split()

Phrase = tuple[str, int, str]
"""A bracketed tree, its value, and its effect on the enclosing phrase: its only word, "contrast" or an empty string."""


def word_phrase(word: str) -> Phrase:
    """Returns a phrase of one word."""
    value = _VALUES.get(word, 0)
    return f"({value + 2} {word})", value, "" if word in _VALUES else word


def compose(left: Phrase, right: Phrase) -> Phrase:
    """Combines two phrases by the rules above."""
    (before, value, role), (behind, right_value, right_role) = left, right
    if role in _FACTORS:
        value = _FACTORS[role] * ((right_value > 0) - (right_value < 0))
    elif role in _CONTRAST or right_role == "contrast":
        value = right_value
    else:
        value = max(-2, min(2, value + right_value))
    return f"({value + 2} {before} {behind})", value, "contrast" * (role in _CONTRAST)


def synthetic_treebank(n_train: int = 2000, n_dev: int = 400, seed: int = 1) -> Treebank:
    """Generates random binary trees with labels of five classes; the arguments fully determine them.

    The sentences have 4 to 24 words, 14 on average, from a vocabulary of 121. For comparison, SST has 8544 and 1101
    trees of 19 words on average, from a vocabulary of about 18000.
    """
    return Treebank(*_draw(lambda rng: parse_tree(_phrase(rng, pick(rng, TREE_LENGTHS))[0]), n_train, n_dev, seed))


def synthetic_opinions(n_train: int = 2000, n_dev: int = 400, seed: int = 1) -> Treebank:
    """Generates trees like `synthetic_treebank`, but the words determine the brackets, for models that see no trees.

    A negator, intensifier or diminisher applies only to the next word. Values are then added from left to
    right: `(((the (not funny)) (very dull)) plot)`. The sentences have 2 to 12 words.
    """

    def one(rng: random.Random) -> Phrase:
        return reduce(compose, (_unit(rng) for _ in range(pick(rng, range(2, 7)))))

    return Treebank(*_draw(lambda rng: parse_tree(one(rng)[0]), n_train, n_dev, seed))


def _phrase(rng: random.Random, length: int) -> Phrase:
    """Draws a phrase of `length` words."""
    if length == 1:
        return word_phrase(pick(rng, _POLAR if rng.random() < 0.45 else _NEUTRAL))
    if rng.random() < 0.3:
        return compose(word_phrase(pick(rng, SCOPING)), _phrase(rng, length - 1))
    if length >= 4 and rng.random() < 0.15:
        before = pick(rng, range(1, length - 2))
        but = word_phrase(pick(rng, _CONTRAST))
        return compose(_phrase(rng, before), compose(but, _phrase(rng, length - 1 - before)))
    left = pick(rng, range(1, length))
    return compose(_phrase(rng, left), _phrase(rng, length - left))


def _unit(rng: random.Random) -> Phrase:
    """Draws one word, or a scoping word and the word that it applies to."""
    if rng.random() < 0.4:
        return compose(word_phrase(pick(rng, SCOPING)), word_phrase(pick(rng, _POLAR)))
    return word_phrase(pick(rng, _POLAR if rng.random() < 0.3 else _NEUTRAL))


# Tags: a name may be several words long. The name itself carries no information; the words around it give its type.
#
#     title       NAME             mr arden vale            PER
#                 NAME  speech     arden vale said          PER
#     place       NAME             near the old arden       LOC, but
#                 NAME  company    near the old arden inc   ORG, whatever precedes it
#
# So the cue for the first word of a name may be three words to its right, or three words to its left. A coined name
# occurs only once and has no cue; its ending gives its type.

NAMES = (
    "arden vale moreno lindal castor orly brandt halden merrow tavis quill sorrel denby marsh weller dorn fenwick "
    "galt harrow ives jarrow kestrel lorne maddox"
).split()
TITLES, SPEECH = "mr mrs president doctor judge".split(), "said told asked replied".split()
PLACES, COMPANIES = "in near from at around".split(), "inc ltd bank group".split()
_PLACE_ADJECTIVES = "old new small famous former".split()
_FILLERS = (
    "a an and the of to was were is had has with after before this that it they she he on by for , ; - year game "
    "week house river film party match report season"
).split()
ENDINGS = {"PER": ("ov", "sen", "escu"), "LOC": ("burg", "ville", "wick"), "ORG": ("tec", "soft", "corp")}
_SYLLABLES = "ba ke lo mi nu pra ste dri vo gu ha je zi fla tro ry".split()


def synthetic_sentences(
    n_train: int = 1500, n_dev: int = 300, seed: int = 1, *, coined: bool = False
) -> tuple[list[list[Token]], list[list[Token]]]:
    """Generates random tagged sentences for training and development; the arguments fully determine them.

    Words of a name have the tag I-PER, I-LOC or I-ORG, other words O. Sentences have 6 to 31 words, 16 on average.

    Args:
        coined: replace a third of the names with invented words.
    """
    return _draw(lambda rng: _tagged_sentence(rng, coined), n_train, n_dev, seed)


def _tagged_sentence(rng: random.Random, coined: bool) -> list[Token]:
    length = pick(rng, range(6, 25))
    tokens: list[Token] = []
    while len(tokens) < length:
        if rng.random() < 0.4:
            before, name, kind, behind = _coined(rng) if coined and rng.random() < 1 / 3 else _name(rng)
            tags = ["O"] * len(before) + [f"I-{kind}"] * len(name) + ["O"] * len(behind)
            tokens += zip([*before, *name, *behind], tags, strict=True)
        tokens.append((pick(rng, _FILLERS), "O"))  # keeps names apart
    return tokens


Name = tuple[Sequence[str], Sequence[str], str, Sequence[str]]
"""A name: the words before it, its own words, its type, the words after it."""


def _coined(rng: random.Random) -> Name:
    kind = pick(rng, tuple(ENDINGS))
    stem = "".join(pick(rng, _SYLLABLES) for _ in range(pick(rng, range(2, 5))))
    return [], [stem + pick(rng, ENDINGS[kind])], kind, []


def _name(rng: random.Random) -> Name:
    name = [pick(rng, NAMES) for _ in range(pick(rng, range(1, 4)))]
    place = [pick(rng, PLACES), *(("the", pick(rng, _PLACE_ADJECTIVES)) if rng.random() < 0.5 else ())]
    cue = rng.random()
    if cue < 0.2:
        return [pick(rng, TITLES)], name, "PER", []
    if cue < 0.4:
        return [], name, "PER", [pick(rng, SPEECH)]
    if cue < 0.7:
        return place, name, "LOC", []
    return place if rng.random() < 0.5 else [], name, "ORG", [pick(rng, COMPANIES)]


# Text and translation.
#
#     sentence  ->  phrase VERB [adverb]
#     phrase    ->  determiner [adjective] NOUN [clause]
#     clause    ->  preposition phrase  |  that phrase VERB
#
# A verb agrees in number with its subject, and a noun with its determiner. Any number of phrases may stand between verb
# and subject: "every author near the critics that this actor admires sleeps quietly". The verb at the end of a clause
# belongs to the phrase inside that clause, so clauses nest like brackets.
#
# The other language reverses the word order, so a translation begins with the word that was read last. Nouns have a
# gender; determiners and adjectives agree with it: "this old author", "this old critic" are "rohtuao dloo siho" and
# "citirca dloa siha". Plurals end in -i or -e. Stems are English words spelled backwards, so a person can check them.

DETERMINERS = ("this every a one".split(), "these all some many".split())
NOUNS = "author critic actor pilot baker doctor lawyer painter singer farmer teacher sailor".split()
VERBS = "sleep laugh wait sing run smile arrive listen".split()
TRANSITIVE = "admire know help see follow trust".split()
_ADJECTIVES = "old young tall quiet clever famous happy tired".split()
_PREPOSITIONS = "near behind beside with".split()
ADVERBS = "quietly often again slowly today".split()
_NOUN_ENDINGS = {(False, 0): "o", (False, 1): "a", (True, 0): "i", (True, 1): "e"}  # by plural and gender


def synthetic_text(
    n_train: int = 2000, n_dev: int = 400, seed: int = 1, depth: int = 3
) -> tuple[list[list[str]], list[list[str]]]:
    """Generates random sentences for training and development; the arguments fully determine them.

    They have 3 to 21 words, 8 or 9 on average, from a vocabulary of 78.

    Args:
        depth: largest nesting depth of clauses.
    """
    return _draw(lambda rng: list(_sentence(rng, depth)), n_train, n_dev, seed)


Pairs = list[tuple[list[str], list[str]]]


def synthetic_parallel(n_train: int = 3000, n_dev: int = 300, seed: int = 1, depth: int = 1) -> tuple[Pairs, Pairs]:
    """Generates sentences and translations for training and development; the arguments fully determine them.

    Args:
        depth: see `synthetic_text`. At depth 1, the sentences have up to 10 words, 6 on average.
    """
    train, dev = synthetic_text(n_train, n_dev, seed, depth)
    return [(words, translate(words)) for words in train], [(words, translate(words)) for words in dev]


def translate(sentence: Iterable[str]) -> list[str]:
    """Translates a sentence of `synthetic_text`."""
    translation: list[str] = []
    ending = ""  # the latest noun's: in reverse order, a noun precedes its adjective and determiner
    for word in reversed(list(sentence)):
        singular = word.removesuffix("s")
        if singular in NOUNS:
            ending = _NOUN_ENDINGS[singular != word, NOUNS.index(singular) % 2]
            translation.append(singular[::-1] + ending)
        else:
            agrees = word in _ADJECTIVES or any(word in determiners for determiners in DETERMINERS)
            translation.append(word[::-1] + ending * agrees)
    return translation


def _sentence(rng: random.Random, depth: int) -> Iterator[str]:
    plural = rng.random() < 0.5
    yield from _noun_phrase(rng, plural, depth)
    yield pick(rng, VERBS) + "s" * (not plural)
    if rng.random() < 0.4:
        yield pick(rng, ADVERBS)


def _noun_phrase(rng: random.Random, plural: bool, depth: int) -> Iterator[str]:
    yield pick(rng, DETERMINERS[plural])
    if rng.random() < 0.4:
        yield pick(rng, _ADJECTIVES)
    yield pick(rng, NOUNS) + "s" * plural
    if not depth or rng.random() < 0.4:
        return
    other, is_attribute = rng.random() < 0.5, rng.random() < 0.5
    yield pick(rng, _PREPOSITIONS) if is_attribute else "that"
    yield from _noun_phrase(rng, other, depth - 1)
    if not is_attribute:
        yield pick(rng, TRANSITIVE) + "s" * (not other)


# Lattices: an invented language has a lexicon of two- to four-character words. Each word has one of three
# categories, which its spelling does not reveal. Some characters are marks. A sentence is a sequence of words and
# single characters; its lattice contains every lexicon word in it, even accidental ones. The tag of a character is
#
#     0                                   if no word ends there
#     1 + category of the word            if the longest word that ends there does not follow a mark
#     1 + (category + 1) modulo 3         if it follows a mark
#
# So a tag depends on the words that end at its character, and on the character before the longest of these words.
# Lattice edges carry this information past the characters in between.

N_TAGS = 4
_ALPHABET, _MARKS = "abcdefghijklmnopqrstuvwx", "vwx"


def synthetic_lattices(n_train: int = 1500, n_dev: int = 300, seed: int = 1) -> tuple[GraphSet, GraphSet]:
    """Generates training and development sets like those of `read_lattices`; the arguments fully determine them.

    The sentences have 8 to 32 characters, 20 on average; Weibo has 1147 and 113 sentences of 44 characters on average.
    """
    rng = random.Random(seed)
    lexicon: dict[str, int] = {}  # words and their categories
    while len(lexicon) < 150:
        word = "".join(pick(rng, _ALPHABET) for _ in range(pick(rng, range(2, 5))))
        lexicon.setdefault(word, pick(rng, range(N_TAGS - 1)))
    words = [*lexicon]
    vocabularies = {"character": Vocabulary([UNK, *_ALPHABET]), "word": Vocabulary([UNK, *lexicon])}

    def sentence() -> str:
        length, text = pick(rng, range(8, 33)), ""
        while len(text) < length:
            text += pick(rng, words if rng.random() < 0.4 else _ALPHABET)
        return text[:length]

    def graphs(count: int) -> GraphSet:
        lattices = Lattices()
        for number in range(count):
            text, of_position = sentence(), [-1]
            for end, found in enumerate(longest_words(text, lexicon), start=1):
                ending = [(end - len(word), vocabularies["word"][word]) for word in found]
                character = vocabularies["character"][text[end - 1]]
                lattices.position(of_position, ending, character, tag_of(text, end, found, lexicon))
            lattices.end(f"sentence {number}")
        return lattices.graphs(vocabularies)

    return graphs(n_train), graphs(n_dev)


def longest_words(sentence: str, lexicon: Mapping[str, int]) -> list[list[str]]:
    """Returns the words that end at each character, longest first."""
    longest = max(map(len, lexicon))
    return [
        [sentence[start:end] for start in range(max(0, end - longest), end - 1) if sentence[start:end] in lexicon]
        for end in range(1, len(sentence) + 1)
    ]


def tag_of(sentence: str, end: int, words: list[str], lexicon: Mapping[str, int]) -> int:
    """Returns the tag of the character before `end`, given the words that end there."""
    if not words:
        return 0
    start = end - len(words[0])
    marked = start > 0 and sentence[start - 1] in _MARKS
    return 1 + (lexicon[words[0]] + marked) % (N_TAGS - 1)


# Tournaments: every word plays rock, paper or scissors (its number modulo 3: 0, 1, 2). Neighbours play each other, then
# the winners play each other, and so on up to the root: paper beats rock, scissors beat paper, rock beats scissors, and
# a tie changes nothing. The winner at the root is the label. A different word order may have a different winner.

PLAYS = ("rock", "paper", "scissors")


def tournaments(n_trees: int, leaves: int, *, n_words: int = 30, seed: int = 1) -> GraphSet:
    """Generates random complete trees; the arguments fully determine them.

    Args:
        n_trees: number of trees.
        leaves: leaves per tree, a power of two, at least 2.
        n_words: number of words; words are numbered 0 to n_words - 1.

    Returns:
        A set with the kinds leaf and inner, a vertex column `word` (-1 at inner vertices) and a graph column `label`.
        The vertices of a tree are its leaves from left to right, then each level, the root last.

    Raises:
        DataError: `leaves` is not such a power of two, a number is below 1, or there would be 2**31 vertices or more.
    """
    if leaves < 2 or leaves & (leaves - 1):
        raise DataError(f"a complete binary tree has 2, 4, 8, ... leaves, not {leaves}")
    if n_trees < 1 or n_words < 1:
        raise DataError(f"{n_trees} trees of {n_words} words: both need at least 1")
    size = 2 * leaves - 1
    if n_trees * size >= 2**31:
        raise DataError(f"{n_trees} trees of {leaves} leaves: expected fewer than 2**31 vertices in all")
    words = np.random.default_rng(seed).integers(0, n_words, (n_trees, leaves))
    # The children of vertex i of a level are vertices 2 i and 2 i + 1 of the level below. Numbers continue from level
    # to level, so the children of vertex `leaves` + j are vertices 2 j and 2 j + 1.
    children = np.full((size, 2), -1)
    children[leaves:] = np.arange(2 * leaves - 2).reshape(-1, 2)
    column = np.full((n_trees, size), -1, np.int32)
    column[:, :leaves] = words
    label: NDArray[np.int64] = words % len(PLAYS)
    while label.shape[1] > 1:
        left, right = label[:, ::2], label[:, 1::2]
        label = np.where((right - left) % len(PLAYS) == 1, right, left)
    return GraphSet(
        [size] * n_trees, np.tile(children, (n_trees, 1)), kind=np.tile(np.arange(size) >= leaves, n_trees),
        kinds=KINDS, columns={"word": column.reshape(-1)}, graph_columns={"label": label[:, 0]},
        classes={"label": PLAYS},
    )  # fmt: skip
