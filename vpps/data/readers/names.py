"""Helpers for all readers: number words and labels, turn lists of children into a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpps.data.graphset import GraphSet
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError
from vpps.record.ranges import running_sum
from vpps.values import as_count

SMALL_TABLE = 1 << 24
"""Entries that any table of children may have."""
SPARSE = 64
"""Limit of larger tables: entries per vertex or edge. Lists have one entry for each."""

Source = str | PathLike[str]
T = TypeVar("T")


class GraphLists:
    """Collects the arrays of a set as lists while graphs are read vertex by vertex.

    Attributes:
        sizes, sources: one value per graph.
        offsets, children: lists of children in the form that `GraphSet` accepts.
        columns: one value per vertex, by column name.
    """

    def __init__(self, *columns: str) -> None:
        self.sizes: list[int] = []
        self.sources: list[str] = []
        self.offsets = [0]
        self.children: list[int] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._begin = 0

    def vertex(self, children: Iterable[int], **values: Any) -> int:
        """Adds a vertex and returns its number within the graph; columns without a value get -1."""
        self.children += children
        self.offsets.append(len(self.children))
        for name, column in self.columns.items():
            column.append(values.get(name, -1))
        return len(self.offsets) - 2 - self._begin

    def end(self, source: str) -> None:
        """Completes the current graph."""
        self.sizes.append(len(self.offsets) - 1 - self._begin)
        self._begin += self.sizes[-1]
        self.sources.append(source)


def words_of(
    sentences: Iterable[Iterable[str]], column: str, min_count: int | None, like: GraphSet | None, default: int = 2
) -> Vocabulary:
    """Returns the vocabulary of `like`, or a new vocabulary of the words that occur at least `min_count` times.

    Raises:
        DataError: `like` has no vocabulary for this column, or both `like` and `min_count` are given.
    """
    check_min_count(min_count, like is not None)
    if like is None:
        return Vocabulary.from_sentences(sentences, default if min_count is None else min_count)
    return _known(like, like.vocabularies, "vocabulary", column)


def check_min_count(min_count: int | None, like: bool) -> None:
    """Raises DataError if `min_count` is not a valid count, or if `like` already provides the vocabulary."""
    if min_count is None:
        return
    as_count(min_count, "min_count", DataError)
    if like:
        raise DataError(f"min_count={min_count} beside like=, which already gives the words: drop one of them")


def _known(like: GraphSet, names: Mapping[str, T], what: str, column: str) -> T:
    if column not in names:
        raise DataError(f"{like.path or 'the set in like='} has no {what} for {column!r}: {like.column_names()}")
    return names[column]


def classes_of(
    labels: Sequence[str], where: Sequence[str], column: str, like: GraphSet | None
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Numbers the labels and returns the names by number: those of `like`, or the labels in alphabetical order.

    Args:
        where: file and line of every label.

    Raises:
        DataError: `like` does not know a label, or has no classes for this column.
    """
    names = tuple(sorted(set(labels))) if like is None else _known(like, like.classes, "classes", column)
    numbers = {name: number for number, name in enumerate(names)}
    found = [numbers.get(label, -1) for label in labels]
    if -1 in found:
        first = found.index(-1)
        raise DataError(
            f"{where[first]}: unknown {column} {labels[first]!r}: the known ones are {', '.join(names)}, from the "
            f"training data; add an example of every {column} there"
        )
    return np.array(found, np.int32), names


def children_of(
    counts: NDArray[np.int64],
    children: NDArray[np.int32],
    *,
    lists: bool,
    like: GraphSet | None,
    sources: Sequence[str],
    sizes: NDArray[np.int64],
) -> NDArray[np.int32] | tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Returns children in the form that a `GraphSet` accepts: lists, or a table padded with -1.

    Args:
        counts: number of children per vertex.
        children: concatenated children of all vertices.
        lists: return lists; False returns a table.
        like: a set whose arity is used, None for lists. By default, the arity is the largest number of children.
        sources, sizes: sources and sizes of the graphs.

    Raises:
        DataError: a vertex has more children than `like` allows, or the table would be large and almost empty.
    """
    most = int(counts.max())
    arity = max(1, most) if like is None else like.arity
    if lists or arity is None:
        return running_sum(counts), children
    source = sources[int(np.searchsorted(sizes.cumsum(), int(counts.argmax()), side="right"))]
    remedy = (
        "lists of children have room for any number (lists=True, vpps-data convert --lists, vpps-train "
        "tree-lstm-child-sum)"
    )
    if most > arity:
        raise DataError(f"{source}: a vertex has {most} children, but the training data have at most {arity}; {remedy}")
    if len(counts) * arity > max(SMALL_TABLE, SPARSE * (len(counts) + len(children))):
        raise DataError(
            f"{source}: a vertex has {most} children, so a table of children takes "
            f"{len(counts) * arity * 4 / 1e9:.3g} GB for {len(counts)} vertices and is almost empty; {remedy}"
        )
    return table_of(counts, arity, children, -1)


def table_of(counts: NDArray[np.int64], arity: int, values: NDArray[Any], none: int) -> NDArray[Any]:
    """Returns a table (vertices, arity) or (vertices, arity, width) with one value per child, padded with `none`."""
    table = np.full((len(counts), arity, *values.shape[1:]), none, values.dtype)
    table[np.arange(arity) < counts[:, None]] = values
    return table


def some_graphs(paths: Sequence[Source], n: int, what: str) -> None:
    """Raises DataError if there are no paths or no graphs."""
    if not paths:
        raise DataError(f"no file given: expected {what}")
    if not n:
        raise DataError(f"{', '.join(map(str, paths))}: expected {what}, found none")
