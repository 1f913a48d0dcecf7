"""The Tree-LSTM cells compute the equations of Tai, Socher & Manning (2015), the Tree-GRU those in its docstring."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.nn import ChildSumTreeLSTM, NaryTreeGRU, NaryTreeLSTM
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

X, H = 3, 4
Array = NDArray[np.float64]
NumpyState = tuple[Array, Array]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def inputs(n: int, width: int = X) -> NDArray[np.float32]:
    return np.random.default_rng(n).normal(size=(n, width)).astype(np.float32)


def finish(i: Array, o: Array, u: Array, kept: Array | float = 0.0) -> NumpyState:
    c = sigmoid(i) * np.tanh(u) + kept
    return sigmoid(o) * np.tanh(c), c


def assert_states_equal(
    graph: vpps.Graph,
    model: vpps.Model,
    states: list[tuple[vpps.Expression, vpps.Expression]],
    expected: list[NumpyState],
) -> None:
    reference = Reference(graph, weights_of(model))
    for state, wanted in zip(states, expected, strict=True):
        for expression, value in zip(state, wanted, strict=True):
            np.testing.assert_allclose(reference.value(expression), value, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("per_child", [False, True])
@pytest.mark.parametrize("arity", [1, 2, 3])
def test_nary_leaves_and_inner_node_follow_the_equations(arity: int, per_child: bool) -> None:
    model = vpps.Model(seed=2)
    cell = NaryTreeLSTM(model, X, H, arity, forget_bias=0.5, per_child=per_child)
    xs = inputs(arity)
    graph = vpps.Graph()
    leaves = [cell.leaf(graph.input(x)) for x in xs]
    root = cell.inner(*chain(*leaves))

    w = weights_of(model)
    expected = [finish(*np.split(w["tree_lstm/W"] @ x + w["tree_lstm/b_leaf"], 3)) for x in xs]
    U = np.hstack([w[f"tree_lstm/U_{k + 1}"] for k in range(arity)]) if per_child else w["tree_lstm/U"]
    gates = U @ np.concatenate([h for h, _ in expected]) + w["tree_lstm/b"]
    i, o, u, *f = np.split(gates, 3 + arity)
    kept = sum(sigmoid(fk) * c for fk, (_, c) in zip(f, expected, strict=True))
    assert_states_equal(graph, model, [*leaves, root], [*expected, finish(i, o, u, kept)])

    # A map gives the cells the children's results in order, so the cells need no change.
    children = np.array([[-1] * arity] * arity + [range(arity)])
    h, c = graph.map([cell.leaf, cell.inner], [0] * arity + [1], children, {"x": xs[[*range(arity), 0]]})
    assert_states_equal(graph, model, [(h[arity], c[arity])], [finish(i, o, u, kept)])


def test_nary_node_with_an_input_adds_it_to_every_gate() -> None:
    model = vpps.Model(seed=2)
    cell = NaryTreeLSTM(model, X, H, arity=2, inner_input_size=5)
    (x,), states = inputs(1, 5), inputs(4, H)
    graph = vpps.Graph()
    root = cell.node(graph.input(x), *(graph.input(state) for state in states))

    w = weights_of(model)
    h1, c1, h2, c2 = states.astype(np.float64)
    i, o, u, f1, f2 = np.split(w["tree_lstm/U"] @ np.concatenate([h1, h2]) + w["tree_lstm/b"], 5)
    xi, xo, xu, xf = np.split(w["tree_lstm/V"] @ x, 4)
    expected = finish(i + xi, o + xo, u + xu, sigmoid(f1 + xf) * c1 + sigmoid(f2 + xf) * c2)
    assert_states_equal(graph, model, [root], [expected])

    given = {"x": np.tile(x, (3, 1)), "h0": np.stack([h1, h2, h1]), "c0": np.stack([c1, c2, c1])}
    cells = [lambda h0, c0: (h0, c0), cell.node]
    h, c = graph.map(cells, [0, 0, 1], [[-1, -1], [-1, -1], [0, 1]], given)
    assert_states_equal(graph, model, [(h[2], c[2])], [expected])


def test_nary_declares_no_weights_for_what_it_does_not_read() -> None:
    model = vpps.Model()
    NaryTreeLSTM(model, X, H)
    NaryTreeLSTM(model, 0, H, name="second")
    inner = {"U": (5 * H, 2 * H), "b": (5 * H,)}
    first = {f"tree_lstm/{name}": shape for name, shape in ({"W": (3 * H, X), "b_leaf": (3 * H,)} | inner).items()}
    assert {p.name: p.shape for p in model} == first | {f"second/{name}": shape for name, shape in inner.items()}


def child_sum(w: dict[str, Array], x: Array, children: list[NumpyState]) -> NumpyState:
    wi, wo, wu, wf = np.split(w["child_sum/W"] @ x + w["child_sum/b"], 4)
    ui, uo, uu = np.split(w["child_sum/U"] @ sum((h for h, _ in children), np.zeros(H)), 3)
    kept = sum((sigmoid(wf + w["child_sum/Uf"] @ h) * c for h, c in children), np.zeros(H))
    return finish(wi + ui, wo + uo, wu + uu, kept)


def test_child_sum_follows_the_equations_for_0_to_3_children() -> None:
    model = vpps.Model(seed=4)
    cell = ChildSumTreeLSTM(model, X, H, forget_bias=0.5)
    child_lists = [[], [], [], [0], [0, 1], [1, 3, 4], [5, 2]]
    xs = inputs(len(child_lists))
    weights = weights_of(model)
    graph = vpps.Graph()
    states: list[tuple[vpps.Expression, vpps.Expression]] = []
    expected: list[NumpyState] = []
    for x, children in zip(xs, child_lists, strict=True):
        states.append(cell.node(graph.input(x), [states[k][0] for k in children], [states[k][1] for k in children]))
        expected.append(child_sum(weights, x.astype(np.float64), [expected[k] for k in children]))
    assert_states_equal(graph, model, states, expected)


def test_child_sum_without_inner_inputs_is_the_same_with_zeros_for_them() -> None:
    model = vpps.Model(seed=4)
    cell = ChildSumTreeLSTM(model, X, H, inner_inputs=False, forget_bias=0.5)
    assert {p.name: p.shape for p in model}["child_sum/W"] == (3 * H, X)
    xs = inputs(3)
    graph = vpps.Graph()
    leaves = [cell.leaf(graph.input(x)) for x in xs]
    states = [*leaves, cell.inner(*map(list, zip(*leaves, strict=True)))]

    weights = weights_of(model)
    weights["child_sum/W"] = np.concatenate([weights["child_sum/W"], np.zeros((H, X))])  # of the forget gates
    expected = [child_sum(weights, x.astype(np.float64), []) for x in xs]
    assert_states_equal(graph, model, states, [*expected, child_sum(weights, np.zeros(X), expected)])


@pytest.mark.parametrize("inner_inputs", [False, True])
def test_child_sum_leaf_is_a_node_without_children(inner_inputs: bool) -> None:
    model = vpps.Model(seed=4)
    cell = ChildSumTreeLSTM(model, X, H, inner_inputs=inner_inputs)
    (x,) = inputs(1)
    weights = weights_of(model)
    weights["child_sum/W"] = np.resize(weights["child_sum/W"], (4 * H, X))  # no child, so W_f has no effect
    graph = vpps.Graph()
    assert_states_equal(graph, model, [cell.leaf(graph.input(x))], [child_sum(weights, x.astype(np.float64), [])])


@pytest.mark.parametrize("per_child", [False, True])
@pytest.mark.parametrize("arity", [1, 2, 3])
def test_gru_leaves_and_inner_node_follow_the_equations(arity: int, per_child: bool) -> None:
    model = vpps.Model(seed=2)
    cell = NaryTreeGRU(model, X, H, arity, per_child=per_child)
    rng = np.random.default_rng(arity)
    for parameter in model:
        parameter.assign(rng.normal(size=parameter.shape))  # biases, too
    xs = rng.normal(size=(arity, X)).astype(np.float32)
    graph = vpps.Graph()
    leaves = [cell.leaf(graph.input(x)) for x in xs]
    root = cell.inner(*leaves)

    w = {name.removeprefix("tree_gru/"): value for name, value in weights_of(model).items()}
    hs = []
    for x in xs:
        z, candidate = np.split(w["W"] @ x + w["b_leaf"], 2)
        hs.append(sigmoid(z) * np.tanh(candidate))
    U = np.hstack([w[f"U_gates_{k + 1}"] for k in range(arity)]) if per_child else w["U_gates"]
    r, z = np.split(sigmoid(U @ np.concatenate(hs) + w["b_gates"]), 2)
    candidate = np.tanh(w["U"] @ np.concatenate([r * h for h in hs]) + w["b"])
    expected = (1 - z) * np.mean(hs, axis=0) + z * candidate
    reference = Reference(graph, weights_of(model))
    for got, wanted in zip([*leaves, root], [*hs, expected], strict=True):
        np.testing.assert_allclose(reference.value(got), wanted, rtol=1e-12)
