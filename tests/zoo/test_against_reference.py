"""Losses, outputs and gradients of every network equal those of the float64 reference, on synthetic data."""

from __future__ import annotations

import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, assert_agrees_with_reference, relative_error
from tests.kernels import emulate_with_one
from tests.zoo.cases import CASES, Case, every_case
from vpps.reference import Reference, weights_of
from vpps.zoo.tasks import TASKS

# Networks of all kinds, each with its own kernel. Other networks are similar, or in tests/simt/test_slots.py.
ON_CHIP = [
    CASES[name]
    for name in (
        "tree-lstm-2type", "td-lstm", "bilstm-char-tagger", "nmt with attention", "lattice-gru"
    )
]  # fmt: skip


@pytest.mark.host
def test_every_task_has_a_case() -> None:
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.mark.host
@every_case
def test_a_shard_without_examples_has_a_loss_of_zero_and_outputs_of_no_rows(case: Case) -> None:
    task = case.make(limit=4)
    batch, graph = task.train[[]], vpps.Graph()
    loss = task.loss(graph, batch) * (1 / 3)
    reference = Reference(graph, weights_of(task.model))
    assert (task.units(batch), loss.shape, float(reference.value(loss))) == (0, (), 0.0)
    assert not any(gradient.any() for gradient in reference.backward(loss).values())
    assert len(task.outputs(vpps.Graph(), batch)) == 0


@pytest.mark.cpu
@every_case
def test_cpu(case: Case) -> None:
    task = case.make()
    graph = vpps.Graph()
    batch = task.train[:3]
    loss = task.loss(graph, batch) * (1 / len(batch))
    outputs = task.outputs(graph, batch)
    assert_agrees_with_reference(task.model, graph, loss, list(outputs)[:50], vp_counts=(1, 3))


@pytest.mark.simt
@every_case
def test_simt(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA kernel under emulation, with the search for races; with PyTorch, test_against_torch.py covers more."""
    if case not in ON_CHIP:
        emulate_with_one(monkeypatch)
    task = case.make()
    graph = vpps.Graph()
    loss = task.loss(graph, task.train[:2])
    reference = Reference(graph, weights_of(task.model))
    expected = reference.backward(loss)
    with vpps.Handle(task.model, target="simt") as handle:
        got, gradients = handle.gradients(graph, loss)
    assert got == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
    for name, gradient in gradients.items():
        assert relative_error(gradient, expected[name]) <= GRADIENT_TOLERANCE, name
