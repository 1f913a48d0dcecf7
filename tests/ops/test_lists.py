"""Softmax, maximum and minimum over list arguments agree with the reference: attention, in cells and in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from tests.ops.test_on_targets import weighted
from vpps.ops import size

pytestmark = pytest.mark.cpu

E = vpps.Expression
LENGTHS = (0, 1, 2, 7, 150)


def table(model: vpps.Model, name: str, *shape: int, rows: int = 40, scale: float = 1.0) -> vpps.Lookup:
    values = np.random.default_rng(sum(map(ord, name))).normal(size=(rows, *shape)) * scale
    return model.lookup(name, (rows, *shape), init=values)


def check(model: vpps.Model, graph: vpps.Graph, results: Sequence[E]) -> None:
    terms = [weighted(graph, y, i) * (1 / size(y.shape)) for i, y in enumerate(results)]
    assert_agrees_with_reference(model, graph, vpps.sum(terms), results)


def check_calls(
    model: vpps.Model, cell: Callable[..., E], lengths: Sequence[int], **rows: vpps.Lookup
) -> tuple[vpps.Graph, list[E]]:
    """Check calls of a cell with table rows; arguments whose names end with "s" are lists of these lengths."""
    graph, results = vpps.Graph(), []
    for n in lengths:
        given = [
            [graph.lookup(t, (3 * i + n) % 40) for i in range(n)] if name[-1] == "s" else graph.lookup(t, n % 40)
            for name, t in rows.items()
        ]
        results.append(graph.call(cell, *given))
    check(model, graph, results)
    return graph, results


@pytest.mark.parametrize("width", [1, 24, 70])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_attention(width: int, scale: float) -> None:
    """Scores may be large: the softmax does not overflow, and keeps its digits."""
    model = vpps.Model(seed=1)
    keys, values, queries = table(model, "k", width), table(model, "v", 9), table(model, "q", width, scale=scale)

    @vpps.cell(elements={"ks": (width,), "vs": (9,)})
    def attend(q: E, ks: list[E], vs: list[E]) -> E:
        ws = vpps.softmax(vpps.each(lambda k: vpps.dot(q, k), ks))
        return vpps.sum(vpps.each(lambda w, v: w * v, ws, vs))

    check_calls(model, attend, LENGTHS, q=queries, ks=keys, vs=values)


@pytest.mark.parametrize("length", LENGTHS)
def test_attention_of_one_vertex(length: int) -> None:
    model = vpps.Model(seed=1)
    xs = table(model, "x", 33)
    U = model.parameter("U", (33, 33))

    @vpps.cell(elements={"xs": (33,)})
    def attend(q: E, xs: list[E]) -> E:
        ws = vpps.softmax(vpps.each(lambda x: vpps.dot(q, U @ x) * 0.2, xs))
        return vpps.sum(vpps.each(lambda w, x: w * x, ws, xs)) + q

    check_calls(model, attend, [length], q=xs, xs=xs)


WIDE: dict[str, Callable[[list[E]], E]] = {
    "softmax": lambda xs: vpps.sum(vpps.each(lambda p, x: p * vpps.sigmoid(x), vpps.softmax(xs), xs)),
    "log_softmax": lambda xs: vpps.mean(vpps.each(lambda p, x: p * vpps.sigmoid(x), vpps.log_softmax(xs), xs)),
    "max": vpps.max,
    "min": vpps.min,
    "softmax of mapped": lambda xs: vpps.max(vpps.softmax(vpps.each(lambda x: vpps.tanh(x) * 3.0, xs))),
    "softmax of softmax": lambda xs: vpps.max(vpps.softmax(vpps.softmax(xs))),
    "max of mapped": lambda xs: vpps.max(vpps.each(lambda x: x * x, xs)) + vpps.max(xs) - vpps.min(xs),
    "sum of softmax": lambda xs: vpps.sum(vpps.softmax(xs)) + vpps.mean(vpps.log_softmax(xs)),
}


SHAPES = [(), (1,), (3,), (32,), (65,), (200,), (5, 7)]


# Half of all pairs: every function with short, long and odd elements.
@pytest.mark.parametrize(
    "name, shape", [(name, shape) for i, name in enumerate(WIDE) for j, shape in enumerate(SHAPES) if (i + j) % 2 == 0]
)
def test_reductions_and_softmax_element_by_element(name: str, shape: tuple[int, ...]) -> None:
    model = vpps.Model(seed=1)
    cell = vpps.cell(elements={"xs": shape})(lambda xs: WIDE[name](xs))
    check_calls(model, cell, (0, 1, 2, 7, 70, 0), xs=table(model, "x", *shape))


def test_attention_in_many_steps() -> None:
    """The steps' elements have separate memory, which is reused later: their rows are not contiguous."""
    model = vpps.Model(seed=1)
    xs = table(model, "x", 40)
    W = model.parameter("W", (40, 40))

    @vpps.cell
    def step(h: E, xs: list[E]) -> E:
        ws = vpps.softmax(vpps.each(lambda x: vpps.dot(h, x), xs))
        ps = vpps.softmax(vpps.each(lambda x: vpps.tanh(W @ x), xs))
        read = vpps.sum(vpps.each(lambda w, x, p: w * x + p, ws, xs, ps))
        return vpps.tanh(read + vpps.max(ps) - vpps.min(ps) + W @ h)

    graph = vpps.Graph()
    h = graph.zeros(40)
    for i in range(18):
        h = step(h, [graph.lookup(xs, (i + k) % 40) for k in range(1 + i % 9)])
    check(model, graph, [h])


