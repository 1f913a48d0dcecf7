"""Maps words to indices, the rows of an embedding table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpps.data.treebank import Tree
from vpps.errors import DataError

UNK = "<unk>"
"""The word for all words outside the vocabulary; always index 0."""


class Vocabulary:
    """An ordered set of words; `words[0]` is `UNK`."""

    def __init__(self, words: Sequence[str]) -> None:
        """Restores a vocabulary from its `words`, which a checkpoint stores.

        Raises:
            DataError: `words` does not begin with `UNK`, or holds a word twice.
        """
        self.words = tuple(words)
        self._index = {word: index for index, word in enumerate(self.words)}
        if self.words[:1] != (UNK,):
            raise DataError(f"a vocabulary begins with {UNK!r}, but this one begins with {self.words[:1]}")
        if len(self._index) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"the word {twice!r} is in the vocabulary twice")

    @classmethod
    def from_sentences(cls, sentences: Iterable[Iterable[str]], min_count: int = 1) -> Vocabulary:
        """Collects the words that occur at least `min_count` times, most frequent first, ties in alphabetical order.

        With `min_count=1`, no training word maps to `UNK`, so its embedding is never trained. If unknown words matter,
        use 2 or more.
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        counts.pop(UNK, None)  # some corpora already contain it
        kept = (word for word, count in counts.items() if count >= min_count)
        return cls([UNK, *sorted(kept, key=lambda word: (-counts[word], word))])

    def __len__(self) -> int:
        """The number of words, including the unknown word."""
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        """Returns True if the word has its own index."""
        return word in self._index

    def __getitem__(self, word: str) -> int:
        """Returns the index of a word, or 0 if the word is unknown."""
        return self._index.get(word, 0)

    def encode(self, tree: Tree) -> Tree:
        """Returns a copy of the tree with `words` set."""
        words: NDArray[np.int32] = np.full(len(tree), -1, np.int32)
        words[np.diff(tree.offsets) == 0] = [self[token] for token in tree.tokens]
        return replace(tree, words=words)
