"""Inputs and results of a map's cells: arguments by name and position, and Cavs's gather, pull, scatter and push."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.nn import NaryTreeLSTM
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

H = 4
CHILDREN = np.array([[-1, -1], [-1, -1], [0, 1], [2, -1], [3, 2]])
X = np.random.default_rng(0).normal(size=(5, H)).astype(np.float32)
CSR = (np.array([0, 0, 0, 2, 4, 5]), np.array([0, 1, 2, 1, 3]))


@pytest.fixture
def model() -> vpps.Model:
    model = vpps.Model(seed=1)
    model.parameter("U", (H, 2 * H))
    model.parameter("W", (2 * H, 3 * H))
    model.parameter("b", (H,), init="normal")
    model.lookup("words", (6, H), init="normal")
    return model


def same(value: Any, expected: Any) -> bool:
    """Return True if equal up to the order of sums in the reference's products, which depends on the batch."""
    return np.allclose(value, expected, rtol=1e-12, atol=1e-14)


def values(model: vpps.Model, graph: vpps.Graph, *results: Any) -> list[Any]:
    """Return the values of rows, or of expression lists."""
    reference = Reference(graph, weights_of(model))
    return [
        reference.value(r) if isinstance(r, vpps.Rows) else np.stack([reference.value(e) for e in r]) for r in results
    ]


def test_star_arguments_take_all_children_and_methods_are_cells(model: vpps.Model) -> None:
    lstm = NaryTreeLSTM(model, H, H, arity=2)

    class Network:
        def inner(self, h1: Any, c1: Any, h2: Any, c2: Any) -> Any:
            return lstm.inner(h1, c1, h2, c2)

        def rest(self, *states: Any) -> Any:
            h1, c1, h2, c2 = states
            return lstm.inner(h1, c1, h2, c2)

    network = Network()
    found = []
    for method in (network.inner, network.rest):
        graph = vpps.Graph()
        for _ in range(2):
            h, _c = graph.map([lstm.leaf, method], kind=[0, 0, 1, 1, 1], children=CHILDREN, inputs={"x": graph.rows(X)})
        assert len(graph.blocks) == 4  # one cell, although each access binds the method again
        found += values(model, graph, h)
    assert same(*found)


def cells_that_tell_shapes(U: Any, W: Any, b: Any) -> dict[str, tuple[Any, Any, list[tuple[int, ...]]]]:
    """Return cells, children, and result shapes of the cells, as products, operators and results determine them."""

    def gathers_two() -> None:
        h, s = vpps.gather(0)
        vpps.scatter(vpps.tanh(h * b * s), vpps.sum(h))

    def by_calls(x: Any) -> None:
        c, h = vpps.gather(0)
        vpps.scatter(c + x, U @ vpps.concat([h, x]))

    def multiplies(h: Any, s: Any) -> Any:
        return vpps.tanh(b * s), vpps.sum(h)

    def adds(h: Any, s: Any) -> Any:
        return vpps.tanh(h + b), vpps.tanh(s)

    def summed(cs: Any, hs: Any, x: Any) -> Any:
        return vpps.sum(cs) + x, vpps.sum(vpps.each(lambda h: h * b, hs))

    declared, chain = vpps.cell(elements={"hs": (H,)}), np.arange(-1, 4)
    one: list[tuple[int, ...]] = [(H,)]
    two, both = one * 2, [*one, ()]
    return {
        "slices": (lambda h: vpps.tanh(U @ vpps.concat([h[0:H], h[1:3], h[0], h[-1]])), chain, one),
        "an element": (lambda h: vpps.concat([h[2], h[0 : H - 1]]), chain, one),
        "a mean": (lambda h: b * vpps.mean(h), chain, one),
        "a part of a product": (lambda h, x: vpps.split(W @ vpps.concat([h, x, x]), 2)[1], chain, one),
        "a scalar that looks like a vector": (lambda h, s: (vpps.tanh(s * b), vpps.tanh(vpps.sum(h))), chain, both),
        "a scalar by gather": (gathers_two, chain, both),
        "two by gather": (by_calls, chain, two),
        "a scalar, several kinds": ([multiplies, adds], chain, both),
        "a scalar, the kind that tells comes last": ([adds, multiplies], chain, both),
        "declared elements": (declared(lambda hs: vpps.sigmoid(vpps.sum(hs))), CSR, one),
        "slices of sums": (lambda hs: b + vpps.concat([vpps.sum(hs)[0:2], vpps.sum(hs)[2:H]]), CSR, one),
        "scalars of a list": (lambda hs: b * vpps.sum(vpps.each(vpps.sum, hs)), CSR, one),
        "sums of lists": (summed, CSR, two),
        "a product": (lambda a, b, x: U @ vpps.concat([a, b]) + x, CHILDREN, one),
        "operators": (lambda a, b, x: vpps.tanh(a) * vpps.sigmoid(b) * x, CHILDREN, one),
        "unused ones, as the result": (lambda a, b, x: x, CHILDREN, one),
        "two of each": (lambda c, h, d, g, x: (c + d + x, U @ vpps.concat([h, g])), CHILDREN, two),
        "a matrix times one": (lambda a, b, x: vpps.reshape(x, (2, 2)) @ a + vpps.tanh(b), CHILDREN, [(2,)]),
        "all children": (lambda x, *states: U @ vpps.concat(states) + x, CHILDREN, one),
    }


