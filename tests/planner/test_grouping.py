"""Each vertex's group: connected components, shared sources, joining vertices, even work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vpps
from vpps.compiler.passes import Passes
from vpps.placement.distribution import Distribution
from vpps.planner.grouping import Grouping
from vpps.planner.planner import Planner
from vpps.record.topology import Topology
from vpps.script.verify import verify

pytestmark = pytest.mark.cpu

E = vpps.Expression
WIDTH = 4


class Net(NamedTuple):
    model: vpps.Model
    words: vpps.Lookup
    node: Callable[..., E]
    loss: Callable[..., E]


@pytest.fixture
def net() -> Net:
    model = vpps.Model(seed=1)
    words = model.lookup("E", (9, WIDTH))
    U = model.parameter("U", (WIDTH, 2 * WIDTH))
    W = model.parameter("W", (3, WIDTH))

    @vpps.cell
    def node(left: E, right: E) -> E:
        return vpps.tanh(U @ vpps.concat([left, right]))

    @vpps.cell
    def loss(state: E, label: int) -> E:
        return vpps.cross_entropy(W @ state, label)

    return Net(model, words, node, loss)


class GroupedPlan(NamedTuple):
    grouping: Grouping
    group: list[int]  # by recording index
    stage: list[int]


def grouped(net: Net, graph: vpps.Graph, n_groups: int, wanted: Sequence[E]) -> GroupedPlan:
    """Return the groups of the vertices on which some values depend; for training if the value is one loss."""
    distribution = Distribution(net.model, 2, 1, 0, train=True, groups=n_groups)
    planner = Planner(distribution, passes=Passes(lazy_batching=False))  # stages are the vertices' stages
    if len(wanted) == 1 and not wanted[0].shape:
        plan = planner.plan_training(graph, wanted[0], None, 0)
    else:
        plan = planner.plan_forward(graph, wanted)
    verify(plan.script, plan.layout, plan.origin)
    assert plan.grouping is not None
    group, stage = np.zeros((2, graph.n_calls), np.int64)
    for b in plan.blocks:
        calls, rows = b.arrays.calls[b.order], b.count[:, 0]
        group[calls], stage[calls] = np.repeat(b.step_group, rows), np.repeat(b.step_stage, rows)
    return GroupedPlan(plan.grouping, group.tolist(), stage.tolist())


def chain(net: Net, graph: vpps.Graph, state: E, length: int) -> E:
    for k in range(length):
        state = net.node(state, graph.lookup(net.words, k))
    return state


def test_scalars_that_vectors_depend_on_join_their_sources(net: Net) -> None:
    graph = vpps.Graph()
    a, b = (net.loss(chain(net, graph, graph.lookup(net.words, k), 2), k) for k in range(2))
    both = a * b  # a scalar, which scales a vector
    vector = graph.lookup(net.words, 3) * both
    loss = net.loss(vector, 0)
    total = a + b + loss
    found = grouped(net, graph, 2, [total])
    first = [both.ref, vector.ref, loss.ref]
    assert found.grouping.n_components == 1
    assert len({found.group[call] for call in first}) == 1
    assert max(found.stage[call] for call in first) < found.grouping.first_joining  # a + b is still joined last
    assert max(found.stage) >= found.grouping.first_joining


def test_a_state_that_all_sequences_begin_with_runs_first(net: Net) -> None:
    graph = vpps.Graph()
    start = graph.zeros(WIDTH)
    ends = [chain(net, graph, start, 3) for _ in range(6)]
    found = grouped(net, graph, 2, [vpps.sum([net.loss(end, 0) for end in ends])])
    assert (found.group[0], found.stage[0], found.grouping.first_own) == (0, 0, 1)
    assert min(found.stage[1:]) >= 1
    assert {found.group[end.ref] for end in ends} == {0, 1}
    # A source with few readers belongs to its readers' group if the work remains even.
    graph = vpps.Graph()
    states = [chain(net, graph, graph.lookup(net.words, 0), 3) for _ in range(2)]
    assert grouped(net, graph, 2, [net.node(s, net.node(s, s)) for s in states]).grouping.first_own == 0


def test_one_component_leaves_other_groups_idle_and_says_so(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    graph = vpps.Graph()
    loss = net.loss(chain(net, graph, graph.lookup(net.words, 0), 5), 0)
    with caplog.at_level("INFO", logger="vpps"):
        found = grouped(net, graph, 2, [loss])
    assert set(found.group) == {0}
    assert found.grouping.some_idle
    assert "2 groups have 100%, 0% of the work of 1 unconnected parts" in caplog.text
    assert "have nothing to do" in caplog.text


def test_what_does_not_run_does_not_connect(net: Net) -> None:
    graph = vpps.Graph()
    a, b = (chain(net, graph, graph.lookup(net.words, k), 3) for k in range(2))
    both = net.node(a, b)
    assert grouped(net, graph, 2, [a, b]).grouping.n_components == 2
    assert grouped(net, graph, 2, [both, b]).grouping.n_components == 1


def test_cells_without_arguments_are_dealt_as_well(net: Net) -> None:
    @vpps.cell
    def word(row: int) -> E:
        return vpps.sum(vpps.tanh(vpps.lookup(net.words, row)))

    graph = vpps.Graph()
    found = grouped(net, graph, 2, [vpps.sum([graph.call(word, k % 9) for k in range(10)])])
    assert sorted(found.group[:10]) == [0] * 5 + [1] * 5


@given(data=st.data(), n_groups=st.integers(2, 4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_connected_components_stay_together_and_are_dealt_evenly(net: Net, data: st.DataObject, n_groups: int) -> None:
    """The expected components come from a search."""
    graph = vpps.Graph()
    n = data.draw(st.integers(1, 40))
    states: list[E] = []
    label: list[int] = []
    for k in range(n):
        if k == 0 or data.draw(st.booleans()):
            states.append(net.node(graph.lookup(net.words, k % 9), graph.lookup(net.words, k % 5)))
            label.append(k)
        else:
            a, b = (data.draw(st.integers(0, k - 1)) for _ in range(2))
            states.append(net.node(states[a], states[b]))
            same = {label[a], label[b]}
            label = [min(same) if of in same else of for of in label]
            label.append(min(same))
    found = grouped(net, graph, n_groups, states)
    assert found.grouping.n_components == len(set(label))
    group_of: dict[int, set[int]] = {}
    for state, of in zip(states, label, strict=True):
        group_of.setdefault(of, set()).add(found.group[call_of(graph, state)])
    assert all(len(groups) == 1 for groups in group_of.values())
    largest = max(map(label.count, label)) / n
    share = found.grouping.work.max() / found.grouping.work.sum()
    assert share <= 1 / n_groups + 2 * largest
    assert len(set(label)) < n_groups or found.grouping.work.all()


def call_of(graph: vpps.Graph, value: E) -> int:
    """Return the recording index of the vertex that computes a value."""
    return int(Topology(graph).value_call[value.ref])
