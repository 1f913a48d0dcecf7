"""Bias correction counts each parameter's steps, as in PyTorch: a late parameter's first step is no longer than other
parameters' first steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.classifier import same_bits

TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]
RATE = 0.25


class Net:
    """Two matrices that are stacked as long as they take the same steps, and a table. Gradients of `batch` are
    constant, so Adam's steps are as long as the learning rate."""

    def __init__(self, late: bool = False) -> None:
        self.model = vpps.Model(seed=1)
        self.U = self.model.parameter("U", (32, 32))
        if not late:
            self.declare()

    def declare(self) -> None:
        self.V = self.model.parameter("V", (32, 32))
        self.T = self.model.lookup("T", (3, 32))

    def batch(self, touches: bool = True) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        x = graph.input(np.linspace(1, 2, 32))
        if not touches:
            return graph, vpps.sum(self.U @ x)
        y, z = graph.call(lambda x: (self.U @ x, self.V @ x), x)
        return graph, vpps.sum(y + z + graph.lookup(self.T, 1))

    def gates(self) -> tuple[vpps.Graph, vpps.Expression]:
        gate = vpps.cell(lambda h: vpps.tanh(self.U @ h) * vpps.sigmoid(self.V @ h))
        graph = vpps.Graph()
        return graph, vpps.sum(gate(gate(graph.input(np.linspace(-1, 1, 32)))))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["frozen", "restored"])
def test_the_first_steps_of_a_parameter_are_no_longer_than_others(how: str, target: str, tmp_path: Path) -> None:
    """tests/fuzz and tests/model/test_optim.py test untouched and late parameters."""
    net = Net(late=how == "restored")
    with vpps.Handle(net.model, vpps.Adam(lr=RATE), target=target, vps=2) as handle:
        if how == "frozen":
            net.V.trainable = net.T.trainable = False
        for _ in range(9):
            handle.fb(*net.batch(how == "frozen"))
        if how == "frozen":
            net.V.trainable = net.T.trainable = True
        else:
            net.model.save(tmp_path / "model")
            net.declare()
            net.model.restore(tmp_path / "model", strict=False)
        for _ in range(3):
            before = net.model.numpy()
            handle.fb(*net.batch())
            moved = {name: before[name] - w for name, w in net.model.numpy().items()}
            for name in "UV":
                np.testing.assert_allclose(moved[name], RATE, rtol=1e-4)
            np.testing.assert_allclose(moved["T"], [[0] * 32, [RATE] * 32, [0] * 32], rtol=1e-4)
    assert net.model.optimizer_state is not None
    assert net.model.optimizer_state.counts == {"U": 12, "V": 3, "T": 3}


@pytest.mark.parametrize("target", TARGETS)
def test_a_resumed_run_has_the_bits_of_one_without_a_break(target: str, tmp_path: Path) -> None:
    """Covers parameters in one stack that have taken different numbers of steps."""
    net, resumed = Net(), Net()
    with vpps.Handle(net.model, vpps.Adam(lr=RATE), target=target, vps=2) as handle:
        net.V.trainable = False
        handle.fb(*net.gates())
        net.V.trainable = True
        handle.fb(*net.gates())
        net.model.save(tmp_path / "model")
        handle.fb(*net.gates())
        assert not handle._engine.store.distribution.stacks.all
    resumed.model.restore(tmp_path / "model")
    with vpps.Handle(resumed.model, vpps.Adam(lr=RATE), target=target, vps=2) as handle:
        handle.fb(*resumed.gates())
    for model in (net.model, resumed.model):
        assert model.optimizer_state is not None
        assert model.optimizer_state.counts == {"U": 3, "V": 2}
        assert model.cell_history is not None
        assert len(model.cell_history.apart) == 1
    assert same_bits(resumed.model.numpy(), net.model.numpy())


@pytest.mark.cpu
def test_files_of_older_versions_have_the_count_of_the_model(tmp_path: Path) -> None:
    from tests.model.test_checkpoint import rewrite

    net = Net()
    with vpps.Handle(net.model, vpps.Adam(lr=RATE), vps=2) as handle:
        for _ in range(3):
            handle.fb(*net.batch())
    net.model.save(tmp_path / "model")

    def as_before(_: object, description: dict[str, object]) -> None:
        del description["counts"]
        description["since"] = 1

    rewrite(tmp_path / "model", as_before)
    state = vpps.Model.load(tmp_path / "model").optimizer_state
    assert state is not None
    assert state.counts == dict.fromkeys("UVT", 2)
