"""Memory of slabs: never two in the same place at the same time, and little more than their peak."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import vpps
from tests.planner import golden, launches
from vpps.compiler import slabs
from vpps.compiler.lower import LoweredCell
from vpps.compiler.slabs import STAGGER, Life
from vpps.errors import ScriptError
from vpps.placement.distribution import ALIGN, Distribution
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.record.arrays import Ints
from vpps.script.verify import verify

pytestmark = pytest.mark.cpu

H = 32
START, STOP, FIRST, LAST, GROUP = range(5)  # columns of a layout's arrays


def assert_apart(arrays: Ints) -> None:
    """Assert that arrays never share memory during their lifetimes; with groups, that they never share any."""
    start, stop, first, last, group = arrays.T
    shared = (start < stop[:, None]) & (start[:, None] < stop)
    at_once = (first <= last[:, None]) & (first[:, None] <= last)
    several = (group != group[:, None]) & (group >= 0) & (group[:, None] >= 0)
    found = np.argwhere(np.triu(shared & (at_once | several), 1))
    assert not len(found), arrays[found[0]].tolist()


@pytest.mark.parametrize("name", golden.NAMES[::4])
def test_no_two_arrays_are_at_one_place_at_one_time(name: str) -> None:
    """Covers any schedule, with or without groups, in training and inference; no array exceeds the plan's size."""
    it, random = golden.example(name), Random(name)
    for c in random.sample(golden.configurations(name), 4):
        for plan in launches.plans(it, c):
            arrays = plan.layout.memory
            assert_apart(arrays)
            assert arrays[:, STOP].max() <= plan.pool_floats
            assert (arrays[:, FIRST] <= arrays[:, LAST]).all()


