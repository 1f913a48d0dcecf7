"""Builds and checks the flat arrays of a `GraphSet` from arguments that a user or a reader passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError, DtypeError
from vpps.interop import refuse_masked
from vpps.record.levels import find_cycle, find_levels
from vpps.record.ranges import running_sum

Children = NDArray[np.int32] | tuple[NDArray[np.int64], NDArray[np.int32]]

MAX_KINDS = 128  # kinds are int8
_CHECKED_AT_ONCE = 1 << 17  # vertices and child entries per block; a block fits in the CPU cache


@dataclass(frozen=True, slots=True, eq=False)
class GraphArrays:
    """Arrays of a set with N vertices in G graphs. Vertices are numbered from 0 within their graph."""

    vertex_offsets: NDArray[np.int64]
    """(G + 1,) the vertices of graph g are rows `vertex_offsets[g]:vertex_offsets[g + 1]`; may begin above 0."""
    levels: NDArray[np.int32]
    """(N,) topological level: the longest distance from a vertex without children."""
    children: NDArray[np.int32] | None = None
    """(N, arity) a table of children, or None for lists; -1 is a missing child."""
    child_offsets: NDArray[np.int64] | None = None
    """(N + 1,) the start of every vertex's children in `child_indices`; None for a table."""
    child_indices: NDArray[np.int32] | None = None
    """(edges,) the lists of children, one after the other; None for a table."""
    kind: NDArray[np.int8] | None = None
    """(N,) the kind of every vertex; None if all vertices have kind 0."""
    order: NDArray[np.int32] | None = None
    """(N,) the vertices of each graph, children before parents; None if they are numbered in such an order."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Vertex data by name: (N,) or (N, width), int32 or float32."""
    graph_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Graph data by name: (G,) or (G, width)."""
    edge_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Data per entry of `children` or `child_indices` by name: (N, arity) or (edges,), optionally with a width."""

    @property
    def form(self) -> Children:
        """The children: the table `children`, or the lists `(child_offsets, child_indices)`."""
        if self.children is not None:
            return self.children
        assert self.child_offsets is not None
        assert self.child_indices is not None
        return self.child_offsets, self.child_indices

    def all_columns(self) -> dict[str, NDArray[Any]]:
        """Returns all vertex, edge and graph columns by name."""
        return {**self.columns, **self.edge_columns, **self.graph_columns}


def make_arrays(
    sizes: ArrayLike,
    children: ArrayLike | tuple[ArrayLike, ArrayLike],
    kind: ArrayLike | None,
    kinds: Sequence[str],
    columns: Mapping[str, ArrayLike],
    graph_columns: Mapping[str, ArrayLike],
    edge_columns: Mapping[str, ArrayLike],
    sources: Sequence[str] | None,
) -> GraphArrays:
    """Checks the arguments of `GraphSet` and computes levels. Raises DataError and DtypeError as `GraphSet` does."""
    counts = _integers(sizes, "sizes", np.int64)
    if counts.ndim != 1 or not len(counts):
        raise DataError(f"sizes are one number per graph, at least one graph, not of shape {counts.shape}")
    if counts.min() < 1:
        raise DataError(f"graph {int(counts.argmin())} has {int(counts.min())} vertices: it needs at least 1")
    if sources is not None and len(sources) != len(counts):
        raise DataError(f"there are {len(sources)} sources for {len(counts)} graphs")
    names = _Names(running_sum(counts), sources)
    n = int(names.vertex_offsets[-1])
    form: Children
    if isinstance(children, tuple):
        if len(children) != 2:
            raise DataError(f"children={children!r}: expected an array, or (offsets, indices)")
        form = _lists(children[0], children[1], n)
    else:
        form = _integers(children, "children", np.int32)
        if form.ndim != 2 or len(form) != n or not form.shape[1]:
            raise DataError(f"children must have shape ({n}, arity), a row per vertex, not {form.shape}")
    levels, order = _sort(names, form)
    table, (child_offsets, indices) = (None, form) if isinstance(form, tuple) else (form, (None, None))
    owners: dict[str, str] = {}
    for what, names_of in (("vertices", columns), ("edges", edge_columns), ("graphs", graph_columns)):
        for name in names_of:
            if name in owners:
                raise DataError(f"{name!r} names a column of {owners[name]} and a column of {what}")
            owners[name] = what
    return GraphArrays(
        vertex_offsets=frozen(names.vertex_offsets),
        children=table,
        child_offsets=child_offsets,
        child_indices=indices,
        kind=None if kind is None else _kind(kind, kinds, names),
        levels=frozen(levels),
        order=order,
        columns={name: _column(name, x, n, "vertices") for name, x in columns.items()},
        graph_columns={name: _column(name, x, len(counts), "graphs") for name, x in graph_columns.items()},
        edge_columns={name: _edge_column(name, x, form) for name, x in edge_columns.items()},
    )


