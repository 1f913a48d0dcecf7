"""Layers load PyTorch's weights, equal PyTorch's layers, and save weights that PyTorch loads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.data import GraphSet
from vpps.nn import GRU, LSTM, MLP, BiLSTM, ChildSumTreeLSTM, Embedding, Linear, NaryTreeGRU, NaryTreeLSTM
from vpps.nn.layer import Layer
from vpps.reference import Reference, weights_of

X, H, N = 3, 4, 5  # N: rows of the table, and length of the sequence
Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(w: dict[str, Array], xs: Array, end: str = "_l0") -> Array:
    """Run the equations from PyTorch's reference documentation."""
    h = c = np.zeros(H)
    states = []
    for x in xs:
        both = w[f"weight_ih{end}"] @ x + w[f"bias_ih{end}"] + w[f"weight_hh{end}"] @ h + w[f"bias_hh{end}"]
        i, f, g, o = np.split(both, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states)


def gru(w: dict[str, Array], xs: Array) -> Array:
    h = np.zeros(H)
    states = []
    for x in xs:
        ir, iz, i_n = np.split(w["weight_ih_l0"] @ x + w["bias_ih_l0"], 3)
        hr, hz, h_n = np.split(w["weight_hh_l0"] @ h + w["bias_hh_l0"], 3)
        n = np.tanh(i_n + sigmoid(ir + hr) * h_n)
        z = sigmoid(iz + hz)
        h = (1 - z) * n + z * h
        states.append(h)
    return np.stack(states)


def gru_states(layer: Any, graph: vpps.Graph, xs: Array) -> list[vpps.Expression]:
    states = [layer.first(graph.input(xs[0]))]
    for x in xs[1:]:
        states.append(layer.step(graph.input(x), states[-1]))
    return states


def bilstm_states(layer: Any, graph: vpps.Graph, xs: Array) -> list[vpps.Expression]:
    chain = GraphSet([len(xs)], np.arange(len(xs))[:, None] - 1)[:]
    return [vpps.concat(both) for both in zip(*layer(graph, chain, graph.rows(xs)), strict=True)]


@dataclass
class Case:
    """A layer, the name and arguments of PyTorch's layer, vpps's run over a sequence, and the expected result."""

    make: Callable[[vpps.Model], Layer]
    torch: tuple[str, tuple[int, ...], dict[str, bool]]
    run: Callable[[Any, vpps.Graph, Array], list[vpps.Expression]]
    expected: Callable[[dict[str, Array], Array], Array]


CASES = {
    "lstm": Case(
        lambda m: LSTM(m, X, H),
        ("LSTM", (X, H), {}),
        lambda layer, graph, xs: layer.sequence(graph, [graph.input(x) for x in xs]),
        lstm,
    ),
    "bilstm": Case(
        lambda m: BiLSTM(m, X, H),
        ("LSTM", (X, H), {"bidirectional": True}),
        bilstm_states,
        lambda w, xs: np.concatenate([lstm(w, xs), lstm(w, xs[::-1], "_l0_reverse")[::-1]], axis=1),
    ),
    "gru": Case(lambda m: GRU(m, X, H, reset_after=True), ("GRU", (X, H), {}), gru_states, gru),
    "lstm of two layers": Case(
        lambda m: LSTM(m, X, H, num_layers=2),
        ("LSTM", (X, H, 2), {}),
        lambda layer, graph, xs: layer.sequence(graph, [graph.input(x) for x in xs]),
        lambda w, xs: lstm(w, lstm(w, xs), "_l1"),
    ),
    "layer norm": Case(
        lambda m: vpps.nn.LayerNorm(m, X),
        ("LayerNorm", (X,), {}),
        lambda layer, graph, xs: list(layer(graph.rows(xs))),
        lambda w, xs: (xs - xs.mean(1)[:, None]) / np.sqrt(xs.var(1)[:, None] + 1e-5) * w["weight"] + w["bias"],
    ),
    "linear": Case(
        lambda m: Linear(m, X, H),
        ("Linear", (X, H), {}),
        lambda layer, graph, xs: list(layer(graph.rows(xs))),
        lambda w, xs: xs @ w["weight"].T + w["bias"],
    ),
    "linear without bias": Case(
        lambda m: Linear(m, X, H, bias=False),
        ("Linear", (X, H), {"bias": False}),
        lambda layer, graph, xs: list(layer(graph.rows(xs))),
        lambda w, xs: xs @ w["weight"].T,
    ),
    "embedding": Case(
        lambda m: Embedding(m, N, X),
        ("Embedding", (N, X), {}),
        lambda layer, graph, xs: list(graph.lookup(layer.table, np.arange(N)[::-1])),
        lambda w, xs: w["weight"][::-1],
    ),
}
by_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def some(layer: Layer) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=w.shape).astype(np.float32) for name, w in layer.state_dict().items()}