@pytest.mark.parametrize("name", cells_that_tell_shapes(None, None, None))
def test_shapes_that_follow_from_results_need_no_state(name: str, model: vpps.Model) -> None:
    cell, children, expected = cells_that_tell_shapes(model["U"], model["W"], model["b"])[name]
    kind = [0, 1, 0, 1, 0] if isinstance(cell, list) else None
    made = [vpps.cell(f) for f in cell] if isinstance(cell, list) else cell
    inputs = {"x": X} if callable(cell) and "x" in signature(cell).parameters else {}
    graph = vpps.Graph()
    found = [graph.map(made, kind, children, inputs=inputs, state=state) for state in (None, expected)]
    inferred, declared = (x if isinstance(x, tuple) else (x,) for x in found)
    assert [x.shape for x in inferred] == expected
    for x, y in zip(values(model, graph, *inferred), values(model, graph, *declared), strict=True):
        assert same(x, y)


def test_gather_pull_scatter_push(model: vpps.Model) -> None:
    """Cavs's own LSTM (figure 4 of the paper) gives the values of the same cell written with return values."""
    W, words = model["W"], model["words"]

    def cavs() -> None:
        h, c = vpps.split(vpps.gather(0), 2)
        i, o = vpps.split(W @ vpps.concat([h, vpps.pull("x"), vpps.lookup(words, vpps.pull("word"))]), 2)
        c = c + vpps.tanh(i)
        h = vpps.sigmoid(o) * c
        vpps.scatter(vpps.concat([h, c]))
        vpps.push(h)

    def ordinary(state: Any, x: Any, word: Any) -> Any:
        h, c = vpps.split(state, 2)
        i, o = vpps.split(W @ vpps.concat([h, x, vpps.lookup(words, word)]), 2)
        c = c + vpps.tanh(i)
        return vpps.concat([vpps.sigmoid(o) * c, c])

    inputs = {"x": X, "word": np.array([5, 0, 0, 2, 1], np.uint8)}
    children = [-1, 0, 1, -1, 3]
    graph = vpps.Graph()
    h = graph.map(cavs, children=children, inputs=inputs, state=2 * H)
    again = graph.map(cavs, children=children, inputs=inputs, state=2 * H)
    states = graph.map(ordinary, children=children, inputs=inputs, state=2 * H)
    assert h.shape == (H,)
    got = values(model, graph, h, again, states[:, :H])
    assert same(got[0], got[1])
    assert same(got[0], got[2])


