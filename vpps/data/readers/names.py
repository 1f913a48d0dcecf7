"""What readers share: words and labels to numbers, lists of children to a table."""

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
"""Entries that a table of children may always have."""
SPARSE = 64
"""A larger one may have so many times the vertices and edges, which is what lists take."""

Source = str | PathLike[str]
T = TypeVar("T")


class GraphLists:
    """The arrays of a set as lists, while graphs are read vertex by vertex.

    Attributes:
        sizes, sources: per graph.
        offsets, children: as `GraphSet` takes them.
        columns: by name, a value per vertex.
    """

    def __init__(self, *columns: str) -> None:
        self.sizes: list[int] = []
        self.sources: list[str] = []
        self.offsets = [0]
        self.children: list[int] = []
        self.columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._begin = 0

    def vertex(self, children: Iterable[int], **values: Any) -> int:
        """Adds a vertex, -1 in columns without a value; returns its number within the graph."""
        self.children += children
        self.offsets.append(len(self.children))
        for name, column in self.columns.items():
            column.append(values.get(name, -1))
        return len(self.offsets) - 2 - self._begin

    def end(self, source: str) -> None:
        """The graph has all its vertices."""
        self.sizes.append(len(self.offsets) - 1 - self._begin)
        self._begin += self.sizes[-1]
        self.sources.append(source)


def words_of(
    sentences: Iterable[Iterable[str]], column: str, min_count: int | None, like: GraphSet | None, default: int = 2
) -> Vocabulary:
    """The vocabulary of `like`, or one of the sentences' own: the words that occur `min_count` times at least.

    Raises:
        DataError: `like` has none for this column, or there is a `min_count` beside it.
    """
    check_min_count(min_count, like is not None)
    if like is None:
        return Vocabulary.from_sentences(sentences, default if min_count is None else min_count)
    return _known(like, like.vocabularies, "vocabulary", column)


def check_min_count(min_count: int | None, like: bool) -> None:
    """Raise DataError unless it is a count, and does not contradict a given vocabulary."""
    if min_count is None:
        return
    as_count(min_count, "min_count", DataError)
    if like:
        raise DataError(f"min_count={min_count} beside like=, which has its words already: leave one of them out")


def _known(like: GraphSet, names: Mapping[str, T], what: str, column: str) -> T:
    if column not in names:
        raise DataError(f"{like.path or 'the set to be like'} has no {what} for {column!r}: {like.column_names()}")
    return names[column]


def classes_of(
    labels: Sequence[str], where: Sequence[str], column: str, like: GraphSet | None
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Numbers for labels, and the names by number: those of `like`, or in alphabetical order.

    Args:
        where: the file and line of every label.

    Raises:
        DataError: `like` does not know a label, or has no classes for this column.
    """
    names = tuple(sorted(set(labels))) if like is None else _known(like, like.classes, "classes", column)
    numbers = {name: number for number, name in enumerate(names)}
    found = [numbers.get(label, -1) for label in labels]
    if -1 in found:
        first = found.index(-1)
        raise DataError(
            f"{where[first]}: unknown {column} {labels[first]!r}: the known ones are {', '.join(names)}, those of the "
            "training data; have an example of every one there"
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
    """Children in the form that a `GraphSet` takes: lists, or a table filled up with -1, of as many columns as `like`.

    Args:
        counts: of children, per vertex.
        children: of all vertices, one after the other.
        lists: or a table.
        like: has the arity, None for lists; without, a table has room for the most that there are.
        sources, sizes: of the graphs.

    Raises:
        DataError: a vertex has more children than that, or the table would be next to empty and large.
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
        raise DataError(
            f"{source}: a vertex has {most} children, where there is room for {arity}, the most of the training data; "
            f"{remedy}"
        )
    if len(counts) * arity > max(SMALL_TABLE, SPARSE * (len(counts) + len(children))):
        raise DataError(
            f"{source}: a vertex has {most} children, the most of all: a table with room for {arity} at each of "
            f"{len(counts)} vertices takes {len(counts) * arity * 4 / 1e9:.3g} GB, almost all of it for none; {remedy}"
        )
    return table_of(counts, arity, children, -1)


def table_of(counts: NDArray[np.int64], arity: int, values: NDArray[Any], none: int) -> NDArray[Any]:
    """(vertices, arity) or (vertices, arity, width), filled up with `none`, of a value or row per child."""
    table = np.full((len(counts), arity, *values.shape[1:]), none, values.dtype)
    table[np.arange(arity) < counts[:, None]] = values
    return table


def some_graphs(paths: Sequence[Source], n: int, what: str) -> None:
    """Raises DataError where nothing was found."""
    if not paths:
        raise DataError(f"no file given: expected {what}")
    if not n:
        raise DataError(f"{', '.join(map(str, paths))}: expected {what}, found none")