def sequence() -> Array:
    return np.random.default_rng(4).normal(size=(N, X)).astype(np.float32)


@pytest.mark.host
@by_case
def test_loaded_weights_compute_what_the_equations_of_pytorch_say(case: Case) -> None:
    model, other = vpps.Model(seed=1), vpps.Model(seed=2)
    layer = case.make(model)
    weights, xs = some(layer), sequence()
    layer.load(weights)
    case.make(other).load(layer.state_dict())
    for p in model:  # given weights are loaded unchanged
        np.testing.assert_array_equal(other[p.name].numpy(), p.numpy())
    graph = vpps.Graph()
    outputs = case.run(layer, graph, xs)
    reference = Reference(graph, weights_of(model))
    expected = case.expected({name: w.astype(np.float64) for name, w in weights.items()}, xs)
    np.testing.assert_allclose([reference.value(y) for y in outputs], expected, atol=1e-6)


@pytest.mark.cpu
@pytest.mark.frameworks("torch")
@by_case
def test_equal_outputs_beside_pytorch_in_both_directions(case: Case) -> None:
    import torch

    kind, sizes, options = case.torch
    torch.manual_seed(1)
    theirs, others = (getattr(torch.nn, kind)(*sizes, **options) for _ in range(2))
    for p in theirs.parameters():  # those of a LayerNorm begin as ours do
        torch.nn.init.uniform_(p, -0.5, 0.5)
    model, xs = vpps.Model(seed=1), sequence()
    layer = case.make(model)

    def outputs_of(module: Any) -> Array:
        found = module(torch.arange(N).flip(0) if kind == "Embedding" else torch.from_numpy(xs))
        return (found[0] if isinstance(found, tuple) else found).detach().numpy()

    graph = vpps.Graph()
    outputs = case.run(layer, graph, xs)
    with vpps.Handle(model, train=False) as handle:
        before = handle.forward(graph, outputs)
        layer.load(theirs.state_dict())
        np.testing.assert_allclose(handle.forward(graph, outputs), outputs_of(theirs), atol=1e-6)
    assert not np.allclose(before, outputs_of(theirs), atol=1e-3)
    others.load_state_dict({name: torch.from_numpy(w) for name, w in layer.state_dict().items()})
    np.testing.assert_allclose(outputs_of(others), outputs_of(theirs), atol=1e-6)


