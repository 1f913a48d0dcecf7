"""Products with rounded operands agree with the rounding reference, in all forms of products, on any target. Their
distance from exact products is within the precision's promised range.

A case uses the first seed for which float32 and float64 cannot round differently (`away_from_ties`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
import vpps.distributed
from tests.comparison import assert_agrees_with_reference, away_from_ties, relative_error
from tests.ops.test_matrices import Formula
from tests.zoo.cases import CASES
from vpps.model.precisions import Precisions
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression
BuiltGraph = tuple[vpps.Model, vpps.Graph, E, list[E]]
PRECISIONS = {"bf16": (1e-4, 2e-2)}
"""Precisions of the target, with bounds of a small network's relative error: least and most."""


def exact(seed: int, *shape: int) -> NDArray[np.float64]:
    """Return numbers that no precision rounds, so none of them is a tie."""
    return np.random.default_rng(seed).integers(-40, 40, shape) / 32


def made(model: vpps.Model, graph: vpps.Graph, results: list[E]) -> BuiltGraph:
    """Return them with a loss that weights every element differently, by numbers that are not rounded either."""
    terms = [vpps.dot(y, graph.input(exact(i, *y.shape))) if y.shape else y for i, y in enumerate(results)]
    return model, graph, vpps.sum(terms) * 0.25, results


def formula(function: Callable[..., Any], operands: str, n: int = 3, bare: bool = False) -> Callable[[int], BuiltGraph]:
    return lambda seed: made(*Formula(function, operands, bare=bare).made(n=n, seed=seed, values=exact))


autoencoder = formula(lambda W, B, x: (W.T @ vpps.tanh(W @ x + B), W.T.T @ (x * 2)), "W:9,33 B:9, x:33,")
# Matrices that multiply the same vectors, so that the kernel stacks them.
stacked = formula(
    lambda W, V, U, B, x: vpps.tanh(W @ x + B) + vpps.relu(V @ x) + U @ x, "W:64,16 V:64,16 U:64,16 B:64, x:16,", 2
)


def lists(seed: int) -> BuiltGraph:
    """Record a product for every element of lists, one of them empty."""
    model = vpps.Model(seed=seed)
    x, U = model.lookup("x", (4, 9), init=exact(seed, 4, 9)), model.parameter("U", (9, 9))

    @vpps.cell(elements={"hs": (9,)})
    def node(x: E, hs: list[E]) -> E:
        return U @ (x + vpps.sum(vpps.each(lambda h: vpps.sigmoid(U @ h) * h, hs)))

    graph = vpps.Graph()
    xs = [graph.lookup(x, i) for i in range(4)]
    return made(model, graph, [node(xs[0], xs[1:]), node(xs[3], []), node(xs[2], xs[:2])])


def tied(seed: int) -> BuiltGraph:
    """Record embeddings whose table also computes the logits: a looked-up row is not rounded."""
    model = vpps.Model(seed=seed)
    table = model.lookup("E", (11, 12), dense=True)

    @vpps.cell
    def step(h: E, word: int) -> tuple[E, E]:
        h = vpps.tanh(h + vpps.lookup(table, word) * 3)
        return h, vpps.cross_entropy(table @ h, word)

    graph = vpps.Graph()
    h, results = graph.lookup(table, 1), []
    for word in (3, 0, 3):
        h, loss = step(h, word)
        results += [h, loss]
    return made(model, graph, results)


def frozen(seed: int) -> BuiltGraph:
    """Record an untrained matrix after a trained one."""
    model, graph, loss, results = autoencoder(seed)
    model["W"].trainable = False
    return model, graph, loss, results


