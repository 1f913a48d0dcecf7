"""Where the rows of arguments lie at an even stride no list is needed; layout "readers" makes that happen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vpps
from tests.graph import bulk_models
from tests.plan.test_random_graphs import examples
from vpps.inspection.gathering import gathering
from vpps.plan.distribution import Distribution
from vpps.plan.plan import Plan
from vpps.plan.planner import Planner
from vpps.plan.row_lists import UNEVEN, runs
from vpps.plan.row_order import LAYOUTS, PQ, READERS, RECORDED
from vpps.script.instructions import OFFSET_MASK
from vpps.script.verify import verify

pytestmark = pytest.mark.host

LENGTHS = (3, 7, 1, 5, 7, 2)
WIDTH = 8


@examples(100)
@given(st.lists(st.lists(st.sampled_from([0, 4, 8, 12, 5, OFFSET_MASK + 6]), max_size=5), min_size=1, max_size=5))
def test_runs_are_those_of_equal_gaps(given_runs: list[list[int]]) -> None:
    count = np.array([len(run) for run in given_runs])
    first = np.cumsum(count) - count
    found = runs(np.array([a for run in given_runs for a in run], np.int64), first, count)
    for run, address, stride in zip(given_runs, *found, strict=True):
        gaps = {b - a for a, b in itertools.pairwise(run)} or {0}
        expected = gaps.pop() if len(gaps) == 1 else UNEVEN
        assert stride == (expected if 0 <= expected <= OFFSET_MASK else UNEVEN)
        assert not run or address == run[0]


def sequences(lengths: tuple[int, ...]) -> tuple[vpps.Model, vpps.Graph, list[vpps.Expression]]:
    """Some of different lengths, each step of which reads two states of the one before; the last states."""
    model = vpps.Model(seed=2)
    W = model.parameter("W", (WIDTH, WIDTH))

    @vpps.cell
    def step(c: vpps.Expression, h: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
        c = vpps.tanh(W @ h) + c
        return c, vpps.tanh(c)

    graph = vpps.Graph()
    ends = []
    for k, length in enumerate(lengths):
        c, h = graph.zeros(WIDTH), graph.input(np.full(WIDTH, 0.1 * k))
        for _ in range(length):
            c, h = step(c, h)
        ends.append(h)
    return model, graph, ends


def plans(layout: str, lengths: tuple[int, ...] = LENGTHS, policy: str = "sinks-last") -> tuple[Plan, Plan]:
    """Of inference and of training, verified."""
    model, graph, ends = sequences(lengths)
    planner = Planner(Distribution(model, 2, 32, 0, train=True), policy, layout=layout)
    inference = planner.plan_forward(graph, ends)
    training = planner.plan_training(graph, vpps.sum([vpps.sum(h) for h in ends]), None, 0)
    for plan in (inference, training):
        verify(plan.script, plan.layout, plan.origin)
    return inference, training


@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
@pytest.mark.parametrize("layout", [READERS, PQ])
def test_sequences_by_length_need_no_lists(layout: str, policy: str) -> None:
    """Each step reads some rows of the one before, side by side; the inputs of all have the order of the first step."""
    recorded, _ = plans(RECORDED, policy=policy)
    ordered, _ = plans(layout, policy=policy)
    assert gathering(recorded).forward_bytes > 0
    assert gathering(ordered).bytes == 0
    assert gathering(ordered).arguments == gathering(ordered).contiguous


def test_one_sequence_needs_no_lists() -> None:
    for layout in LAYOUTS:
        inference, _ = plans(layout, (9,))
        assert gathering(inference).bytes == 0


def test_gradients_of_weights_keep_their_lists() -> None:
    """They are summed over all steps at once."""
    _, training = plans("readers")
    assert gathering(training).gradient_bytes == 4 * WIDTH * sum(LENGTHS)


@pytest.mark.parametrize("name", ["child-sum", "lattice", "seq2seq"])
@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_every_step_has_its_vertices(name: str, policy: str, layout: str) -> None:
    """The same ones in any order, those of all parts of a cell alike."""
    network = bulk_models.NETWORKS[name]
    model, made, p = network.make()
    graph = vpps.Graph()
    loss = network.bulk(graph, made, p, network.data(np.random.default_rng(3), 6)).loss
    distribution = Distribution(model, 1, 32, 0, train=True)
    planners = [Planner(distribution, policy, layout=which) for which in (layout, RECORDED)]
    made_plan, recorded = (planner.plan_training(graph, loss, None, 0) for planner in planners)
    for block, in_recorded_order in zip(made_plan.blocks, recorded.blocks, strict=True):
        assert np.array_equal(block.first[:, 0], in_recorded_order.first[:, 0])
        for first, count in zip(block.first[:, 0], block.count[:, 0], strict=True):
            rows = slice(first, first + count)
            assert sorted(block.order[rows]) == sorted(in_recorded_order.order[rows])
