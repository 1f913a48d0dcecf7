"""Maps recorded in one call of compiled code beside those recorded with NumPy: the same arrays, the same errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import contents_of
from vpps.data import GraphBatch, GraphSet
from vpps.errors import VppsError
from vpps.record.packed import PackedChunk

pytestmark = pytest.mark.host

WORDS, CLASSES, H = 50, 5, 4


def forest(seed: int) -> GraphSet:
    """Random binary trees in post-order; features as of a treebank."""
    random = np.random.default_rng(seed)
    sizes: list[int] = []
    children: list[tuple[int, int]] = []
    for _ in range(20):
        roots: list[int] = []
        n, leaves = 0, int(random.integers(1, 12))
        while leaves or len(roots) > 1:
            joins = len(roots) > 1 and (not leaves or random.random() < 0.5)
            children.append((roots[-2], roots[-1]) if joins else (-1, -1))
            roots = [*roots[:-2], n] if joins else [*roots, n]
            leaves -= not joins
            n += 1
        sizes.append(n)
    table = np.array(children, np.int32)
    n = len(table)
    return GraphSet(
        sizes, table, kind=table[:, 0] >= 0, kinds=("leaf", "inner"),
        columns={"word": random.integers(0, WORDS, n), "label": random.integers(0, CLASSES, n)},
    )  # fmt: skip


class Net:
    """Cells of two kinds, and what a map of them takes."""

    def __init__(self) -> None:
        model = vpps.Model(seed=1)
        words = model.lookup("words", (WORDS, H))
        u, o = model.parameter("U", (H, 2 * H)), model.parameter("Wo", (CLASSES, H))

        @vpps.cell
        def leaf(word: Any, label: Any) -> Any:
            h = vpps.tanh(vpps.lookup(words, word))
            return h, vpps.exp(h), vpps.cross_entropy(o @ h, label)

        @vpps.cell
        def inner(h_left: Any, c_left: Any, h_right: Any, c_right: Any, label: Any) -> Any:
            h = vpps.tanh(u @ vpps.concat([h_left, h_right]))
            return h, c_left + c_right, vpps.cross_entropy(o @ h, label)

        @vpps.cell
        def leaf_vertex() -> None:
            h, c, loss = leaf(vpps.pull("word"), vpps.pull("label"))
            vpps.scatter(h, c)
            vpps.push(loss)

        @vpps.cell
        def inner_vertex() -> None:
            (h_left, c_left), (h_right, c_right) = vpps.gather()
            h, c, loss = inner(h_left, c_left, h_right, c_right, vpps.pull("label"))
            vpps.scatter(h, c)
            vpps.push(loss)

        self.cells = [leaf_vertex, inner_vertex]

        @vpps.cell
        def leaf_of_two() -> None:
            h, c, _ = leaf(vpps.pull("word"), vpps.pull("label"))
            vpps.scatter(h, c)

        @vpps.cell
        def inner_of_two() -> None:
            (h_left, c_left), (h_right, c_right) = vpps.gather()
            h, c, _ = inner(h_left, c_left, h_right, c_right, vpps.pull("label"))
            vpps.scatter(h, c)

        self.cells_without_loss = [leaf_of_two, inner_of_two]


def map_of(graph: vpps.Graph, cells: Any, batch: GraphBatch, **others: Any) -> Any:
    inputs = {"word": batch["word"], "label": batch["label"]}
    return graph.map(cells, **{**batch.structure, "inputs": inputs, **others})


def is_packed(graph: vpps.Graph) -> bool:
    return any(type(chunk) is PackedChunk for block in graph.blocks.values() for _, chunk in block.bulk)


@pytest.fixture
def nets() -> Net:
    return Net()


BATCHES: dict[str, Any] = {
    "one": [3], "int": 3, "from the end": -1, "some": [7, 2, 2, 19], "range": slice(2, 9),
    "every other": slice(0, 9, 2), "last first": np.arange(19, -1, -1), "32 bits": np.array([4, 5], np.int32),
}  # fmt: skip


@pytest.mark.parametrize("which", BATCHES)
@pytest.mark.parametrize("form", ["cells", "cells_without_loss"])
def test_packed_maps_are_what_numpy_records(
    form: str, which: str, nets: Net, use_recorder: Callable[[str], None]
) -> None:
    trees = forest(1)
    recorded = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        for attempt in range(2):
            graph = vpps.Graph()
            graph.zeros(H)  # so that values and calls do not begin with 0
            found = map_of(graph, getattr(nets, form), trees[BATCHES[which]])
            rows = found if isinstance(found, tuple) else (found,)
            of_rows = [(r.ids.tolist(), r.levels.tolist(), r.shape, r.highest_level()) for r in rows]
            recorded.append((contents_of(graph), of_rows))
            # The first map of some cells, which traces them, is always NumPy's.
            assert is_packed(graph) == (recorder == "compiled" and (attempt > 0 or bool(recorded[:-1])))
    assert all(other == recorded[0] for other in recorded[1:])


class NetOfVectors:
    """Cells of two kinds that may read rows; a leaf's part that follows from its word can be computed once."""

    def __init__(self) -> None:
        model = vpps.Model(seed=1)
        words = model.lookup("words", (WORDS, H))
        w, u = model.parameter("W", (H, H)), model.parameter("U", (H, 2 * H))
        v = model.parameter("V", (H, H))

        def leaf(x: Any, word: Any) -> Any:
            h = vpps.tanh(w @ vpps.lookup(words, word) + x)
            return h, h * x

        def word_leaf(word: Any) -> Any:
            h = w @ vpps.lookup(words, word)
            return h, vpps.tanh(h)

        def inner(h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> Any:
            return vpps.tanh(u @ vpps.concat([h_left, h_right])), c_left + c_right

        def inner_of_both(h_left: Any, c_left: Any, h_right: Any, c_right: Any, x: Any, y: Any) -> Any:
            return vpps.tanh(u @ vpps.concat([h_left, h_right]) + x), c_left + c_right * y

        def inner_of_products(h_left: Any, c_left: Any, h_right: Any, c_right: Any, x: Any, y: Any) -> Any:
            return vpps.tanh(w @ h_left + v @ h_right + x), v @ c_right + (v @ h_left) * y

        self.step = vpps.cell(lambda before, x: vpps.tanh(w @ before + x))
        self.alone = [vpps.cell(lambda x, word: leaf(x, word)[0])]
        self.cells = {
            "leaves": [vpps.cell(leaf), vpps.cell(inner)],
            "below": [vpps.cell(leaf), vpps.cell(inner)],
            "inner": [vpps.cell(word_leaf), vpps.cell(inner_of_both)],
            "products": [vpps.cell(word_leaf), vpps.cell(inner_of_products)],
            "both": [vpps.cell(leaf), vpps.cell(inner_of_both)],
        }

    def rows_of_a_chain(self, graph: vpps.Graph, x: vpps.Rows) -> vpps.Rows:
        """As many, each of a level of its own, in no order."""
        places = np.arange(len(x), dtype=np.int32)
        children = (places - 1)[:, None]
        found = graph.map(self.step, children=children, inputs={"x": x}, levels=places)
        return found[np.random.default_rng(8).permutation(len(x))]  # type: ignore[no-any-return]


VECTORS: dict[str, Callable[[NetOfVectors, vpps.Graph, vpps.Rows, GraphBatch], vpps.Rows]] = {
    "data": lambda nets, graph, x, batch: x,
    "some again": lambda nets, graph, x, batch: x[np.arange(len(x)) // 3],
    "computed": lambda nets, graph, x, batch: vpps.tanh(x),
    "of a chain": lambda nets, graph, x, batch: nets.rows_of_a_chain(graph, x),
    "of a map": lambda nets, graph, x, batch: map_of_vectors(graph, nets, "below", batch, {"x": x})[1],
}


def map_of_vectors(
    graph: vpps.Graph, nets: NetOfVectors, form: str, batch: GraphBatch, rows: Any, **others: Any
) -> Any:
    structure: dict[str, Any] = dict(batch.structure)
    if form == "alone":
        structure |= {"children": None, "kind": None, "levels": np.zeros(batch.n_vertices, np.int32)}
    cells = nets.alone if form == "alone" else nets.cells[form]
    return graph.map(cells, **{**structure, "inputs": {"word": batch["word"] % 5, **rows}, **others})


def n_packed(graph: vpps.Graph) -> int:
    return sum(type(chunk) is PackedChunk for block in graph.blocks.values() for _, chunk in block.bulk)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("form", ["leaves", "inner", "products", "both", "alone"])
def test_packed_maps_of_rows_are_what_numpy_records(
    form: str, vectors: str, distinct: bool, use_recorder: Callable[[str], None]
) -> None:
    nets, batch = NetOfVectors(), forest(8)[[3, 9, 1, 14]]
    data = np.random.default_rng(9).normal(size=(2, batch.n_vertices, H)).astype(np.float32)
    recorded = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        for attempt in range(2):
            graph = vpps.Graph()
            x, y = (graph.rows(array, grad=True) for array in data)
            rows = {"x": VECTORS[vectors](nets, graph, x, batch)} | (
                {"y": y} if form in ("inner", "products", "both") else {}
            )
            before = n_packed(graph)
            found = map_of_vectors(graph, nets, form, batch, rows, distinct=distinct)
            assert (n_packed(graph) > before) == (recorder == "compiled" and attempt > 0)
            of_rows = [
                (r.ids.tolist(), r.levels.tolist(), r.shape, r.highest_level())
                for r in (found if isinstance(found, tuple) else (found,))
            ]
            recorded.append((contents_of(graph), of_rows))
    assert all(other == recorded[0] for other in recorded[1:])


WRONG_ROWS: dict[str, Callable[[vpps.Graph, vpps.Rows], Any]] = {
    "too few": lambda graph, x: x[:-1],
    "of another graph": lambda graph, x: vpps.Graph().rows(np.ones((len(x), H))),
    "of another shape": lambda graph, x: x[:, 1:],
    "of ints": lambda graph, x: np.zeros(len(x), np.int32),
}


@pytest.mark.parametrize("what", WRONG_ROWS)
def test_wrong_rows_are_refused_as_without_compiled_code(what: str, use_recorder: Callable[[str], None]) -> None:
    nets, batch = NetOfVectors(), forest(8)[:3]
    messages = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        graph = vpps.Graph()
        x = graph.rows(np.ones((batch.n_vertices, H)))
        map_of_vectors(graph, nets, "leaves", batch, {"x": x})
        wrong, before = WRONG_ROWS[what](graph, x), contents_of(graph)
        with pytest.raises(VppsError) as refused:
            map_of_vectors(graph, nets, "leaves", batch, {"x": wrong})
        messages.append((type(refused.value), re.sub(r"graph \d+", "graph", str(refused.value))))
        assert contents_of(graph) == before
    assert messages[0] == messages[1]


def test_rows_in_pieces_are_left_to_numpy() -> None:
    nets, batch = NetOfVectors(), forest(8)[:3]
    recorded = []
    for turned in (np.arange(batch.n_vertices)[::-1], slice(None, None, -1)):
        for _ in range(2):
            graph = vpps.Graph()
            rows = graph.rows(np.ones((batch.n_vertices, H)))[turned]
            map_of_vectors(graph, nets, "leaves", batch, {"x": rows})
            recorded.append(contents_of(graph))
    assert not is_packed(graph)
    assert all(other == recorded[0] for other in recorded[1:])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16])
