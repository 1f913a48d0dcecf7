"""Random graphs for tests, as plain Python, and vpps.data's expected results, by definition."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from vpps.data import GraphBatch, GraphSet

examples = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class PlainGraph:
    """One graph: children by vertex (-1 marks none), and a value per vertex, per child and for the whole graph."""

    children: list[list[int]]
    kind: list[int]
    word: list[int]
    position: list[list[float]]
    rating: float
    relation: list[list[int]]

    def level(self, vertex: int) -> int:
        return max((1 + self.level(child) for child in self.children[vertex] if child >= 0), default=0)

    def roots(self) -> list[int]:
        return sorted(set(range(len(self.children))) - {child for some in self.children for child in some})


@st.composite
def plain_graphs(draw: st.DrawFn, arity: int | None) -> PlainGraph:
    """Draw a graph of 1 to 8 vertices in any order of numbers; every vertex has `arity` entries (or any number)."""
    n = draw(st.integers(1, 8))
    number = draw(st.permutations(range(n)))  # the vertex number at each position of a topological order
    children: list[list[int]] = [[] for _ in range(n)]
    for place in range(n):
        below = st.sampled_from([-1, *number[:place]])
        size = (0, 4) if arity is None else (arity, arity)
        children[number[place]] = draw(st.lists(below, min_size=size[0], max_size=size[1]))
    word = draw(st.lists(st.integers(-1, 5), min_size=n, max_size=n))
    kind = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    relation = [[10 * v + k + 1 for k in range(len(some))] for v, some in enumerate(children)]
    return PlainGraph(children, kind, word, [[w / 2, -w] for w in word], float(sum(word)), relation)


def weights_of(relation: Any) -> Any:
    """Return a second edge column, whose values are pairs of numbers."""
    return [weights_of(x) for x in relation] if isinstance(relation, list) else [relation / 4, -relation]


def set_of(graphs: list[PlainGraph], arity: int | None) -> GraphSet:
    """Return the graphs as a set, with children in a table or in lists."""
    children: Any = [some for g in graphs for some in g.children]
    relation: Any = [own for g in graphs for own in g.relation]
    if arity is None:
        children = np.cumsum([0, *map(len, children)]), [child for some in children for child in some]
        relation = [x for own in relation for x in own]
    relation = np.array(relation, np.int64)
    return GraphSet(
        [len(g.children) for g in graphs],
        children,
        kind=[k for g in graphs for k in g.kind],
        kinds=("a", "b", "c"),
        columns={"word": [w for g in graphs for w in g.word], "position": [p for g in graphs for p in g.position]},
        graph_columns={"rating": [g.rating for g in graphs]},
        edge_columns={"relation": relation, "weight": np.stack([relation / 4, -relation], axis=-1)},
    )


def assert_holds(batch: GraphBatch, graphs: list[PlainGraph], arity: int | None) -> None:
    """Assert that the batch joins these graphs, comparing element by element."""
    first, children = 0, []
    relation: Any = [own for g in graphs for own in g.relation]
    offsets, levels, roots = [0], [], []
    for g in graphs:
        children += [[child + first if child >= 0 else -1 for child in some] for some in g.children]
        levels += [g.level(v) for v in range(len(g.children))]
        roots += [v + first for v in g.roots()]
        first += len(g.children)
        offsets.append(first)
    assert len(batch) == len(graphs)
    assert batch.n_vertices == first
    assert batch.offsets.tolist() == offsets
    if arity is None:
        ends, indices = batch.children
        assert [indices[a:b].tolist() for a, b in pairwise(ends.tolist())] == children
        assert ends.dtype == indices.dtype == np.int32
        assert batch.child_offsets is ends
        relation = [x for own in relation for x in own]
    else:
        assert isinstance(batch.children, np.ndarray)
        assert batch.children.tolist() == children
        assert batch.children.shape == (first, arity)
        assert batch.children.dtype == np.int32
    assert batch.kind is not None
    assert batch.kind.tolist() == [k for g in graphs for k in g.kind]
    assert batch.kind.dtype == np.int8
    assert batch.levels.tolist() == levels
    assert batch.levels.dtype == np.int32
    structure = batch.structure
    assert structure.keys() == {"kind", "kinds", "children", "levels", "examples"}
    assert all(structure[name] is getattr(batch, name) for name in structure.keys() - {"kinds"})
    assert batch["word"].tolist() == [w for g in graphs for w in g.word]
    assert batch["word"].dtype == np.int32
    assert batch["position"].tolist() == [p for g in graphs for p in g.position]
    assert batch["position"].dtype == np.float32
    assert batch["rating"].tolist() == [g.rating for g in graphs]
    assert batch["relation"].tolist() == relation
    assert batch["relation"].dtype == np.int32
    assert batch["weight"].tolist() == weights_of(relation)
    assert batch["weight"].dtype == np.float32 or not batch["weight"].size
    assert batch.roots.tolist() == roots
    assert batch.graph_of_vertex.tolist() == [k for k, g in enumerate(graphs) for _ in g.children]
    assert np.array_equal(batch.examples.numbers, batch.graph_of_vertex)
    place = np.argsort(batch.order)
    for vertex, some in enumerate(children):
        assert all(place[child] < place[vertex] for child in some if child >= 0)
    assert sorted(batch.order.tolist()) == list(range(first))
    assert (np.diff(batch.graph_of_vertex[batch.order]) >= 0).all()
