"""Learned machines: their results, their reproducibility, and their fallback in unknown states."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.policies.typed import figure_1, lattice, typed_graphs
from vpps.model.learned_policy import ENCODINGS, Automaton, Encoding, LearnedPolicy, LearnedRecurrence
from vpps.planner.native.typed_graphs import LearningSettings, TypedGraph, batches, learn

pytestmark = pytest.mark.host

QUICK = LearningSettings(trials=60)


# Batches, stages, states and a checksum, by encoding and phases. Those with one phase were learned by a Python version.
FIRST_VERSION = {
    ("base", 1): (45, 35, 7, 1585116699), ("base", 3): (40, 34, 21, 501232257), ("max", 1): (42, 36, 12, 3826588443),
    ("max", 3): (39, 34, 33, 3390511176), ("sort", 1): (39, 35, 11, 3601815989), ("sort", 3): (39, 31, 23, 3746826422),
    ("critical", 1): (33, 30, 13, 3357687277), ("critical", 3): (33, 30, 23, 3559878651),
}  # fmt: skip


@pytest.mark.parametrize("kind, phases", FIRST_VERSION)
def test_what_is_learned_is_the_same_everywhere(kind: str, phases: int) -> None:
    """Random numbers, the order of additions and every decision matter: one difference changes everything after it."""
    graph = lattice(np.random.default_rng(5), 6, 20)
    how = LearningSettings(encoding=Encoding(kind, phases), trials=40, horizon=8, seed=2**64 - 59)
    found = learn(graph, how)
    digest = zlib.crc32(found.automaton.numbers().astype("<i8"))
    assert (found.batches, found.stages, len(found.automaton.states), digest) == FIRST_VERSION[kind, phases]
    assert (found.trials, found.lower_bound) == (40, 28)


@pytest.mark.parametrize("kind", ENCODINGS)
def test_machines_batch_the_tree_of_the_paper_as_well_as_possible(kind: str) -> None:
    found = learn(figure_1(), replace(QUICK, encoding=Encoding(kind)))
    assert (found.batches, found.lower_bound) == (6, 6)
    assert found.trials == 0  # the run before any learning already reaches the bound
    assert batches(figure_1(), "fsm", found.automaton).unseen == 0  # no unknown state


@pytest.mark.parametrize("ends", [0, 2])
def test_lattices_take_fewer_batches_than_level_by_level(ends: int) -> None:
    graph = lattice(np.random.default_rng(3), 24, 30, ends)
    by_level = len(set(zip(graph.levels.tolist(), graph.type_of.tolist(), strict=True)))
    found = learn(graph, QUICK)
    assert found.lower_bound <= found.batches < 0.8 * by_level
    assert found.lower_bound <= batches(graph, "critical").n_steps < 0.8 * by_level


@pytest.mark.parametrize("kind", ENCODINGS)
def test_a_machine_is_no_worse_than_what_learning_begins_with(kind: str) -> None:
    graph = lattice(np.random.default_rng(3), 6, 24)
    began = learn(graph, replace(QUICK, trials=0, encoding=Encoding(kind)))
    found = learn(graph, replace(QUICK, encoding=Encoding(kind)))
    assert (found.batches, found.stages) <= (began.batches, began.stages)
    if kind == "critical":
        by_policy = batches(graph, "critical")
        assert (began.batches, began.stages) == (by_policy.n_steps, by_policy.n_stages)


@settings(max_examples=20, deadline=None)
@given(graph=typed_graphs(most=15, most_types=3), kind=st.sampled_from(ENCODINGS), phases=st.integers(1, 3))
def test_machines_survive_json_and_numbers(graph: TypedGraph, kind: str, phases: int) -> None:
    found = learn(graph, replace(QUICK, trials=3, encoding=Encoding(kind, phases)))
    assert Automaton.from_numbers(found.automaton.numbers()) == found.automaton
    digests = tuple(f"{k:016x}" for k in range(graph.n_types))
    policy = LearnedPolicy((LearnedRecurrence(digests, digests, found.automaton, found.batches, found.lower_bound),))
    assert LearnedPolicy.from_json(json.loads(json.dumps(policy.as_json()))) == policy


WRONG: list[dict[str, object]] = [
    *({"encoding": x} for x in ("other", [])),
    *({"phases": x} for x in (0, 10**30)),
    *({"states": x} for x in ([[0, 1, 5]], [[0, 7, 7]], [[1, 0, 0]], [[0]], [["0", 0, 0]], [[0, 0, 1, True]], 3)),
    *({"digests": x} for x in (["0", "no number"], ["0", "1" * 17], [1, 2])),
    {"cells": 1},
    {"batches": 1.5},
]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_no_learned_policy_is_refused(change: dict[str, object]) -> None:
    machine = Automaton(Encoding("sort"), ((0, 0, 1, 1), (0, 1, 1)))
    good = LearnedPolicy((LearnedRecurrence(("a", "b"), ("0", "f"), machine, 3, 2),))
    (kept,) = json.loads(json.dumps(good.as_json()))
    assert LearnedPolicy.from_json([kept]) == good
    for wrong in ([kept | change], [{k: v for k, v in kept.items() if k not in change}], kept, 1):
        with pytest.raises((LookupError, TypeError, ValueError)):
            LearnedPolicy.from_json(wrong)  # type: ignore[arg-type]
