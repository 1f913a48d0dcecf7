"""A batch of graphs from a `GraphSet`, the input of one `graph.map` call."""

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
        """A cached_property without a lock; before Python 3.12, the lock takes longer than computing most values."""

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

        def __get__(self, batch: Any, owner: type) -> Any:
            if batch is None:
                return self
            value = batch.__dict__[self._name] = self._compute(batch)  # from now on, the value hides this descriptor
            return value


class GraphBatch:
    """Some graphs of a set. Their n vertices are numbered consecutively, graph by graph.

        batch = trees[[5, 2, 9]]
        h, c = graph.map([leaf, inner], **batch.structure, inputs={"word": batch["word"]})
        loss = vpps.sum(vpps.cross_entropy(Wo @ h[batch.roots], batch["label"][batch.roots]))

    The first access to an array gathers and caches it, which takes a few microseconds. Arrays may share memory with the
    set or its file, so treat them as read-only.

    Attributes:
        indices: (graphs,) indices of the graphs in the set.
        offsets: (graphs + 1,) the vertices of graph k are `offsets[k]:offsets[k + 1]`.
        whole: number of graphs in the whole mini-batch; this batch may be a shard of it (`GraphSet.batches(world=)`).
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
        """Only `GraphSet` calls this; graph k consists of rows `starts[k]:starts[k] + sizes[k]` of the set's arrays."""
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
        """The arguments `kind`, `kinds`, `children`, `levels` and `examples` of `graph.map`."""
        return {
            "kind": self.kind, "kinds": self._graphs.kinds, "children": self.children, "levels": self.levels,
            "examples": self.examples,
        }  # fmt: skip

    @_once
    def children(self) -> Children:
        """int32[n, arity], or (offsets int32[n + 1], indices int32[edges]) for lists; -1 is a missing child."""
        form = self._graphs.arrays.form
        if not isinstance(form, tuple):
            if len(self) == 1:  # one graph: vertex numbers do not change
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
        """int32[n + 1]: the start of each vertex's children in the list, then the list's length.

        Pass it together with rows of edge data as a list input of `graph.map`, parallel to the children's states:
        `inputs={"relations": (batch.child_offsets, rows)}`.

        Raises:
            DataError: children are a table. Pass a column per child instead: `batch["relation"][:, 0]` for child 0.
        """
        if not isinstance(self.children, tuple):
            raise DataError(
                f"child_offsets: children are a table for {self._graphs.arity} each; give its columns as separate "
                'inputs, such as batch["relation"][:, 0] for the first child'
            )
        return self.children[0]

    @_once
    def kind(self) -> NDArray[np.int8] | None:
        """int8[n]: each vertex's index into the set's `kinds`; None if there is one kind."""
        kind = self._graphs.arrays.kind
        return None if kind is None else self._take(kind)

    @_once
    def levels(self) -> NDArray[np.int32]:
        """int32[n]: the topological level of each vertex, its longest distance from a vertex without children."""
        return self._take(self._graphs.arrays.levels)

    @_once
    def order(self) -> NDArray[np.int64]:
        """int64[n]: the vertices, graph by graph, children before parents."""
        order = self._graphs.arrays.order
        if order is None:  # children are numbered before their parents
            return np.arange(self.n_vertices)
        return self._take(order) + self.offsets[:-1].repeat(self._sizes)

    @_once
    def roots(self) -> NDArray[np.int64]:
        """int64[roots]: the vertices without parents, one per tree, in ascending order."""
        children = self.children
        indices = children[1] if isinstance(children, tuple) else children
        root = np.ones(self.n_vertices + 1, np.bool_)  # the last entry, -1, stands for a missing child
        root[indices] = False
        return np.flatnonzero(root[:-1])

    @_once
    def reversed(self) -> GraphBatch:
        """The batch with every edge reversed, such as chains in the other direction; see `GraphSet.reversed`.

        Vertices keep their numbers. The first access reverses the whole set and caches the result.
        """
        turned = self._graphs.turned[self.indices]
        turned.whole, turned.numbers = self.whole, self.numbers
        return turned

    @_once
    def numbers(self) -> NDArray[np.int64]:
        """int64[graphs]: the position of each graph in the whole mini-batch, from 0."""
        return np.arange(len(self))

    @_once
    def examples(self) -> ExampleNumbers:
        """The number of the graph that each vertex belongs to, for `graph.map` and `Rows.of`."""
        numbers, sizes = self.__dict__.get("numbers"), self._sizes  # capturing the batch would be a reference cycle
        return ExampleNumbers(
            self.n_vertices, lambda: (np.arange(len(sizes)) if numbers is None else numbers).repeat(sizes)
        )

    @_once
    def graph_of_vertex(self) -> NDArray[np.int64]:
        """int64[n]: the graph of each vertex, numbered from 0 in this batch."""
        return np.arange(len(self)).repeat(self._sizes)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Returns a column by name: int32 or float32, with a row per vertex, edge or graph, as in the set.

        Edge columns are in the order of `children`: one row per index for lists, (n, arity) or (n, arity, width) for a
        table.

        Raises:
            DataError: there is no such column; the message lists the existing columns.
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
        """For lists: each graph's first edge in the set, edge count and first edge in the batch; rows of all edges."""
        begins = self._graphs.arrays.child_offsets
        assert begins is not None
        starts = begins.take(self._starts)
        sizes = begins.take(self._starts + self._sizes) - starts
        offsets = running_sum(sizes)
        return starts, sizes, offsets, _range(starts, offsets) if self._contiguous else ragged(starts, sizes, offsets)

    @_once
    def _rows(self) -> slice | NDArray[np.int64]:
        """The vertices' rows in the set's arrays."""
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
    """Computes `ragged` for contiguous ranges, as a slice."""
    first = int(starts[0]) if len(starts) else 0
    return slice(first, first + int(offsets[-1]))


def _take(array: NDArray[Any], rows: slice | NDArray[np.int64]) -> NDArray[Any]:
    return array[rows] if isinstance(rows, slice) else array.take(rows, axis=0)


def _shift(indices: NDArray[np.int32], by: NDArray[np.int32], shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Returns indices + by, stored in `by`. An index of -1 stays -1. Masks would take three times as long."""
    by += indices
    by |= indices >> 31  # all bits are set for negative indices, none for others
    return by.reshape(shape)


def shards_of(work: NDArray[np.int64], shards: int) -> NDArray[np.int64]:
    """Assigns each item to a shard: the largest item first, each to the shard with the least work.

    The largest sum is at most 4/3 - 1/(3 shards) times the optimum (Graham 1969, "Bounds on multiprocessing timing
    anomalies"). The result depends only on the arguments: ties go to the first item and to the first shard. If there
    are at least as many items as shards, no shard is empty.

    Args:
        work: (n,) work of every item, at least 1.
        shards: number of shards.
    """
    shard = np.empty(len(work), np.int64)
    heap = [(0, k) for k in range(shards)]
    order = np.argsort(-work, kind="stable")
    for item, own in zip(order.tolist(), work[order].tolist(), strict=True):
        load, k = heap[0]
        shard[item] = k
        heapreplace(heap, (load + own, k))
    return shard
