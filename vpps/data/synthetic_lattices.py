"""Sentences of an invented language as character-word lattices: nothing to download, made for networks over lattices.

The language has a lexicon of words of two to four characters, each of one of three categories that its spelling does
not tell, and some of its characters are marks. A sentence is a line of words and single characters. The lattice has
every word of the lexicon that can be read in it, also by accident. A character's tag is

    0                                   where no word ends
    1 + category of the word            where the longest word that ends here does not follow a mark
    1 + (category + 1) modulo 3         where it does

So a tag depends on which words end at a character, and on the character before the longest of them, which is what the
edges of a lattice carry past the characters in between.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from vpps.data.chance import pick
from vpps.data.graphset import GraphSet
from vpps.data.readers.lattice import Lattices
from vpps.data.vocabulary import UNK, Vocabulary

N_TAGS = 4
ALPHABET = "abcdefghijklmnopqrstuvwx"
MARKS = "vwx"
N_WORDS = 150
LENGTHS = range(8, 33)


def synthetic_lattices(n_train: int = 1500, n_dev: int = 300, seed: int = 1) -> tuple[GraphSet, GraphSet]:
    """Train and dev set in the form of `read_lattices`; equal arguments give equal lattices everywhere.

    The sentences have 8 to 32 characters, 20 on average; Weibo has 1147 and 113 sentences of 44 on average.
    """
    rng = random.Random(seed)
    lexicon = _lexicon(rng)
    vocabularies = {"character": Vocabulary([UNK, *ALPHABET]), "word": Vocabulary([UNK, *lexicon])}
    train, dev = (
        _set_of([_sentence(rng, list(lexicon)) for _ in range(n)], lexicon, vocabularies) for n in (n_train, n_dev)
    )
    return train, dev


def longest_words(sentence: str, lexicon: Mapping[str, int]) -> list[list[str]]:
    """The words that end at each character, the longest one first."""
    longest = max(map(len, lexicon))
    return [
        [sentence[start:end] for start in range(max(0, end - longest), end - 1) if sentence[start:end] in lexicon]
        for end in range(1, len(sentence) + 1)
    ]


def tag_of(sentence: str, end: int, words: list[str], lexicon: Mapping[str, int]) -> int:
    """The tag of the character before `end`, at which these words end."""
    if not words:
        return 0
    start = end - len(words[0])
    marked = start > 0 and sentence[start - 1] in MARKS
    return 1 + (lexicon[words[0]] + marked) % (N_TAGS - 1)


def _lexicon(rng: random.Random) -> dict[str, int]:
    """Words and their categories."""
    lexicon: dict[str, int] = {}
    while len(lexicon) < N_WORDS:
        word = "".join(pick(rng, ALPHABET) for _ in range(pick(rng, range(2, 5))))
        lexicon.setdefault(word, pick(rng, range(N_TAGS - 1)))
    return lexicon


def _sentence(rng: random.Random, words: list[str]) -> str:
    length, sentence = pick(rng, LENGTHS), ""
    while len(sentence) < length:
        sentence += pick(rng, words if rng.random() < 0.4 else ALPHABET)
    return sentence[:length]


def _set_of(sentences: list[str], lexicon: Mapping[str, int], vocabularies: Mapping[str, Vocabulary]) -> GraphSet:
    lattices = Lattices()
    for number, sentence in enumerate(sentences):
        of_position = [-1]
        for end, words in enumerate(longest_words(sentence, lexicon), start=1):
            ending = [(end - len(word), vocabularies["word"][word]) for word in words]
            character = vocabularies["character"][sentence[end - 1]]
            lattices.position(of_position, ending, character, tag_of(sentence, end, words, lexicon))
        lattices.end(f"sentence {number}")
    return lattices.graphs(vocabularies)
