"""The Tree-GRU computes the equations of its docstring."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.nn import NaryTreeGRU
from vpps.reference import Reference, weights_of

X, H = 3, 4


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.host
@pytest.mark.parametrize("per_child", [False, True])
@pytest.mark.parametrize("arity", [1, 2, 3])
def test_leaves_and_inner_node_follow_the_equations(arity: int, per_child: bool) -> None:
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
