"""Barriers of a training step: one per level and direction, and none for the loss's arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.compiler.passes import Passes
from vpps.engine.ahead import gpu_for, specs
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import ChipOptions
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.disassemble import entry_points, instructions
from vpps.script.verify import verify
from vpps.zoo import TreeLSTMSentiment

pytestmark = pytest.mark.cpu

LEVELS = 7  # levels of inner nodes
PANEL = 16
E = vpps.Expression


def tree(hidden: int) -> tuple[vpps.Model, vpps.Graph, E]:
    """Return a mini-batch of one binary tree with a loss at every node."""
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, 20, embedding=hidden, hidden=hidden)
    graph = vpps.Graph()
    losses: list[E] = []

    def node(level: int) -> tuple[E, E]:
        if level == 0:
            h, c = graph.call(network.leaf, len(losses))
        else:
            h, c = network.tree_lstm.inner(*node(level - 1), *node(0))
        losses.append(graph.call(network.node_loss, h, len(losses) % 5))
        return h, c

    node(LEVELS)
    return model, graph, vpps.sum(losses) * 0.25


def planned(target: str, vps: int, hidden: int, clip_norm: float | None) -> Plan:
    """Return the plan of a training step, for a GPU unless `target` is cpu; needs neither device."""
    model, graph, loss = tree(hidden)
    update = Update(vpps.SGD(lr=0.1), 1, 1, clip_norm)
    passes = Passes()
    distribution = Distribution(model, vps, PANEL, 0, train=True)
    if target != "cpu":
        gpu, _ = gpu_for(target, None, "sm_90", vps)
        options = ChipOptions(groups=1)
        _, _, distribution = next(specs(model, (graph, loss), gpu, vps, update, 0, options, "vector", passes))
    return Planner(distribution, passes=passes).plan_training(graph, loss, update, 0)


@pytest.mark.parametrize(
    "target, vps, hidden, clip_norm",
    [("cpu", 2, 64, None), ("cpu", 3, 64, 1.0), ("simt", 12, 64, None), ("cuda", 24, 128, None)],
)
def test_a_level_takes_one_barrier_and_the_rest_six(
    target: str, vps: int, hidden: int, clip_norm: float | None
) -> None:
    """Forward: one barrier after the leaves, one after each level. Backward: one within each level, one before the
    first level, one within the leaves and one after them. One before the update, and one before gradients that update
    in place, as all gradients must be known to be finite by then. Clipping needs no further barrier."""
    plan = planned(target, vps, hidden, clip_norm)
    names = [d.instruction.name for d in instructions(plan.script, entry_points(plan.script)[0])]
    assert plan.n_barriers == names.count("barrier") == 2 * LEVELS + 6
    verify(plan.script, plan.layout, plan.origin)


# ---- the loss's chain


def _weighted(graph: vpps.Graph, xs: list[E]) -> E:
    return vpps.sum([x * weight for x, weight in zip(xs, (0.1, -3.0, 0.7, 1.0), strict=True)])


CHAINS: dict[str, Callable[[vpps.Graph, list[E]], E]] = {
    "sum": lambda graph, xs: vpps.sum(xs),
    "scaled mean": lambda graph, xs: vpps.mean(xs) * 0.3,
    "scaled twice": lambda graph, xs: vpps.sum(xs) * 0.1 * 0.7,
    "weights": _weighted,
    "differences": lambda graph, xs: (xs[0] - xs[1]) - (xs[2] + -xs[3]),
    "one by one": lambda graph, xs: xs[0] + xs[1] + xs[2] + xs[3],
    "used twice": lambda graph, xs: vpps.sum(xs) - vpps.sum(xs[:2]) * 0.5 + xs[0],
    "with a number": lambda graph, xs: vpps.sum(xs) + graph.input(2.0),
    "also a value": lambda graph, xs: vpps.sum(xs) * 0.5 + vpps.tanh(vpps.sum(xs)),
    "a product of values": lambda graph, xs: vpps.sum(xs) * xs[1],
    "alone": lambda graph, xs: xs[0],
}


def with_chain(name: str) -> tuple[vpps.Model, vpps.Graph, E, list[E]]:
    model = vpps.Model(seed=2)
    W = model.parameter("W", (5, 40))

    @vpps.cell
    def term(x: E, label: int) -> E:
        return vpps.cross_entropy(W @ vpps.tanh(x), label)

    graph = vpps.Graph()
    rng = np.random.default_rng(3)
    xs = [graph.call(term, graph.input(rng.normal(size=40)), k) for k in range(4)]
    return model, graph, CHAINS[name](graph, xs), xs


@pytest.mark.parametrize("name", CHAINS)
def test_the_gradient_of_a_chain_is_right(name: str) -> None:
    model, graph, loss, xs = with_chain(name)
    assert_agrees_with_reference(model, graph, loss, [loss, *xs])


@pytest.mark.parametrize("name", sorted(set(CHAINS) - {"also a value", "a product of values", "alone"}))
def test_nothing_of_a_chain_runs_backward(name: str) -> None:
    model, graph, loss, _ = with_chain(name)
    with vpps.Handle(model, vps=2) as handle:
        handle.gradients(graph, loss)
        plan = handle._engine.plan
    assert plan is not None
    origins = {plan.origin(d.position) for d in instructions(plan.script, entry_points(plan.script)[0])}
    backward = {origin.split("'")[1] for origin in origins if origin.startswith("backward")}
    assert backward == {"term"}
