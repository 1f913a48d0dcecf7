"""Handles on a GPU: training, interrupted and stopped launches, two models at once."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from tests.comparison import relative_error
from tests.runtime.test_cpu import TestCtrlC, TestExit, stop_next_launch
from vpps.runtime.cuda import CudaMachine

pytestmark = pytest.mark.gpu
__all__ = ["TestCtrlC", "TestExit"]  # run here once more, on the GPU


def test_training_follows_the_cpu() -> None:
    """A small case: it is what compute-sanitizer watches, too."""
    net, witness = new(), new()
    with vpps.Handle(net.model) as handle, vpps.Handle(witness.model, target="cpu") as other:
        assert isinstance(handle._machine, CudaMachine)
        assert np.allclose(net.train(handle, range(5)), witness.train(other, range(5)), rtol=1e-5)
    for p in net.model:
        assert relative_error(p.numpy(), witness.model[p.name].numpy()) < 1e-5, p.name


def test_runs_are_equal_to_the_last_bit() -> None:
    nets = [new(), new()]
    for net in nets:
        with vpps.Handle(net.model, vpps.Adam(lr=0.01), clip_norm=1.0) as handle:
            net.train(handle, range(10))
    assert same_bits(nets[0].model.numpy(), nets[1].model.numpy())


def test_auto_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VPPS_TARGET")
    with vpps.Handle(new().model) as handle:
        assert isinstance(handle._machine, CudaMachine)


def test_a_stopped_launch_is_an_error_in_the_users_words_and_the_handle_works_on() -> None:
    net, witness = new(), new()
    with vpps.Handle(net.model) as handle, vpps.Handle(witness.model) as other:
        stop_next_launch(handle)
        handle.fb(*net.batch(1))
        with pytest.raises(vpps.KernelError, match=r"cell .\w+\.read., op '\S+'.*, from call \d+"):
            handle.sync_get_latest_loss()
        for p in net.model:
            p.assign(witness.model[p.name].numpy())
        assert net.train(handle, range(3)) == witness.train(other, range(3))
    assert same_bits(net.model.numpy(), witness.model.numpy())


def test_two_models_train_at_once() -> None:
    together, alone = [new(1), new(2)], [new(1), new(2)]
    with vpps.Handle(together[0].model) as first, vpps.Handle(together[1].model) as second:
        for seed in range(20):
            first.fb(*together[0].batch(seed))
            second.fb(*together[1].batch(seed))
    for net in alone:
        with vpps.Handle(net.model) as handle:
            net.train(handle, range(20))
    for a, b in zip(together, alone, strict=True):
        assert same_bits(a.model.numpy(), b.model.numpy())
