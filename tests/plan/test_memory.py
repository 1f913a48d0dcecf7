"""Memory of slabs: never two at one place at one time, and hardly more than what must be there at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vpps
from vpps.errors import ScriptError
from vpps.plan import slabs
from vpps.plan.build import Plan
from vpps.plan.distribution import ALIGN, Distribution
from vpps.plan.lower import LoweredCell
from vpps.plan.memory import Arena, SlabMemory
from vpps.plan.planner import Planner
from vpps.plan.slabs import STAGGER, Life
from vpps.plan.update import Update
from vpps.script.verify import verify

pytestmark = pytest.mark.host

H = 32


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    start=st.integers(0, 100),
    requests=st.lists(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 6)), max_size=5), min_size=1, max_size=20),
)
def test_an_arena_never_gives_what_is_in_use(start: int, requests: list[list[tuple[int, int]]]) -> None:
    arena = Arena(start)
    alive: list[tuple[int, int, int]] = []
    most = 0
    for now, wanted in enumerate(requests):
        arena.begin(now)
        alive = [a for a in alive if a[0] >= now]
        for floats, periods in wanted:
            at = arena.take(floats, now + periods)
            if floats:
                assert at % ALIGN == 0
                assert at >= start
                assert at + floats <= arena.stop
                assert all(at >= stop or at + floats <= begin for _, begin, stop in alive)
                alive.append((now + periods, at, at + floats))
        most = max(most, sum(stop - begin for _, begin, stop in alive))
    assert most <= arena.stop - start


def test_an_arena_closes_the_gaps_between_holes() -> None:
    arena = Arena(0)
    assert [arena.take(n, last) for n, last in ((16, 0), (32, 1), (16, 0), (48, 2))] == [0, 16, 48, 64]
    arena.begin(1)
    assert arena.take(20, 1) == 112  # neither hole of 16 will do
    arena.begin(2)
    assert arena.take(64, 9) == 0  # three holes have become one
    arena.begin(3)
    assert arena.take(100, 9) == 64  # the last hole grows beyond the end
    assert arena.stop == 64 + 112


class Net:
    """A recurrent cell with slabs of every life, over chains of any length."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.table = self.model.lookup("E", (5, H))
        self.W = self.model.parameter("W", (H, H))
        self.V = self.model.parameter("V", (H, H))

        @vpps.cell
        def step(h: vpps.Expression, x: vpps.Expression) -> vpps.Expression:
            inner = vpps.tanh(self.W @ h + x)  # read by V's gradient: whole
            return vpps.sigmoid(self.V @ inner)

        self.step = step

    def chain(self, length: int) -> tuple[vpps.Graph, list[vpps.Expression]]:
        graph = vpps.Graph()
        states = [graph.lookup(self.table, 0)]
        for _ in range(length):
            states.append(self.step(states[-1], graph.lookup(self.table, 1)))
        return graph, states

    def planner(self, vps: int = 2) -> Planner:
        return Planner(Distribution(self.model, vps, 32, 0, train=True), "sinks-last")


def batch_floats(planner: Planner, plan: Plan) -> int:
    return plan.pool_floats - planner.distribution.end


def test_inference_keeps_what_is_still_to_be_read() -> None:
    net = Net()
    planner = net.planner()
    needed = {}
    for length in (10, 100):
        graph, states = net.chain(length)
        needed[length] = batch_floats(planner, planner.plan_forward(graph, [states[-1]]))
    # One row per looked-up word, which come first, all of them; two states in turn and three slabs of one step.
    assert needed[10] == (11 + 2 + 3) * H + 2 * STAGGER
    assert needed[100] == (101 + 2 + 3) * H + 2 * STAGGER


def test_wanted_values_stay() -> None:
    net = Net()
    planner = net.planner()
    graph, states = net.chain(20)
    plan = planner.plan_forward(graph, states[5:9])
    assert np.flatnonzero(plan.addresses >= 0).tolist() == [s.ref for s in states[5:9]]
    assert len(set(plan.addresses[[s.ref for s in states[5:9]]].tolist())) == 4


def test_training_uses_the_memory_of_a_step_again() -> None:
    net = Net()
    planner = net.planner()
    floats = []
    for length in (10, 100):
        graph, states = net.chain(length)
        plan = planner.plan_training(graph, vpps.sum(states[-1]), Update(vpps.SGD(0.1), 1, 1, None), 0)
        floats.append(batch_floats(planner, plan))
    # A step and its word: three slabs that weight gradients or the user read, two from forward to backward, two
    # gradients for the end. Two that are gone after its backward, that of the state before, which is gone two steps
    # later, and the word's gradient lie where others were.
    assert (floats[1] - floats[0]) / 90 == (3 + 2 + 2) * H


