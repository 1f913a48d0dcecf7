"""Steps of more shards than one, in a world of one process: what belongs to which step, and what is refused."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vpps
import vpps.distributed

pytestmark = pytest.mark.cpu

WIDTH = 8


class Net:
    """A matrix and a mask."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=2)
        self.W = self.model.parameter("W", (WIDTH, WIDTH))
        self.world = vpps.distributed.init("alone", shards=2)

    def handle(self) -> vpps.Handle:
        return vpps.Handle(self.model, vpps.SGD(0.1), target="cpu", vps=1, world=self.world)

    def loss(self, k: int) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        h = self.W @ vpps.dropout(graph.input(np.cos(np.arange(WIDTH) + k).astype(np.float32)), 0.5)
        return graph, vpps.sum(h * h)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def handle(net: Net) -> Iterator[vpps.Handle]:
    with net.handle() as handle:
        yield handle


def test_the_last_shard_makes_the_step(net: Net, handle: vpps.Handle) -> None:
    for k in range(4):
        assert net.model.step == k // 2
        handle.fb(*net.loss(k))
    assert net.model.step == 2


def test_shards_of_other_weights_are_forgotten(net: Net, handle: vpps.Handle, tmp_path: Path) -> None:
    net.model.save(tmp_path / "kept")
    handle.fb(*net.loss(0))
    net.W.assign(2 * net.W.host)
    with pytest.raises(vpps.HandleError, match=r"weights .* have changed since the first shards of this step"):
        handle.fb(*net.loss(1))
    handle.fb(*net.loss(0))
    net.model.restore(tmp_path / "kept")
    with pytest.raises(vpps.HandleError, match="are forgotten; begin the step again"):
        handle.fb(*net.loss(1))
    handle.fb(*net.loss(0))
    handle.discard_accumulated()
    for k in range(2):
        handle.fb(*net.loss(k))
    assert net.model.step == 1
    other = Net()
    with other.handle() as clean:
        for k in range(2):
            clean.fb(*other.loss(k))
    assert np.array_equal(net.W.numpy(), other.W.numpy())


def test_what_does_not_fit_into_a_step_is_refused(net: Net, handle: vpps.Handle) -> None:
    handle.fb(*net.loss(0), accumulate=True)
    with pytest.raises(vpps.HandleError, match=r"fb: 1 of the 2 shards .* accumulate=False is not what these had"):
        handle.fb(*net.loss(1))
    with pytest.raises(vpps.HandleError, match=r"apply: 1 of the 2 shards .* give fb the others first"):
        handle.apply({})
    with pytest.raises(vpps.HandleError, match=r"forward\(update=True\): a rank by itself"):
        handle.forward(net.loss(0)[0], [net.loss(0)[1]], update=True)
    handle.fb(*net.loss(1), accumulate=True)
    assert (net.model.step, handle.accumulated) == (0, 1)


def test_an_error_ends_the_step(net: Net, handle: vpps.Handle) -> None:
    handle.fb(*net.loss(0))
    with pytest.raises(vpps.GraphError):
        handle.fb(vpps.Graph(), net.loss(1)[1])
    handle.fb(*net.loss(1))
    assert net.model.step == 1  # that was refused before it was a shard


def test_masks_follow_the_shard(net: Net, handle: vpps.Handle) -> None:
    """Those of halves, too."""
    values = []
    for _ in range(2):
        graph, loss = net.loss(0)
        values.append(handle.forward(graph, [loss], train=True)[0])
        handle.fb(graph, loss)
    assert values[0] != values[1]
    assert handle.sync_get_latest_loss() == pytest.approx(sum(map(float, values)))


def test_masks_of_an_example_follow_no_shard(net: Net, handle: vpps.Handle) -> None:
    """They are those of a handle without a world, for every draw."""

    def values(of: vpps.Handle, draw: int) -> np.ndarray:  # type: ignore[type-arg]
        graph = vpps.Graph()
        with graph.example(3):
            y = vpps.dropout(graph.input(np.ones(64)), 0.5)
        found: np.ndarray = of.forward(graph, [y], train=True, draw=draw)[0]  # type: ignore[type-arg]
        return found

    alone = vpps.Handle(Net().model, vpps.SGD(0.1), target="cpu", vps=1)
    expected = [values(alone, draw) for draw in range(2)]
    assert not np.array_equal(*expected)
    for k in range(2):
        assert np.array_equal([values(handle, draw) for draw in range(2)], expected)
        handle.fb(*net.loss(k))
    alone.close()


def test_no_shard_has_anything_to_learn(net: Net, handle: vpps.Handle) -> None:
    net.W.trainable = False
    handle.fb(*net.loss(0))
    with pytest.raises(vpps.NoGradientError, match="in no shard of any rank"):
        handle.fb(*net.loss(1))
    assert net.model.step == 0


def test_values_are_gone_after_a_step(net: Net, handle: vpps.Handle) -> None:
    handle.fb(*net.loss(0))
    graph, loss = net.loss(1)
    handle.fb(graph, loss)
    with pytest.raises(vpps.GraphError, match=r"value: the latest launch was an update, .* ask forward"):
        handle.value(loss)


def test_a_handle_closes_within_a_step(net: Net) -> None:
    handle = net.handle()
    handle.fb(*net.loss(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="1 of the 2 shards of a step were given to fb"):
            handle.close()
    net.handle().close()  # it is


def test_a_world_of_one_is_any_threads(net: Net, handle: vpps.Handle) -> None:
    thread = threading.Thread(target=lambda: [handle.fb(*net.loss(k)) for k in range(2)])
    thread.start()
    thread.join()
    assert net.model.step == 1