def test_equal_elements_give_the_gradient_to_the_first() -> None:
    model = vpps.Model(seed=1)
    a, b, c = (model.parameter(name, (3,), init=[1.0, 2.0, 3.0]) for name in "abc")
    graph = vpps.Graph()
    elements = [graph.zeros(3) + p for p in (a, b, c)]
    results = [graph.call(vpps.cell(lambda xs, f=f: f(xs)), elements) for f in (vpps.max, vpps.min)]
    check(model, graph, results)
    with vpps.Handle(model, vps=2) as handle:
        _, gradients = handle.gradients(graph, vpps.sum(results[0]))
    assert gradients["a"].tolist() == [1, 1, 1]
    assert not gradients["b"].any()
    assert not gradients["c"].any()


@pytest.mark.parametrize("scale, offset", [(1, 0.0), (20, 0.0), (1, 1e4)])
def test_softmax_over_a_list_keeps_its_digits_far_from_zero(scale: float, offset: float) -> None:
    model = vpps.Model(seed=1)
    values = np.round(np.random.default_rng(0).normal(size=(12, 34)), 1) * scale + offset
    xs = model.lookup("x", (12, 34), init=values)

    @vpps.cell
    def both(xs: list[E], vs: list[E]) -> E:
        ps, logs = vpps.softmax(xs), vpps.log_softmax(xs)
        return vpps.sum(vpps.each(lambda p, log, v: p * v + log * 0.1, ps, logs, vs))

    graph = vpps.Graph()
    rng = np.random.default_rng(1)
    vs = [graph.input(rng.normal(size=34)) for _ in range(12)]
    check(model, graph, [both([graph.lookup(xs, i) for i in range(12)], vs)])


@pytest.mark.parametrize("over", ["list", "vector"])
def test_the_gradient_of_a_softmax_that_is_nearly_sure_keeps_its_digits(over: str) -> None:
    """If one weight is 1 - 1e-5, a softmax's gradient is a small difference of nearly equal terms."""
    model = vpps.Model(seed=1)
    scores = model.lookup("scores", (6, 1), init=np.array([[0.3], [0.1], [12.0], [0.7], [-0.4], [0.2]]))

    @vpps.cell
    def over_list(scores: list[E], values: list[E]) -> E:
        return vpps.sum(vpps.each(lambda w, v: w * v, vpps.softmax(scores), values))

    @vpps.cell
    def over_vector(s0: E, s1: E, s2: E, s3: E, s4: E, s5: E, values: E) -> E:
        return vpps.dot(vpps.softmax(vpps.concat([s0, s1, s2, s3, s4, s5])), values)

    graph = vpps.Graph()
    items = [graph.lookup(scores, i) for i in range(6)]
    values = np.random.default_rng(2).normal(size=6)
    if over == "list":
        result = over_list(items, [graph.input([v]) for v in values])[0]
    else:
        result = over_vector(*items, graph.input(values))
    assert_agrees_with_reference(model, graph, result, floor=0.0)


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_python_list_is_treated_like_a_list_argument(name: str, shape: tuple[int, ...]) -> None:
    function: Callable[..., list[E]] = getattr(vpps, name)
    model = vpps.Model(seed=1)
    xs = table(model, "x", 6)

    def normalise(items: list[E]) -> E:
        return vpps.sum(vpps.each(lambda p, x: p * x, function(items), items))

    graph = vpps.Graph()
    rows = [graph.lookup(xs, i) * 30.0 for i in range(5)]
    items = [vpps.reshape(x, shape) if shape else x[2] for x in rows]
    plain, traced = normalise(items), vpps.cell(lambda xs: normalise(xs))(items)
    fixed = vpps.cell(lambda a, b, c, d, e: normalise([a, b, c, d, e]))(*items)
    check(model, graph, [plain, traced, fixed])
    assert function([]) == []
    with vpps.Handle(model, train=False) as handle:
        values = handle.forward(graph, [plain, traced, fixed])
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-5)


