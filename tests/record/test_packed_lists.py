"""Maps of children in lists, and of missing children, recorded in one call of compiled code: what NumPy records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import contents_of
from tests.record.test_packed import WORDS, H, forest, n_packed
from vpps.data import GraphBatch, GraphSet
from vpps.errors import VppsError

pytestmark = pytest.mark.host

C = H + 1  # of the second result


def lists(most: int, missing: float, seed: int = 1) -> GraphSet:
    """Random graphs with lists of up to so many children, of which a part is missing."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, 20)
    own = [rng.integers(0, v, rng.integers(0, most + 1)) if v else [] for n in sizes for v in range(n)]
    indices = np.concatenate(own).astype(np.int32)
    indices[rng.random(len(indices)) < missing] = -1
    n = len(own)
    return GraphSet(
        sizes, (np.cumsum([0, *map(len, own)]), indices), kind=[len(c) > 0 for c in own], kinds=("leaf", "inner"),
        columns={"word": rng.integers(0, WORDS, n), "other": rng.integers(0, 9, n)},
    )  # fmt: skip


def table(most: int, missing: float) -> GraphSet:
    """Random binary trees; of some inner vertices a child is missing, or both."""
    trees = forest(1)
    children = np.array(trees[:].children)
    of_graph = np.repeat(np.arange(20), [len(trees[k].examples) for k in range(20)])
    lacks = np.random.default_rng(2).random(len(children))
    children[lacks < missing, 1] = -1
    children[lacks < missing / 3, 0] = -1
    within = np.where(children < 0, -1, children - np.searchsorted(of_graph, of_graph)[:, None])
    return GraphSet(
        np.bincount(of_graph), within, kind=trees[:].kind, kinds=("leaf", "inner"),
        columns={"word": trees[:]["word"] % 9, "other": trees[:]["label"]},
    )  # fmt: skip


class Net:
    """Inner cells that read children in each way, by name: structure of their graphs, leaf and inner cell."""

    def __init__(self) -> None:
        model = vpps.Model(seed=1)
        words = model.lookup("words", (WORDS, H))
        w, u, v = model.parameter("W", (H, H)), model.parameter("U", (C, H)), model.parameter("V", (H, C))

        def first(word: Any) -> Any:
            h = w @ vpps.lookup(words, word)
            return h, vpps.tanh(u @ h)

        @vpps.cell
        def leaf(word: Any) -> None:
            vpps.scatter(*first(word))

        @vpps.cell
        def whole_lists() -> None:
            hs, cs = vpps.gather()
            vpps.scatter(vpps.sum(hs), vpps.sum(vpps.each(lambda h, c: (u @ h) * c, hs, cs)))

        @vpps.cell
        def second_results(word: Any) -> None:
            _, cs = vpps.gather()
            vpps.scatter(vpps.sum(vpps.each(lambda c: v @ c, cs)), u @ vpps.lookup(words, word))

        @vpps.cell
        def of_the_first_and_others(word: Any) -> None:
            h, _ = vpps.gather(0)
            hs, cs = vpps.gather(start=1)
            vpps.scatter(vpps.sum(hs) + w @ vpps.lookup(words, word) + h, vpps.sum(cs))

        @vpps.cell
        def of_two_and_others(word: Any) -> None:
            (h, _), (_, c), (hs, cs) = vpps.gather(0), vpps.gather(1), vpps.gather(start=2)
            vpps.scatter(vpps.sum(hs) + v @ c + vpps.lookup(words, word), vpps.sum(cs) + u @ h)

        @vpps.cell
        def of_two() -> None:
            (h, _), (_, c) = vpps.gather(0), vpps.gather(1)
            vpps.scatter(h + v @ c, c)

        @vpps.cell
        def with_rows() -> None:
            hs, cs = vpps.gather()
            vpps.scatter(vpps.sum(hs) + vpps.pull("x"), vpps.sum(cs))

        @vpps.cell
        def with_two_matrices(left: Any, left_c: Any, right: Any, right_c: Any) -> Any:
            return vpps.tanh(w @ left + v @ right_c), left_c + u @ right

        @vpps.cell
        def without_matrices(left: Any, left_c: Any, right: Any, right_c: Any) -> Any:
            return left + right, left_c * right_c

        @vpps.cell
        def only_kind(word: Any) -> None:
            hs, cs = vpps.gather()
            vpps.scatter(vpps.sum(hs) + vpps.lookup(words, word), vpps.sum(cs))

        self.cells: dict[str, tuple[Callable[[int, float], GraphSet], list[Any]]] = {
            "lists": (lists, [leaf, whole_lists]),
            "lists of one result": (lists, [leaf, second_results]),
            "one and lists": (lists, [leaf, of_the_first_and_others]),
            "two and lists": (lists, [leaf, of_two_and_others]),
            "singles": (lists, [leaf, of_two]),
            "rows": (lists, [leaf, with_rows]),
            "one kind": (lists, [only_kind]),
            "table": (table, [leaf, of_two]),
            "products": (table, [leaf, with_two_matrices]),
            "some with products": (table, [leaf, with_two_matrices, without_matrices]),
        }

    def map(self, graph: vpps.Graph, form: str, batch: GraphBatch, **others: Any) -> Any:
        cells = self.cells[form][1]
        structure: dict[str, Any] = dict(batch.structure)
        assert batch.kind is not None
        kinds = {1: None, 2: batch.kind, 3: batch.kind * (1 + batch["other"] % 2).astype(np.int8)}
        structure |= {"kind": kinds[len(cells)], "kinds": None}
        inputs = {"word": batch["word"] % 9}
        if form == "rows":
            inputs["x"] = vpps.tanh(graph.rows(np.ones((batch.n_vertices, H))))
        return graph.map(cells, **{**structure, "state": (H, C), "inputs": inputs, **others})