@pytest.mark.parametrize("step", [1, 3], ids=["alone", "a column of a table"])
def test_inputs_may_be_ints_of_any_width(dtype: Any, step: int, nets: Net, recorder: str) -> None:
    batch = forest(2)[:]
    inputs = {"word": batch["word"].astype(dtype).repeat(step)[::step], "label": batch["label"]}
    recorded = []
    for given in (None, inputs):
        for _ in range(2):
            graph = vpps.Graph()
            map_of(graph, nets.cells, batch, **({} if given is None else {"inputs": given}))
            recorded.append(contents_of(graph))
    assert is_packed(graph) == (recorder == "compiled" and dtype is not np.int16)
    assert all(other == recorded[0] for other in recorded[1:])


@pytest.mark.parametrize("names", [("leaf", "inner"), (0, 1), ("leaf", np.int8(1))])
def test_cells_may_be_given_by_kind(names: Any, nets: Net, recorder: str) -> None:
    trees = forest(5)
    given = dict(zip(names[::-1], nets.cells[::-1], strict=True))
    recorded = []
    for cells in (nets.cells, given, given):
        graph = vpps.Graph()
        map_of(graph, cells, trees[:])
        recorded.append(contents_of(graph))
    assert is_packed(graph) == (recorder == "compiled")
    assert recorded[1:] == recorded[:1] * 2