def recurrence(seed: int) -> BuiltGraph:
    """Record two cells that read each other, with a recurrent state: the rounded operands are computed."""
    model = vpps.Model(seed=seed)
    x = model.lookup("x", (3, 8), init=exact(seed, 3, 8))
    W, V = model.parameter("W", (8, 16)), model.parameter("V", (8, 8))

    @vpps.cell
    def there(h: E, x: E) -> E:
        return vpps.tanh(W @ vpps.concat([h, x]))

    @vpps.cell
    def back(h: E) -> E:
        return vpps.tanh(V @ h) * 2

    graph = vpps.Graph()
    h, results = graph.zeros(8), []
    for i in range(3):
        h = back(there(h, graph.lookup(x, i)))
        results.append(h)
    return made(model, graph, results)


FORMS: dict[str, Callable[[int], BuiltGraph]] = {
    "W @ x + b": formula(lambda W, B, x: W @ x + B, "W:70,33 B:70, x:33,", 4),
    "W @ x": formula(lambda W, x: W @ x, "W:5,200 x:200,", 9),
    "one element": formula(lambda W, B, x: W @ x + B, "W:11 B:1 x:1"),
    "W.T @ x": autoencoder,
    "matrices": formula(
        lambda W, V, m, s: (y := W @ m, W.T @ y, (W @ (m * 0.5)).T, W.T @ s, V @ vpps.concat([m, m * 2])),
        "W:75 V:3,10 m:54 s:7",
        2,
    ),
    "concatenations, of odd widths and at odd offsets": formula(
        lambda W, a, b: W @ vpps.concat([a, vpps.concat([b[3:], a[:5]]), a[7]]), "W:40,51 a:24, b:24,"
    ),
    "lists": lists,
    "tied embeddings": tied,
    "stacked": stacked,
    "frozen": frozen,
    "recurrence": recurrence,
}


@pytest.mark.parametrize("form", FORMS)
def test_products_agree_with_the_reference_that_rounds(form: str) -> None:
    for precision in PRECISIONS:
        model, graph, loss, results = away_from_ties(FORMS[form], precision)
        assert_agrees_with_reference(model, graph, loss, results, precision=precision)


def test_a_product_that_is_written_twice_is_one_whose_gradients_are_added_before_they_are_rounded() -> None:
    def build(seed: int) -> tuple[vpps.Model, vpps.Graph, E, tuple[vpps.Graph, E]]:
        model = vpps.Model(seed=seed)
        x, W = model.lookup("x", (3, 8), init=exact(seed, 3, 8)), model.parameter("W", (9, 8))

        def once(x: E) -> E:
            y = W @ x
            return vpps.tanh(y) + vpps.square(y)

        def twice(x: E) -> E:
            return vpps.tanh(W @ x) + vpps.square(W @ x)

        graphs = vpps.Graph(), vpps.Graph()
        one, two = (
            made(model, graph, [graph.call(f, graph.lookup(x, i)) for i in range(3)])[2]
            for f, graph in zip((vpps.cell(once), vpps.cell(twice)), graphs, strict=True)
        )
        return model, graphs[0], one, (graphs[1], two)

    model, graph, loss, twice = away_from_ties(build, "bf16")
    expected = Reference(graph, weights_of(model), precisions=Precisions.given("bf16")).backward(loss)
    with vpps.Handle(model, precision="bf16") as handle:
        for name, g in handle.gradients(*twice)[1].items():
            assert relative_error(g, expected[name]) < 1e-4


@pytest.mark.parametrize("named", [{"W": "bf16"}, {"*": "bf16", "V": "float32"}])
def test_every_matrix_has_a_precision_of_its_own(named: dict[str, str]) -> None:
    for build in (recurrence, stacked):
        model, graph, loss, results = away_from_ties(build, named)
        assert_agrees_with_reference(model, graph, loss, results, precision=named)


@pytest.mark.parametrize("policy", ["depth", "sufficient", "agenda"])
def test_whatever_the_policy(policy: str) -> None:
    model, graph, loss, results = away_from_ties(recurrence, "bf16")
    assert_agrees_with_reference(model, graph, loss, results, (2,), policy=policy, precision="bf16")


