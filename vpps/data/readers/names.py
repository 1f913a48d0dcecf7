"""What readers share: words and labels to numbers, lists of children to a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from vpps.data.graphset import GraphSet
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError

SMALL_TABLE = 1 << 24
"""Entries that a table of children may always have."""
SPARSE = 64
"""A larger one may have so many times the vertices and edges, which is what lists take."""

Source = str | PathLike[str]


def words_of(sentences: Iterable[Iterable[str]], column: str, min_count: int, like: GraphSet | None) -> Vocabulary:
    """The vocabulary of `like`, or one of the sentences' own.

    Raises:
        DataError: `like` has none for this column.
    """
    if like is None:
        return Vocabulary.from_sentences(sentences, min_count)
    if column not in like.vocabularies:
        raise DataError(f"{like.path or 'the set to be like'} has no vocabulary for {column!r}: {like.column_names()}")
    return like.vocabularies[column]


def classes_of(
    labels: Sequence[str], where: Sequence[str], column: str, like: GraphSet | None
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Numbers for labels, and the names by number: those of `like`, or in alphabetical order.

    Args:
        where: the file and line of every label.

    Raises:
        DataError: `like` does not know a label, or has no classes for this column.
    """
    if like is None:
        names = tuple(sorted(set(labels)))
    elif column in like.classes:
        names = like.classes[column]
    else:
        raise DataError(f"{like.path or 'the set to be like'} has no classes for {column!r}: {like.column_names()}")
    numbers = {name: number for number, name in enumerate(names)}
    found = [numbers.get(label, -1) for label in labels]
    if -1 in found:
        first = found.index(-1)
        raise DataError(
            f"{where[first]}: unknown {column} {labels[first]!r}: the known ones are {', '.join(names)}, those of the "
            "training data; have an example of every one there"
        )
    return np.array(found, np.int32), names


def table_of(
    counts: NDArray[np.int64], children: NDArray[np.int32], arity: int, sources: Sequence[str], sizes: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Lists of children as a table of `arity` columns, filled up with -1.

    Raises:
        DataError: a vertex has more children than that, or the table would be next to empty and large.
    """
    most = int(counts.max())
    source = sources[int(np.searchsorted(sizes.cumsum(), int(counts.argmax()), side="right"))]
    lists = "lists of children have room for any number (lists=True, vpps-data convert --lists)"
    if most > arity:
        raise DataError(
            f"{source}: a vertex has {most} children, where there is room for {arity}, the most of the training data; "
            f"{lists}"
        )
    if len(counts) * arity > max(SMALL_TABLE, SPARSE * (len(counts) + len(children))):
        raise DataError(
            f"{source}: a vertex has {most} children, the most of all: a table with room for {arity} at each of "
            f"{len(counts)} vertices takes {len(counts) * arity * 4 / 1e9:.3g} GB, almost all of it for none; {lists}"
        )
    table = np.full((len(counts), arity), -1, np.int32)
    table[np.arange(arity) < counts[:, None]] = children
    return table


def some_graphs(paths: Sequence[Source], n: int, what: str) -> None:
    """Raises DataError where nothing was found."""
    if not paths:
        raise DataError(f"no file given: expected {what}")
    if not n:
        raise DataError(f"{', '.join(map(str, paths))}: expected {what}, found none")