def test_slabs_live_as_long_as_they_are_read() -> None:
    net = Net()
    graph, _ = net.chain(1)
    cell = next(c for c in graph.blocks if c.name == "step")
    groups = net.planner().templates(cell).slab_groups(training=True)
    # W h + x, inner, V inner, result; gradients of the result, V inner, inner, W h + x, h
    across, kept, late, scratch = Life.ACROSS, Life.KEPT, Life.LATE, Life.SCRATCH
    expected = [across, kept, across, kept, scratch, late, scratch, late, Life.HANDED_BACK]
    assert [groups.groups[k].life for k in groups.group_of] == expected
    groups = net.planner().templates(cell).slab_groups(training=False)
    assert [groups.groups[k].life for k in groups.group_of] == [scratch, scratch, scratch, Life.PASSED_ON]


@pytest.mark.parametrize("vps", [1, 2])
def test_a_value_that_dies_before_its_last_reader_is_found(vps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    graph, states = net.chain(6)
    planner = net.planner(vps)
    plan = planner.plan_forward(graph, [states[-1]])
    verify(plan.script, plan.layout, plan.origin)
    right = SlabMemory._last_readers
    monkeypatch.setattr(SlabMemory, "_last_readers", lambda self, n_values: right(self, n_values) - 1)
    plan = planner.plan_forward(graph, [states[-1]])
    with pytest.raises(ScriptError, match="which nothing has written"):
        verify(plan.script, plan.layout, plan.origin)


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
    loss = vpps.sum(states[-1])
    lives = slabs._lives_in_training

    def shorter(lowered: LoweredCell, read_by_steps: Collection[int]) -> list[Life]:
        return [wrong if life is right else life for life in lives(lowered, read_by_steps)]

    monkeypatch.setattr(slabs, "_lives_in_training", shorter)
    plan = net.planner(vps).plan_training(graph, loss, Update(vpps.SGD(0.1), 1, 1, None), 0)
    with pytest.raises(ScriptError, match=r"which nothing has written|no row of one array"):
        verify(plan.script, plan.layout, plan.origin)
    monkeypatch.undo()
    plan = net.planner(vps).plan_training(graph, loss, Update(vpps.SGD(0.1), 1, 1, None), 0)
    verify(plan.script, plan.layout, plan.origin)


def test_vertices_without_backward_do_not_share_scratch_with_those_that_have_one() -> None:
    """Of one cell and level, some that the loss depends on, and some that it does not: they run side by side."""
    net = Net()
    graph, states = net.chain(6)
    word = graph.lookup(net.table, 2)
    beside = [net.step(s, word) for s in states]
    for vps in (1, 2, 7):
        plan = net.planner(vps).plan_training(graph, vpps.sum(states[-1]), Update(vpps.SGD(0.1), 1, 1, None), 0)
        verify(plan.script, plan.layout, plan.origin)
        assert all(plan.addresses[s.ref] >= 0 for s in beside)


@pytest.mark.parametrize("vps", [1, 2])
def test_a_gradient_that_gives_way_before_its_last_reader_is_found(vps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    graph, states = net.chain(6)
    right = SlabMemory._handed_back_until

    def earlier(self: SlabMemory, *args: Any) -> dict[int, list[int]]:
        return {group: [last - 2 for last in until] for group, until in right(self, *args).items()}

    monkeypatch.setattr(SlabMemory, "_handed_back_until", earlier)
    plan = net.planner(vps).plan_training(graph, vpps.sum(states[-1]), Update(vpps.SGD(0.1), 1, 1, None), 0)
    with pytest.raises(ScriptError, match=r"which nothing has written|no row of one array"):
        verify(plan.script, plan.layout, plan.origin)


def test_gradients_of_steps_that_never_wait_for_each_other_stay() -> None:
    """Of two virtual processors, one might be steps ahead of another that still reads them."""
    model = vpps.Model(seed=1)
    table = model.lookup("E", (5, 64))

    @vpps.cell
    def step(h: vpps.Expression, x: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(h) * x

    for vps, life in ((1, Life.HANDED_BACK), (2, Life.LATE)):
        graph = vpps.Graph()
        h = graph.lookup(table, 0)
        for k in range(1, 5):
            h = step(h, graph.lookup(table, k))
        planner = Planner(Distribution(model, vps, 32, 0, train=True), "sinks-last")
        plan = planner.plan_training(graph, vpps.sum(h), Update(vpps.SGD(0.1), 1, 1, None), 0)
        verify(plan.script, plan.layout, plan.origin)
        cell = next(block.cell for block in plan.blocks if block.cell.cell.name == "step")
        groups = cell.slab_groups(training=True)
        assert {groups.groups[groups.group_of[v.slab]].life for _, v in cell.handed_back} == {life}
