"""The structure of a `graph.map`: which vertex is of which kind, and who its children are. Checked before anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import DtypeError, GraphError, IndexRangeError, ShapeError
from vpps.record.levels import find_cycle, find_levels
from vpps.record.ranges import Ints
from vpps.record.rowwise import checked_offsets
from vpps.record.vertex import CSR

SHOWN = 8
"""Vertices of a cycle that an error names."""


@dataclass(slots=True)
class Children:
    """Children of n vertices.

    Attributes:
        arity: columns of `table`, or CSR.
        table: (n, arity), -1 for none; CSR: (edges,).
        ends: of CSR, where each vertex's children begin, and the end.
        lengths: of CSR, how many each vertex has.
        some_missing: whether there is a -1; `check_range` finds out.
    """

    arity: int
    table: NDArray[Any]
    ends: Ints | None = None
    lengths: Ints | None = None
    some_missing: bool = True

    def edges(self) -> tuple[Ints, Ints]:
        """Parent and child of every edge, by rising parent."""
        if self.lengths is None:
            parents = np.arange(len(self.table)).repeat(self.arity)
        else:
            parents = np.arange(len(self.lengths)).repeat(self.lengths)
        children = self.table.reshape(-1).astype(np.int64)
        present = children >= 0
        return (parents, children) if present.all() else (parents[present], children[present])


def read_children(given: Any) -> Children | None:
    """The children as the user gave them. Raises DtypeError, ShapeError."""
    if given is None:
        return None
    if isinstance(given, tuple):
        if len(given) != 2:
            raise ShapeError(
                f"graph.map: children is a tuple of {len(given)}; expected (offsets, indices), or an array of shape "
                "(n, arity)"
            )
        offsets, indices = (
            np.asarray(given[0]),
            _of_ints(np.asarray(given[1]), "the indices of children are ints, -1 for none"),
        )
        if indices.ndim != 1 or offsets.ndim != 1 or not len(offsets):
            raise ShapeError(
                f"graph.map: children=(offsets, indices) are of shapes (n + 1,) and (edges,), not {offsets.shape} "
                f"and {indices.shape}"
            )
        ends, lengths = checked_offsets(offsets, len(offsets) - 1, len(indices), "graph.map: children")
        return Children(CSR, indices, ends, lengths)
    table = _of_ints(np.asarray(given), "children are ints, -1 for none")
    if table.ndim not in (1, 2) or (table.ndim == 2 and not table.shape[1]):
        raise ShapeError(
            f"graph.map: children of shape {table.shape}; expected (n, arity), or (offsets, indices) where the "
            "number of children varies; leave it out where nobody has any"
        )
    if table.ndim == 1:
        table = table[:, None]
    return Children(table.shape[1], table)


def trusted_levels(levels: Any, children: Children | None, n: int) -> Ints:
    """Levels as given, for which the caller vouches; children are checked as without, but for cycles."""
    found: Ints = _of_ints(np.asarray(levels), "levels are ints").astype(np.int64)
    if found.shape != (n,):
        raise ShapeError(f"graph.map: levels of shape {found.shape}; expected ({n},), the level of each vertex")
    if children is not None:
        check_range(children, n)
    return found


def _of_ints(array: NDArray[Any], what: str) -> NDArray[Any]:
    if array.size == 0 and array.dtype.kind == "f":  # an empty list
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DtypeError(f"graph.map: {what}, not of dtype {array.dtype}; convert them to int32")
    return array


def check_range(children: Children, n: int) -> None:
    """Raise unless children are vertices of the map."""
    count = len(children.table) if children.ends is None else len(children.ends) - 1
    if count != n:
        raise ShapeError(f"graph.map: children of {count} vertices, but there are {n}")
    flat = children.table.reshape(-1)
    lowest = np.minimum.reduce(flat, initial=0)
    children.some_missing = bool(lowest < 0)
    if lowest < -1 or (n and np.maximum.reduce(flat, initial=0) >= n):
        wrong = int(np.argmax((flat < -1) | (flat >= n)))
        ends = children.ends
        vertex = wrong // children.arity if ends is None else int(np.searchsorted(ends, wrong, "right")) - 1
        raise IndexRangeError(
            f"graph.map: vertex {vertex} has child {int(flat[wrong])}; children are vertices of the map, "
            f"0 to {n - 1}, or -1 for none"
        )


def check_children(children: Children, n: int) -> Ints:
    """Raise unless children are vertices of the map and nobody its own descendant; returns the levels."""
    check_range(children, n)
    parents, below = children.edges()
    levels = find_levels(n, parents, below)
    if n and int(levels.min()) < 0:
        cycle = find_cycle(levels, parents, below)
        shown = ", ".join(map(str, cycle[:SHOWN])) + (", ..." if len(cycle) > SHOWN else "")
        raise GraphError(
            f"graph.map: the children form a cycle of {len(cycle)} vertices, each the parent of the next: {shown}; "
            "take an edge out of it, or unroll it in time"
        )
    return levels


def read_kinds(kind: Any, n_cells: int) -> tuple[list[Ints | None], int]:
    """The vertices of each kind, None for all; and how many vertices that tells, -1 for not."""
    if kind is None:
        if n_cells > 1:
            raise GraphError(f"graph.map: {n_cells} cells and no kind=: say which of them each vertex is, (n,) ints")
        return [None], -1
    kinds = np.asarray(kind)
    if kinds.size == 0 and kinds.dtype.kind == "f":
        kinds = kinds.astype(np.int8)
    if kinds.dtype.kind not in "iu":
        raise DtypeError(f"graph.map: kind is of ints, not of dtype {kinds.dtype}; convert it to int8")
    if kinds.ndim != 1:
        raise ShapeError(f"graph.map: kind of shape {kinds.shape}; expected (n,), an int per vertex")
    rows: list[Ints | None] = [(kinds == k).nonzero()[0] for k in range(n_cells)]
    if sum(map(len, rows)) < len(kinds):  # type: ignore[arg-type]
        vertex = int(np.argmax((kinds < 0) | (kinds >= n_cells)))
        raise IndexRangeError(
            f"graph.map: vertex {vertex} is of kind {int(kinds[vertex])}, but there are {n_cells} cells, "
            f"0 to {n_cells - 1}"
        )
    return (rows if n_cells > 1 else [None]), len(kinds)
