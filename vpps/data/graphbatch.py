"""Some graphs of a `GraphSet` side by side: what one call of `graph.map` takes."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import DataError
from vpps.record.examples import ExampleNumbers
from vpps.record.ranges import join, ragged, running_sum
from vpps.text import counted

Children = NDArray[np.int32] | tuple[NDArray[np.int32], NDArray[np.int32]]

if TYPE_CHECKING:
    from functools import cached_property as _once

    from vpps.data.graphset import GraphSet
else:

    class _once:
        """cached_property without its lock, which takes longer (before Python 3.12) than most of what is kept."""

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

        def __get__(self, batch: Any, owner: type) -> Any:
            if batch is None:
                return self
            value = batch.__dict__[self._name] = self._compute(batch)  # found there before this descriptor from now on
            return value


class GraphBatch:
    """Graphs one after the other, their vertices numbered through: n vertices in all.

        batch = trees[[5, 2, 9]]
        h, c = graph.map([leaf, inner], **batch.structure, inputs={"word": batch["word"]})
        loss = vpps.sum(vpps.cross_entropy(Wo @ h[batch.roots], batch["label"][batch.roots]))

    Arrays are gathered when they are first asked for, a few microseconds each, and kept. They may share memory with
    the set or its file, so treat them as read-only.

    Attributes:
        indices: (graphs,) which graphs of the set these are.
        offsets: (graphs + 1,) the vertices of graph k are `offsets[k]:offsets[k + 1]`.
        whole: graphs of the mini-batch that `GraphSet.batches(world=)` made this a part of; else those of this one.
    """

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    whole: int

    def __init__(
        self,
        graphs: GraphSet,
        indices: NDArray[np.int64],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        contiguous: bool,
    ) -> None:
        """Made by `GraphSet`: the vertices of graph k are rows `starts[k]:starts[k] + sizes[k]` of the set's arrays."""
        self._graphs, self.indices, self._starts, self._sizes = graphs, indices, starts, sizes
        self.whole = len(indices)
        self.offsets = running_sum(sizes)
        self._contiguous = contiguous
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self.indices)

    def __repr__(self) -> str:
        return f"GraphBatch({counted(len(self), 'graph')}, {counted(self.n_vertices, 'vertex', 'vertices')})"

    @_once
    def n_vertices(self) -> int:
        """The number of vertices."""
        return int(self.offsets[-1])

    @property
    def structure(self) -> dict[str, Any]:
        """`kind`, `kinds`, `children`, `levels` and `examples`: arguments of `graph.map`."""
        return {
            "kind": self.kind, "kinds": self._graphs.kinds, "children": self.children, "levels": self.levels,
            "examples": self.examples,
        }  # fmt: skip

    @_once
    def children(self) -> Children:
        """int32[n, arity], or (offsets int32[n + 1], indices int32[edges]) where the number varies; -1 is no child."""
        form = self._graphs.arrays.form
        if not isinstance(form, tuple):
            if len(self) == 1:  # it keeps its numbers
                return self._take(form)
            joined = self._join(form, shift=True)
            if joined is not None:
                return joined
            first = self.offsets[:-1].astype(np.int32)
            own = self._take(form)
            return _shift(own.reshape(-1), first.repeat(self._sizes * form.shape[1]), own.shape)
        begins, flat = form
        first = self.offsets[:-1].astype(np.int32)
        starts, sizes, offsets, edges = self._edges
        indices = _take(flat, edges)
        of_vertices = np.empty(self.n_vertices + 1, np.int32)
        np.subtract(
            self._take(begins), (starts - offsets[:-1]).repeat(self._sizes), out=of_vertices[:-1],
            casting="same_kind",
        )  # fmt: skip
        of_vertices[-1] = offsets[-1]
        return of_vertices, _shift(indices, first.repeat(sizes), indices.shape)

    @property
    def child_offsets(self) -> NDArray[np.int32]:
        """int32[n + 1]: where the children of each vertex begin, and the end.

        With rows for a column of edges, an input of `graph.map` that is a list beside that of the children's states:
        `inputs={"relations": (batch.child_offsets, rows)}`.

        Raises:
            DataError: children are a table: its columns are inputs, `batch["relation"][:, 0]` for the first child's.
        """
        if not isinstance(self.children, tuple):
            raise DataError(
                f"child_offsets: children are a table for {self._graphs.arity} each; give its columns as inputs of "
                'their own, such as batch["relation"][:, 0] for that of the first child'
            )
        return self.children[0]

    @_once
    def kind(self) -> NDArray[np.int8] | None:
        """int8[n]: which of the set's `kinds` each vertex is; None where there is one kind."""
        kind = self._graphs.arrays.kind
        return None if kind is None else self._take(kind)

    @_once
    def levels(self) -> NDArray[np.int32]:
        """int32[n]: the longest distance of each vertex from one without children."""
        return self._take(self._graphs.arrays.levels)

    @_once
    def order(self) -> NDArray[np.int64]:
        """int64[n]: the vertices graph by graph, children before parents."""
        order = self._graphs.arrays.order
        if order is None:  # they are numbered so
            return np.arange(self.n_vertices)
        return self._take(order) + self.offsets[:-1].repeat(self._sizes)

    @_once
    def roots(self) -> NDArray[np.int64]:
        """int64[roots]: the vertices that are nobody's child, one per tree, in rising order."""
        children = self.children
        indices = children[1] if isinstance(children, tuple) else children
        root = np.ones(self.n_vertices + 1, np.bool_)  # the last one, -1, stands for no child
        root[indices] = False
        return np.flatnonzero(root[:-1])

    @_once
    def reversed(self) -> GraphBatch:
        """The same graphs with every edge turned round, such as the other direction of chains; see `GraphSet.reversed`.

        Vertices keep their numbers. The whole set is turned round when this is first asked for, and kept.
        """
        turned = self._graphs.turned[self.indices]
        turned.whole, turned.numbers = self.whole, self.numbers
        return turned

    @_once
    def numbers(self) -> NDArray[np.int64]:
        """int64[graphs]: which graph of the whole mini-batch, from 0, each of these is."""
        return np.arange(len(self))

    @_once
    def examples(self) -> ExampleNumbers:
        """The number of the graph that each vertex belongs to, for `graph.map` and `Rows.of`."""
        numbers, sizes = self.__dict__.get("numbers"), self._sizes  # the batch itself would be a cycle
        return ExampleNumbers(
            self.n_vertices, lambda: (np.arange(len(sizes)) if numbers is None else numbers).repeat(sizes)
        )

    @_once
    def graph_of_vertex(self) -> NDArray[np.int64]:
        """int64[n]: which graph of the batch, from 0, each vertex belongs to."""
        return np.arange(len(self)).repeat(self._sizes)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column by name: int32 or float32, a row per vertex, or per graph or edge where the set has it so.

        Those of edges are in the order of `children`: one per index of lists; of a table (n, arity) or (n, arity,
        width).

        Raises:
            DataError: there is no such column; the message lists those that there are.
        """
        found = self._columns.get(column) if isinstance(column, str) else None
        if found is None:
            arrays = self._graphs.arrays
            if not isinstance(column, str):
                raise DataError(f"[{column!r}]: expected the name of a column; {self._graphs.column_names()}")
            if column in arrays.columns:
                found = self._take(arrays.columns[column])
            elif column in arrays.edge_columns:
                edges = arrays.edge_columns[column]
                found = self._take(edges) if arrays.child_offsets is None else _take(edges, self._edges[3])
            elif column in arrays.graph_columns:
                found = arrays.graph_columns[column].take(self.indices, axis=0)
            else:
                raise DataError(f"there is no column {column!r}: {self._graphs.column_names()}")
            self._columns[column] = found
        return found

    @_once
    def _edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], slice | NDArray[np.int64]]:
        """Of lists of children, per graph: where they begin in the set, how many there are, and where they begin in
        the batch; and where they all are in the set."""
        begins = self._graphs.arrays.child_offsets
        assert begins is not None
        starts = begins.take(self._starts)
        sizes = begins.take(self._starts + self._sizes) - starts
        offsets = running_sum(sizes)
        return starts, sizes, offsets, _range(starts, offsets) if self._contiguous else ragged(starts, sizes, offsets)

    @_once
    def _rows(self) -> slice | NDArray[np.int64]:
        """Where the vertices are in the set."""
        if self._contiguous:
            return _range(self._starts, self.offsets)
        return ragged(self._starts, self._sizes, self.offsets)

    def _join(self, array: NDArray[Any], shift: bool = False) -> NDArray[Any] | None:
        return join(array, self._starts, self._sizes, self.n_vertices, shift)

    def _take(self, array: NDArray[Any]) -> NDArray[Any]:
        if not self._contiguous:
            joined = self._join(array)
            if joined is not None:
                return joined
        return _take(array, self._rows)


def _range(starts: NDArray[np.int64], offsets: NDArray[np.int64]) -> slice:
    """`ragged` for ranges that follow one another."""
    first = int(starts[0]) if len(starts) else 0
    return slice(first, first + int(offsets[-1]))


def _take(array: NDArray[Any], rows: slice | NDArray[np.int64]) -> NDArray[Any]:
    return array[rows] if isinstance(rows, slice) else array.take(rows, axis=0)


def _shift(indices: NDArray[np.int32], by: NDArray[np.int32], shape: tuple[int, ...]) -> NDArray[np.int32]:
    """indices + by, in the memory of `by`, but -1 where an index is -1. Masks would take three times as long."""
    by += indices
    by |= indices >> 31  # all bits where the index is negative, none elsewhere
    return by.reshape(shape)


def shards_of(work: NDArray[np.int64], shards: int) -> NDArray[np.int64]:
    """Which shard each item goes to: the longest first, each to the shard that has least (Graham 1969, "Bounds on
    multiprocessing timing anomalies": the largest sum is at most 4/3 - 1/(3 shards) of the least possible).

    It follows from the arguments alone: of equal items the first goes first, of equal shards the first is taken. No
    shard is empty where there are as many items.

    Args:
        work: (n,) of every item, at least 1.
        shards: how many there are.
    """
    shard = np.empty(len(work), np.int64)
    heap = [(0, k) for k in range(shards)]
    order = np.argsort(-work, kind="stable")
    for item, own in zip(order.tolist(), work[order].tolist(), strict=True):
        load, k = heap[0]
        shard[item] = k
        heapreplace(heap, (load + own, k))
    return shard
