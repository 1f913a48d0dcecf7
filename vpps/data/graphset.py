"""Stores many input graphs in a few flat arrays (Cavs's "the graph is data", section 3.2); computes levels once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.data import graphfile
from vpps.data.grapharrays import GraphArrays, check_names, edges_of, frozen, make_arrays, names_of
from vpps.data.graphbatch import GraphBatch, shards_of
from vpps.data.statistics import GraphStatistics
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError, DtypeError, IndexRangeError
from vpps.hints import read_only
from vpps.interop import refuse_masked
from vpps.record.ranges import ragged, running_sum
from vpps.text import counted
from vpps.values import as_count, as_flag, as_mapping, as_number, as_path

if TYPE_CHECKING:
    from vpps.distributed import World


class GraphSet:
    """Graphs to train on. Indexing selects a batch of them for `graph.map`:

        trees = GraphSet.load("train.graphs")          # checks the file and maps it
        for batch in trees.batches(64, seed=1, epoch=0):
            h, c = graph.map([leaf, inner], **batch.structure, inputs={"word": batch["word"]})

    Vertices are rows of arrays, not objects. Forked processes and threads may share a set; its arrays are read-only.
    """

    __slots__ = (
        "__weakref__",
        "_arrays",
        "_classes",
        "_ends",
        "_kinds",
        "_path",
        "_starts",
        "_turned",
        "_vocabularies",
    )
    arrays: GraphArrays = read_only("_arrays", "The data; see `GraphArrays`.")
    kinds: tuple[str, ...] = read_only("_kinds", "Names of the vertex kinds, by number.")
    vocabularies: Mapping[str, Vocabulary] = read_only(
        "_vocabularies", "Vocabularies by column name; number 0 is the unknown word."
    )
    classes: Mapping[str, tuple[str, ...]] = read_only("_classes", "Label names of a closed set, by column name.")
    path: Path | None = read_only("_path", "The file that the set was read from, or None.")
    _vocabularies: Mapping[str, Vocabulary]
    _classes: Mapping[str, tuple[str, ...]]
    _path: Path | None
    _turned: GraphSet | None

    def __init__(
        self,
        sizes: ArrayLike,
        children: ArrayLike | tuple[ArrayLike, ArrayLike],
        *,
        kind: ArrayLike | None = None,
        kinds: Sequence[str] = ("vertex",),
        columns: Mapping[str, ArrayLike] | None = None,
        graph_columns: Mapping[str, ArrayLike] | None = None,
        edge_columns: Mapping[str, ArrayLike] | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Checks the graphs and computes their levels, once.

        Args:
            sizes: (G,) the number of vertices of every graph, at least 1; N is their sum.
            children: (N, arity) the children of every vertex, numbered from 0 within the graph, -1 for none. If their
                number varies, pass `(offsets, indices)`: row v has the children `indices[offsets[v]:offsets[v + 1]]`.
            kind: (N,) indices into `kinds`; 0 by default.
            kinds: the name of every kind.
            columns: vertex data by name, such as words, labels or features: (N,) or (N, width). Integers become
                int32, other numbers float32.
            graph_columns: graph data by name: (G,) or (G, width).
            edge_columns: edge data by name, one value or row per entry of `children`: (N, arity) or (N, arity, width)
                for a table, (edges,) or (edges, width) for lists. Values at missing children are ignored.
            vocabularies, classes: names for the integers of a column, by column name.
            sources: origin of each graph, for error messages, such as `graphs.jsonl:17`.

        Raises:
            DataError: sizes contradict each other, a child or kind does not exist, or edges form a cycle. The message
                names the graph and the vertex.
            DtypeError: an array does not hold numbers, or its values do not fit int32 or float32.
        """
        self._kinds = names_of(kinds, "kinds")
        self._vocabularies = as_mapping({} if vocabularies is None else vocabularies, "vocabularies", DataError)
        for name, words in self.vocabularies.items():
            if not isinstance(words, Vocabulary):
                raise DataError(f"vocabularies={{{name!r}: {words!r}}}: expected a Vocabulary")
        labels = as_mapping({} if classes is None else classes, "classes", DataError)
        self._classes = {name: names_of(words, f"classes of {name!r}") for name, words in labels.items()}
        self._path = None
        of_vertices = as_mapping({} if columns is None else columns, "columns", DataError)
        of_graphs = as_mapping({} if graph_columns is None else graph_columns, "graph_columns", DataError)
        of_edges = as_mapping({} if edge_columns is None else edge_columns, "edge_columns", DataError)
        origins = None if sources is None else names_of(sources, "sources")
        self._arrays = make_arrays(sizes, children, kind, self.kinds, of_vertices, of_graphs, of_edges, origins)
        check_names(self.arrays, self.vocabularies, self.classes)
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
        """Creates a set from the arrays of an existing set, without checks."""
        self = cls.__new__(cls)
        self._arrays, self._kinds, self._vocabularies, self._classes = arrays, tuple(kinds), vocabularies, classes
        self._path = path
        self._index()
        return self

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> GraphSet:
        """Loads a file that `save` wrote; the file may change or disappear afterwards.

        Files up to 1 GiB are read into memory. A larger file is copied to an unnamed file in the temporary folder
        (`TMPDIR`) and that copy is mapped, so a set may be larger than memory.

        Args:
            path: the file.
            verify: compare checksums and check the graphs. False trusts the file and checks only its header,
                vocabularies and graph sizes.

        Raises:
            DataError: the file is missing, truncated or damaged, or was written by another program or version.
        """
        where = as_path(path, "load", DataError)
        return cls.from_arrays(*graphfile.load(where, as_flag(verify, "load: verify", DataError)), where)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file for `load`. A crash at any point leaves either the old file or the new one.

        Raises:
            DataError: the file cannot be written.
        """
        graphfile.save(self, as_path(path, "save", DataError))

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self._starts)

    def __repr__(self) -> str:
        vertices = counted(self.n_vertices, "vertex", "vertices")
        return f"GraphSet({counted(len(self), 'graph')}, {vertices}, {self.column_names()})"

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
        """The width of the table of children; None if children are lists."""
        return None if self.arrays.children is None else self.arrays.children.shape[1]

    def column_names(self) -> str:
        """Describes the columns for messages."""
        a = self.arrays
        names = [", ".join(columns) for columns in (a.columns, a.edge_columns, a.graph_columns)]
        per = [f"{names} per {what}" for names, what in zip(names, ("vertex", "edge", "graph"), strict=True) if names]
        return f"columns {' and '.join(per)}" if per else "no columns"

    def __getitem__(self, graphs: int | np.integer[Any] | slice | ArrayLike) -> GraphBatch:
        """Selects one graph (an int) or several (a slice, an array or list of ints, a mask) as a batch.

        Raises:
            IndexRangeError: there is no such graph.
            DtypeError: the indices are not integers.
        """
        contiguous = False
        if isinstance(graphs, slice):
            begin, end, step = graphs.indices(len(self))
            indices = np.arange(begin, end, step)
            contiguous = step == 1
        elif isinstance(graphs, int | np.integer):
            if not -len(self) <= graphs < len(self):  # a Python int may exceed 64 bits
                raise self._no_graph(graphs)
            indices = np.array([graphs], np.int64)
            contiguous = True
        else:
            indices = self._indices(graphs)
            contiguous = len(indices) == 1
        try:
            starts = self._starts.take(indices)
            return GraphBatch(self, indices, starts, self._ends.take(indices) - starts, contiguous)
        except IndexError:
            wrong = indices[(indices < -len(self)) | (indices >= len(self))]
            raise self._no_graph(wrong[0]) from None

    def _no_graph(self, number: int | np.integer[Any]) -> IndexRangeError:
        return IndexRangeError(f"there is no graph {int(number)} in a set of {len(self)} (0 to {len(self) - 1})")

    def batches(
        self,
        size: int,
        *,
        seed: int = 1,
        epoch: int = 0,
        shuffle: bool = True,
        bucket: int | None = None,
        drop_last: bool = False,
        world: World | None = None,
    ) -> Iterator[GraphBatch]:
        """Yields all graphs once, in mini-batches. The order depends only on seed and epoch.

        With several processes, every mini-batch is divided into shards of similar vertex counts. The division does not
        depend on the number of processes. This method then yields this process's shards, one after another:

            for batch in trees.batches(64, seed=1, epoch=0, world=world):
                graph = vpps.Graph()
                handle.fb(graph, net.loss(graph, batch) * (1 / batch.whole))

        Args:
            size: graphs per batch, over all processes; the last batch may have fewer.
            seed, epoch: seed of the shuffling.
            shuffle: False keeps the set's order.
            bucket: number of batches whose graphs are sorted by size before they are put in batches, so that graphs of
                similar size share a batch. The batches themselves are shuffled too.
            drop_last: drop the last batch if it has fewer graphs.
            world: the result of `vpps.distributed.init`. If there are more shards than graphs, some shards are empty.

        Raises:
            DataError: size or bucket is not an int or below 1, seed or epoch is not an int or below 0, or `world` is
                not a world.
        """
        size = as_count(size, "batches: size", DataError)
        bucket = None if bucket is None else as_count(bucket, "batches: bucket", DataError)
        seed = as_count(seed, "batches: seed", DataError, 0)
        epoch = as_count(epoch, "batches: epoch", DataError, 0)
        shuffle = as_flag(shuffle, "batches: shuffle", DataError)
        drop_last = as_flag(drop_last, "batches: drop_last", DataError)
        if world is not None and not hasattr(world, "mine"):
            raise DataError(f"batches: world={world!r}: expected what vpps.distributed.init returned")
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
        if world is None or world.shards == 1:
            return (self[chunk] for chunk in chunks)
        return (part for chunk in chunks for part in self._shards(chunk, world))

    def _shards(self, graphs: NDArray[np.int64], world: World) -> Iterator[GraphBatch]:
        """Yields the shards of a mini-batch that this process computes; graphs keep the order of the batch."""
        shard = shards_of(self._ends.take(graphs) - self._starts.take(graphs), world.shards)
        world.count_batch()
        for k in world.mine:
            numbers = np.flatnonzero(shard == k)
            part = self[graphs[numbers]]
            part.whole, part.numbers = len(graphs), numbers
            try:
                yield part
            except GeneratorExit:  # the caller stopped: the remaining shards are never computed
                world.abandoned += 1
                raise

    def split(self, fraction: float, *, seed: int | None = None) -> tuple[GraphSet, GraphSet]:
        """Splits the set in two: `fraction` of the graphs, and the rest.

        Args:
            fraction: between 0 and 1; both sets must get at least one graph.
            seed: seed for a random choice. By default, the first set is the start of this one and shares its memory.

        Raises:
            DataError: a set would be empty.
        """
        share = as_number(fraction)
        first = round(share * len(self)) if share is not None and 0 < share < 1 else 0
        if not 0 < first < len(self):
            raise DataError(f"split: {fraction} of {len(self)} graphs: both sets need at least one graph")
        if seed is None:
            return self.subset(slice(first)), self.subset(slice(first, None))
        order = np.random.default_rng(as_count(seed, "split: seed", DataError, 0)).permutation(len(self))
        return self.subset(np.sort(order[:first])), self.subset(np.sort(order[first:]))

    def subset(self, graphs: slice | ArrayLike) -> GraphSet:
        """Returns some of the graphs as a new set, in the given order.

        A slice without a step shares this set's memory; any other selection is copied.

        Raises:
            DataError: the new set would be empty.
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
        edges = rows  # for a table of children
        if isinstance(a.form, tuple):
            begins, indices = a.form
            counts = begins[rows + 1] - begins[rows]
            child_offsets = frozen(running_sum(counts))
            edges = ragged(begins[rows], counts, child_offsets)
            child_indices = frozen(indices[edges])
        taken = GraphArrays(
            vertex_offsets=frozen(offsets),
            children=None if a.children is None else frozen(a.children[rows]),
            child_offsets=child_offsets,
            child_indices=child_indices,
            kind=None if a.kind is None else frozen(a.kind[rows]),
            levels=frozen(a.levels[rows]),
            order=None if a.order is None else frozen(a.order[rows]),
            columns={name: frozen(x[rows]) for name, x in a.columns.items()},
            graph_columns={name: frozen(x) for name, x in graph_columns.items()},
            edge_columns={name: frozen(x[edges]) for name, x in a.edge_columns.items()},
        )
        return self._with(taken, None)

    def reversed(self) -> GraphSet:
        """Returns the graphs with every edge reversed: the children of a vertex are its former parents.

        Use it for the second direction of a bidirectional chain, or for passes from the root of a tree down. Columns,
        kinds and vertex numbers do not change. Edge columns follow their edges and are 0 at missing children. The new
        children are a table of arity 1 if no vertex of this set has two parents, otherwise lists in ascending order.
        Kinds that depend on the presence of children no longer fit, and `graph.map` rejects them. Pass new kinds; for
        chains, these are `kind=(batch.reversed.children >= 0)[:, 0].astype("int8")`.
        """
        offsets, parents, children = self.edges()
        order = np.argsort(children, kind="stable")
        fan_out = np.bincount(children, minlength=int(offsets[-1]))
        below = (parents - offsets[:-1].repeat(self.sizes)[parents])[order]
        turned: ArrayLike | tuple[ArrayLike, ArrayLike]
        batch = self[:]
        there = batch.children[1] >= 0 if isinstance(batch.children, tuple) else batch.children >= 0
        edge_columns = {name: batch[name][there][order] for name in self.arrays.edge_columns}
        if fan_out.max() <= 1:
            turned = np.full((len(fan_out), 1), -1, np.int32)
            turned[children[order], 0] = below
            for name, x in edge_columns.items():
                edge_columns[name] = np.zeros((len(fan_out), 1, *x.shape[1:]), x.dtype)
                edge_columns[name][children[order], 0] = x
        else:
            turned = running_sum(fan_out), below
        rows = slice(int(self.arrays.vertex_offsets[0]), int(self.arrays.vertex_offsets[-1]))
        return GraphSet(
            self.sizes, turned,
            kind=None if self.arrays.kind is None else self.arrays.kind[rows], kinds=self.kinds,
            columns={name: x[rows] for name, x in self.arrays.columns.items()},
            graph_columns=self.arrays.graph_columns, edge_columns=edge_columns,
            vocabularies=self.vocabularies, classes=self.classes,
        )  # fmt: skip

    @property
    def turned(self) -> GraphSet:
        """The cached result of `reversed`."""
        if self._turned is None:
            self._turned = self.reversed()
        return self._turned

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns (graph offsets, parents, children) of all edges, sorted by parent, with set-wide vertex numbers."""
        batch = self[:]
        parents, children = edges_of(batch.n_vertices, batch.children)
        return batch.offsets, parents, children

    def stat(self) -> GraphStatistics:
        """Computes sizes, levels and fan-in; reads the whole set."""
        return GraphStatistics.of(self)

    def _with(self, arrays: GraphArrays, path: Path | None) -> GraphSet:
        return GraphSet.from_arrays(arrays, self.kinds, self.vocabularies, self.classes, path)

    def _index(self) -> None:
        self._turned = None
        self._starts, self._ends = self.arrays.vertex_offsets[:-1], self.arrays.vertex_offsets[1:]

    def _indices(self, graphs: ArrayLike) -> NDArray[np.int64]:
        refuse_masked(graphs, "graphs")
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
