"""Many input graphs in a few flat arrays: Cavs's "the graph is data" (section 3.2), levels computed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.data.graphbatch import GraphBatch
from vpps.data.statistics import GraphStatistics
from vpps.data.topology import find_cycle, find_levels, level_order, ragged, running_sum
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError, DtypeError, IndexRangeError

MAX_KINDS = 128  # they are int8


@dataclass(frozen=True, slots=True, eq=False)
class GraphArrays:
    """What a set holds. N vertices in all, G graphs; vertices are numbered from 0 within their graph."""

    vertex_offsets: NDArray[np.int64]
    """(G + 1,) the vertices of graph g are rows `vertex_offsets[g]:vertex_offsets[g + 1]`; may begin above 0."""
    children: NDArray[np.int32] | None
    """(N, arity) or None; -1 is no child."""
    child_offsets: NDArray[np.int64] | None
    """(N + 1,) where the children of every vertex begin in `child_indices`; None where the arity is fixed."""
    child_indices: NDArray[np.int32] | None
    """(edges,) or None."""
    kind: NDArray[np.int8] | None
    """(N,) or None where all are of kind 0."""
    levels: NDArray[np.int32]
    """(N,) longest distance from a vertex without children."""
    order: NDArray[np.int32] | None
    """(N,) the vertices of each graph, children before parents; None where they are numbered so."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Per vertex: (N,) or (N, width), int32 or float32."""
    graph_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Per graph: (G,) or (G, width)."""

    def all_columns(self) -> dict[str, NDArray[Any]]:
        """Both kinds of columns by name."""
        return {**self.columns, **self.graph_columns}


class GraphSet:
    """Graphs to train on. Indexing takes some of them, as what `graph.map` takes:

        trees = GraphSet.load("train.graphs")          # maps the file: reads what is used
        for batch in trees.batches(64, seed=1, epoch=0):
            c, h = graph.map([leaf, inner], **batch.structure, inputs={"word": batch["word"]})

    No object stands for a vertex. A set may be used by forked processes and by several threads; its arrays are
    read-only.

    Attributes:
        arrays: the data, as `GraphArrays` says.
        kinds: the name of every kind of vertex, by number.
        vocabularies: by column: the words that its numbers stand for, index 0 being unknown.
        classes: by column: the names of a closed set of labels.
        path: the file that it is mapped from, or None.
    """

    arrays: GraphArrays
    kinds: tuple[str, ...]
    vocabularies: Mapping[str, Vocabulary]
    classes: Mapping[str, tuple[str, ...]]
    path: Path | None

    def __init__(
        self,
        sizes: ArrayLike,
        children: ArrayLike | tuple[ArrayLike, ArrayLike],
        *,
        kind: ArrayLike | None = None,
        kinds: Sequence[str] = ("vertex",),
        columns: Mapping[str, ArrayLike] | None = None,
        graph_columns: Mapping[str, ArrayLike] | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Checks the graphs and computes their levels, once.

        Args:
            sizes: (G,) the number of vertices of every graph, at least 1; N in all.
            children: (N, arity) the children of every vertex, numbered from 0 within the graph, -1 for none; or
                `(offsets, indices)` where the number varies: those of row v are `indices[offsets[v]:offsets[v + 1]]`.
            kind: (N,) numbers that index `kinds`; by default all are 0.
            kinds: a name for every kind.
            columns: by name, (N,) or (N, width): words, labels, features of vertices; integers become int32, other
                numbers float32.
            graph_columns: by name, (G,) or (G, width).
            vocabularies, classes: what the integers of a column stand for.
            sources: where each graph comes from, for messages: `graphs.jsonl:17`.

        Raises:
            DataError: sizes contradict each other, a child or kind does not exist, or edges form a cycle: the message
                names graph and vertex.
            DtypeError: an array is not of numbers, or its values do not fit int32 or float32.
        """
        counts = _integers(sizes, "sizes", np.int64)
        if counts.ndim != 1 or not len(counts):
            raise DataError(f"sizes are one number per graph, at least one graph, not of shape {counts.shape}")
        if counts.min() < 1:
            raise DataError(f"graph {int(counts.argmin())} has {int(counts.min())} vertices: it needs at least 1")
        vertex_offsets = running_sum(counts)
        n = int(vertex_offsets[-1])
        names = _Names(vertex_offsets, sources)
        self.kinds = tuple(kinds)
        self.path = None
        self.vocabularies = dict(vocabularies or {})
        self.classes = {name: tuple(names) for name, names in (classes or {}).items()}

        table = child_offsets = indices = None
        if isinstance(children, tuple):
            child_offsets, indices = _lists(children[0], children[1], n)
        else:
            table = _integers(children, "children", np.int32)
            if table.ndim != 2 or len(table) != n or not table.shape[1]:
                raise DataError(f"children must have shape ({n}, arity), a row per vertex, not {table.shape}")
        levels, order = _sort(names, table, child_offsets, indices)
        self.arrays = GraphArrays(
            vertex_offsets=_frozen(vertex_offsets),
            children=table,
            child_offsets=child_offsets,
            child_indices=indices,
            kind=None if kind is None else _kind(kind, self.kinds, names),
            levels=_frozen(levels),
            order=order,
            columns={name: _column(name, x, n, "vertices") for name, x in (columns or {}).items()},
            graph_columns={name: _column(name, x, len(counts), "graphs") for name, x in (graph_columns or {}).items()},
        )
        twice = self.arrays.columns.keys() & self.arrays.graph_columns.keys()
        if twice:
            raise DataError(f"the name {min(twice)!r} is that of a column of vertices and of one of graphs")
        self._check_names()
        self._index()

    @classmethod
    def from_arrays(
        cls,
        arrays: GraphArrays,
        kinds: Sequence[str],
        vocabularies: Mapping[str, Vocabulary],
        classes: Mapping[str, tuple[str, ...]],
        path: Path | None = None,
    ) -> GraphSet:
        """A set of arrays that were those of one before, unchecked."""
        self = cls.__new__(cls)
        self.arrays, self.kinds, self.vocabularies, self.classes = arrays, tuple(kinds), vocabularies, classes
        self.path = path
        self._index()
        return self

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> GraphSet:
        """Maps a file that `save` wrote. Nothing of it but its header and vocabularies is read before it is used.

        Args:
            path: the file; it must not be changed in place while it is in use (`save` replaces it, which is safe).
            verify: read all of it now and compare checksums.

        Raises:
            DataError: the file is missing, truncated, of another program or version, or damaged.
        """
        from vpps.data import graphfile

        return graphfile.load(Path(path), verify)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file for `load`; a crash at any point leaves the old file or the new one.

        Raises:
            DataError: the file cannot be written.
        """
        from vpps.data import graphfile

        graphfile.save(self, Path(path))

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self._starts)

    def __repr__(self) -> str:
        return f"GraphSet({len(self)} graphs, {self.n_vertices} vertices, {self.column_names()})"

    @property
    def n_vertices(self) -> int:
        """The number of vertices."""
        return int(self._ends[-1] - self._starts[0])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64[graphs]: the number of vertices of every graph."""
        return self._ends - self._starts

    @property
    def arity(self) -> int | None:
        """How many children every vertex has room for; None where there are lists of children."""
        return None if self.arrays.children is None else self.arrays.children.shape[1]

    def column_names(self) -> str:
        """The columns in words, for messages."""
        names = [", ".join(columns) for columns in (self.arrays.columns, self.arrays.graph_columns)]
        per = [f"{names} per {what}" for names, what in zip(names, ("vertex", "graph"), strict=True) if names]
        return f"columns {' and '.join(per)}" if per else "no columns"

    def __getitem__(self, graphs: int | np.integer[Any] | slice | ArrayLike) -> GraphBatch:
        """One graph (an int), or several side by side: a slice, an array or list of ints, a mask.

        Raises:
            IndexRangeError: there is no such graph.
            DtypeError: the indices are no integers.
        """
        contiguous = False
        if isinstance(graphs, slice):
            begin, end, step = graphs.indices(len(self))
            indices = np.arange(begin, end, step)
            contiguous = step == 1
        elif isinstance(graphs, int | np.integer):
            indices = np.array([graphs], np.int64)
            contiguous = True
        else:
            indices = self._indices(graphs)
        try:
            starts = self._starts.take(indices)
            return GraphBatch(self, indices, starts, self._ends.take(indices) - starts, contiguous)
        except IndexError:
            wrong = indices[(indices < -len(self)) | (indices >= len(self))]
            raise IndexRangeError(
                f"there is no graph {int(wrong[0])} in a set of {len(self)} (0 to {len(self) - 1})"
            ) from None

    def batches(
        self,
        size: int,
        *,
        seed: int = 1,
        epoch: int = 0,
        shuffle: bool = True,
        bucket: int | None = None,
        drop_last: bool = False,
    ) -> Iterator[GraphBatch]:
        """All graphs once, in mini-batches. Their order follows from seed and epoch alone.

        Args:
            size: graphs per batch; the last one may have fewer.
            seed, epoch: of the shuffling.
            shuffle: False keeps the order of the set.
            bucket: sort the graphs of so many batches by size before dividing them, so that graphs of one size meet;
                the batches themselves are shuffled too.
            drop_last: leave out a last batch with fewer graphs.

        Raises:
            DataError: size or bucket is below 1.
        """
        if size < 1 or (bucket is not None and bucket < 1):
            raise DataError(f"batches of {size} graphs, sorted {bucket} at a time: both need at least 1")
        random = np.random.default_rng((seed, epoch))
        order = random.permutation(len(self)) if shuffle else np.arange(len(self))
        if bucket is not None:
            sizes = self.sizes
            parts = np.split(order, range(size * bucket, len(order), size * bucket))
            order = np.concatenate([part[np.argsort(sizes[part], kind="stable")] for part in parts])
        chunks = [order[i : i + size] for i in range(0, len(order), size)]
        if drop_last and len(chunks[-1]) < size:
            del chunks[-1]
        if bucket is not None and shuffle:
            chunks = [chunks[k] for k in random.permutation(len(chunks)).tolist()]
        return (self[chunk] for chunk in chunks)

    def split(self, fraction: float, *, seed: int | None = None) -> tuple[GraphSet, GraphSet]:
        """Two sets: `fraction` of the graphs, and the rest.

        Args:
            fraction: between 0 and 1; both sets get at least one graph.
            seed: choose at random; by default the first set is the beginning of this one and shares its memory.

        Raises:
            DataError: a set would be empty.
        """
        first = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < first < len(self):
            raise DataError(f"{fraction} of {len(self)} graphs and the rest: a set needs at least one graph")
        if seed is None:
            return self.subset(slice(first)), self.subset(slice(first, None))
        order = np.random.default_rng(seed).permutation(len(self))
        return self.subset(np.sort(order[:first])), self.subset(np.sort(order[first:]))

    def subset(self, graphs: slice | ArrayLike) -> GraphSet:
        """Some of the graphs as a set of their own, in the order given.

        A slice without a step shares this set's memory; anything else is copied.

        Raises:
            DataError: it would be empty.
            IndexRangeError, DtypeError: as in indexing.
        """
        batch = self[graphs]
        if not len(batch):
            raise DataError("a set needs at least one graph")
        a = self.arrays
        graph_columns = {
            name: x[graphs] if isinstance(graphs, slice) else x[batch.indices] for name, x in a.graph_columns.items()
        }
        if isinstance(graphs, slice) and graphs.step in (None, 1):
            begin = int(batch.indices[0])
            offsets = a.vertex_offsets[begin : begin + len(batch) + 1]
            return self._with(replace(a, vertex_offsets=offsets, graph_columns=graph_columns), self.path)
        starts, sizes = self._starts[batch.indices], self.sizes[batch.indices]
        offsets = running_sum(sizes)
        rows = ragged(starts, sizes, offsets)
        child_offsets = child_indices = None
        if a.child_offsets is not None:
            assert a.child_indices is not None
            counts = a.child_offsets[rows + 1] - a.child_offsets[rows]
            child_offsets = running_sum(counts)
            child_indices = _frozen(a.child_indices[ragged(a.child_offsets[rows], counts, child_offsets)])
            child_offsets = _frozen(child_offsets)
        taken = GraphArrays(
            vertex_offsets=_frozen(offsets),
            children=None if a.children is None else _frozen(a.children[rows]),
            child_offsets=child_offsets,
            child_indices=child_indices,
            kind=None if a.kind is None else _frozen(a.kind[rows]),
            levels=_frozen(a.levels[rows]),
            order=None if a.order is None else _frozen(a.order[rows]),
            columns={name: _frozen(x[rows]) for name, x in a.columns.items()},
            graph_columns={name: _frozen(x) for name, x in graph_columns.items()},
        )
        return self._with(taken, None)

    def reversed(self) -> GraphSet:
        """The same graphs with every edge turned round: what a vertex reads are those that read it.

        For the second direction of a bidirectional chain, or from the root of a tree down. Columns and numbers of
        vertices stay; children get a fixed arity of 1 where no vertex has two readers, else they are lists in rising
        order.
        """
        offsets, parents, children = self.edges()
        order = np.argsort(children, kind="stable")
        fan_out = np.bincount(children, minlength=int(offsets[-1]))
        below = (parents - offsets[:-1].repeat(self.sizes)[parents])[order]
        turned: ArrayLike | tuple[ArrayLike, ArrayLike]
        if fan_out.max() <= 1:
            turned = np.full((len(fan_out), 1), -1, np.int32)
            turned[children[order], 0] = below
        else:
            turned = running_sum(fan_out), below
        rows = slice(int(self.arrays.vertex_offsets[0]), int(self.arrays.vertex_offsets[-1]))
        return GraphSet(
            self.sizes, turned,
            kind=None if self.arrays.kind is None else self.arrays.kind[rows], kinds=self.kinds,
            columns={name: x[rows] for name, x in self.arrays.columns.items()},
            graph_columns=self.arrays.graph_columns, vocabularies=self.vocabularies, classes=self.classes,
        )  # fmt: skip

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(offsets of graphs, parents, children): every edge, vertices numbered through from 0, parents in order."""
        batch = self[:]
        parents, children = _edges(batch.n_vertices, batch.children)
        return batch.offsets, parents, children

    def stat(self) -> GraphStatistics:
        """Sizes, levels and fan-in; reads the whole set."""
        return GraphStatistics.of(self)

    def _with(self, arrays: GraphArrays, path: Path | None) -> GraphSet:
        return GraphSet.from_arrays(arrays, self.kinds, self.vocabularies, self.classes, path)

    def _index(self) -> None:
        self._starts, self._ends = self.arrays.vertex_offsets[:-1], self.arrays.vertex_offsets[1:]

    def _indices(self, graphs: ArrayLike) -> NDArray[np.int64]:
        indices = np.asarray(graphs)
        if indices.dtype == np.int64 and indices.ndim == 1:
            return indices
        if indices.dtype == np.bool_ and indices.shape == (len(self),):
            return np.flatnonzero(indices)
        if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
            raise DtypeError(
                f"graphs are chosen by an int, a slice, a mask of {len(self)} or a 1-D array of ints, not by "
                f"{indices.dtype} of shape {indices.shape}"
            )
        return indices.astype(np.int64)

    def _check_names(self) -> None:
        """Every vocabulary belongs to an integer column whose numbers it knows. Raises DataError."""
        lengths = {**{k: len(v) for k, v in self.vocabularies.items()}, **{k: len(v) for k, v in self.classes.items()}}
        both = self.vocabularies.keys() & self.classes.keys()
        if both:
            raise DataError(f"column {min(both)!r} has a vocabulary and classes: give one of them")
        columns = self.arrays.all_columns()
        for name, length in lengths.items():
            if name not in columns or columns[name].dtype != np.int32:
                raise DataError(f"there are names for {name!r}, but no integer column of that name")
            if columns[name].size and columns[name].max() >= length:
                raise DataError(
                    f"column {name!r} holds {int(columns[name].max())}, but there are {length} names for it"
                )


@dataclass(frozen=True, slots=True)
class _Names:
    """How messages call graphs and vertices."""

    vertex_offsets: NDArray[np.int64]
    sources: Sequence[str] | None

    def graph_of(self, vertex: int) -> int:
        return int(np.searchsorted(self.vertex_offsets, vertex, side="right")) - 1

    def graph(self, graph: int) -> str:
        return f"graph {graph}" if self.sources is None else self.sources[graph]

    def vertex(self, vertex: int) -> str:
        graph = self.graph_of(vertex)
        return f"{self.graph(graph)}: vertex {vertex - int(self.vertex_offsets[graph])}"

    def no_child(self, vertex: int, child: int) -> DataError:
        graph = self.graph_of(vertex)
        size = int(self.vertex_offsets[graph + 1] - self.vertex_offsets[graph])
        return DataError(
            f"{self.vertex(vertex)}: there is no child {child}: the graph has {size} vertices (0 to {size - 1}), "
            "numbered from 0 in every graph, and -1 stands for no child"
        )


def _sort(
    names: _Names,
    table: NDArray[np.int32] | None,
    child_offsets: NDArray[np.int64] | None,
    indices: NDArray[np.int32] | None,
) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
    """Levels, and the order where vertices are not numbered children first. Raises DataError."""
    n, sizes = int(names.vertex_offsets[-1]), np.diff(names.vertex_offsets)
    if table is not None:
        everyone, given = np.arange(n).repeat(table.shape[1]), table.reshape(-1)
    else:
        assert child_offsets is not None
        assert indices is not None
        everyone, given = np.arange(n).repeat(np.diff(child_offsets)), indices
    graph_of_vertex = np.arange(len(sizes)).repeat(sizes)
    wrong = (given < -1) | (given >= sizes[graph_of_vertex[everyone]])
    if wrong.any():
        place = int(wrong.argmax())
        raise names.no_child(int(everyone[place]), int(given[place]))
    there = given >= 0
    parents = everyone[there]
    children = given[there] + names.vertex_offsets[graph_of_vertex[parents]]
    levels = find_levels(n, parents, children)
    if levels.min() < 0:
        cycle = find_cycle(levels, parents, children)
        graph = int(graph_of_vertex[cycle[0]])
        shown = [*cycle, cycle[0]] if len(cycle) < 12 else cycle[:12]
        walk = " -> ".join(str(v - int(names.vertex_offsets[graph])) for v in shown)
        raise DataError(
            f"{names.graph(graph)}: vertices {walk}{' -> ...' if len(cycle) >= 12 else ''} form a cycle, each a child "
            "of the one before: remove one of these edges"
        )
    if (children < parents).all():
        return levels, None
    order = level_order(levels, graph_of_vertex) - names.vertex_offsets[:-1].repeat(sizes)
    return levels, _frozen(order.astype(np.int32))


def _kind(kind: ArrayLike, kinds: Sequence[str], names: _Names) -> NDArray[np.int8]:
    n = int(names.vertex_offsets[-1])
    found = _integers(kind, "kind", np.int64)
    if found.shape != (n,):
        raise DataError(f"kind must have shape ({n},), one number per vertex, not {found.shape}")
    if len(kinds) > MAX_KINDS:
        raise DataError(f"{len(kinds)} kinds of vertices: there may be {MAX_KINDS}")
    wrong = (found < 0) | (found >= len(kinds))
    if wrong.any():
        vertex = int(wrong.argmax())
        raise DataError(
            f"{names.vertex(vertex)}: there is no kind {int(found[vertex])}: there are {len(kinds)} "
            f"({', '.join(kinds)}), numbered from 0"
        )
    return _frozen(found.astype(np.int8))


def _edges(n: int, children: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(parents, children): every edge in the order of parents, entries below 0 left out."""
    if isinstance(children, tuple):
        parents = np.arange(n).repeat(np.diff(children[0]))
        flat = children[1]
    else:
        parents = np.arange(n).repeat(children.shape[1])
        flat = children.reshape(-1)
    there = flat >= 0
    return parents[there], flat[there].astype(np.int64)


