"""Scores of taggers: accuracy of tags, and F1 of the entities that tags such as B-PER, I-PER and O mark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_MARK = re.compile(r"([BIMESLU])-(.+)")  # beginning, inside = middle, end = last, single = unit
_BEGINS, _ENDS = frozenset("BSU"), frozenset("ESLU")

Tagged = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]
"""Concatenated sentences: (offsets of the sentences (n + 1,), correct tags, predicted tags)."""


class Spans:
    """Entities in tag sequences that use the scheme IO, BIO (IOB2), IOB1, BMES or BIOES.

    As in conlleval (Tjong Kim Sang & De Meulder 2003), an entity is a maximal run of tags of one type in a sentence. A
    run also ends before B (S, U) and after E (L, S, U). Sequences that violate their scheme mark entities, too.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Store the tags' `names`, by index. `are_spans(names)` must be True: all but O are a mark and a type."""
        marks = [_MARK.fullmatch(name) for name in names]
        types = sorted({mark[2] for mark in marks if mark})
        self._type = np.array([types.index(mark[2]) if mark else -1 for mark in marks])
        self._begins = np.array([mark is not None and mark[1] in _BEGINS for mark in marks])
        self._ends = np.array([mark is not None and mark[1] in _ENDS for mark in marks])

    def of(self, tags: NDArray[np.integer], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sorted entities, (entities, 3): first word, end (exclusive) and index of the type.

        Args:
            tags: tags of all concatenated sentences, (words,).
            offsets: (sentences + 1,); the words of sentence k are `offsets[k]:offsets[k + 1]`.
        """
        types = self._type[tags]
        apart = np.ones(len(tags) + 1, bool)  # True if no entity spans this word and the previous one
        apart[1:-1] = (types[1:] != types[:-1]) | self._begins[tags[1:]] | self._ends[tags[:-1]]
        apart[offsets] = True
        first = np.flatnonzero(apart[:-1] & (types >= 0))
        behind = np.flatnonzero(apart[1:] & (types >= 0)) + 1
        return np.stack([first, behind, types[first]], axis=1)


def are_spans(names: Sequence[str]) -> bool:
    """Return True if tags mark entities: one is O, and all others look like B-PER."""
    return "O" in names and len(names) > 1 and all(name == "O" or _MARK.fullmatch(name) for name in names)


def tag_scores(results: Iterable[Tagged], names: Sequence[str]) -> dict[str, float]:
    """Return `dev accuracy` of tags and, if tags mark entities, `dev entity F1`.

    F1 is micro-averaged over all entities. An entity is found if its first word, last word and type are correct. F1 is
    0 if no entity is found.

    Args:
        names: names of the tags, by index.
    """
    spans = Spans(names) if are_spans(names) else None
    n = right = found = expected = common = 0
    for offsets, tags, predicted in results:
        n += len(tags)
        right += int((tags == predicted).sum())
        if spans is not None:
            ours, theirs = spans.of(predicted, offsets), spans.of(tags, offsets)
            found += len(ours)
            expected += len(theirs)
            common += len(set(map(tuple, ours.tolist())) & set(map(tuple, theirs.tolist())))
    scores = {"dev accuracy": right / n}
    if spans is None:
        return scores
    return {"dev entity F1": 2 * common / max(1, found + expected)} | scores
