"""`graph.map(..., distinct=True)`: the same values with fewer vertices, and the same gradients up to rounding."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vpps
from tests.comparison import assert_agrees_with_reference, contents_of
from tests.fuzz import maps
from tests.record.test_packed import forest
from vpps.errors import IndexRangeError
from vpps.nn import LSTM, NaryTreeLSTM
from vpps.record.distinct import cut, find_distinct

WORDS, TAGS, X, H = 50, 5, 12, 20  # sizes that no block of units divides


class Net:
    """Networks with repeated words, each recorded from a forest."""

    def __init__(self) -> None:
        self.model = model = vpps.Model(seed=1)
        words, tags = model.lookup("words", (WORDS, X)), model.lookup("tags", (TAGS, X))
        binary = NaryTreeLSTM(model, X, H)
        ternary = NaryTreeLSTM(model, X, H, arity=3, per_child=True, name="ternary")
        V, o = model.parameter("V", (2 * H, X)), model.parameter("o", (TAGS, H))

        @vpps.cell
        def leaf(word: Any) -> Any:
            return binary.leaf(vpps.lookup(words, word))

        @vpps.cell
        def inner(h: Any, c: Any, g: Any, d: Any) -> Any:
            return binary.inner(h, c, g, d)

        @vpps.cell
        def leaf_of_three(word: Any) -> Any:
            return ternary.leaf(vpps.lookup(words, word))

        T = model.parameter("T", (H, H))

        @vpps.cell
        def leaf_of_floats(x: Any) -> Any:
            return ternary.leaf(x)

        @vpps.cell
        def inner_of_three(tag: Any, *states: Any) -> Any:
            """Products of children (two for one child), one without readers, and one that depends on an int."""
            h, c = ternary.inner(*states)
            _ = T @ states[2]
            return h * (T @ states[0]), c + vpps.split(V @ vpps.lookup(tags, tag), 2)[0]

        @vpps.cell
        def dropped(word: Any, h: Any) -> Any:
            x = vpps.lookup(words, word)
            both = vpps.split(V @ x, 2)[0] + vpps.split(V @ vpps.dropout(x, 0.5), 2)[1]
            return vpps.tanh(both + h)

        @vpps.cell
        def loss(h: Any, tag: Any) -> Any:
            return vpps.cross_entropy(o @ h, tag)

        self.ternary = [leaf_of_three, inner_of_three, leaf_of_floats]
        self.leaf, self.inner, self.dropped = leaf, inner, dropped
        self.cell_of_loss = loss

    def trees(self, graph: vpps.Graph, seed: int, **options: Any) -> Any:
        batch = forest(seed)[:4]
        return graph.map([self.leaf, self.inner], **batch.structure, inputs={"word": batch["word"]}, **options)

    def products(self, graph: vpps.Graph, seed: int, **options: Any) -> Any:
        """Return products of up to three children, shared by many parents."""
        return graph.map(self.ternary, **self.shared_children(seed), **options)

    @staticmethod
    def shared_children(seed: int) -> dict[str, Any]:
        random = np.random.default_rng(seed)
        n, leaves = 24, 9
        children = np.array([random.integers(0, max(i, 1), 3) for i in range(n)])
        children[:leaves] = -1
        children[leaves + 3 :: 4, 1 + seed % 2 :] = -1
        kind = (np.arange(n) >= leaves).astype(np.int8)
        kind[2:leaves:4] = 2
        order = random.permutation(n)  # rows in any order
        children, kind = np.where(children < 0, -1, np.argsort(order)[children])[order], kind[order]
        words, tags = random.integers(0, 4, n), random.integers(0, TAGS, n)
        x = random.normal(size=(n, X)).astype(np.float32)
        return {"kind": kind, "children": children, "inputs": {"word": words, "tag": tags, "x": x}}

    def loss(self, graph: vpps.Graph, results: Any, seed: int) -> vpps.Expression:
        """Return a loss over all results at all vertices."""
        labels = np.resize(forest(seed)[:4]["label"], len(results[0]))
        return vpps.sum([vpps.sum(self.cell_of_loss(rows, labels)) * (0.5 + k) for k, rows in enumerate(results)])


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.mark.cpu
@pytest.mark.parametrize("part", range(4))
def test_random_maps_have_the_values_of_calls_one_by_one_and_the_gradients_of_the_reference(part: int) -> None:
    for number in range(10 * part, 10 * part + 10):
        replace(maps.draw(Random(number)), distinct=True).check()


@pytest.mark.cpu
@pytest.mark.parametrize("network", ["trees", "products"])
@pytest.mark.parametrize("policy", ["sinks-last", "depth", "agenda", "sufficient", "critical"])
def test_networks_agree_with_the_reference(network: str, policy: str, net: Net) -> None:
    graph = vpps.Graph()
    results = getattr(net, network)(graph, 5, distinct=True)
    some = [rows[k] for rows in results for k in range(0, len(rows), 9)]
    assert_agrees_with_reference(net.model, graph, net.loss(graph, results, 5), some, vp_counts=(1, 3), policy=policy)


@pytest.mark.cpu
def test_a_level_takes_as_many_barriers_as_without() -> None:
    model = vpps.Model(seed=1)
    words, lstm = model.lookup("words", (WORDS, X)), LSTM(model, X, H)
    step = vpps.cell(lambda word, h, c: lstm.step(vpps.lookup(words, word), h, c))
    found = []
    for distinct in (False, True):
        barriers = []
        for steps in (5, 6):
            graph = vpps.Graph()
            before, given = np.arange(-1, steps - 1), {"word": np.zeros(steps, int)}
            h, _ = graph.map(step, children=before, inputs=given, state=(H, H), distinct=distinct)
            with vpps.Handle(model, vps=2) as handle:
                handle.gradients(graph, vpps.sum(vpps.sum(h)))
                assert handle._engine.plan is not None
                barriers.append(handle._engine.plan.n_barriers)
        found.append(barriers[1] - barriers[0])
    assert found[1] == found[0]


@pytest.mark.cpu
def test_dropout_is_not_shared(net: Net) -> None:
    """Vertices with equal ints have different masks; the ops before dropout are computed once."""
    graph = vpps.Graph()
    n = 8
    h = graph.map(net.dropped, children=np.full(n, -1), inputs={"word": np.full(n, 3)}, distinct=True)
    assert len(graph) == n + 2  # the product of the word, and zeros
    loss = vpps.sum(net.cell_of_loss(h, np.zeros(n, int)))
    with vpps.Handle(net.model) as handle:
        handle.gradients(graph, loss, train=True)
        assert len(np.unique(handle.value(h), axis=0)) == n
    assert_agrees_with_reference(net.model, graph, loss, vp_counts=(1,), train=True)


@pytest.mark.host
def test_products_of_repeated_children_are_made_once(net: Net) -> None:
    graph, given = vpps.Graph(), net.shared_children(3)
    net.products(graph, 3, distinct=True)
    made = {b.cell.name: sum(len(chunk) for _, chunk in b.bulk) for b in graph.blocks.values()}
    same = np.where(given["kind"] == 0, -2 - given["inputs"]["word"], np.arange(24))
    names = ["ternary/U_1.T", "ternary/U_2", "ternary/U_3"]
    for name, of_parents in zip(names, given["children"][given["kind"] == 1].T, strict=True):
        distinct = {-1 if child < 0 else same[child] for child in of_parents}
        assert made[f"inner_of_three.{name}"] == len(distinct) < 12


@pytest.mark.host
def test_products_stay_in_their_cells_where_few_are_saved(net: Net) -> None:
    """Each child has one parent, and all words differ."""
    graph = vpps.Graph()
    children = [[-1, -1, -1]] * 4 + [[0, 1, 2], [4, 3, -1]]
    inputs = {"word": np.arange(6), "tag": np.arange(6) % TAGS, "x": np.zeros((6, X), np.float32)}
    graph.map(net.ternary, kind=[0, 0, 0, 0, 1, 1], children=children, inputs=inputs, distinct=True)
    assert all("U_" not in block.cell.name for block in graph.blocks.values())


@pytest.mark.host
def test_a_leaf_of_a_word_is_no_vertex_of_its_own(net: Net) -> None:
    graph = vpps.Graph()
    batch = forest(8)[:4]
    net.trees(graph, 8, distinct=True)
    leaves = batch.kind == 0
    assert len(graph) == len(np.unique(batch["word"][leaves])) + np.count_nonzero(~leaves)


@pytest.mark.host
def test_a_cell_without_products_of_ints_is_left_alone() -> None:
    model = vpps.Model(seed=1)
    words, U = model.lookup("words", (WORDS, H)), model.parameter("U", (H, H))

    @vpps.cell
    def step(word: Any, h: Any) -> Any:
        return vpps.tanh(vpps.lookup(words, word) + U @ h)

    recorded = []
    for distinct in (False, True):
        graph = vpps.Graph()
        graph.map(step, children=[-1, 0, 1], inputs={"word": np.zeros(3, int)}, distinct=distinct)
        recorded.append(contents_of(graph))
    assert recorded[0] == recorded[1]
    assert cut(step.program((int, (H,)), {})) is None


@pytest.mark.host
def test_a_leaf_that_is_a_row_of_a_table_is_shared_as_well() -> None:
    """An MV-RNN, for example: every word has a matrix."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (WORDS, H))
    leaf = vpps.cell(lambda word: vpps.lookup(words, word))
    graph = vpps.Graph()
    rows = graph.map(leaf, inputs={"word": np.array([4, 4, 2, 4])}, distinct=True)
    assert len(graph) == 2
    assert rows.ids.tolist() == [0, 0, 1, 0]


@pytest.mark.host
def test_an_int_out_of_range_is_named_as_in_any_map(net: Net) -> None:
    words = np.array([3, 3, WORDS, 3])
    messages = []
    for distinct in (False, True):
        with pytest.raises(IndexRangeError) as caught:
            vpps.Graph().map(net.leaf, inputs={"word": words}, distinct=distinct)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "row 2" in messages[0]


@pytest.mark.host
@given(st.lists(st.tuples(*[st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)] * 3), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_distinct_rows_are_found(rows: list[tuple[int, ...]]) -> None:
    for columns, times in ((1, 1), (2, 1), (3, 1), (1, 70), (2, 70), (3, 70)):  # few rows and many
        table = np.tile(np.array(rows, np.int64)[:, :columns], (times, 1))
        distinct, own = find_distinct(table)
        assert (table[distinct][own] == table).all()
        assert len({tuple(row) for row in table[distinct].tolist()}) == len(distinct)
        assert distinct.tolist() == sorted(distinct.tolist())
        assert all(distinct[k] <= v for v, k in enumerate(own.tolist()))