def names_of(names: Any, what: str) -> tuple[str, ...]:
    """Returns a sequence of strings as a tuple. Raises DataError for anything else, including a single string."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{what}={names!r}: expected strings in a list or tuple")
    return tuple(names)


def check_names(
    arrays: GraphArrays, vocabularies: Mapping[str, Vocabulary], classes: Mapping[str, tuple[str, ...]]
) -> None:
    """Raises DataError unless every vocabulary belongs to an integer column and covers the column's numbers."""
    both = vocabularies.keys() & classes.keys()
    if both:
        raise DataError(f"column {min(both)!r} has a vocabulary and classes: give one of them")
    columns = arrays.all_columns()
    names: dict[str, Vocabulary | tuple[str, ...]] = {**vocabularies, **classes}
    for name, words in names.items():
        if name not in columns or columns[name].dtype != np.int32:
            raise DataError(f"there are names for {name!r}, but no integer column of that name")
        numbers = columns[name]
        if name in arrays.edge_columns:
            form = arrays.form
            numbers = numbers[(form[1] if isinstance(form, tuple) else form) >= 0]  # ignore values of missing children
        if numbers.size and numbers.max() >= len(words):
            raise DataError(f"column {name!r} holds {int(numbers.max())}, but there are {len(words)} names for it")


def check_contents(a: GraphArrays, kinds: Sequence[str]) -> None:
    """Raises DataError if `make_arrays` cannot have returned these arrays. Their shapes must be correct.

    A vertex's level follows from its children's levels, and the vertices of a cycle cannot have levels. So this check
    needs no sorting, and it needs memory for only a few graphs at a time.
    """
    names = _Names(a.vertex_offsets, None)
    if a.kind is not None:
        _check_kind(names, a.kind, kinds)
    if isinstance(a.form, tuple):
        _check_offsets(*a.form)
        work = a.vertex_offsets + a.form[0][a.vertex_offsets]
    else:
        work = a.vertex_offsets * a.form.shape[1]
    first, end = 0, len(a.vertex_offsets) - 1
    while first < end:
        reach = int(np.searchsorted(work, work[first] + _CHECKED_AT_ONCE, side="right")) - 1
        last = max(reach, first + 1)
        _check_graphs(a, names, first, last)
        first = last


