"""Batches of typed graphs: every vertex once and after what it reads, as few batches as the theory says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.policies.typed import Made, figure_1, only, shortest, typed_graphs
from vpps.plan.policies.agenda import agenda
from vpps.plan.policies.batching import Batches, run
from vpps.plan.policies.critical import critical
from vpps.plan.policies.frontier import Frontier, Ranks, Subgraphs, Wiring
from vpps.plan.policies.learning import SplitMix64, batches_of
from vpps.plan.policies.machine import Encoding, Machine
from vpps.plan.policies.sufficient import sufficient
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.recurrence import strongly_connected

pytestmark = pytest.mark.host


def by_chance(wiring: Wiring) -> Batches:
    chance = SplitMix64(7)
    return run(wiring, lambda frontier: frontier.types[chance.next() % len(frontier.types)])


def by_ignorance(wiring: Wiring) -> Batches:
    return batches_of(wiring, Machine(Encoding(), {}))[0]


POLICIES: dict[str, Callable[[Wiring], Batches]] = {
    "agenda": agenda, "sufficient": sufficient, "critical": critical, "no machine": by_ignorance, "chance": by_chance,
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(max_examples=60, deadline=None)
@given(graph=typed_graphs())
def test_every_vertex_runs_once_and_after_what_it_reads(policy: Callable[[Wiring], Batches], graph: TypedGraph) -> None:
    found = policy(Wiring(graph))
    assert len(found.stages) == graph.n
    for v in range(graph.n):
        read = graph.read_by(v)
        assert (found.stages[read] < found.stages[v]).all()
    assert sorted(set(found.stages.tolist())) == list(range(found.n_stages))
    steps = set(zip(found.stages.tolist(), graph.type_of.tolist(), strict=True))
    assert graph.lower_bound <= len(steps) == found.n_steps <= len(found.sequence)
    assert set(np.bincount(found.sequence, minlength=graph.n_types).nonzero()[0]) == set(graph.type_of.tolist())


def remaining(graph: TypedGraph, frontier: Frontier, leave_out: Sequence[int] = ()) -> TypedGraph:
    """What has not run of a graph."""
    left = np.array([not done for done in frontier.done], bool)
    left[list(leave_out)] = False
    return only(graph, left)


@settings(max_examples=60, deadline=None)
@given(graph=typed_graphs(), data=st.data())
def test_counts_of_subgraphs_are_those_of_a_search(graph: TypedGraph, data: st.DataObject) -> None:
    wiring = Wiring(graph)
    frontier = Frontier(wiring)
    subgraphs = Subgraphs(frontier)
    while frontier.executed < graph.n:
        expected = [0] * graph.n_types
        above: list[set[int]] = []  # types of the remaining vertices that each one depends on
        for v in range(graph.n):  # vertices come after what they read
            above.append({a for p in graph.read_by(v) for a in above[p]})
            above[v] |= {wiring.type_of[p] for p in graph.read_by(v) if not frontier.done[p]}
            expected[wiring.type_of[v]] += not frontier.done[v] and wiring.type_of[v] not in above[v]
        assert subgraphs.counts == Subgraphs(frontier).counts == expected
        a = data.draw(st.sampled_from(frontier.types))
        subgraphs.executed(a, frontier.execute(a))


@settings(max_examples=60, deadline=None)
@given(graph=typed_graphs(), data=st.data())
def test_what_shortens_a_chain_is_found(graph: TypedGraph, data: st.DataObject) -> None:
    wiring = Wiring(graph)
    frontier = Frontier(wiring)
    ranks = Ranks(frontier)
    while frontier.executed < graph.n:
        before = remaining(graph, frontier).depths
        for a in frontier.types:
            after = remaining(graph, frontier, leave_out=frontier.ready[a]).depths
            assert ranks.shortens(a) == (after[a] < before[a])
        a = data.draw(st.sampled_from(frontier.types))
        frontier.execute(a)
        ranks.executed(a, frontier.freed)


@settings(max_examples=40, deadline=None)
@given(graph=typed_graphs(most=9, most_types=3))
def test_no_sequence_is_shorter_than_the_lower_bound(graph: TypedGraph) -> None:
    best = shortest(graph)
    assert graph.lower_bound <= best
    assert all(best <= len(policy(Wiring(graph)).sequence) for policy in POLICIES.values())


@settings(max_examples=40, deadline=None)
@given(graph=typed_graphs(most=9, most_types=3), data=st.data())
def test_components_apart_are_as_good_as_the_whole(graph: TypedGraph, data: st.DataObject) -> None:
    """Of whatever sequence of types runs the whole graph, the part that is of one component runs that; and so the
    shortest sequences of the components make a shortest one."""
    reads = [{int(graph.type_of[p]) for v in range(graph.n) if graph.type_of[v] == a for p in graph.read_by(v)}
             for a in range(graph.n_types)]  # fmt: skip
    component = np.array(strongly_connected(reads))
    parts = [only(graph, component[graph.type_of] == c) for c in range(int(component.max()) + 1)]
    assert sum(map(shortest, parts)) == shortest(graph)
    whole = run(Wiring(graph), lambda frontier: data.draw(st.sampled_from(frontier.types))).sequence
    for c, part in enumerate(parts):
        frontier = Frontier(Wiring(part))
        for a in whole:
            if component[a] == c and frontier.ready[a]:
                frontier.execute(a)
        assert frontier.executed == part.n


def test_the_tree_of_the_paper() -> None:
    """ED-Batch, figure 1: 9 batches level by level, 7 by DyNet's agenda, 6 at least."""
    graph = figure_1()
    assert len(set(zip(graph.levels.tolist(), graph.type_of.tolist(), strict=True))) == 9
    assert len(agenda(Wiring(graph)).sequence) == 7
    assert len(sufficient(Wiring(graph)).sequence) == shortest(graph) == graph.lower_bound == 6


@pytest.mark.parametrize("length", [1, 5])
def test_sufficient_attains_the_lower_bound_on_chains(length: int) -> None:
    made = Made()
    for _ in range(3):
        state = made.add(0)
        for _ in range(length):
            state = made.add(2, made.add(1, state), made.add(0, state))
    graph = made.graph()
    assert sufficient(Wiring(graph)).n_steps == graph.lower_bound


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_sufficient_attains_the_lower_bound_on_trees_with_outputs(data: st.DataObject) -> None:
    made = Made()
    for _ in range(2):
        roots = [made.add(0) for _ in range(data.draw(st.integers(1, 8)))]
        outputs = [made.add(1, v) for v in roots]
        while len(roots) > 1:
            at = data.draw(st.integers(0, len(roots) - 2))
            roots[at : at + 2] = [made.add(0, *roots[at : at + 2])]
            outputs.append(made.add(1, roots[at]))
        made.add(2, *outputs)
    graph = made.graph()
    assert sufficient(Wiring(graph)).n_steps == graph.lower_bound