@pytest.fixture
def net() -> Net:
    return Net()


FORMS = tuple(Net().cells)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("missing", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("form", FORMS)
def test_packed_maps_are_what_numpy_records(
    form: str, missing: float, distinct: bool, net: Net, use_recorder: Callable[[str], None]
) -> None:
    graphs = net.cells[form][0](2 if form == "singles" else 4, missing)
    recorded = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        net.map(vpps.Graph(), form, graphs[0], distinct=distinct)  # the first map of some cells is always NumPy's
        for which in ([3], slice(0, 20), [7, 2, 2, 19]):
            for zeros in ((), (C,), (C, H)):  # that the graph has already
                graph = vpps.Graph()
                for shape in zeros:
                    graph.zeros(shape)
                found = net.map(graph, form, graphs[which], distinct=distinct)
                again = net.map(graph, form, graphs[which], distinct=distinct)
                assert (n_packed(graph) > 0) == (recorder == "compiled")
                of_rows = [(r.ids.tolist(), r.levels.tolist(), r.highest_level()) for r in (*found, *again)]
                recorded.append((contents_of(graph), of_rows))
    half = len(recorded) // 2
    assert recorded[:half] == recorded[half:]


@pytest.mark.parametrize(
    "state, packed",
    [(None, True), ([H, C], True), (((H,), C), True), ((np.int64(H), C), False), ([[H], C], False)],
    ids=str,
)
def test_what_children_give_may_be_declared(state: Any, packed: bool, net: Net, recorder: str) -> None:
    batch = lists(4, 0.1)[:]
    recorded = []
    for given in ((H, C), state, state):
        graph = vpps.Graph()
        net.map(graph, "lists", batch, state=given)
        recorded.append(contents_of(graph))
    assert (n_packed(graph) > 0) == (packed and recorder == "compiled")
    assert recorded[1:] == recorded[:1] * 2


def test_the_planner_finds_packed_lists(use_recorder: Callable[[str], None]) -> None:
    model = vpps.Model(seed=2)
    w = model.parameter("W", (H, H))
    summed = vpps.cell(lambda hs, x: vpps.tanh(w @ vpps.sum(hs) + vpps.max(hs) + x))
    batch = lists(4, 0.3)[:]
    found = []
    with vpps.Handle(model, vps=2) as handle:
        for recorder in ("compiled", "compiled", "python"):
            use_recorder(recorder)
            graph = vpps.Graph()
            x = graph.rows(np.linspace(-1, 1, batch.n_vertices * H).reshape(-1, H))
            h = graph.map(summed, children=batch.children, levels=batch.levels, inputs={"x": x}, state=H)
            value, gradients = handle.gradients(graph, vpps.sum(vpps.sum(h)))
            found.append((n_packed(graph), value, gradients["W"].tolist()))
    assert [packed for packed, *_ in found] == [0, 1, 0]
    assert found[0][1:] == found[1][1:] == found[2][1:]


def with_offsets(batch: GraphBatch, vertex: int, more: int) -> dict[str, Any]:
    offsets, indices = batch.children
    changed = offsets.copy()
    changed[vertex] += more
    return {"children": (changed, indices)}


def with_child(batch: GraphBatch, child: int) -> dict[str, Any]:
    """In place of the last one of the last inner vertex."""
    offsets, indices = batch.children
    changed = indices.copy()
    changed[offsets[last_inner(batch) + 1] - 1] = child
    return {"children": (offsets, changed)}


def with_child_behind(batch: GraphBatch, child: int, kind: int = 0) -> dict[str, Any]:
    """One more for the last vertex of a kind."""
    offsets, indices = batch.children
    vertex = np.flatnonzero(batch.kind == kind)[-1]
    more = offsets + (np.arange(len(offsets)) > vertex).astype(np.int32)
    return {"children": (more, np.insert(indices, offsets[vertex + 1], child))}


def last_inner(batch: GraphBatch) -> int:
    return int(np.flatnonzero(batch.kind)[-1])


WRONG: dict[str, Callable[[GraphBatch], dict[str, Any]]] = {
    "offsets that begin later": lambda b: {"children": (b.children[0] + np.int32(1), np.insert(b.children[1], 0, -1))},
    "offsets that begin before": lambda b: with_offsets(b, 0, -1),
    "offsets that fall": lambda b: with_offsets(b, last_inner(b), 10**6),
    "offsets below 0": lambda b: with_offsets(b, last_inner(b), -(10**6)),
    "offsets that end behind": lambda b: with_offsets(b, b.n_vertices, 1),
    "offsets that end before": lambda b: with_offsets(b, b.n_vertices, -1),
    "an offset too few": lambda b: {"children": (b.children[0][:-1], b.children[1])},
    "an offset too many": lambda b: {"children": (np.append(b.children[0], b.children[0][-1]), b.children[1])},
    "an index too few": lambda b: {"children": (b.children[0], b.children[1][:-1])},
    "no offsets": lambda b: {"children": (b.children[0][:0], b.children[1])},
    "offsets of floats": lambda b: {"children": (b.children[0].astype(np.float32), b.children[1])},
    "indices of floats": lambda b: {"children": (b.children[0], b.children[1].astype(np.float32))},
    "indices in a table": lambda b: {"children": (b.children[0], b.children[1][:, None])},
    "one array": lambda b: {"children": b.children[:1]},
    "three arrays": lambda b: {"children": (*b.children, b.children[0])},
    "a child that there is not": lambda b: with_child(b, b.n_vertices),
    "a child far away": lambda b: with_child(b, 2**31 - 1),
    "a child below -1": lambda b: with_child(b, -2),
    "a child far below -1": lambda b: with_child(b, -(2**31)),
    "a vertex that is its own child": lambda b: with_child(b, last_inner(b)),
    "a leaf with a child": lambda b: with_child_behind(b, 0),
    "a leaf with a child that there is not": lambda b: with_child_behind(b, b.n_vertices),
    "a leaf with a child below -1": lambda b: with_child_behind(b, -7),
    "levels that children have": lambda b: {"levels": np.zeros_like(b.levels)},
    "levels too high": lambda b: {"levels": b.levels + np.int32(b.n_vertices)},
    "levels below 0": lambda b: {"levels": b.levels - np.int32(1)},
    "a word beyond the table": lambda b: {"inputs": {"word": b["word"] + WORDS}},
    "another state": lambda b: {"state": (C, H)},
}  # fmt: skip


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("form", ["one and lists", "singles"])
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_as_without_compiled_code(
    what: str, form: str, distinct: bool, net: Net, use_recorder: Callable[[str], None]
) -> None:
    batch = lists(2 if form == "singles" else 4, 0.2)[4:15]
    messages = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        net.map(vpps.Graph(), form, batch, distinct=distinct)
        graph = vpps.Graph()
        with pytest.raises(VppsError) as refused:
            net.map(graph, form, batch, distinct=distinct, **WRONG[what](batch))
        messages.append((type(refused.value), str(refused.value)))
        assert graph.n_calls == graph.n_values == 0
    assert messages[0] == messages[1]


def test_more_children_than_a_cell_takes_are_refused(net: Net) -> None:
    net.map(vpps.Graph(), "singles", lists(2, 0)[:])
    graph = vpps.Graph()
    with pytest.raises(vpps.GraphError, match="more children than its cell 'of_two' takes, which is 2"):
        net.map(graph, "singles", lists(3, 0)[:])
    assert not graph.n_calls


UNUSUAL: dict[str, tuple[str, Callable[[GraphBatch], dict[str, Any]]]] = {
    "a missing child of a leaf": ("singles", lambda b: with_child_behind(b, -1)),
    "a missing child behind those that a cell takes": ("singles", lambda b: with_child_behind(b, -1, kind=1)),
    "no vertex of level 0": ("rows", lambda b: {"levels": b.levels + np.int32(1)}),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_recorded_as_without_compiled_code(
    what: str, net: Net, use_recorder: Callable[[str], None]
) -> None:
    form, changed = UNUSUAL[what]
    # All have both children that the cell takes.
    batch = GraphSet([4], ([0, 0, 0, 2, 4], [0, 1, 2, 0]), kind=[0, 0, 1, 1], kinds=("leaf", "inner"),
                     columns={"word": [3, 1, 0, 0], "other": [0] * 4})[:]  # fmt: skip
    recorded = []
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        net.map(vpps.Graph(), form, batch)
        graph = vpps.Graph()
        net.map(graph, form, batch, **changed(batch))
        assert (n_packed(graph) > 0) == (recorder == "compiled")
        recorded.append(contents_of(graph))
    assert recorded[0] == recorded[1]


@pytest.mark.parametrize(
    "other",
    [
        lambda offsets, indices: (offsets.astype(np.int64), indices),
        lambda offsets, indices: (offsets, indices.astype(np.int64)),
        lambda offsets, indices: (offsets.repeat(2)[::2], indices),
        lambda offsets, indices: (offsets, indices.repeat(2)[::2]),
        lambda offsets, indices: (offsets.tolist(), indices.tolist()),
    ],
)  # fmt: skip
def test_lists_of_other_layouts_and_types_are_left_to_numpy(other: Any, net: Net) -> None:
    batch = lists(4, 0.1)[:]
    recorded = []
    for children in (batch.children, other(*batch.children)):
        graph = vpps.Graph()
        net.map(graph, "lists", batch, children=children)
        recorded.append(contents_of(graph))
    assert not n_packed(graph)
    assert recorded[0] == recorded[1]


def test_lists_that_differ_in_length_are_left_to_numpy(use_recorder: Callable[[str], None]) -> None:
    """It says so where they are mapped together."""
    batch = lists(4, 0)[:]
    cell = vpps.cell(
        lambda: vpps.scatter(
            vpps.sum(vpps.each(lambda a, b: a * b, vpps.gather(), vpps.gather(start=1)))
            + vpps.sum(vpps.gather(start=1))
        )
    )
    for recorder in ("compiled", "python"):
        use_recorder(recorder)
        for _ in range(2):
            with pytest.raises(vpps.ShapeError, match="lists that the cell maps together have lengths"):
                vpps.Graph().map(cell, children=batch.children, levels=batch.levels, state=H)


def test_zeros_that_are_numbered_otherwise_are_left_to_numpy(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a garbage collection, at that time, runs code that records."""
    batch = lists(4, 0.3)[:]
    net.map(vpps.Graph(), "lists", batch)
    recorded = []
    zeros_of = vpps.Graph.zeros_of

    def zeros_after_others(graph: vpps.Graph, shape: Any) -> vpps.Expression:
        zeros_of(graph, (99,))
        return zeros_of(graph, shape)

    for patched in (True, False):
        monkeypatch.setattr(vpps.Graph, "zeros_of", zeros_after_others if patched else zeros_of)
        graph = vpps.Graph()
        if not patched:
            graph.zeros(99)
        net.map(graph, "lists", batch)
        recorded.append(contents_of(graph))
    assert recorded[0] == recorded[1]
