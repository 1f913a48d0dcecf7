"""Batches of typed graphs: every vertex once and after its producers, and as few batches as the theory predicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.policies import typed
from tests.planner.policies.typed import PREFERENCES, Remaining, by_definition, by_machine, figure_1, typed_graphs
from vpps.errors import ScriptError
from vpps.model.learned_policy import ENCODINGS, Automaton, Encoding
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.native.typed_graphs import Batches, LearningSettings, TypedGraph, batches, learn
from vpps.record.arrays import Ints

pytestmark = pytest.mark.host


def assert_good(found: Batches, graph: TypedGraph) -> None:
    assert len(found.stages) == graph.n
    assert (found.stages[graph.producers] < found.stages[graph.readers]).all()
    assert sorted(set(found.stages.tolist())) == list(range(found.n_stages))
    steps = set(zip(found.stages.tolist(), graph.type_of.tolist(), strict=True))
    assert learn(graph, LearningSettings(trials=0)).lower_bound <= len(steps) == found.n_steps <= len(found.sequence)
    assert set(np.bincount(found.sequence, minlength=graph.n_types).nonzero()[0]) == set(graph.type_of.tolist())


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(graph=typed_graphs())
def test_every_vertex_runs_once_and_after_what_it_reads(policy: str, graph: TypedGraph) -> None:
    assert_good(batches(graph, policy), graph)


@pytest.mark.parametrize("policy", PREFERENCES)
@settings(max_examples=60, deadline=None)
@given(graph=typed_graphs())
def test_policies_do_as_they_are_defined(policy: str, graph: TypedGraph) -> None:
    found = batches(graph, policy)
    assert (found.sequence, found.stages.tolist()) == by_definition(graph, policy)


@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
@settings(max_examples=60, deadline=None)
@given(graph=typed_graphs())
def test_stages_are_levels(policy: str, graph: TypedGraph) -> None:
    assert batches(graph, policy).stages.tolist() == graph.levels.tolist()


@pytest.mark.parametrize("kind", ENCODINGS)
@settings(max_examples=30, deadline=None)
@given(graph=typed_graphs(), other=typed_graphs(), phases=st.sampled_from([1, 3]), seed=st.integers(0, 2**64 - 1))
def test_machines_do_as_they_say(kind: str, graph: TypedGraph, other: TypedGraph, phases: int, seed: int) -> None:
    how = LearningSettings(trials=12, check_every=5, seed=seed, encoding=Encoding(kind, phases))
    machine = learn(graph, how).automaton
    for applied in (graph, other):  # the other graph has unknown states
        found = batches(applied, "fsm", machine)
        assert_good(found, applied)
        assert (found.sequence, found.stages.tolist(), found.unseen) == by_machine(applied, machine)


def test_what_is_no_policy_or_machine_is_refused() -> None:
    class Cut(Automaton):
        def numbers(self) -> Ints:
            return super().numbers()[:-1]

    with pytest.raises(ScriptError, match="knows no policy widest"):
        batches(figure_1(), "widest")
    with pytest.raises(ScriptError, match="cannot read an automaton"):
        batches(figure_1(), "fsm", Cut(Encoding("sort"), ((0, 0, 0),)))


@settings(max_examples=40, deadline=None)
@given(graph=typed_graphs(most=9, most_types=3))
def test_no_sequence_is_shorter_than_the_lower_bound(graph: TypedGraph) -> None:
    best, whole = typed.shortest(graph), Remaining(graph)
    bound = learn(graph, LearningSettings(trials=0)).lower_bound
    assert bound == sum(whole.depth(a) for a in range(graph.n_types)) <= best
    assert all(best <= len(batches(graph, policy).sequence) for policy in POLICIES)


def test_the_tree_of_the_paper() -> None:
    """ED-Batch, figure 1: 9 batches level by level, 7 by DyNet's agenda, 6 at least."""
    graph = figure_1()
    assert batches(graph, "depth").n_steps == 9
    assert len(batches(graph, "agenda").sequence) == 7
    assert len(batches(graph, "sufficient").sequence) == typed.shortest(graph) == 6
