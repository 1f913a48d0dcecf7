"""Random graphs, with some inputs from PyTorch: values and all gradients equal plain PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

pytestmark = pytest.mark.cpu

N = 5

# Ops on two vectors: in vpps, and in PyTorch.
OPS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "tanh": (lambda x, y: vpps.tanh(x - y), lambda x, y: torch.tanh(x - y)),
    "sigmoid": (lambda x, y: vpps.sigmoid(x) * y, lambda x, y: torch.sigmoid(x) * y),
    "softmax": (lambda x, y: vpps.softmax(x + y), lambda x, y: torch.softmax(x + y, 0)),
    "dot": (lambda x, y: vpps.dot(x, y) * y, lambda x, y: torch.dot(x, y) * y),
    "mix": (lambda x, y: vpps.concat([x[2:N], y[0:2]]), lambda x, y: torch.cat([x[2:N], y[0:2]])),
}

steps = st.tuples(st.sampled_from([*OPS, "W", "V", "row"]), st.integers(0, 99), st.integers(0, 99))


@pytest.fixture(scope="module")
def net() -> Any:
    model = vpps.Model(seed=1)
    model.parameter("W", (N, N)), model.parameter("V", (N, N)), model.lookup("table", (4, N))
    return vpps.torch.Module(model, vps=1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    program=st.lists(steps, min_size=1, max_size=12),
    wanted=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    single=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gradients(net: Any, program: Any, wanted: list[int], single: bool, seed: int) -> None:
    """single: request one scalar, whose gradients come with it."""
    model, weights = net.model, dict(net.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, N, generator=generator).requires_grad_()
    alone = torch.randn(N, generator=generator).requires_grad_()
    results = []
    for ours in (True, False):
        graph = vpps.Graph()
        if ours:
            values = [*graph.rows(rows, grad=True), graph.input(alone, grad=True), graph.input(np.ones(N))]
        else:
            values = [*rows, alone, torch.ones(N)]
        for op, i, j in program:
            x, y = values[i % len(values)], values[j % len(values)]
            if op == "row":
                values.append(x * (graph.lookup(model["table"], j % 4) if ours else weights["table"][j % 4]))
            elif op in OPS:
                values.append(OPS[op][not ours](x, y))
            else:
                values.append((model[op] if ours else weights[op]) @ x)
        asked = [values[-1], *(values[k % len(values)] for k in wanted)]
        if single and ours:
            loss = net.loss(graph, vpps.sum([vpps.dot(x, x) for x in asked]))
        else:
            loss = sum((x * x).sum() for x in (net(graph, asked) if ours else asked))
        inputs = [rows, alone, *weights.values()]
        found = torch.autograd.grad(loss, inputs, allow_unused=True)
        results.append([loss, *(torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True))])
    scale = 1 + max(float(g.detach().abs().max()) for g in results[1])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5 * scale)
