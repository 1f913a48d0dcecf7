"""Which group runs which vertex: connected components, shared sources, joining vertices, even work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vpps
from vpps.graph.arrays import BlockArrays
from vpps.plan.distribution import Distribution
from vpps.plan.grouping import DEALT_ONE_BY_ONE, Grouping, components
from vpps.plan.grouping import _deal as deal
from vpps.plan.native.planner import CompiledPlanner
from vpps.plan.passes import Passes

pytestmark = pytest.mark.host

E = vpps.Expression
WIDTH = 4


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 60), data=st.data())
def test_components_are_those_of_a_search(n: int, data: st.DataObject) -> None:
    vertices = st.integers(0, n - 1)
    edges = data.draw(st.lists(st.tuples(vertices, vertices), max_size=2 * n))
    ends = np.array(edges, np.int64).reshape(-1, 2)
    label = list(range(n))
    for _ in range(n):
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    assert components(n, ends[:, 0], ends[:, 1]).tolist() == label


def test_components_of_long_chains_and_of_a_large_star() -> None:
    """In few passes: one that joined two vertices at a time would need minutes."""
    n = 100_000
    order = np.random.default_rng(0).permutation(n)
    for a, b in (
        (np.arange(n - 1), np.arange(1, n)),
        (np.arange(n - 1), np.full(n - 1, n - 1)),
        (order[:-1], order[1:]),
    ):
        assert not components(n, a, b).any()


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


class Found(NamedTuple):
    grouping: Grouping
    group: list[int]  # by recording index
    stage: list[int]


def grouped(net: Net, graph: vpps.Graph, n_groups: int, wanted: Sequence[E] | None = None) -> Found:
    """Where only the wanted values are computed; by default all are."""
    distribution = Distribution(net.model, 2, 1, 0, train=True, groups=n_groups)
    planner = CompiledPlanner(distribution, "sinks-last", passes=Passes(lazy_batching=False))
    values = np.arange(graph.n_values) if wanted is None else np.array([e.ref for e in wanted])
    grouping = planner._engine(None).forward(graph, values).grouping
    assert grouping is not None
    group, stage = np.zeros((2, graph.n_calls), np.int64)
    for b, of_group, of_stage in zip(
        map(BlockArrays, graph.blocks.values()), grouping.groups, grouping.stages, strict=True
    ):
        group[b.calls], stage[b.calls] = of_group, of_stage
    return Found(grouping, group.tolist(), stage.tolist())


def chain(net: Net, graph: vpps.Graph, state: E, length: int) -> E:
    for k in range(length):
        state = net.node(state, graph.lookup(net.words, k))
    return state


@pytest.mark.parametrize("n_groups", [2, 3, 4])
def test_a_tree_belongs_to_one_group_with_its_leaves_and_losses(net: Net, n_groups: int) -> None:
    graph = vpps.Graph()
    trees: list[range] = []
    losses = []
    for size in range(1, 9):
        first = graph.n_calls
        leaves = [graph.lookup(net.words, k) for k in range(size)]
        losses.extend(net.loss(leaf, 0) for leaf in leaves)
        for a, b in pairwise(leaves):
            losses.append(net.loss(net.node(a, b), 1))
        trees.append(range(first, graph.n_calls))
    total = graph.n_calls
    vpps.sum(losses)
    found = grouped(net, graph, n_groups)
    assert {len({found.group[call] for call in tree}) for tree in trees} == {1}
    assert {found.group[tree[0]] for tree in trees} == set(range(n_groups))
    assert found.grouping.n_components == len(trees)
    assert found.grouping.first_own == 0
    assert found.stage[total] >= found.grouping.first_joining > max(found.stage[:total])
    assert found.grouping.work.max() <= 1.3 * found.grouping.work.mean()


def test_scalars_that_vectors_depend_on_join_their_sources(net: Net) -> None:
    graph = vpps.Graph()
    a, b = (net.loss(chain(net, graph, graph.lookup(net.words, k), 2), k) for k in range(2))
    both = a * b  # a scalar, which scales a vector
    vector = graph.lookup(net.words, 3) * both
    loss = net.loss(vector, 0)
    assert (a + b).shape == ()
    found = grouped(net, graph, 2)
    first = [both.ref, vector.ref, loss.ref]
    assert found.grouping.n_components == 1
    assert len({found.group[call] for call in first}) == 1
    assert max(found.stage[call] for call in first) < found.grouping.first_joining  # a + b is still joined last
    assert max(found.stage) >= found.grouping.first_joining


def test_a_state_that_all_sequences_begin_with_runs_first(net: Net) -> None:
    graph = vpps.Graph()
    start = graph.zeros(WIDTH)
    ends = [chain(net, graph, start, 3) for _ in range(6)]
    vpps.sum([net.loss(end, 0) for end in ends])
    found = grouped(net, graph, 2)
    assert (found.group[0], found.stage[0], found.grouping.first_own) == (0, 0, 1)
    assert min(found.stage[1:]) >= 1
    assert {found.group[end.ref] for end in ends} == {0, 1}
    # One that few read belongs to them, where work is even all the same.
    graph = vpps.Graph()
    for _ in range(2):
        state = chain(net, graph, graph.lookup(net.words, 0), 3)
        net.node(state, net.node(state, state))
    assert grouped(net, graph, 2).grouping.first_own == 0


def test_one_component_leaves_other_groups_idle_and_says_so(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    graph = vpps.Graph()
    net.loss(chain(net, graph, graph.lookup(net.words, 0), 5), 0)
    with caplog.at_level("INFO", logger="vpps"):
        found = grouped(net, graph, 2)
    assert set(found.group) == {0}
    assert found.grouping.some_idle
    assert "2 groups have 100%, 0% of the work of 1 unconnected parts" in caplog.text
    assert "have nothing to do" in caplog.text


def test_what_does_not_run_does_not_connect(net: Net) -> None:
    graph = vpps.Graph()
    a, b = (chain(net, graph, graph.lookup(net.words, k), 3) for k in range(2))
    net.node(a, b)
    assert grouped(net, graph, 2).grouping.n_components == 1
    assert grouped(net, graph, 2, wanted=[a, b]).grouping.n_components == 2


def test_cells_without_arguments_are_dealt_as_well(net: Net) -> None:
    @vpps.cell
    def word(row: int) -> E:
        return vpps.sum(vpps.tanh(vpps.lookup(net.words, row)))

    graph = vpps.Graph()
    vpps.sum([graph.call(word, k % 9) for k in range(10)])
    found = grouped(net, graph, 2)
    assert sorted(found.group[:10]) == [0] * 5 + [1] * 5


@given(work=st.lists(st.floats(0.5, 100), min_size=1, max_size=3 * DEALT_ONE_BY_ONE), n=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_work_is_dealt_evenly(work: list[float], n: int) -> None:
    loads = np.bincount(deal(np.array(work), n), weights=work, minlength=n)
    assert loads.max() <= sum(work) / n + 2 * max(work)
    assert len(work) < n or (loads > 0).all()