def with_children_of_leaves(batch: GraphBatch, child: int) -> dict[str, Any]:
    """In the last column of the last leaf, which nothing reads."""
    children = np.array(batch.children)
    children[np.flatnonzero(batch.kind == 0)[-1], 1] = child
    return {"children": children}


WRONG: dict[str, Callable[[GraphBatch], dict[str, Any]]] = {
    "a word beyond the table": lambda b: {"inputs": {"word": b["word"] + WORDS, "label": b["label"]}},
    "a negative label": lambda b: {"inputs": {"word": b["word"], "label": b["label"] - 1}},
    "a kind that there is not": lambda b: {"kind": b.kind + 1},
    "a negative kind": lambda b: {"kind": b.kind - 1},
    "too few words": lambda b: {"inputs": {"word": b["word"][1:], "label": b["label"]}},
    "words of floats": lambda b: {"inputs": {"word": b["word"].astype(np.float32), "label": b["label"]}},
    "no label": lambda b: {"inputs": {"word": b["word"]}},
    "no kinds": lambda b: {"kind": None},
    "no children": lambda b: {"children": None},
    "leaves with children": lambda b: {"kind": np.zeros_like(b.kind)},
    "a leaf with a child": lambda b: with_children_of_leaves(b, 0),
    "a leaf with a child that there is not": lambda b: with_children_of_leaves(b, b.n_vertices),
    "a leaf with a child below -1": lambda b: with_children_of_leaves(b, -7),
}


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_as_without_compiled_code(
    what: str, distinct: bool, nets: Net, use_recorder: Callable[[str], None]
) -> None:
    batch = forest(3)[4:15]
    wrong = WRONG[what](batch) | {"distinct": distinct}
    messages = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        map_of(vpps.Graph(), nets.cells, batch, distinct=distinct)
        graph = vpps.Graph()
        with pytest.raises(VppsError) as refused:
            map_of(graph, nets.cells, batch, **wrong)
        messages.append((type(refused.value), str(refused.value)))
        assert graph.n_calls == graph.n_values == 0
    assert messages[0] == messages[1]


