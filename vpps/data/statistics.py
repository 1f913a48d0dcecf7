"""What a `GraphSet` holds, in figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vpps.data.graphset import GraphSet


@dataclass(frozen=True)
class Spread:
    """The smallest, mean and largest of some counts."""

    min: int
    mean: float
    max: int


@dataclass(frozen=True)
class GraphStatistics:
    """The figures of `vpps-data stat`.

    Attributes:
        graphs, vertices, edges: how many in all.
        vertices_per_graph, levels_per_graph, fan_in: spreads; fan-in is the number of children of a vertex.
        arity: room for children of every vertex, or None where they are lists.
        max_readers: the most vertices that read one: 1 in trees and chains.
        kinds: vertices by the name of their kind.
        columns, graph_columns: type and width of each: `int32`, `float32[50]`.
        vocabularies, classes: the number of names that integers of a column stand for.
        bytes: of all arrays.
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
    columns: dict[str, str]
    graph_columns: dict[str, str]
    vocabularies: dict[str, int]
    classes: dict[str, int]
    bytes: int

    @classmethod
    def of(cls, graphs: GraphSet) -> GraphStatistics:
        """Reads the whole set."""
        offsets, parents, children = graphs.edges()
        n, everything = int(offsets[-1]), graphs[:]
        kind = np.zeros(n, np.int8) if everything.kind is None else everything.kind
        counts = np.bincount(kind, minlength=len(graphs.kinds)).tolist()
        arrays = graphs.arrays
        shared = (everything.kind, everything.levels, None if arrays.order is None else arrays.order[:n])
        edges = everything.children if isinstance(everything.children, tuple) else (everything.children,)
        columns = {name: everything[name] for name in arrays.columns}
        graph_columns = {name: everything[name] for name in arrays.graph_columns}
        held = [everything.offsets, *edges, *shared, *columns.values(), *graph_columns.values()]
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
            columns={name: _type(x) for name, x in columns.items()},
            graph_columns={name: _type(x) for name, x in graph_columns.items()},
            vocabularies={name: len(words) for name, words in graphs.vocabularies.items()},
            classes={name: len(names) for name, names in graphs.classes.items()},
            bytes=sum(x.nbytes for x in held if x is not None),
        )


def _spread(counts: np.typing.NDArray[np.generic]) -> Spread:
    return Spread(int(counts.min()), round(float(counts.mean()), 3), int(counts.max()))


def _type(column: np.typing.NDArray[np.generic]) -> str:
    return str(column.dtype) + (f"[{column.shape[1]}]" if column.ndim == 2 else "")
