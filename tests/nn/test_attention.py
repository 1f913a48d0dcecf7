"""Attention matches its equation, in cells and on plain expressions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.nn import attend
from vpps.reference import Reference, weights_of

E = vpps.Expression
Array = NDArray[np.float64]
D = 6


def attention(scores: Array, values: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


@pytest.mark.host
@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
@pytest.mark.parametrize("in_cell", [False, True])
def test_attention_follows_its_equation(kind: str, in_cell: bool) -> None:
    model = vpps.Model(seed=3)
    W = model.parameter("W", (D, D))
    v = model.parameter("v", (D,), init="normal")
    rng = np.random.default_rng(0)
    query, keys, values = rng.normal(size=D), rng.normal(size=(5, D)), rng.normal(size=(5, 3))

    def attends(q: E, ks: list[E], vs: list[E]) -> E:
        if kind == "dot":
            return attend(q, ks, vs)
        if kind == "bilinear":
            return attend(q, ks, vs, lambda q, k: vpps.bilinear(q, W, k))
        return attend(q, ks, vs, lambda q, k: vpps.dot(v, vpps.tanh(W @ k + q)))

    f: Callable[..., E] = vpps.cell(attends) if in_cell else attends
    graph = vpps.Graph()
    y = f(graph.input(query), [graph.input(k) for k in keys], [graph.input(x) for x in values])
    weights = weights_of(model)
    scores = {
        "dot": keys @ query / np.sqrt(D),
        "bilinear": keys @ (weights["W"].T @ query),
        "additive": np.tanh(keys @ weights["W"].T + query) @ weights["v"],
    }[kind]
    got = Reference(graph, weights).value(y)
    np.testing.assert_allclose(got, attention(scores, values), rtol=1e-6)  # inputs are float32


@pytest.mark.cpu
@pytest.mark.parametrize("lengths", [(0, 1, 2, 7, 150), (3,), (0, 1)])
def test_attention_trains_on_lists_of_any_length(lengths: tuple[int, ...]) -> None:
    model = vpps.Model(seed=3)
    table = model.lookup("table", (40, 33))
    W = model.parameter("W", (33, 33))

    @vpps.cell(elements={"memory": (33,)})
    def read(x: E, memory: list[E]) -> E:
        return vpps.tanh(W @ vpps.tanh(attend(W @ x, memory, memory) + x))

    graph = vpps.Graph()
    rows = [graph.lookup(table, i) for i in range(40)]
    results = [read(rows[n % 7], [rows[(n + i) % 40] for i in range(n)]) for n in lengths]
    loss = vpps.sum([vpps.dot(y, rows[i]) for i, y in enumerate(results)])
    assert_agrees_with_reference(model, graph, loss, results)