@pytest.mark.parametrize("distinct", [False, True])
def test_a_child_behind_those_that_a_cell_gathers_is_refused(distinct: bool) -> None:
    """Compiled code, too, looks at the last column, and at a label that no result follows from."""
    model = vpps.Model(seed=1)
    words, labels, u = (
        model.lookup("words", (WORDS, H)),
        model.lookup("labels", (CLASSES, H)),
        model.parameter("U", (H, H)),
    )

    @vpps.cell
    def leaf(word: Any, label: Any) -> Any:
        vpps.lookup(labels, label)
        return vpps.tanh(u @ vpps.lookup(words, word))

    @vpps.cell
    def inner(left: Any, right: Any) -> Any:
        return vpps.tanh(u @ left + right)

    batch = forest(3)[4:15]

    def record(child: int, label: int) -> vpps.Graph:
        children = np.column_stack([batch.children, np.full(batch.n_vertices, -1, np.int32)])
        children[np.flatnonzero(batch.kind)[-1], 2] = child
        graph = vpps.Graph()
        map_of(
            graph,
            [leaf, inner],
            batch,
            children=children,
            inputs={"word": batch["word"], "label": batch["label"] + label},
            distinct=distinct,
        )
        return graph

    for _ in range(2):
        record(-1, 0)
    with pytest.raises(vpps.GraphError, match="more children than its cell 'inner' takes, which is 2"):
        record(0, 0)
    with pytest.raises(vpps.IndexRangeError, match="rows of 'labels': 5"):
        record(-1, CLASSES)


def test_missing_children_read_zeros(nets: Net, recorder: str) -> None:
    batch = forest(4)[:]
    map_of(vpps.Graph(), nets.cells, batch)
    children = batch.children.copy()  # type: ignore[union-attr]
    children[np.flatnonzero(batch.kind)[3], 1] = -1  # type: ignore[arg-type]
    graph = vpps.Graph()
    map_of(graph, nets.cells, batch, children=children)
    assert is_packed(graph) == (recorder == "compiled")
    assert graph.n_calls == batch.n_vertices + 1  # both results have one shape


def test_two_maps_of_one_graph_are_merged(nets: Net, use_recorder: Callable[[str], None]) -> None:
    trees = forest(5)
    recorded = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        map_of(vpps.Graph(), nets.cells, trees[0])
        graph = vpps.Graph()
        for which in ([1, 2], [3]):
            map_of(graph, nets.cells, trees[which])
        recorded.append(contents_of(graph))
    assert recorded[0] == recorded[1]


@pytest.mark.parametrize("which", BATCHES)
def test_batches_are_joined_alike(which: str, use_recorder: Callable[[str], None]) -> None:
    trees = forest(6).subset(slice(0, 20))
    found = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        batch = trees[BATCHES[which]]
        arrays = (batch.children, batch.kind, batch.levels, batch["word"], batch["label"], batch.roots, batch.order)
        found.append([(a.dtype, a.tolist()) for a in arrays])  # type: ignore[union-attr]
    assert found[0] == found[1]


def test_arrays_of_other_layouts_and_types_are_left_to_numpy(nets: Net) -> None:
    batch = forest(7)[:]
    graph = vpps.Graph()
    map_of(graph, nets.cells, batch)
    expected = contents_of(graph)
    kind, children, levels = batch.kind, batch.children, batch.levels
    assert kind is not None
    assert isinstance(children, np.ndarray)
    for other in (
        {"levels": levels.repeat(2)[::2]},
        {"levels": levels.astype(np.int64)},
        {"kind": kind.astype(np.int64)},
        {"kind": kind.repeat(2)[::2]},
        {"children": np.asfortranarray(children)},
        {"children": children.astype(np.int64)},
        {"inputs": {"word": batch["word"].astype(np.uint32), "label": batch["label"]}},
    ):
        graph = vpps.Graph()
        map_of(graph, nets.cells, batch, **other)
        assert not is_packed(graph)
        assert contents_of(graph) == expected
