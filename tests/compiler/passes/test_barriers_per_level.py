"""One barrier per level, forward and backward, for the most recurrent cells: counted, and executed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vpps
from vpps.compiler.passes import Passes
from vpps.nn import LSTM, NaryTreeLSTM
from vpps.planner.plan import Plan

pytestmark = pytest.mark.cpu

HIDDEN = 64  # two panels of the widest tile: both virtual processors own units
Build = Callable[[int], tuple[vpps.Model, vpps.Graph, vpps.Expression]]


def inputs(graph: vpps.Graph, n: int) -> list[vpps.Expression]:
    rng = np.random.default_rng(n)
    return [graph.input(rng.normal(size=20).astype(np.float32)) for _ in range(n)]


def lstm(levels: int) -> tuple[vpps.Model, vpps.Graph, vpps.Expression]:
    model = vpps.Model(seed=1)
    layer = LSTM(model, 20, HIDDEN)
    graph = vpps.Graph()
    return model, graph, vpps.sum(vpps.square(layer.sequence(graph, inputs(graph, levels))[-1]))


def tree_lstm(levels: int) -> tuple[vpps.Model, vpps.Graph, vpps.Expression]:
    model = vpps.Model(seed=1)
    layer = NaryTreeLSTM(model, 20, HIDDEN)
    graph = vpps.Graph()
    leaves = [layer.leaf(x) for x in inputs(graph, levels + 1)]
    h, c = leaves[0]
    for right in leaves[1:]:
        h, c = layer.inner(h, c, *right)
    return model, graph, vpps.sum(vpps.square(h))


def gru(levels: int) -> tuple[vpps.Model, vpps.Graph, vpps.Expression]:
    """A GRU with the reset gate after the product (cuDNN's form): one product with the state."""
    model = vpps.Model(seed=1)
    W, U = model.parameter("W", (3 * HIDDEN, 20)), model.parameter("U", (3 * HIDDEN, HIDDEN))
    b = model.parameter("b", (3 * HIDDEN,), init="normal")

    @vpps.cell
    def step(x, h):
        xr, xz, xn = vpps.split(W @ x + b, 3)
        hr, hz, hn = vpps.split(U @ h, 3)
        z = vpps.sigmoid(xz + hz)
        n = vpps.tanh(xn + vpps.sigmoid(xr + hr) * hn)
        return n + z * (h - n)

    graph = vpps.Graph()
    h = graph.zeros(HIDDEN)
    for x in inputs(graph, levels):
        h = step(x, h)
    return model, graph, vpps.sum(vpps.square(h))


def sru(levels: int) -> tuple[vpps.Model, vpps.Graph, vpps.Expression]:
    """A recurrence without products (Lei et al. 2018); all products are eager."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", (2 * HIDDEN, 20))

    @vpps.cell
    def step(x, c):
        f, u = vpps.split(W @ x, 2)
        f = vpps.sigmoid(f)
        return f * c + u - f * u

    graph = vpps.Graph()
    c = graph.zeros(HIDDEN)
    for x in inputs(graph, levels):
        c = step(x, c)
    return model, graph, vpps.sum(vpps.square(c))


def planned(build: Build, levels: int, passes: Passes, **options: object) -> Plan:
    model, graph, loss = build(levels)
    with vpps.Handle(model, vps=2, passes=passes, **options) as handle:
        handle.gradients(graph, loss)
        assert handle._engine.plan is not None
        return handle._engine.plan


def per_level(build: Build, passes: Passes, **options: object) -> float:
    few, many = (planned(build, levels, passes, **options).n_barriers for levels in (4, 10))
    return (many - few) / 6


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize(
    "build, target", [(lstm, "cpu"), (tree_lstm, "cpu"), (gru, "cpu"), (lstm, "simt"), (tree_lstm, "simt")]
)
def test_one_barrier_per_level_forward_and_backward(build: Build, target: str, fusion: bool) -> None:
    onchip = vpps.ChipOptions(groups=1) if target == "simt" else None
    assert per_level(build, Passes(fusion=fusion), target=target, onchip=onchip) == 2


def test_a_recurrence_without_products_needs_none() -> None:
    assert per_level(sru, Passes.from_environment()) == 0
