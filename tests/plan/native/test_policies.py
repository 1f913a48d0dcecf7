"""Policies in compiled code do, and learn, bit by bit what those in Python do."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.policies.typed import typed_graphs
from tests.plan.test_random_graphs import examples
from vpps.plan.native import library, policies
from vpps.plan.policies.agenda import agenda
from vpps.plan.policies.batching import Batches
from vpps.plan.policies.cost import Load, costs_on
from vpps.plan.policies.critical import critical
from vpps.plan.policies.frontier import Wiring
from vpps.plan.policies.learning import Learned, Settings, batches_of, learn
from vpps.plan.policies.machine import ENCODINGS, Encoding
from vpps.plan.policies.sufficient import sufficient
from vpps.plan.policies.typed_graph import TypedGraph

IN_PYTHON = {"agenda": agenda, "sufficient": sufficient, "critical": critical}
SETTINGS = Settings(trials=12, check_every=5)


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    return library._loader.load()


def assert_same(found: Batches, expected: Batches) -> None:
    assert found.sequence == expected.sequence
    assert np.array_equal(found.stages, expected.stages)
    assert (found.n_stages, found.n_steps) == (expected.n_stages, expected.n_steps)


@examples(100)
@given(graph=typed_graphs())
def test_batches(lib: ctypes.CDLL, graph: TypedGraph) -> None:
    for policy, in_python in IN_PYTHON.items():
        found, _ = policies.batches(lib, graph, policy)
        assert_same(found, in_python(Wiring(graph)))
    assert policies.lower_bound(lib, graph) == graph.lower_bound


def assert_same_learned(found: Learned, expected: Learned) -> None:
    assert found.machine == expected.machine
    assert replace(found, machine=expected.machine, seconds=0) == replace(expected, seconds=0)


@examples(50)
@given(
    graph=typed_graphs(),
    other=typed_graphs(),
    kind=st.sampled_from(ENCODINGS),
    phases=st.sampled_from([1, 3]),
    reward=st.sampled_from(["batches", "time"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_machines(
    lib: ctypes.CDLL, graph: TypedGraph, other: TypedGraph, kind: str, phases: int, reward: str, seed: int
) -> None:
    settings = replace(SETTINGS, encoding=Encoding(kind, phases), reward=reward, seed=seed, horizon=1 + seed % 8)
    costs = costs_on("cpu", 2).of(Load(1e5 * (1 + a), a % 3) for a in range(graph.n_types))
    learned = learn(graph, settings, costs)
    assert_same_learned(policies.learn_with(lib, graph, settings, costs), learned)
    for applied in (graph, other):  # which has states that are not known
        batches, unseen = batches_of(Wiring(applied), learned.machine)
        found, n_unseen = policies.batches(lib, applied, "fsm", learned.machine)
        assert_same(found, batches)
        assert n_unseen == unseen