LISTS = [[], [-1], [0], [1, 2, -1, 0], [3, -1], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("trusted", [False, True], ids=["levels found", "levels given"])
def test_first_children_of_lists_and_the_others(trusted: bool, model: vpps.Model) -> None:
    """List children by position, with zeros beyond a list's end, equal those of single calls."""
    U = model["U"]

    def combined(h: Any, c: Any, second: Any, rest: Any, all_cs: Any, x: Any) -> Any:
        gates = vpps.softmax(vpps.each(lambda r: vpps.dot(r, c), rest))
        pooled = vpps.sum(vpps.each(lambda g, r: g * r, gates, rest))
        return vpps.tanh(U @ vpps.concat([h, second]) + pooled + x), c + vpps.sum(all_cs) + x

    one_by_one = vpps.cell(combined)

    def gathering() -> None:
        (h, c), (second, _), (rest, _), (_, cs) = vpps.gather(0), vpps.gather(1), vpps.gather(start=1), vpps.gather()
        vpps.scatter(*combined(h, c, second, rest, cs, vpps.pull()))

    n = len(LISTS)
    x = np.arange(n * H, dtype=np.float32).reshape(n, H) % 5 / 4
    offsets = np.cumsum([0, *map(len, LISTS)])
    children = offsets, np.array([c for some in LISTS for c in some], np.int32)
    levels = np.array([0, 0, 1, 2, 3, 4]) if trusted else None
    graph = vpps.Graph()
    h, c = graph.map(gathering, children=children, inputs={"x": x}, state=(H, H), levels=levels)
    zeros = graph.zeros(H)
    states: list[Any] = []
    for some, row in zip(LISTS, x, strict=True):
        given = [states[k] if k >= 0 else (zeros, zeros) for k in some]
        padded = [*given, (zeros, zeros), (zeros, zeros)]
        (h0, c0), (h1, _) = padded[:2]
        states.append(one_by_one(h0, c0, h1, [h for h, _ in given[1:]], [c for _, c in given], graph.input(row)))
    got = values(model, graph, h, c, [h for h, _ in states], [c for _, c in states])
    assert same(got[0], got[2])
    assert same(got[1], got[3])


def test_all_of_fixed_children_and_the_first_and_the_others(model: vpps.Model) -> None:
    b = model["b"]
    graph = vpps.Graph()
    x = graph.rows(X)

    def sliced() -> None:
        (right,) = vpps.gather(start=np.int64(1))
        vpps.scatter(vpps.tanh(vpps.gather(0) * b + right + vpps.pull()))

    def together() -> None:
        left, right = vpps.gather()
        vpps.scatter(vpps.tanh(left * b + right + vpps.pull()))

    def plain(left: Any, right: Any, x: Any) -> Any:
        return vpps.tanh(left * b + right + x)

    maps = [graph.map(f, children=CHILDREN, inputs={"x": x}, state=H) for f in (sliced, together, plain)]
    *got, expected = values(model, graph, *maps)
    assert all(same(x, expected) for x in got)


def test_kinds_may_push_from_other_places_and_have_more_outputs(model: vpps.Model) -> None:
    b = model["b"]

    def first() -> None:
        x = vpps.pull("x")
        vpps.push(x * 2.0)
        vpps.scatter(vpps.tanh(x))

    def second() -> None:
        h = vpps.tanh(vpps.gather(0) * b)
        vpps.scatter(h)
        vpps.push(h)

    graph = vpps.Graph()
    out = graph.map([first, second], kind=[1, 0, 1, 0, 1], children=[1, -1, 0, -1, -1], inputs={"x": X})
    (got,) = values(model, graph, out)
    w = weights_of(model)["b"]
    x = X.astype(np.float64)
    h0 = np.tanh(np.tanh(x[1]) * w)
    assert np.allclose(got, [h0, 2 * x[1], np.tanh(h0 * w), 2 * x[3], np.zeros(H)], rtol=1e-6)
    assert sum(len(block) for block in graph.blocks.values()) == len(graph)


def test_inputs_of_every_sort(model: vpps.Model) -> None:
    words, b = model["words"], model["b"]

    @vpps.cell
    def cell(word: Any, label: Any, x: Any, shared: Any, listed: Any, memory: Any, matrix: Any) -> Any:
        e = vpps.lookup(words, word) * shared + x + listed
        return vpps.cross_entropy(matrix @ e, label) * b + vpps.sum(memory)

    graph = vpps.Graph()
    rows = graph.rows(X)
    shared = graph.input(np.ones(H))
    listed = [rows[k] for k in (3, 1, 4, 1, 0)]
    matrices = np.random.default_rng(1).normal(size=(5, 3, H))
    inputs = {
        "memory": (CSR[0], rows[CSR[1]]), "label": [0, 1, 2, 2, 0], "matrix": matrices, "word": 3, "x": X.tolist(),
        "shared": shared, "listed": listed,
    }  # fmt: skip
    out = graph.map(cell, inputs=inputs)
    offsets, indices = CSR
    singly = [
        cell(3, label, graph.input(x), shared, e, [rows[k] for k in indices[a:z]], graph.input(m))
        for label, x, e, m, a, z in zip(inputs["label"], X, listed, matrices, offsets[:-1], offsets[1:], strict=True)
    ]
    got = values(model, graph, out, singly)
    assert same(*got)


def test_only_what_is_read_becomes_an_input(model: vpps.Model) -> None:
    cells = [lambda x: vpps.tanh(x), lambda a, b: a * b]
    graph = vpps.Graph()
    graph.map(cells, kind=[0, 0, 1, 1, 1], children=CHILDREN, inputs={"x": X})
    assert len(graph) == 2 + 1 + 5  # inputs, zeros, vertices


def test_structures_connect_and_levels_count_the_graph(model: vpps.Model) -> None:
    U, b = model["U"], model["b"]
    graph = vpps.Graph()
    x = graph.rows(X)
    up = graph.map(lambda l, r, x: U @ vpps.concat([l, r]) + x, children=CHILDREN, inputs={"x": vpps.tanh(x)})
    assert up.levels.tolist() == [2, 2, 3, 4, 5]
    chain = graph.map(lambda h, x: vpps.tanh(h * b) + x, children=np.arange(-1, 4), inputs={"x": up})
    assert chain.levels.tolist() == [3, 4, 5, 6, 7]
    back = graph.map(lambda h, x: vpps.tanh(h * b) + x, children=[1, 2, 3, 4, -1], inputs={"x": up[::-1]})
    assert back.levels.tolist() == [7, 6, 5, 4, 3]
    both = vpps.concat([chain, back])
    assert both.levels.tolist() == [8, 7, 6, 7, 8]
    top = vpps.tanh(chain[4] + back[0])
    assert graph.level_of(top.ref) == 9


def test_a_map_of_no_vertices(model: vpps.Model) -> None:
    graph = vpps.Graph()
    h = graph.map([lambda x: x * 2.0, lambda a, b: a + b], kind=[], children=CHILDREN[:0], inputs={"x": X[:0]})
    assert (len(h), h.shape, len(graph)) == (0, (H,), 0)


def test_an_ordinary_call_of_a_maps_cell_is_a_vertex_of_its_block(model: vpps.Model) -> None:
    U = model["U"]

    @vpps.cell
    def inner(left: Any, right: Any) -> Any:
        return vpps.tanh(U @ vpps.concat([left, right]))

    leaf = vpps.cell(lambda x: vpps.tanh(x))
    graph = vpps.Graph()
    x = graph.rows(X)
    before = inner(leaf(x[0]), leaf(x[1]))
    h = graph.map([leaf, inner], kind=[0, 0, 1, 1, 1], children=CHILDREN, inputs={"x": x})
    after = inner(before, h[4])
    assert len(graph.blocks) == 4
    got = values(model, graph, [before, h[2], after])[0]
    assert same(got[0], got[1])
    assert [len(block) for block in graph.blocks.values()] == [5, 4, 5, 1]
