"""The LSTM cell computes its equations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.nn import LSTM
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

X, H = 3, 4


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def test_sequence_follows_the_equations() -> None:
    model = vpps.Model(seed=3)
    lstm = LSTM(model, X, H)
    inputs = np.random.default_rng(0).normal(size=(5, X)).astype(np.float32)
    graph = vpps.Graph()
    states = lstm.sequence(graph, [graph.input(x) for x in inputs])
    weights = weights_of(model)
    reference = Reference(graph, weights)

    W, U, b = (weights[f"lstm/{name}"] for name in "WUb")
    h = c = np.zeros(H)
    for x, state in zip(inputs, states, strict=True):
        i, f, o, u = np.split(W @ x + U @ h + b, 4)
        c = sigmoid(i) * np.tanh(u) + sigmoid(f) * c
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(reference.value(state), h, rtol=1e-12)


def test_forget_gate_alone_has_a_bias_at_first() -> None:
    model = vpps.Model()
    LSTM(model, X, H, forget_bias=2.0, name="reader")
    assert model["reader/b"].numpy().reshape(4, H).tolist() == [[0] * H, [2] * H, [0] * H, [0] * H]


def test_stacking_does_not_shrink_the_initial_weights() -> None:
    model = vpps.Model(seed=1)
    LSTM(model, 100, 100)
    # Glorot's bound for one gate's matrix, not for the stack of four.
    assert np.abs(model["lstm/W"].numpy()).max() == pytest.approx((6 / 200) ** 0.5, rel=0.01)


def test_two_of_one_name_are_refused() -> None:
    model = vpps.Model()
    LSTM(model, X, H)
    with pytest.raises(vpps.VppsError, match="lstm/W"):
        LSTM(model, X, H)
