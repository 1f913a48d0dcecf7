"""Every op agrees with its reference, forward and backward, for any number of virtual processors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import vpps
from tests import comparison
from tests.comparison import assert_agrees_with_reference, relative_error
from tests.training import ReferenceTraining
from vpps.graph.derive import DERIVED
from vpps.ops import Form
from vpps.reference import Reference

pytestmark = pytest.mark.cpu

Op = Callable[..., vpps.Expression]
MAPS: dict[str, Op] = {op.name: getattr(vpps, op.name) for op in DERIVED.values() if op.form is Form.MAP}
UNARY: dict[str, Op] = {
    **{name: function for name, function in MAPS.items() if DERIVED[name].arity == 1}, "neg": lambda x: -x,
    "scale": lambda x: x * 1.7, "divide": lambda x: x / 4, "shift": lambda x: 0.5 + x,
    "reciprocal": lambda x: 1.5 / (vpps.exp(x) + 0.5), "softplus of large": lambda x: vpps.softplus(x * 40),
    "elu": lambda x: vpps.elu(x, 1.3), "leaky_relu": lambda x: vpps.leaky_relu(x, 0.1),
    "clamp": lambda x: vpps.clamp(x, -0.5, 0.4), "clamp from below": lambda x: vpps.clamp(x, low=0.1) + x,
    "stop_gradient": lambda x: vpps.stop_gradient(x) * x, "layer_norm": lambda x: vpps.layer_norm(x) + x,
    "logsumexp": vpps.logsumexp, "max": vpps.max, "min": vpps.min, "argmax": lambda x: vpps.argmax(x) * vpps.sum(x),
    "pick": lambda x: vpps.pick(x, x.shape[0] // 2), "hinge": lambda x: vpps.hinge(x, x.shape[0] // 3, 0.8),
    "norm": vpps.norm, "softmax": vpps.softmax, "log_softmax": vpps.log_softmax, "sum": vpps.sum, "mean": vpps.mean,
    "slice": lambda x: x[: max(1, x.shape[0] // 2)], "element": lambda x: x[-1],
    "comparisons with numbers": lambda x: (
        (x > 0.1) + (x < -0.3) * 2 + (x <= 0.5) * 4 + (x >= 0.2) * x + vpps.eq(x, x[0])
    ),
    "where of numbers": lambda x: (
        vpps.where(x > 0, 2, x) - vpps.where(x < 0.4, x, -1.5) * vpps.where(vpps.eq(x, 0), 3, 5)
    ),
    "where of scalars": lambda x: vpps.where(x[0] < x, x[-1], x) + vpps.where(x[0] < 0, x, 0.0),
    "sines of large": lambda x: vpps.sin(x * 64) + vpps.cos(x * -4096),
}  # fmt: skip
BINARY: dict[str, Op] = {
    **{name: function for name, function in MAPS.items() if DERIVED[name].arity == 2}, "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / (vpps.square(b) + 0.5),
    "min of three": lambda a, b: vpps.min([a, b, a * b]), "squared_distance": vpps.squared_distance,
    "cosine": lambda a, b: vpps.cosine(a, b) + vpps.dot(a, b) * 0.1,
    "binary_cross_entropy_with_logits": lambda a, b: vpps.binary_cross_entropy_with_logits(a * 5, vpps.sigmoid(b)),
    "kl_div": lambda a, b: vpps.kl_div(vpps.log_softmax(a), vpps.softmax(b)), "dot": vpps.dot, "mse": vpps.mse,
    "concat": lambda a, b: vpps.concat([a, b, a]), "stack": lambda a, b: vpps.stack([a, b, a * b]),
    "stack of scalars": lambda a, b: vpps.stack([a[0], b[-1]]),
    "logsumexp of three": lambda a, b: vpps.logsumexp([a, b * 90, a - b]),
    "comparisons": lambda a, b: (a > b) * a + (a >= b) * b - (a < b) * (a <= a) * b + vpps.eq(a, a) - vpps.eq(a, b),
    "where": lambda a, b: vpps.where(a > b, vpps.log(a - b), b) * vpps.where(a * b, a, b[0]),
}  # fmt: skip
WIDTHS = (1, 33, 64, 200)


def weighted(graph: vpps.Graph, y: vpps.Expression, seed: int) -> vpps.Expression:
    """Return a scalar whose gradient with respect to y is not uniform."""
    if y.shape == ():
        return y
    return vpps.dot(y, graph.input(np.random.default_rng(seed).normal(size=y.shape)))


def operands(low: float, width: int, n: int) -> tuple[vpps.Model, vpps.Lookup]:
    model = vpps.Model(seed=3)
    values = np.random.default_rng(width).uniform(low, low + 2.5, (n, width))
    return model, model.lookup("x", (n, width), init=values)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, width: int) -> None:
    model, table = operands(DERIVED[name].samples.get("low", -1.5) if name in DERIVED else -1.5, width, 4)
    graph = vpps.Graph()
    results = [UNARY[name](graph.lookup(table, i)) for i in range(4)]
    loss = vpps.sum([weighted(graph, y, i) for i, y in enumerate(results)])
    assert_agrees_with_reference(model, graph, loss, results)


@pytest.mark.parametrize("width", [1, 31, 32, 63, 64, 97])
def test_the_largest_element_is_found_wherever_it_is(width: int) -> None:
    """A NaN is also found."""
    graph, xs = vpps.Graph(), np.random.default_rng(0).uniform(-2, -1, (2, width, width)).astype(np.float32)
    xs[0][np.eye(width, dtype=bool)], xs[1][np.eye(width, dtype=bool)] = -0.5, np.nan
    with vpps.Handle(vpps.Model(), train=False) as handle:
        found = handle.forward(graph, [vpps.max(graph.input(x)) for x in xs.reshape(-1, width)])
    assert np.array_equal(found, [-0.5] * width + [np.nan] * width, equal_nan=True)


@pytest.mark.parametrize("width, value", [(17, 0.83), (300, 5.3), (1024, 100.7), (1024, 1000.3)])
def test_layer_norm_of_equal_elements_is_zero(width: int, value: float) -> None:
    """The mean's rounding error is not magnified by 1 / sqrt(eps), nor is that of a mean far from 0."""
    model = vpps.Model()
    graph = vpps.Graph()
    near = value + np.arange(width) % 7 * np.spacing(np.float32(value))
    results = [vpps.layer_norm(graph.input(x)) for x in (np.full(width, value, np.float32), near)]
    with vpps.Handle(model, train=False, vps=2) as handle:
        equal, different = handle.forward(graph, results)
    assert not equal.any()
    x = near.astype(np.float32).astype(np.float64)
    expected = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    assert np.linalg.norm(different - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, width: int) -> None:
    model, table = operands(-1.2, width, 5)
    graph = vpps.Graph()
    xs = [graph.lookup(table, i) for i in range(5)]
    results = [BINARY[name](a, b) for a, b in pairwise(xs)]
    loss = vpps.sum([weighted(graph, y, i) for i, y in enumerate(results)])
    assert_agrees_with_reference(model, graph, loss, results)


