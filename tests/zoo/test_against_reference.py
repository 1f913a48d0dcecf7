"""Losses, outputs and gradients of every network are those of the float64 reference, on synthetic data."""

from __future__ import annotations

import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from tests.zoo.cases import CASES, Case, every_case
from vpps.zoo.tasks import TASKS


@pytest.mark.host
def test_every_task_has_a_case() -> None:
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.mark.cpu
@every_case
def test_cpu(case: Case) -> None:
    task = case.make()
    graph = vpps.Graph()
    batch = task.train[:3]
    loss = task.loss(graph, batch) * (1 / len(batch))
    outputs = task.outputs(graph, batch)
    assert_agrees_with_reference(task.model, graph, loss, list(outputs)[:50], vp_counts=(1, 3))