def _check_graphs(a: GraphArrays, names: _Names, first: int, last: int) -> None:
    """Checks the children, levels and order of graphs `first` to `last - 1`; see `check_contents`."""
    offsets = a.vertex_offsets[first : last + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    sizes = np.diff(offsets)
    size, base = sizes.repeat(sizes), (offsets[:-1] - begin).repeat(sizes)
    place = np.arange(end - begin)
    if isinstance(a.form, tuple):
        begins, indices = a.form
        form: Children = begins[begin : end + 1], indices[int(begins[begin]) : int(begins[end])]
    else:
        form = a.form[begin:end]
    room, given = _counts(form)
    parents, counts = place.repeat(room), np.broadcast_to(room, end - begin)
    _check_children(names, parents + begin, given, size[parents])
    levels = a.levels[begin:end]
    below = np.where(given < 0, -1, levels[np.where(given < 0, 0, given + base[parents])])
    expected = np.zeros(end - begin, np.int64)
    some = counts > 0
    if some.any():
        expected[some] = np.maximum.reduceat(below.astype(np.int64), (np.cumsum(counts) - counts)[some]) + 1
    wrong = levels != expected
    if wrong.any():
        vertex = int(wrong.argmax())
        raise DataError(
            f"{names.vertex(begin + vertex)}: its level is {int(levels[vertex])}, but its children give it level "
            f"{int(expected[vertex])}"
        )
    if a.order is None:
        wrong = given >= (place - base)[parents]
        if wrong.any():
            vertex = begin + int(parents[wrong.argmax()])
            raise DataError(f"{names.vertex(vertex)}: a child comes after it, and no order is given")
        return
    order = a.order[begin:end]
    outside = (order < 0) | (order >= size)
    if not outside.any():  # strictly sorted by level, then by number, so each vertex occurs once
        level = levels[order + base]
        rises = (level[1:] > level[:-1]) | ((level[1:] == level[:-1]) & (order[1:] > order[:-1]))
        outside[1:] = ~rises & (base[1:] == base[:-1])
    if outside.any():
        raise DataError(f"{names.vertex(begin + int(outside.argmax()))}: order does not follow the levels")


@dataclass(frozen=True, slots=True)
class _Names:
    """Names graphs and vertices in error messages."""

    vertex_offsets: NDArray[np.int64]
    sources: Sequence[str] | None

    def graph(self, graph: int) -> str:
        return f"graph {graph}" if self.sources is None else self.sources[graph]

    def vertex(self, vertex: int) -> str:
        graph = int(np.searchsorted(self.vertex_offsets, vertex, side="right")) - 1
        return f"{self.graph(graph)}: vertex {vertex - int(self.vertex_offsets[graph])}"


def _sort(names: _Names, form: Children) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
    """Computes levels, and the order unless children always have lower numbers than parents. Raises DataError."""
    n, sizes = int(names.vertex_offsets[-1]), np.diff(names.vertex_offsets)
    counts, given = _counts(form)
    everyone = np.arange(n).repeat(counts)
    graph_of_vertex = np.arange(len(sizes)).repeat(sizes)
    _check_children(names, everyone, given, sizes[graph_of_vertex[everyone]])
    there = given >= 0
    parents = everyone[there]
    children = given[there] + names.vertex_offsets[graph_of_vertex[parents]]
    levels = find_levels(n, parents, children).astype(np.int32)
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
    order = np.lexsort((levels, graph_of_vertex)) - names.vertex_offsets[:-1].repeat(sizes)
    return levels, frozen(order.astype(np.int32))


def _check_children(
    names: _Names, parents: NDArray[np.int64], given: NDArray[np.int32], sizes: NDArray[np.int64]
) -> None:
    """Raises DataError if a child in `given` is not a vertex of its parent's graph; `sizes` are the graphs' sizes."""
    wrong = (given < -1) | (given >= sizes)
    if wrong.any():
        place = int(wrong.argmax())
        parent, child, size = parents[place], given[place], sizes[place]
        raise DataError(
            f"{names.vertex(int(parent))}: there is no child {child}: the graph has {size} vertices (0 to {size - 1}), "
            "numbered from 0 in every graph, and -1 stands for no child"
        )


def _kind(kind: ArrayLike, kinds: Sequence[str], names: _Names) -> NDArray[np.int8]:
    n = int(names.vertex_offsets[-1])
    found = _integers(kind, "kind", np.int64)
    if found.shape != (n,):
        raise DataError(f"kind must have shape ({n},), one number per vertex, not {found.shape}")
    if len(kinds) > MAX_KINDS:
        raise DataError(f"{len(kinds)} kinds of vertices: there can be at most {MAX_KINDS}")
    _check_kind(names, found, kinds)
    return frozen(found.astype(np.int8))


def _check_kind(names: _Names, kind: NDArray[np.integer[Any]], kinds: Sequence[str]) -> None:
    """Raises DataError if a vertex has an unknown kind."""
    wrong = (kind < 0) | (kind >= len(kinds))
    if wrong.any():
        vertex = int(wrong.argmax())
        raise DataError(
            f"{names.vertex(vertex)}: there is no kind {int(kind[vertex])}: there are {len(kinds)} "
            f"({', '.join(kinds)}), numbered from 0"
        )


def edges_of(n: int, children: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (parents, children) of all edges, sorted by parent, without entries below 0."""
    counts, flat = _counts(children)
    there = flat >= 0
    return np.arange(n).repeat(counts)[there], flat[there].astype(np.int64)


def _counts(form: Any) -> tuple[int | NDArray[np.int64], NDArray[np.int32]]:
    """Returns the number of entries per vertex (a single number for a table), and all entries."""
    return (np.diff(form[0]), form[1]) if isinstance(form, tuple) else (form.shape[1], form.reshape(-1))


def _lists(offsets: ArrayLike, indices: ArrayLike, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Checks lists of children and returns them as arrays. Raises DataError and DtypeError."""
    begins = _integers(offsets, "offsets of children", np.int64)
    flat = _integers(indices, "indices of children", np.int32)
    if begins.shape != (n + 1,) or flat.ndim != 1:
        raise DataError(
            f"children in lists are (offsets, indices) of shapes ({n + 1},) and (edges,), not {begins.shape} and "
            f"{flat.shape}"
        )
    _check_offsets(begins, flat)
    return begins, flat


def _check_offsets(begins: NDArray[np.int64], flat: NDArray[np.int32]) -> None:
    # Compare offsets instead of subtracting them: a difference may overflow int64.
    if begins[0] != 0 or begins[-1] != len(flat) or (begins[1:] < begins[:-1]).any():
        raise DataError(f"offsets of children must rise from 0 to {len(flat)}, the number of indices")


def _array(array: ArrayLike, what: str) -> NDArray[Any]:
    refuse_masked(array, what)
    try:
        return np.asarray(array)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{what}: expected an array; {error}") from None


def _integers(array: ArrayLike, what: str, kind: type[Any]) -> NDArray[Any]:
    """Converts to a read-only array of the integer type `kind`."""
    found = _array(array, what)
    if found.size == 0 and found.dtype.kind == "f":
        found = found.astype(np.int64)  # an empty list
    if found.dtype.kind not in "iub":
        raise DtypeError(f"{what} must be integers, not {found.dtype}")
    return frozen(_narrowed(found, what, kind))


def _narrowed(array: NDArray[Any], what: str, kind: type[Any]) -> NDArray[Any]:
    limits = np.iinfo(kind)
    if array.dtype != kind and array.size and (array.min() < limits.min or array.max() > limits.max):
        raise DtypeError(f"{what} hold {array.min()} to {array.max()}, which does not fit {np.dtype(kind)}")
    return array.astype(kind, copy=False)


def _column(name: str, array: ArrayLike, n: int, what: str) -> NDArray[Any]:
    """Converts to a read-only column of int32 or float32."""
    found = _array(array, f"column {name!r}")
    if found.ndim not in (1, 2) or len(found) != n:
        raise DataError(f"column {name!r} must have a row for each of the {n} {what}, not shape {found.shape}")
    if found.dtype.kind in "iub":
        return frozen(_narrowed(found, f"column {name!r}", np.int32))
    if found.dtype.kind != "f":
        raise DtypeError(f"column {name!r} must hold numbers, not {found.dtype}")
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32, copy=False)
    if (np.isinf(narrow) & np.isfinite(found)).any():
        raise DtypeError(f"column {name!r} holds numbers beyond the range of float32")
    return frozen(narrow)


def _edge_column(name: str, array: ArrayLike, form: Children) -> NDArray[Any]:
    """Converts to a read-only edge column of int32 or float32, in the same form as the children."""
    if isinstance(form, tuple):
        return _column(name, array, len(form[1]), "edges")
    found = _array(array, f"column {name!r}")
    if found.ndim not in (2, 3) or found.shape[:2] != form.shape:
        raise DataError(
            f"column {name!r} must have a value for each place of the table of children, {form.shape}, or a row of "
            f"values, not shape {found.shape}"
        )
    return _column(name, found.reshape(form.size, *found.shape[2:]), form.size, "edges").reshape(found.shape)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Returns a contiguous read-only view (a copy only if needed). The array's owner can still write to it."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
