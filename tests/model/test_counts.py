"""Bias correction counts the steps of each parameter, as in PyTorch: whenever one begins, its first step is no longer
than those of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.classifier import same_bits

TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]
RATE = 0.25


class Net:
    """Two matrices that may be stacked, and a table; gradients do not change, so that steps of Adam are as long as the
    rate."""

    def __init__(self, late: bool = False) -> None:
        self.model = vpps.Model(seed=1)
        self.U = self.model.parameter("U", (32, 32))
        if not late:
            self.declare()

    def declare(self) -> None:
        self.V = self.model.parameter("V", (32, 32))
        self.T = self.model.lookup("T", (3, 32))

    def batch(self, touches: bool) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        x = graph.input(np.linspace(1, 2, 32))
        if not touches:
            return graph, vpps.sum(self.U @ x)
        y, z = graph.call(lambda x: (self.U @ x, self.V @ x), x)
        return graph, vpps.sum(y + z + graph.lookup(self.T, 1))


@contextmanager
def handle_of(model: vpps.Model, target: str) -> Iterator[vpps.Handle]:
    with vpps.Handle(model, vpps.Adam(lr=RATE), target=target, vps=2) as handle:
        yield handle


def step(handle: vpps.Handle, net: Net, touches: bool, path: str = "fb") -> None:
    graph, loss = net.batch(touches)
    if path == "fb":
        handle.fb(graph, loss)
    elif path == "apply":
        handle.apply(handle.gradients(graph, loss)[1])
    elif path == "halves":
        handle.forward(graph, [loss], train=True, update=True)
        handle.backward([1.0])
    else:
        handle.fb(*net.batch(False), accumulate=True)
        handle.fb(graph, loss)


CASES = [
    *(pytest.param(path, "cpu", marks=pytest.mark.cpu) for path in ("fb", "apply", "halves", "accumulate")),
    pytest.param("fb", "simt", marks=pytest.mark.simt),
]


@pytest.mark.parametrize("path, target", CASES)
@pytest.mark.parametrize("how", ["untouched", "frozen", "late", "restored"])
def test_the_first_steps_of_a_parameter_are_no_longer_than_others(
    how: str, path: str, target: str, tmp_path: Path
) -> None:
    net = Net(late=how in ("late", "restored"))
    with handle_of(net.model, target) as handle:
        if how == "frozen":
            net.V.trainable = net.T.trainable = False
        for _ in range(9):
            step(handle, net, touches=how == "frozen", path=path)
        if how == "frozen":
            net.V.trainable = net.T.trainable = True
        elif how == "late":
            net.declare()
        elif how == "restored":
            net.model.save(tmp_path / "model")
            net.declare()
            net.model.restore(tmp_path / "model", strict=False)
        for _ in range(3):
            before = net.model.numpy()
            step(handle, net, touches=True, path=path)
            moved = {name: before[name] - w for name, w in net.model.numpy().items()}
            for name in "UV":
                np.testing.assert_allclose(moved[name], RATE, rtol=1e-4)
            np.testing.assert_allclose(moved["T"], [[0] * 32, [RATE] * 32, [0] * 32], rtol=1e-4)
    assert net.model.optimizer_state is not None
    assert net.model.optimizer_state.counts == {"U": 12, "V": 3, "T": 3}


class Gates(Net):
    """Two matrices that are stacked as long as they take the same steps."""

    def batch(self, touches: bool) -> tuple[vpps.Graph, vpps.Expression]:
        gate = vpps.cell(lambda h: vpps.tanh(self.U @ h) * vpps.sigmoid(self.V @ h))
        graph = vpps.Graph()
        return graph, vpps.sum(gate(gate(graph.input(np.linspace(-1, 1, 32)))))


@pytest.mark.parametrize("target", TARGETS)
def test_a_resumed_run_has_the_bits_of_one_without_a_break(target: str, tmp_path: Path) -> None:
    """Also where parameters that would be stacked have taken other numbers of steps."""
    net, resumed = Gates(), Gates()
    with handle_of(net.model, target) as handle:
        net.V.trainable = False
        step(handle, net, touches=True)
        net.V.trainable = True
        step(handle, net, touches=True)
        net.model.save(tmp_path / "model")
        step(handle, net, touches=True)
        assert not handle._engine.store.distribution.stacks.all
    resumed.model.restore(tmp_path / "model")
    with handle_of(resumed.model, target) as handle:
        step(handle, resumed, touches=True)
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
    with handle_of(net.model, "cpu") as handle:
        for _ in range(3):
            step(handle, net, touches=True)
    net.model.save(tmp_path / "model")

    def as_before(_: object, description: dict[str, object]) -> None:
        del description["counts"]
        description["since"] = 1

    rewrite(tmp_path / "model", as_before)
    state = vpps.Model.load(tmp_path / "model").optimizer_state
    assert state is not None
    assert state.counts == dict.fromkeys("UVT", 2)
