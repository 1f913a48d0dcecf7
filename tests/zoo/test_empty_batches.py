"""A shard that has got no graphs of a mini-batch: every task records a loss of zero, and outputs of no rows."""

from __future__ import annotations

import pytest

import vpps
from tests.zoo.cases import Case, every_case
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host


@every_case
def test_loss_is_zero_without_gradients(case: Case) -> None:
    task = case.make(limit=4)
    batch, graph = task.train[[]], vpps.Graph()
    loss = task.loss(graph, batch) * (1 / 3)
    reference = Reference(graph, weights_of(task.model))
    assert (task.units(batch), loss.shape, float(reference.value(loss))) == (0, (), 0.0)
    assert not any(gradient.any() for gradient in reference.backward(loss).values())


@every_case
def test_outputs_have_no_rows(case: Case) -> None:
    task = case.make(limit=4)
    assert len(task.outputs(vpps.Graph(), task.train[[]])) == 0
