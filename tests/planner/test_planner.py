"""The planner: memory is reused, and odd graphs are planned."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new
from tests.comparison import FORWARD_TOLERANCE, relative_error
from tests.planner import launches
from tests.zoo.cases import CASES
from vpps.compiler.passes import Passes
from vpps.placement.distribution import Distribution
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.planner import Planner
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

PARTS = 512 + 300  # dealing.h deals 512 of them one by one


def planner_of(model: vpps.Model, groups: int = 1) -> Planner:
    return Planner(Distribution(model, 2, 1 if groups > 1 else 32, 0, train=True, groups=groups))


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    net = new()
    planner = planner_of(net.model)
    batches = [net.batch(seed) for seed in range(6)]
    kept = [planner.plan_training(*batch, None, 0) for batch in batches[:3]]
    words = [plan.script.copy() for plan in kept]
    places = {plan.script.ctypes.data for plan in kept}
    assert len(places) == 3
    part = kept.pop().script[7:9]  # a part also keeps the memory in use
    later = [planner.plan_training(*batch, None, 0).script.ctypes.data for batch in batches]
    assert not places & set(later)
    assert all(np.array_equal(plan.script, w) for plan, w in zip(kept, words, strict=False))
    del part
    again = {planner.plan_training(*batch, None, 0).script.ctypes.data for batch in batches}
    assert again & places
    assert again <= places | set(later)


@pytest.mark.parametrize(
    "name", ["tree-lstm", "tree-lstm-2type", "tree-lstm-child-sum", "nmt with attention", "lattice-gru"]
)
def test_large_batches(name: str) -> None:
    """Batches of 60 graphs: the verifier accepts lists, rows and memory for many vertices."""
    task, graph = CASES[name].make(limit=60), vpps.Graph()
    loss = task.loss(graph, task.train[:])
    planner = Planner(Distribution(task.model, 3, 16, 0, train=True))
    for plan in planner.plan_training(graph, loss, None, 0), planner.plan_forward(graph, [loss]):
        launches.verify(plan)


@pytest.mark.parametrize("n_groups", [2, 3, 7])
def test_more_unconnected_parts_than_are_dealt_one_by_one(n_groups: int) -> None:
    """A third and a seventh of the work are no binary fractions."""
    model = vpps.Model(seed=1)
    table, W = model.lookup("E", (9, 8)), model.parameter("W", (8, 8))
    step = vpps.cell(lambda x: vpps.tanh(W @ x))
    graph, losses, random = vpps.Graph(), [], Random(n_groups)
    for _ in range(PARTS):
        state = graph.lookup(table, random.randrange(9))
        for _ in range(random.randrange(4)):
            state = step(state)
        losses.append(vpps.sum(state))
    planner = planner_of(model, groups=n_groups)
    for plan in (planner.plan_training(graph, vpps.sum(losses), None, 0), planner.plan_forward(graph, losses)):
        assert plan.grouping is not None
        assert plan.grouping.n_components > 512
        assert plan.grouping.work.max() <= 1.01 * plan.grouping.work.mean()
        launches.verify(plan)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("name", ["tree-lstm", "nmt with attention", "lattice-gru"])
def test_the_verifier_accepts_graphs_as_data_in_groups(name: str, groups: int) -> None:
    """Covers rows together with single calls."""
    task, graph = CASES[name].make(limit=4), vpps.Graph()
    losses = [task.loss(graph, task.train[:2]), vpps.sum(vpps.tanh(graph.input(np.ones(3))))]
    losses += [task.loss(graph, task.train[2:4]) * 0.5]
    outputs, loss = task.outputs(graph, task.train[:2]), vpps.sum(losses)
    it, random = launches.Example(task.model, graph, loss, [loss, outputs, *outputs[:4]]), Random(f"{name} {groups}")
    c = launches.draw(random, ("simt", groups, "vector"))
    for plan in list(launches.plans(it, c))[::3]:
        launches.verify(plan)


def assert_inferred(model: vpps.Model, graph: vpps.Graph, wanted: list[vpps.Expression], policy: Any) -> None:
    """Assert that inference gives the reference's values."""
    reference = Reference(graph, weights_of(model))
    with vpps.Handle(model, vps=2, policy=policy, passes=Passes(fusion=False)) as handle:
        for e, value in zip(wanted, handle.forward(graph, wanted), strict=True):
            assert relative_error(value, reference.value(e)) <= FORWARD_TOLERANCE


@pytest.mark.parametrize("policy", POLICIES)
def test_stages_of_inference_count_vertices_that_are_left_out(policy: str) -> None:
    """Readers of such a vertex have no value, but are a level above its producer."""
    model = vpps.Model(seed=1)

    @vpps.cell
    def same(v):
        return v

    @vpps.cell
    def step(v):
        state = vpps.tanh(v + v)
        return state, vpps.sigmoid(v) * v, state

    graph = vpps.Graph()
    x, y = graph.input(np.ones(3)), graph.input(np.ones(8))
    wanted = same(same(same(x)))
    first, _, _ = step(y)
    _, gated, second = step(first)
    step(second)  # not wanted, and nothing else reads the third output
    assert_inferred(model, graph, [wanted, gated], launches.policy_for(policy, graph))


Call = tuple[int, int, int]
"""A vertex's cell, and the vertex and output number that it reads."""


@pytest.mark.parametrize(
    "policy, calls, wanted",
    [
        ("agenda", [(0, 0, 0), (1, 1, 1), (1, 0, 0), (1, 3, 0), (1, 2, 1), (0, 4, 1)], (4, 1)),
        ("critical", [(0, 0, 0), (0, 0, 1), (1, 2, 1), (0, 0, 0), (1, 0, 1), (0, 5, 1), (1, 5, 0)], (6, 7)),
    ],
)
def test_inference_with_vertices_that_only_left_out_vertices_read(
    policy: str, calls: list[Call], wanted: tuple[int, int]
) -> None:
    """Policies see all vertices, including vertices without readers, which inference omits."""
    model, graph = vpps.Model(seed=1), vpps.Graph()
    W = model.parameter("W", (4, 4))
    made = [
        vpps.cell(lambda x: (vpps.tanh(W @ x), vpps.square(x))),
        vpps.cell(lambda x: (vpps.sigmoid(W @ x), vpps.tanh(x))),
    ]
    values = [[graph.input(np.ones(4))] * 2]
    for cell, read, output in calls:
        values.append(graph.call(made[cell], values[read][output]))
    assert_inferred(model, graph, [values[vertex][0] for vertex in wanted], policy)