@pytest.mark.parametrize("width", [5, 64, 96])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum"])
@pytest.mark.parametrize("side", [0, 1])
def test_scalars_broadcast(name: str, side: int, width: int) -> None:
    model, table = operands(-1.2, width, 3)
    graph = vpps.Graph()
    xs = [graph.lookup(table, i) for i in range(3)]
    results = [BINARY[name](*((x, x[0]) if side else (x[1], x))) for x in xs]
    loss = vpps.sum([weighted(graph, y, i) for i, y in enumerate(results)])
    assert_agrees_with_reference(model, graph, loss, results)


@pytest.mark.parametrize("columns", [1, 3, 15, 16, 40])
def test_sum_with_a_product_has_the_same_bits_if_something_else_reads_the_product(columns: int) -> None:
    model, table = operands(-1.2, columns, 8)
    W = model.parameter("W", (5, columns))
    b = model.lookup("b", (8, 5), init="normal")

    @vpps.cell
    def layer(x: vpps.Expression, b: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
        y = W @ x
        return vpps.tanh(b) + y, vpps.square(y)

    graph = vpps.Graph()
    calls = [layer(graph.lookup(table, i), graph.lookup(b, i)) for i in range(8)]
    with vpps.Handle(model, train=False, vps=2) as handle:
        sums = handle.forward(graph, [y for y, _ in calls])
        assert [y.tobytes() for y in sums] == [y.tobytes() for y in handle.forward(graph, sum(calls, ()))[::2]]


def test_what_evaluates_alone_makes_room_for_transposes_when_they_are_used() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (40, 33))
    x, y = np.linspace(-1, 1, 33), np.linspace(-1, 1, 40)
    with vpps.Handle(model, train=False) as handle:
        graph = vpps.Graph()
        np.testing.assert_allclose(handle.forward(graph, [W @ graph.input(x)])[0], W.numpy() @ x, atol=1e-5)
        np.testing.assert_allclose(handle.forward(graph, [W.T @ graph.input(y)])[0], y @ W.numpy(), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (40, 33), (70, 200)])