def _lists(offsets: ArrayLike, indices: ArrayLike, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Lists of children, checked."""
    begins = _integers(offsets, "offsets of children", np.int64)
    flat = _integers(indices, "indices of children", np.int32)
    if begins.shape != (n + 1,) or flat.ndim != 1:
        raise DataError(
            f"children in lists are (offsets, indices) of shapes ({n + 1},) and (edges,), not {begins.shape} and "
            f"{flat.shape}"
        )
    if begins[0] != 0 or begins[-1] != len(flat) or (np.diff(begins) < 0).any():
        raise DataError(f"offsets of children must rise from 0 to {len(flat)}, the number of indices")
    return begins, flat


def _integers(array: ArrayLike, what: str, kind: type[Any]) -> NDArray[Any]:
    """A read-only array of the integer type `kind`."""
    found = np.asarray(array)
    if found.size == 0 and found.dtype.kind == "f":
        found = found.astype(np.int64)  # an empty list
    if found.dtype.kind not in "iub":
        raise DtypeError(f"{what} must be integers, not {found.dtype}")
    return _frozen(_narrowed(found, what, kind))


def _narrowed(array: NDArray[Any], what: str, kind: type[Any]) -> NDArray[Any]:
    limits = np.iinfo(kind)
    if array.dtype != kind and array.size and (array.min() < limits.min or array.max() > limits.max):
        raise DtypeError(f"{what} hold {array.min()} to {array.max()}, which does not fit {np.dtype(kind)}")
    return array.astype(kind, copy=False)


def _column(name: str, array: ArrayLike, n: int, what: str) -> NDArray[Any]:
    """A read-only column of int32 or float32."""
    found = np.asarray(array)
    if found.ndim not in (1, 2) or len(found) != n:
        raise DataError(f"column {name!r} must have a row for each of the {n} {what}, not shape {found.shape}")
    if found.dtype.kind in "iub":
        return _frozen(_narrowed(found, f"column {name!r}", np.int32))
    if found.dtype.kind != "f":
        raise DtypeError(f"column {name!r} must be of numbers, not {found.dtype}")
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32, copy=False)
    if (np.isinf(narrow) & np.isfinite(found)).any():
        raise DtypeError(f"column {name!r} holds numbers beyond the range of float32")
    return _frozen(narrow)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, contiguous and read-only; whoever made the array may still write to it."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
