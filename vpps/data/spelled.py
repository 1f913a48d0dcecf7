"""Sentences whose rare words are spelled out: two sets of chains, of words and of characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.data.grapharrays import frozen
from vpps.data.graphbatch import GraphBatch
from vpps.data.graphset import GraphSet
from vpps.data.readers.names import Source, words_of
from vpps.data.readers.sentences import Token, chains, graphs_of_tagged, tagged_lines

if TYPE_CHECKING:
    from vpps.distributed import World

EDGE = "<*>"
"""The character before the first of a word and after the last."""

MIN_COUNT = 5  # VPPS paper, section IV-E
CHARACTER_MIN_COUNT = 2  # characters seen once train the embedding of unknown ones


class SpelledSentences:
    """Tagged sentences, and the spelling of every word that their vocabulary does not hold.

        for batch in train.batches(16):
            batch.sentences["word"], batch.spellings["character"]

    Attributes:
        sentences: chains of words; columns word, tag, and spelling: which of the spellings it is, -1 for words of the
            vocabulary.
        spellings: chains of characters, `EDGE` at both ends, one for every distinct rare word; column character.
            Number 0 is the empty word, so that there is one where all words are frequent.
    """

    def __init__(self, sentences: GraphSet, spellings: GraphSet) -> None:
        self.sentences, self.spellings = sentences, spellings

    @classmethod
    def of(
        cls,
        sentences: Sequence[Sequence[Token]],
        *,
        min_count: int | None = None,
        like: SpelledSentences | None = None,
        sources: Sequence[str] | None = None,
    ) -> SpelledSentences:
        """From pairs of word and tag.

        Args:
            min_count: words that occur less often are rare: they are spelled; by default 5; not beside `like`.
            like: take the vocabularies of words and characters and the tags from these.
            sources: names of the sentences for messages.

        Raises:
            DataError: there is no sentence, or a tag that `like` does not have.
        """
        like_sentences, like_spellings = (None, None) if like is None else (like.sentences, like.spellings)
        if like is None and min_count is None:
            min_count = MIN_COUNT
        tagged = graphs_of_tagged(sentences, min_count=min_count, like=like_sentences, sources=sources)
        vocabulary = tagged.vocabularies["word"]
        numbers: dict[str, int] = {"": 0}
        words = [word for sentence in sentences for word, _ in sentence]
        spelling = [-1 if word in vocabulary else numbers.setdefault(word, len(numbers)) for word in words]
        spelled = [[EDGE, *word, EDGE] for word in numbers]
        characters = words_of(spelled, "character", None, like_spellings, CHARACTER_MIN_COUNT)
        sizes = np.array([len(word) for word in spelled], np.int64)
        columns = {**tagged.arrays.columns, "spelling": frozen(np.array(spelling, np.int32))}
        arrays = replace(tagged.arrays, columns=columns)
        spellings = GraphSet(
            sizes, chains(sizes), kinds=("character",), vocabularies={"character": characters},
            columns={"character": [characters[character] for word in spelled for character in word]},
        )  # fmt: skip
        return cls(GraphSet.from_arrays(arrays, tagged.kinds, tagged.vocabularies, tagged.classes), spellings)

    @classmethod
    def read(
        cls, *paths: Source, min_count: int | None = None, like: SpelledSentences | None = None
    ) -> SpelledSentences:
        """Sentences of `word|TAG`, as `vpps.data.read_tagged` reads them; arguments and errors of both."""
        sources, sentences = tagged_lines(*paths)
        return cls.of(sentences, min_count=min_count, like=like, sources=sources)

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.sentences)

    def __repr__(self) -> str:
        return f"SpelledSentences({self.sentences!r}, {self.spellings!r})"

    def __getitem__(self, sentences: slice | ArrayLike) -> SpelledBatch:
        """Some of the sentences, with the spellings of their rare words."""
        return SpelledBatch(self.sentences[sentences], self.spellings)

    def subset(self, sentences: slice | ArrayLike) -> SpelledSentences:
        """Some of the sentences as a set of their own; see `GraphSet.subset`."""
        return SpelledSentences(self.sentences.subset(sentences), self.spellings)

    def batches(
        self, size: int, *, seed: int = 1, epoch: int = 0, shuffle: bool = True, world: World | None = None
    ) -> Iterator[SpelledBatch]:
        """Mini-batches, as `GraphSet.batches` makes them; divided by numbers of words."""
        for batch in self.sentences.batches(size, seed=seed, epoch=epoch, shuffle=shuffle, world=world):
            yield SpelledBatch(batch, self.spellings)


class SpelledBatch:
    """Some sentences, and the distinct rare words among theirs.

    Attributes:
        sentences: n words in all.
        all_spellings: of the set.
        whole: the number of sentences of the mini-batch that this may be a part of.
        n_vertices: the number of words.
        offsets: the words of sentence k are `offsets[k]:offsets[k + 1]`.
    """

    def __init__(self, sentences: GraphBatch, all_spellings: GraphSet) -> None:
        self.sentences, self.all_spellings = sentences, all_spellings
        self.whole, self.n_vertices, self.offsets = sentences.whole, sentences.n_vertices, sentences.offsets

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.sentences)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column of the words."""
        return self.sentences[column]

    @cached_property
    def rare(self) -> NDArray[np.bool_]:
        """(n,): which words are spelled."""
        rare: NDArray[np.bool_] = self["spelling"] >= 0
        return rare

    @cached_property
    def _distinct(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return np.unique(self["spelling"][self.rare], return_inverse=True)

    @cached_property
    def spellings(self) -> GraphBatch:
        """A chain of characters for each distinct rare word; none where all words are frequent.

        As sentences share them, their numbers are those that they have in the set, behind those of all sentences:
        whichever process spells a word drops the same of it.
        """
        found = self.all_spellings[self._distinct[0]]
        found.numbers = self.whole + found.indices
        return found

    @cached_property
    def spelling(self) -> NDArray[np.int64]:
        """(n,): which of `spellings` each rare word is; 0 for the others."""
        spelling = np.zeros(self.n_vertices, np.int64)
        spelling[self.rare] = self._distinct[1]
        return spelling