def test_gradients_of_inputs_round_what_they_come_from() -> None:
    def build(seed: int) -> tuple[vpps.Model, vpps.Graph, E, E]:
        model = vpps.Model(seed=seed)
        W, graph = model.parameter("W", (40, 33)), vpps.Graph()
        x = graph.input(exact(seed, 33), grad=True)
        return model, graph, vpps.dot(vpps.tanh(W @ x), graph.input(exact(seed, 40))), x

    model, graph, loss, x = away_from_ties(build, "bf16")
    reference = Reference(graph, weights_of(model), precisions=Precisions.given("bf16"))
    reference.backward(loss)
    with vpps.Handle(model, precision="bf16", vps=2) as handle:
        handle.gradients(graph, loss)
        assert relative_error(handle.input_gradient(x), reference.gradient(x)) < 1e-4


# ---- training: the weights that products read follow the trained weights


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "clip_norm": 0.5, "ema": 0.8},
        {"optimizer": "adam", "accumulate": True},
        {"world": True, "accumulate": True, "ema": 0.8},
        {"frozen": "V"},
        {"precision": {"*": "bf16", "V": "float32"}},
        {"passes": vpps.Passes(horizontal=False, fusion=False)},
    ],
    ids=lambda options: "-".join(options) or "sgd",
)
def test_every_step_is_that_of_the_reference_with_the_weights_before(options: dict[str, Any]) -> None:
    """Each step begins with the handle's float32 weights, so that handle and reference round the same weights."""
    options = dict(options)
    precision = options.pop("precision", "bf16")
    rule = {"sgd": vpps.SGD(lr=0.1), "adam": vpps.Adam(lr=0.01, eps=1e-3)}[options.pop("optimizer", "sgd")]
    accumulate, frozen = options.pop("accumulate", False), options.pop("frozen", None)
    if options.pop("world", False):
        options["world"], accumulate = vpps.distributed.init("alone", shards=2), True
    model, graph, loss, _ = away_from_ties(stacked, precision)
    if frozen:
        model[frozen].trainable = False
    state = {p.name: [np.zeros(p.shape) for _ in rule.moments] for p in model}
    averages = weights_of(model)
    with vpps.Handle(model, rule, precision=precision, vps=2, **options) as handle:
        for step in range(1, 5):
            before = weights_of(model)
            reference = Reference(graph, before, precisions=Precisions.given(precision))
            gradients = {name: g * (1 + accumulate) for name, g in reference.backward(loss).items()}
            norm = np.sqrt(sum(np.sum(gradients[p.name] ** 2) for p in model if p.trainable))
            scale = min(1.0, options.get("clip_norm", np.inf) / norm)
            if accumulate:
                handle.fb(graph, loss, accumulate="world" not in options)
            handle.fb(graph, loss)
            got = handle.sync_get_latest_loss() / (2 if "world" in options else 1)
            assert got == pytest.approx(float(reference.value(loss)), rel=1e-4)
            for p in model:
                if not p.trainable:
                    assert np.array_equal(p.numpy(), before[p.name])
                    continue
                wanted, state[p.name] = rule.reference(before[p.name], gradients[p.name] * scale, state[p.name], step)
                moved = wanted - before[p.name]
                assert np.linalg.norm(p.numpy() - wanted) < 1e-4 * np.linalg.norm(moved) + 1e-7 * np.linalg.norm(wanted)
                if "ema" in options:
                    averages[p.name] += (1 - options["ema"]) * (wanted - averages[p.name])
                    assert relative_error(p.average(), averages[p.name]) < 1e-5
        # The new result needs new weights, whose bf16 copies come from the kernel, not from the host.
        fresh = float(Reference(graph, weights_of(model), precisions=Precisions.given(precision)).value(loss))
        assert handle.forward(graph, [loss])[0] == pytest.approx(fresh, rel=1e-5, abs=1e-5)
        bits = handle.gradients(graph, loss)
    with vpps.Handle(model, precision=precision, vps=2, passes=options.get("passes")) as handle:
        again = handle.gradients(graph, loss)
    assert again[0] == bits[0]
    assert all(np.array_equal(g, again[1][name]) for name, g in bits[1].items())


