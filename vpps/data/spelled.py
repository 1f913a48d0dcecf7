"""Sentences with spelled-out rare words: one set of word chains and one set of character chains."""

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
"""The mark before the first and after the last character of a word."""

MIN_COUNT = 5  # VPPS paper, section IV-E
CHARACTER_MIN_COUNT = 2  # characters seen once train the embedding of unknown characters


class SpelledSentences:
    """Tagged sentences, and the spelling of every word outside their vocabulary.

        for batch in train.batches(16):
            batch.sentences["word"], batch.spellings["character"]

    Attributes:
        sentences: chains of words with the columns word, tag and spelling. Column spelling holds the number of a rare
            word's spelling, or -1 for words in the vocabulary.
        spellings: one chain per distinct rare word; column character holds `EDGE`, its characters, `EDGE`. Chain 0
            is the empty word, so the set is not empty even if all words are frequent.
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
        """Creates sentences from pairs of word and tag.

        Args:
            min_count: words that occur less often get a spelling; the default is 5. Not allowed with `like`.
            like: take the vocabularies of words and characters, and the tags, from these sentences.
            sources: names of the sentences in error messages.

        Raises:
            DataError: there is no sentence, or `like` lacks a tag.
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
        """Reads sentences of `word|TAG`; see `vpps.data.read_tagged` and `of` for arguments and errors."""
        sources, sentences = tagged_lines(*paths)
        return cls.of(sentences, min_count=min_count, like=like, sources=sources)

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.sentences)

    def __repr__(self) -> str:
        return f"SpelledSentences({self.sentences!r}, {self.spellings!r})"

    def __getitem__(self, sentences: slice | ArrayLike) -> SpelledBatch:
        """Selects some of the sentences as a batch, with the spellings of their rare words."""
        return SpelledBatch(self.sentences[sentences], self.spellings)

    def subset(self, sentences: slice | ArrayLike) -> SpelledSentences:
        """Returns some of the sentences as a new set; see `GraphSet.subset`."""
        return SpelledSentences(self.sentences.subset(sentences), self.spellings)

    def batches(
        self, size: int, *, seed: int = 1, epoch: int = 0, shuffle: bool = True, world: World | None = None
    ) -> Iterator[SpelledBatch]:
        """Yields mini-batches; see `GraphSet.batches`. Shards have similar numbers of words."""
        for batch in self.sentences.batches(size, seed=seed, epoch=epoch, shuffle=shuffle, world=world):
            yield SpelledBatch(batch, self.spellings)


class SpelledBatch:
    """Some sentences and the spellings of their rare words.

    Attributes:
        sentences: the chains of words; n words in all.
        all_spellings: the spellings of the whole set.
        whole: number of sentences in the whole mini-batch; this batch may be a shard of it.
        n_vertices: number of words.
        offsets: the words of sentence k are `offsets[k]:offsets[k + 1]`.
    """

    def __init__(self, sentences: GraphBatch, all_spellings: GraphSet) -> None:
        self.sentences, self.all_spellings = sentences, all_spellings
        self.whole, self.n_vertices, self.offsets = sentences.whole, sentences.n_vertices, sentences.offsets

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.sentences)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns a column of `sentences`."""
        return self.sentences[column]

    @cached_property
    def rare(self) -> NDArray[np.bool_]:
        """bool[n]: True for words with a spelling."""
        rare: NDArray[np.bool_] = self["spelling"] >= 0
        return rare

    @cached_property
    def _distinct(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return np.unique(self["spelling"][self.rare], return_inverse=True)

    @cached_property
    def spellings(self) -> GraphBatch:
        """A chain of characters for each distinct rare word; empty if all words are frequent.

        Sentences share spellings, so a spelling has the same example number in every shard: its number in the set plus
        the mini-batch's number of sentences. Every process therefore draws the same dropout mask for a word.
        """
        found = self.all_spellings[self._distinct[0]]
        found.numbers = self.whole + found.indices
        return found

    @cached_property
    def spelling(self) -> NDArray[np.int64]:
        """int64[n]: each rare word's index in `spellings`; 0 for other words."""
        spelling = np.zeros(self.n_vertices, np.int64)
        spelling[self.rare] = self._distinct[1]
        return spelling
