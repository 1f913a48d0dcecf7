"""Words to indices: the rows of an embedding table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpps.data.treebank import Tree
from vpps.errors import DataError

UNK = "<unk>"
"""Stands for every word that the vocabulary does not hold; always index 0."""


class Vocabulary:
    """An ordered set of words, `words[0]` being `UNK`."""

    def __init__(self, words: Sequence[str]) -> None:
        """A vocabulary from its own `words`, as a checkpoint keeps them.

        Raises:
            DataError: `words` does not begin with `UNK` or holds a word twice.
        """
        self.words = tuple(words)
        self._index = {word: index for index, word in enumerate(self.words)}
        if self.words[:1] != (UNK,):
            raise DataError(f"a vocabulary begins with {UNK!r}, this one with {self.words[:1]}")
        if len(self._index) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"the word {twice!r} is in the vocabulary twice")

    @classmethod
    def from_sentences(cls, sentences: Iterable[Iterable[str]], min_count: int = 1) -> Vocabulary:
        """The words that occur at least `min_count` times, frequent ones first, ties in alphabetical order.

        With `min_count=1` nothing that is trained on maps to `UNK`, so its embedding stays random: take 2 or more
        where unknown words matter.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        counts.pop(UNK, None)  # a corpus may be written with it already
        kept = (word for word, count in counts.items() if count >= min_count)
        return cls([UNK, *sorted(kept, key=lambda word: (-counts[word], word))])

    def __len__(self) -> int:
        """The number of words, the unknown one counted."""
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        """Whether the word has an index of its own."""
        return word in self._index

    def __getitem__(self, word: str) -> int:
        """The index of a word, 0 where it is unknown."""
        return self._index.get(word, 0)

    def encode(self, tree: Tree) -> Tree:
        """The same tree with `words` set."""
        words: NDArray[np.int32] = np.full(len(tree), -1, np.int32)
        words[np.diff(tree.offsets) == 0] = [self[token] for token in tree.tokens]
        return replace(tree, words=words)