def test_a_handle_that_only_evaluates_has_the_values_of_one_that_trains() -> None:
    model, graph, _, results = away_from_ties(stacked, "bf16")
    with vpps.Handle(model, precision="bf16", vps=2) as handle:
        expected = handle.forward(graph, results)
        assert handle.precision == "bf16"
    with vpps.Handle(model, precision="bf16", vps=3, train=False) as handle:
        for _ in range(2):  # the second time with assigned weights
            found = handle.forward(graph, results)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
            model["W"].assign(model["W"].numpy() + 0.5)
            reference = Reference(graph, weights_of(model), precisions=Precisions.given("bf16"))
            expected = handle.forward(graph, results)
            assert relative_error(np.stack(expected), np.stack([reference.value(e) for e in results])) < 1e-5


# ---- non-finite values, and no vectors


@pytest.mark.parametrize("bits", [0x7F7FFFFF, 0xFF7F8000, 0x7F800000, 0x7F800001, 0x7FC00000], ids=hex)
def test_a_step_is_left_out_where_what_a_product_rounds_is_not_finite(bits: int) -> None:
    """The largest float32 rounds to infinity. A NaN remains NaN, although its truncated bf16 bits mean infinity. The
    loss is finite in saturation, and the gradient is then 0 times infinity."""
    model = vpps.Model(seed=1)
    W, graph = model.parameter("W", (6, 5)), vpps.Graph()
    x = np.zeros(5, np.float32)
    x[2:3].view(np.uint32)[0] = bits

    @vpps.cell
    def layer(x: E) -> E:
        return vpps.tanh(W @ x * 1e-30)

    loss = vpps.sum([vpps.sum(layer(graph.input(v))) for v in (np.ones(5), x)])
    before = W.numpy()
    with vpps.Handle(model, vpps.SGD(lr=0.1), precision="bf16", on_nonfinite="raise", vps=2) as handle:
        handle.fb(graph, loss)
        with pytest.raises(vpps.NonFiniteError, match=r"The first such value is (-?inf|nan), of op"):
            handle.sync_get_latest_loss()
    assert np.array_equal(W.numpy(), before)


def test_weights_beyond_the_largest_bf16_are_infinite_to_products() -> None:
    model = vpps.Model(seed=1)
    W, graph = model.parameter("W", (6, 5), init=np.full((6, 5), np.finfo(np.float32).max)), vpps.Graph()
    values = [W @ graph.input(np.full(5, x)) for x in (1e-30, 0.0)]
    with vpps.Handle(model, precision="bf16", train=False) as handle:
        infinite, nan = handle.forward(graph, values)
    assert np.isposinf(infinite).all()
    assert np.isnan(nan).all()


# ---- visible results


def test_a_tree_lstm_is_off_by_what_the_precision_promises() -> None:
    """The distance to the exact reference is in the promised range: neither larger nor as small as without rounding."""
    task, graph = CASES["tree-lstm"].make(), vpps.Graph()
    loss, logits = task.loss(graph, task.train[:2]), task.outputs(graph, task.train[:2])
    unrounded = Reference(graph, weights_of(task.model))
    expected = unrounded.backward(loss)
    for precision, (least, most) in PRECISIONS.items():
        with vpps.Handle(task.model, precision=precision, vps=2) as handle:
            _, gradients = handle.gradients(graph, loss)
            found = handle.forward(graph, [logits])[0]
            assert least <= relative_error(found, unrounded.value(logits)) < most
        for name, g in gradients.items():
            assert relative_error(g, expected[name]) < 3 * most, name