@pytest.mark.cpu
@pytest.mark.frameworks("torch")
def test_layers_of_a_network_are_loaded_one_by_one() -> None:
    import torch

    torch.manual_seed(1)
    network = torch.nn.ModuleDict(
        {"encoder": torch.nn.LSTM(X, H, 2, bidirectional=True), "cell": torch.nn.GRUCell(X, H)}
    )
    weights, model, xs = network.state_dict(), vpps.Model(seed=1), sequence()
    low, high = BiLSTM(model, X, H, name="low"), BiLSTM(model, 2 * H, H, name="high")
    with pytest.raises(vpps.ModelError, match=r"layers l0, l1, but this is one layer: choose one, as in layer='l0'"):
        low.load(weights, "encoder.")
    low.load(weights, "encoder.", "l0")
    high.load(weights, "encoder.", "l1")
    cell = GRU(model, X, H, reset_after=True)
    cell.load(weights, "cell.")
    graph = vpps.Graph()
    chain = GraphSet([N], np.arange(N)[:, None] - 1)[:]
    states = vpps.concat(high(graph, chain, vpps.concat(low(graph, chain, graph.rows(xs)))))
    with vpps.Handle(model, train=False) as handle:
        got, after = handle.forward(graph, [states, cell.step(graph.input(xs[0]), graph.input(xs[1, [0, 1, 2, 0]]))])
    np.testing.assert_allclose(got, network["encoder"](torch.from_numpy(xs))[0].detach(), atol=1e-6)
    expected = network["cell"](torch.from_numpy(xs[0]), torch.from_numpy(xs[1, [0, 1, 2, 0]]))
    np.testing.assert_allclose(after, expected.detach(), atol=1e-6)
    assert {*low.state_dict("encoder."), *high.state_dict("encoder.", "l1"), *cell.state_dict("cell.", "")} == {
        *weights
    }


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.host
@pytest.mark.parametrize(
    "case, change, error",
    [
        ("lstm", without("bias_hh_l0"), "'bias_hh_l0' is not among the weights; for a layer without bias pass zeros"),
        ("gru", lambda w: w | {"weight_hh_l0": np.ones((9, 3))}, "'weight_hh_l0' has shape (9, 3); expected (12, 4)"),
        (
            "linear",
            lambda w: {f"out.{k}": v for k, v in w.items()},
            "'weight' is not among the weights; did you mean 'out.weight'",
        ),
        ("linear without bias", lambda w: w | {"bias": np.ones(H)}, "also have 'bias'; this layer has weight"),
        ("lstm", lambda w: w | {"weight_hr_l0": np.ones((2, H))}, "also have 'weight_hr_l0'"),
        ("lstm", lambda w: w | {"weight_ih_l0_reverse": 0}, "layers l0, l0_reverse, but this is one layer: choose one"),
        ("lstm of two layers", without("weight_hh_l1"), "'weight_hh_l1' is not among the weights"),
        ("lstm of two layers", lambda w: w | {"weight_ih_l2": 0}, "l0, l1, l2, but this object has num_layers=2"),
        ("bilstm", without("weight_hh_l0_reverse"), "BiLSTM.load: 'weight_hh_l0_reverse' is not among the weights"),
        (
            "gru",
            lambda w: w | {"bias_hh_l0": np.full(3 * H, np.nan)},
            "GRU.load: <parameter 'gru/b' of shape (12,)>: 8 of",
        ),
        ("embedding", lambda w: {"weight": "vectors"}, "Embedding.load: 'weight': expected numbers"),
        ("embedding", lambda w: w["weight"], "Embedding.load: weights="),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(case: str, change: Callable[[Any], Any], error: str) -> None:
    model = vpps.Model(seed=1)
    layer = CASES[case].make(model)
    before = model.numpy()
    with pytest.raises(vpps.VppsError, match=re.escape(error)):
        layer.load(change(some(layer)))
    for name, weights in model.numpy().items():
        np.testing.assert_array_equal(weights, before[name])


@pytest.mark.host
def test_the_gru_whose_reset_gate_comes_first_has_no_weights_of_pytorch() -> None:
    layer = GRU(vpps.Model(), X, H)
    for call in (layer.state_dict, lambda: layer.load({})):
        with pytest.raises(vpps.ModelError, match=r"declare vpps\.nn\.GRU\(\.\.\., reset_after=True\)"):
            call()


@pytest.mark.cpu
def test_the_gru_of_pytorchs_form_trains() -> None:
    model = vpps.Model(seed=1)
    layer = GRU(model, X, 33, reset_after=True)
    layer.load({name: 0.3 * w for name, w in some(layer).items()})
    graph = vpps.Graph()
    states = gru_states(layer, graph, sequence())
    assert_agrees_with_reference(model, graph, vpps.squared_distance(states[-1], states[1]), states)


@pytest.mark.host
def test_an_embedding_is_made_of_vectors_that_stay_and_is_called_in_a_graph_and_in_a_cell() -> None:
    model, vectors = vpps.Model(), np.random.default_rng(0).normal(size=(N, X)).astype(np.float32)
    words = Embedding(model, *vectors.shape, init=vectors, trainable=False, name="words")
    assert not model["words"].trainable
    graph = vpps.Graph()
    in_a_cell = vpps.cell(lambda word, x: words(word) + x)(2, graph.zeros(X))
    for found, rows in ((words(graph, 3), 3), (words(graph, np.array([1, 4])), [1, 4]), (in_a_cell, 2)):
        assert np.array_equal(Reference(graph, weights_of(model)).value(found), vectors[rows])


def test_an_lstm_begins_with_a_forget_bias_and_weights_of_single_gates() -> None:
    model = vpps.Model(seed=1)
    LSTM(model, 100, 100, forget_bias=2.0, name="reader")
    assert model["reader/b"].numpy().reshape(4, 100)[:, 0].tolist() == [0, 2, 0, 0]
    # Glorot's bound for one gate's matrix, not for the stack of four.
    assert np.abs(model["reader/W"].numpy()).max() == pytest.approx((6 / 200) ** 0.5, rel=0.01)
    with pytest.raises(vpps.VppsError, match="reader/W"):
        LSTM(model, X, H, name="reader")


def test_layers_say_what_they_are_and_their_errors_name_them() -> None:
    model = vpps.Model()
    output, words = Linear(model, 64, 5, name="output"), Embedding(model, N, X)
    layers = [words, LSTM(model, X, H), GRU(model, X, H), BiLSTM(model, X, H), MLP(model, X, H, 2)]
    layers += [GRU(model, X, H, num_layers=2, name="deep"), vpps.nn.LayerNorm(model, X), vpps.nn.CRF(model, N)]
    trees = [NaryTreeLSTM(model, 0, H), NaryTreeGRU(model, X, H), ChildSumTreeLSTM(model, X, H)]
    assert repr(output) == "<vpps.nn.Linear 'output': 64 -> 5>"
    sizes = ["5 -> 3", "3 -> 4", "3 -> 4", "3 -> 4", "3 -> 2", "0 -> 4", "3 -> 4", "3 -> 4"]
    sizes[5:5] = ["3 -> 4", "3 -> 3", "5 -> 5"]
    for layer, size in zip([*layers, *trees], sizes, strict=True):
        assert repr(layer) == f"<vpps.nn.{type(layer).__name__} {layer.name!r}: {size}>"
    graph = vpps.Graph()
    output(graph.zeros(64))
    assert {program.name for program in graph.blocks} == {"zeros", "output"}
    assert graph.map(output, inputs={"x": graph.rows(np.ones((2, 64)))}).shape == (5,)


def test_a_perceptron_has_as_many_hidden_layers_as_sizes() -> None:
    model = vpps.Model(seed=1)
    mlp = MLP(model, 3, (5, 4), 2)
    assert [p.name for p in model] == [
        f"mlp/{layer}/{p}" for layer in ("hidden", "hidden_2", "output") for p in ("W", "b")
    ]
    x = np.linspace(-1, 1, 6).reshape(2, 3)
    h = x
    for layer in mlp.layers:
        h = np.tanh(h @ layer.W.numpy().T)
    graph = vpps.Graph()
    rows = mlp(graph.rows(x))
    found = Reference(graph, weights_of(model)).value(rows)
    assert np.allclose(found, h @ mlp.output.W.numpy().T)
