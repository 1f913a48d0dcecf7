"""Loss and all gradients of every network equal PyTorch's autograd on equal weights, for batches of real data.

The PyTorch programs are the benches' peers (bench/peers/torch_zoo), written separately from ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.kernels import emulate_with_one
from tests.zoo.cases import Case, every_case
from vpps.zoo.task import Task

pytestmark = pytest.mark.frameworks("torch")

TOLERANCE = 1e-4
SCHEDULES = ("vector", "paper")
BENCH = Path(__file__).parents[2] / "bench"


def assert_agrees_with_torch(task: Task, target: str, batch_sizes: tuple[int, ...], seed: int = 1) -> None:
    """Random batches, both schedules, both forms of the PyTorch program: batched manually, and vertex by vertex."""
    if str(BENCH) not in sys.path:
        sys.path.insert(0, str(BENCH))
    from peers.torch_zoo import PROGRAMS

    rng = np.random.default_rng(seed)
    batches = [task.train[rng.choice(len(task.train), size, replace=False)] for size in batch_sizes]
    programs = [PROGRAMS[task.name](task, per_node=per_node) for per_node in (False, True)]
    results = {}
    for schedule in SCHEDULES:
        with vpps.Handle(task.model, target=target, schedule=schedule) as handle:
            for k, batch in enumerate(batches):
                graph = vpps.Graph()
                results[schedule, k] = handle.gradients(graph, task.loss(graph, batch))
    for k, batch in enumerate(batches):
        for program in programs:
            expected_loss, expected = program.gradients(batch)
            for schedule in SCHEDULES:
                loss, gradients = results[schedule, k]
                assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
                assert gradients.keys() == expected.keys()
                assert any(g.any() for g in gradients.values())
                for name, gradient in gradients.items():
                    error = relative_error(gradient, expected[name].astype(np.float64))
                    assert error <= TOLERANCE, f"{name}: relative error {error:.1e}, schedule {schedule}"


@pytest.mark.cpu
@every_case
def test_cpu(case: Case, real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_PASSES", "all")  # the users' kernel, tails included
    monkeypatch.setenv("VPPS_VERIFY", "0")
    task = case.make(real_data(case.data) if case.data else None, limit=200)
    assert_agrees_with_torch(task, "cpu", batch_sizes=(1, 4, 8))


@pytest.mark.simt
@every_case
def test_simt(case: Case, real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are in memory. test_against_reference.py finds races, verifies scripts and puts weights on the chip."""
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")
    monkeypatch.setenv("VPPS_VERIFY", "0")
    emulate_with_one(monkeypatch)
    task = case.make(real_data(case.data) if case.data else None, limit=40)
    assert_agrees_with_torch(task, "simt", batch_sizes=(1, 2))
