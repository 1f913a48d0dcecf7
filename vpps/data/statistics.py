"""Statistics of a `GraphSet`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vpps.data.graphset import GraphSet


@dataclass(frozen=True)
class Spread:
    """Minimum, mean and maximum of some counts."""

    min: int
    mean: float
    max: int


@dataclass(frozen=True)
class Column:
    """A column. `per`: vertex, edge or graph. `type`: `int32`, `float32[50]`, ... `min`, `max`: range of the values."""

    per: str
    type: str
    min: float
    max: float


@dataclass(frozen=True)
class GraphStatistics:
    """The statistics that `vpps-data stat` shows.

    Attributes:
        graphs, vertices, edges: total counts.
        vertices_per_graph, levels_per_graph, fan_in: spreads; fan-in is the number of children of a vertex.
        arity: width of the table of children; None if children are lists.
        max_readers: largest number of parents of one vertex: 1 in trees and chains.
        kinds: number of vertices by kind name.
        columns: type and range by column name.
        vocabularies, classes: number of names per column.
        bytes: size of all arrays.
    """

    graphs: int
    vertices: int
    edges: int
    vertices_per_graph: Spread
    levels_per_graph: Spread
    fan_in: Spread
    arity: int | None
    max_readers: int
    kinds: dict[str, int]
    columns: dict[str, Column]
    vocabularies: dict[str, int]
    classes: dict[str, int]
    bytes: int

    @classmethod
    def of(cls, graphs: GraphSet) -> GraphStatistics:
        """Computes the statistics; reads the whole set."""
        offsets, parents, children = graphs.edges()
        n, everything = int(offsets[-1]), graphs[:]
        kind = np.zeros(n, np.int8) if everything.kind is None else everything.kind
        counts = np.bincount(kind, minlength=len(graphs.kinds)).tolist()
        arrays = graphs.arrays
        shared = (everything.kind, everything.levels, None if arrays.order is None else arrays.order[:n])
        edges = everything.children if isinstance(everything.children, tuple) else (everything.children,)
        columns = {name: _column("vertex", everything[name]) for name in arrays.columns}
        there = edges[-1] >= 0
        columns |= {name: _column("edge", everything[name][there]) for name in arrays.edge_columns}
        held = [everything.offsets, *edges, *shared, *(everything[name] for name in arrays.all_columns())]
        return cls(
            graphs=len(graphs),
            vertices=n,
            edges=len(parents),
            vertices_per_graph=_spread(graphs.sizes),
            levels_per_graph=_spread(np.maximum.reduceat(everything.levels, offsets[:-1]) + 1),
            fan_in=_spread(np.bincount(parents, minlength=n)),
            arity=graphs.arity,
            max_readers=int(np.bincount(children, minlength=n).max()),
            kinds=dict(zip(graphs.kinds, counts, strict=True)),
            columns=columns | {name: _column("graph", everything[name]) for name in arrays.graph_columns},
            vocabularies={name: len(words) for name, words in graphs.vocabularies.items()},
            classes={name: len(names) for name, names in graphs.classes.items()},
            bytes=sum(x.nbytes for x in held if x is not None),
        )


def _spread(counts: np.typing.NDArray[np.generic]) -> Spread:
    return Spread(int(counts.min()), round(float(counts.mean()), 3), int(counts.max()))


def _column(per: str, column: np.typing.NDArray[np.generic]) -> Column:
    width = f"[{column.shape[1]}]" if column.ndim == 2 else ""
    if not column.size:
        return Column(per, f"{column.dtype}{width}", 0, 0)
    return Column(per, f"{column.dtype}{width}", column.min().item(), column.max().item())