def test_matrix_parameters_are_operands_of_lists_and_by_themselves(shape: tuple[int, int]) -> None:
    columns = shape[1]
    model, table = operands(-1.2, columns, 3)
    W, V = (model.parameter(name, shape) for name in "WV")

    @vpps.cell(elements={"xs": (columns,)})
    def each(xs: list[vpps.Expression]) -> vpps.Expression:
        return vpps.sum(vpps.each(lambda x: vpps.tanh(W[0] * x) + vpps.sum(V) * x, xs))

    graph = vpps.Graph()
    xs = [graph.lookup(table, i) for i in range(3)]
    results = [graph.call(each, xs), graph.call(each, [])]
    results += [W @ graph.call(vpps.transpose, V), graph.call(lambda: V @ vpps.tanh(V[0]))]
    loss = vpps.sum([weighted(graph, y, i) for i, y in enumerate(results)]) * 0.1
    assert_agrees_with_reference(model, graph, loss, results)


@pytest.mark.parametrize("n", [256, 257, 700])
def test_product_with_a_concatenation_of_any_length(n: int) -> None:
    """An instruction has a limited number of segments; longer concatenations are materialized."""
    model, table = operands(-1.0, n // 2, 1)
    W = model.parameter("W", (3, n))

    @vpps.cell
    def layer(x: vpps.Expression) -> vpps.Expression:
        pieces = [vpps.tanh(x[k : k + 1]) for k in range(n // 2)]
        rest = [x[k % x.shape[0]] for k in range(n // 2, n)]
        return W @ vpps.concat([*pieces[:5], vpps.concat([*pieces[5:], *rest])])

    graph = vpps.Graph()
    results = [layer(graph.lookup(table, 0))]
    assert_agrees_with_reference(model, graph, weighted(graph, results[0], 0), results, vp_counts=[2])


@pytest.mark.parametrize("target", ["cpu", pytest.param("simt", marks=pytest.mark.simt)])
def test_a_nan_stays_one(target: str) -> None:
    """Covers all elementwise ops: with one operand, and with either of two operands."""
    graph = vpps.Graph()
    bad, fine = graph.input(np.array([np.nan, 0.5, -0.5])), graph.input(np.array([0.25, 0.75, np.nan]))
    results = [op(x) for name, op in MAPS.items() if DERIVED[name].arity == 1 for x in (bad, fine)]
    results += [op(bad, fine) for name, op in MAPS.items() if DERIVED[name].arity == 2]
    with vpps.Handle(vpps.Model(), target=target, train=False) as handle, np.errstate(invalid="ignore"):
        reference = Reference(graph, {})
        for found, y in zip(handle.forward(graph, results), results, strict=True):
            assert np.isnan(found).any()
            np.testing.assert_array_equal(np.isnan(found), np.isnan(reference.value(y)))


def test_lookups_inside_cells_share_rows() -> None:
    model = vpps.Model(seed=1)
    E = model.lookup("E", (9, 34))
    F = model.lookup("F", (4, 34), trainable=False)

    @vpps.cell
    def pair(a: int, b: int) -> vpps.Expression:
        return vpps.lookup(E, a) * vpps.lookup(E, b) + vpps.lookup(F, 2) + vpps.lookup(E, 0)

    graph = vpps.Graph()
    results = [graph.call(pair, i % 3, 8 - i) for i in range(7)]
    loss = vpps.sum([weighted(graph, y, i) for i, y in enumerate(results)])
    assert_agrees_with_reference(model, graph, loss, results)


@pytest.mark.parametrize("words, width", [(9, 34), (70, 200)])
def test_tied_embeddings(words: int, width: int) -> None:
    """Rows of one matrix are looked up, one row more than once, and the matrix also computes the logits. Its gradient
    is dense, and each step changes the whole matrix."""
    model = vpps.Model(seed=1)
    E = model.lookup("E", (words, width), dense=True)

    @vpps.cell
    def step(before: vpps.Expression, word: int, target: int) -> tuple[vpps.Expression, vpps.Expression]:
        h = vpps.tanh(before + vpps.lookup(E, word) * 3 + vpps.lookup(E, 0))
        return h, vpps.cross_entropy(E @ h, target)

    def batch(seed: int) -> tuple[vpps.Graph, vpps.Expression]:
        graph, h, losses = vpps.Graph(), None, []
        for word in np.random.default_rng(seed).integers(words, size=6).tolist():
            h, loss = step(graph.lookup(E, 1) if h is None else h, word, (word + 1) % words)
            losses.append(loss)
        return graph, vpps.sum([*losses, vpps.mean(vpps.mean(graph.lookup(E, np.array([2, 3, 2]))))])

    graph, loss = batch(0)
    assert_agrees_with_reference(model, graph, loss, [loss])
    witness = ReferenceTraining(model, vpps.AdamW(lr=0.01, weight_decay=0.1), clip_norm=1.0, ema=0.9)
    with vpps.Handle(model, vpps.AdamW(lr=0.01, weight_decay=0.1), vps=2, clip_norm=1.0, ema=0.9) as handle:
        for k in range(4):
            handle.fb(*batch(k), accumulate=k == 1)
            witness.fb(*batch(k), accumulate=k == 1)
    assert relative_error(E.numpy(), witness.weights["E"]) < 1e-4
    assert relative_error(E.average(), witness.averages["E"]) < 1e-4


@pytest.mark.parametrize("n", [0, 4, 300])
def test_losses_of_list_elements(n: int) -> None:
    """Every element has its vertex's label."""
    model, table = operands(-1.0, 6, 5)
    b = model.parameter("b", (6,), init="normal")

    @vpps.cell(elements={"xs": (6,)})
    def total(xs: list[vpps.Expression], label: int) -> vpps.Expression:
        constant = vpps.each(lambda x: vpps.cross_entropy(x * b, 2), xs)
        return vpps.sum(vpps.each(lambda x: vpps.cross_entropy(x + b, label), xs)) + vpps.sum(constant)

    graph = vpps.Graph()
    losses = [
        graph.call(total, [graph.lookup(table, i % 5) for i in range(length)], label)
        for length, label in ((n, 5), (2, 0), (3, 4))
    ]
    assert_agrees_with_reference(model, graph, vpps.sum(losses), losses)


@pytest.mark.parametrize("spread, offset", [(300, 0), (1, 1e3), (1, 1e5)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_keeps_its_digits_far_from_zero(name: str, spread: float, offset: float) -> None:
    model = vpps.Model(seed=1)
    values = np.round(np.random.default_rng(0).normal(size=(3, 40)), 1) * spread + offset
    table = model.lookup("logits", (3, 40), init=values)
    graph = vpps.Graph()
    results = [UNARY[name](graph.lookup(table, i)) for i in range(3)]
    loss = vpps.sum([weighted(graph, y, i) for i, y in enumerate(results)])
    assert_agrees_with_reference(model, graph, loss, results)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("shape", [(8,), (8, 5)])
def test_a_product_over_no_elements_has_a_zero_gradient(shape: tuple[int, ...], precision: str) -> None:
    """If all lists are empty, the weight gradient is zero instead of the previous launch's values."""
    model = vpps.Model(seed=1)
    table, U = model.lookup("x", (3, *shape), init="normal"), model.parameter("U", (8, 8))

    @vpps.cell(elements={"hs": shape})
    def node(x: vpps.Expression, hs: list[vpps.Expression]) -> vpps.Expression:
        return vpps.tanh(x + vpps.sum(vpps.each(lambda h: vpps.sigmoid(U @ h) * h, hs)))

    def loss(n_children: int) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        return graph, vpps.sum(node(graph.lookup(table, 0), [graph.lookup(table, 1 + i) for i in range(n_children)]))

    with vpps.Handle(model, vpps.SGD(lr=0.1), vps=2, precision=precision) as handle:
        handle.fb(*loss(2))
        before = U.numpy()
        handle.fb(*loss(0))
        assert np.array_equal(before, U.numpy())
        assert not handle.gradients(*loss(0))[1]["U"].any()


@pytest.mark.parametrize("shape, n", [((2,), 20_000), ((2, 3), 7_000)])
def test_weight_gradients_of_very_many_products_keep_their_digits(
    shape: tuple[int, ...], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PAPER_VP_COUNTS", ())  # its script has an instruction for each
    model = vpps.Model(seed=1)
    W = model.parameter("W", (3, 2))
    graph = vpps.Graph()
    x = graph.input(np.linspace(0.1, 0.7, np.prod(shape)).reshape(shape))
    loss = vpps.sum([W @ x for _ in range(n)])
    assert_agrees_with_reference(model, graph, vpps.sum(loss) * 1e-4, vp_counts=[1])


@pytest.mark.parametrize("shape", [(32, 1), (1, 32), (1, 1), (64, 1)])
def test_what_is_read_from_the_pool_is_a_copy(shape: tuple[int, int]) -> None:
    model, table = operands(-1.0, shape[1], 2)
    W = model.parameter("W", shape)
    graph = vpps.Graph()
    loss = vpps.sum(W @ graph.lookup(table, 0))
    with vpps.Handle(model, vpps.SGD(lr=0.1), vps=2) as handle:
        _, gradients = handle.gradients(graph, loss)
        kept = gradients["W"].copy()
        handle.fb(graph, loss)
        weights = W.numpy()
        host = W.host
        handle.fb(graph, loss * 3.0)
        handle.sync_get_latest_loss()
        assert np.array_equal(gradients["W"], kept)
        assert np.array_equal(host, weights)