def test_an_empty_list_in_the_first_call_takes_its_shape_from_its_uses() -> None:
    model = vpps.Model(seed=1)
    xs = table(model, "x", 6)
    W = model.parameter("W", (4, 11))
    p = model.parameter("p", (11,), init="normal")

    @vpps.cell
    def weigh(q: E, keys: list[E]) -> E:
        return vpps.max(vpps.softmax(vpps.each(lambda k: vpps.dot(q, k), keys)))

    @vpps.cell
    def squashed(q: E, keys: list[E]) -> E:
        return vpps.sum(vpps.each(lambda k: W @ vpps.tanh(vpps.concat([k, q[:5]])), keys))

    @vpps.cell
    def extended(q: E, keys: list[E]) -> E:
        return vpps.sum(vpps.each(lambda k: vpps.concat([k, q[:5]]) * p, keys))

    for cell in (weigh, squashed, extended):
        check_calls(model, cell, (0, 3), q=xs, keys=xs)


@pytest.mark.parametrize("shape", [(), (33,), (5, 7)])
def test_logsumexp_element_by_element(shape: tuple[int, ...]) -> None:
    """logsumexp of no elements is -inf, the logarithm of an empty sum."""
    model = vpps.Model(seed=1)
    xs = table(model, "x", *shape, scale=30.0)
    total = vpps.cell(lambda xs: vpps.logsumexp(xs) + vpps.logsumexp(vpps.each(vpps.tanh, xs)), elements={"xs": shape})
    graph, _ = check_calls(model, total, LENGTHS[1:], xs=xs)
    with vpps.Handle(model, train=False) as handle:
        assert np.all(np.array(handle.forward(graph, [graph.call(total, [])])) == -np.inf)


def test_logsumexp_of_infinities_is_what_its_limit_is_and_nothing_flows_where_there_is_no_sum() -> None:
    inf = np.inf
    xs = np.array([[-inf, -inf, inf, np.nan, 1.0], [-inf, 2.0, inf, -inf, -inf]])
    model = vpps.Model()
    p = model.parameter("p", (5,), init=1.0)
    of_list = vpps.cell(lambda xs: vpps.logsumexp(xs), elements={"xs": (5,)})
    graph = vpps.Graph()
    rows, columns = [graph.input(x) for x in xs], [graph.input(x) for x in xs.T]
    with vpps.Handle(model) as handle:
        found = handle.forward(graph, [of_list(rows), vpps.logsumexp(rows)])
        found.append(np.array(handle.forward(graph, [vpps.logsumexp(x) for x in columns])))
        np.testing.assert_allclose(found, [[-inf, 2.0, inf, np.nan, 1.0]] * 3)

        masked = [graph.call(lambda x: vpps.where(x > 0, p * 2, -inf), graph.input(x)) for x in (np.zeros(5), xs[1])]
        whole = [vpps.logsumexp(x) for x in masked]  # over five elements, with none or two unmasked
        flows: tuple[Any, ...] = ([0, 2, 2, 0, 0],) * 2 + (0, [0, 1, 1, 0, 0])
        for y, expected in zip([of_list(masked), vpps.logsumexp(masked), *whole], flows, strict=True):
            _, gradients = handle.gradients(graph, vpps.sum(vpps.where(y > 0, y, 0)))
            np.testing.assert_array_equal(gradients["p"], np.broadcast_to(expected, 5))


@vpps.cell
def point(query: vpps.Expression, memory: list[vpps.Expression], right: vpps.Expression) -> vpps.Expression:
    """Return cross entropy over a list, as in the recipe 'Pointers and copying'."""
    scores = vpps.each(lambda m: vpps.dot(m, query), memory)
    return vpps.logsumexp(scores) - vpps.dot(right, query)


@pytest.mark.parametrize(
    "target", [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]
)
def test_the_gradient_of_cross_entropy_over_a_list_is_softmax_minus_one_hot(target: str) -> None:
    scores = [[0.3, -1.0, 2.0], [0.0], [5.0, -1e4, 5.0, 4.0], [-1e9, 0.0]]
    labels = [1, 0, 1, 0]
    graph = vpps.Graph()
    one = graph.input(np.ones(1))
    items = [[graph.input(np.array([s]), grad=True) for s in row] for row in scores]
    losses = [point(one, row, row[i]) for row, i in zip(items, labels, strict=True)]
    lengths = np.array([len(row) for row in scores])
    offsets = np.concatenate([[0], lengths.cumsum()])
    flat = graph.rows(np.concatenate(scores)[:, None], grad=True)
    mapped = graph.map(point, inputs={"query": one, "memory": (offsets, flat), "right": flat[offsets[:-1] + labels]})
    with vpps.Handle(vpps.Model(), target=target, vps=2) as handle:
        handle.gradients(graph, vpps.sum(losses) + vpps.sum(mapped))
        of_rows = handle.input_gradient(flat)[:, 0]
        for k, (row, i) in enumerate(zip(scores, labels, strict=True)):
            exact = np.exp(np.array(row) - max(row))
            exact /= exact.sum()
            exact[i] -= 1
            assert np.allclose([handle.input_gradient(x)[0] for x in items[k]], exact, rtol=1e-5, atol=1e-7)
            assert np.allclose(of_rows[offsets[k] : offsets[k + 1]], exact, rtol=1e-5, atol=1e-7)