class Net:
    """A recurrent cell with slabs of every lifetime, over chains of any length."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.table = self.model.lookup("E", (5, H))
        self.W = self.model.parameter("W", (H, H))
        self.V = self.model.parameter("V", (H, H))

        @vpps.cell
        def step(h: vpps.Expression, x: vpps.Expression) -> vpps.Expression:
            inner = vpps.tanh(self.W @ h + x)  # V's gradient reads all of it
            return vpps.sigmoid(self.V @ inner)

        self.step = step

    def chain(self, length: int) -> tuple[vpps.Graph, list[vpps.Expression]]:
        graph = vpps.Graph()
        states = [graph.lookup(self.table, 0)]
        for _ in range(length):
            states.append(self.step(states[-1], graph.lookup(self.table, 1)))
        return graph, states

    def planner(self, vps: int = 2) -> Planner:
        return Planner(Distribution(self.model, vps, 32, 0, train=True))


def batch_floats(planner: Planner, plan: Plan) -> int:
    return plan.pool_floats - planner.distribution.end


def training(net: Net, vps: int, graph: vpps.Graph, states: list[vpps.Expression]) -> Plan:
    return net.planner(vps).plan_training(graph, vpps.sum(states[-1]), Update(vpps.SGD(0.1), 1, 1, None), 0)


def test_inference_keeps_what_is_wanted_or_still_to_be_read() -> None:
    net = Net()
    planner = net.planner()
    for length in (10, 100):
        graph, states = net.chain(length)
        needed = batch_floats(planner, planner.plan_forward(graph, [states[-1]]))
        # One row per looked-up word: all come first. Two alternating states, and three slabs for one step.
        assert needed == (length + 1 + 2 + 3) * H + 2 * STAGGER
    plan, wanted = planner.plan_forward(graph, states[5:9]), [s.ref for s in states[5:9]]
    assert np.flatnonzero(plan.addresses >= 0).tolist() == wanted
    assert len(set(plan.addresses[wanted].tolist())) == 4


def test_training_uses_the_memory_of_a_step_again() -> None:
    net = Net()
    floats = [batch_floats(net.planner(), training(net, 2, *net.chain(length))) for length in (10, 100)]
    # A step and its word: three slabs that weight gradients or the user read, two from forward to backward, two
    # gradients up to the end. Four reuse memory: two that end with the step's backward, the previous state's, which
    # ends two steps later, and the word's gradient.
    assert (floats[1] - floats[0]) / 90 == (3 + 2 + 2) * H


@pytest.mark.parametrize("widths", [(32, 32, 32), (32, 64, 16), (16, 64, 32)])
def test_holes_of_any_size_are_used_again(widths: tuple[int, int, int]) -> None:
    """States of different widths, each live for two stages, need only the memory of the largest neighbouring states and
    the slabs between them."""
    model = vpps.Model(seed=1)
    graph = vpps.Graph()
    state = graph.input(np.ones(widths[-1]))
    for k in range(30):
        W = model.parameter(f"W{k}", (widths[k % 3], state.shape[0]))
        state = vpps.tanh(W @ state)
    planner = Planner(Distribution(model, 2, 32, 0, train=True))
    plan = planner.plan_forward(graph, [state])
    verify(plan.script, plan.layout, plan.origin)
    # Products and their tanh are separate vertices: at any time, one slab is read and one is written.
    assert batch_floats(planner, plan) <= 2 * max(widths) + max(widths)
    begins = plan.layout.memory[plan.layout.memory[:, START] >= planner.distribution.end, START]
    assert not (begins % ALIGN).any()


def given_back(plan: Plan) -> np.ndarray:
    """Return the numbers of arrays that live for several periods and end before the launch does."""
    arrays = plan.layout.memory
    return np.flatnonzero((arrays[:, FIRST] < arrays[:, LAST]) & (arrays[:, LAST] < arrays[:, LAST].max()))


def assert_refused_where_shorter(plan: Plan, which: Ints, by: int) -> None:
    """Assert that the verifier accepts the plan, and refuses shorter lifetimes of some arrays."""
    verify(plan.script, plan.layout, plan.origin)
    memory = plan.layout.memory.copy()
    memory[which, LAST] -= by
    with pytest.raises(ScriptError, match=r"which nothing has written|not a row of one array"):
        verify(plan.script, replace(plan.layout, memory=memory), plan.origin)


@pytest.mark.parametrize("vps", [1, 2])
def test_values_and_gradients_give_way_after_their_last_readers(vps: int) -> None:
    """Gradients' lifetimes end later: barriers between steps may be left out."""
    net = Net()
    graph, states = net.chain(6)
    plan = net.planner(vps).plan_forward(graph, [states[-1]])
    passed_on = given_back(plan)
    assert len(passed_on) == 6  # all words, which are one step, and the states that are not requested
    for one in passed_on:
        assert_refused_where_shorter(plan, np.array([one]), by=1)
    plan = training(net, vps, graph, states)
    arrays = plan.layout.memory
    of_backward = [k for k in given_back(plan) if arrays[k, FIRST] > arrays[:, LAST].max() // 2]
    assert len(of_backward) >= 4
    assert_refused_where_shorter(plan, np.array(of_backward), by=2)


@pytest.mark.parametrize("vps", [1, 2])
@pytest.mark.parametrize(
    "right, wrong",
    [
        (Life.ACROSS, Life.SCRATCH),
        (Life.LATE, Life.SCRATCH),
        (Life.KEPT, Life.ACROSS),
        (Life.LATE, Life.HANDED_BACK),
        (Life.HANDED_BACK, Life.SCRATCH),
    ],
)
def test_a_slab_that_lives_too_short_is_found(
    right: Life, wrong: Life, vps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    graph, states = net.chain(6)
    lives = slabs._lives_in_training

    def shorter(lowered: LoweredCell, read_by_steps: Collection[int]) -> list[Life]:
        return [wrong if life is right else life for life in lives(lowered, read_by_steps)]

    monkeypatch.setattr(slabs, "_lives_in_training", shorter)
    plan = training(net, vps, graph, states)
    with pytest.raises(ScriptError, match=r"which nothing has written|not a row of one array"):
        verify(plan.script, plan.layout, plan.origin)
    monkeypatch.undo()
    plan = training(net, vps, graph, states)
    verify(plan.script, plan.layout, plan.origin)
