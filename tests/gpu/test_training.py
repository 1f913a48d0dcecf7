"""Handles on a GPU: training, interrupted and stopped launches, two models at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from tests.comparison import FORWARD_TOLERANCE, relative_error
from tests.runtime import test_processes as processes
from tests.runtime.test_cpu import stop_next_launch
from tests.training import ReferenceTraining
from vpps.runtime.cuda import CudaMachine

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "test",
    [
        processes.test_ctrl_c_ends_a_program_that_does_not_catch_it,
        processes.test_ctrl_c_leaves_a_handle_that_works_on,
        processes.test_ctrl_c_at_any_moment_leaves_a_handle_that_works_on,
    ],
)
def test_ctrl_c(test: Callable[[str], None]) -> None:
    """Runs the other targets' tests on the GPU."""
    test("cuda")


@pytest.mark.parametrize("end", processes.ENDS)
def test_an_end_without_close_is_clean(end: str) -> None:
    processes.test_an_end_without_close_during_a_launch_is_clean("cuda", end)


def test_training_follows_the_reference() -> None:
    """A small case, because it also runs under compute-sanitizer."""
    net = new()
    witness = ReferenceTraining(net.model, vpps.SGD(lr=0.1))
    with vpps.Handle(net.model) as handle:
        assert isinstance(handle._engine.machine, CudaMachine)
        expected = [witness.fb(*net.batch(seed)) for seed in range(5)]
        assert np.allclose(net.train(handle, range(5)), expected, rtol=FORWARD_TOLERANCE)
    for p in net.model:
        assert relative_error(p.numpy(), witness.weights[p.name]) < 1e-5, p.name


def test_steps_that_nobody_waits_for_have_the_bits_of_those_that_are_waited_for() -> None:
    nets = [new(), new()]
    losses = []
    for net in nets:
        found = []
        with vpps.Handle(net.model, vpps.Adam(lr=0.01), clip_norm=1.0) as handle:
            batches = [net.batch(seed, sentences=1 + seed % 20) for seed in range(60)]
            for batch in batches:
                found.append(handle.fb(*batch))
                if net is nets[0]:
                    handle.sync_get_latest_loss()
            found.append(handle.sync_get_latest_loss())
        losses.append(found[1:])
    assert losses[0] == losses[1]
    assert same_bits(nets[0].model.numpy(), nets[1].model.numpy())


def test_values_are_there_for_other_libraries() -> None:
    """An unrelated stream reads them immediately."""
    cupy = pytest.importorskip("cupy")
    net = new()
    with vpps.Handle(net.model) as handle:
        for seed in range(20):
            graph, loss = net.batch(seed)
            logits = net.logits(graph, [1, 2, 3])
            handle.forward(graph, [loss, logits])
            with cupy.cuda.Stream(non_blocking=True) as stream:
                seen = cupy.asnumpy(handle.device_value(logits) * 2)
                stream.synchronize()
            assert np.array_equal(seen, handle.value(logits) * 2)
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        with vpps.Handle(net.model) as handle:
            handle.forward(graph, [logits])
            tensor = torch.from_dlpack(handle.device_value(logits))
            assert np.array_equal(tensor.cpu().numpy(), handle.value(logits))
            back = graph.input(tensor)
            assert np.array_equal(handle.forward(graph, [back])[0], tensor.cpu().numpy())


def test_auto_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VPPS_TARGET")
    with vpps.Handle(new().model) as handle:
        assert isinstance(handle._engine.machine, CudaMachine)


@pytest.mark.parametrize("behind", [False, True])
def test_a_stopped_launch_is_an_error_in_the_users_words_and_the_handle_works_on(behind: bool) -> None:
    """A step queued behind the stopped launch does not run."""
    net, witness = new(), new()
    with vpps.Handle(net.model) as handle, vpps.Handle(witness.model) as other:
        handle.fb(*net.batch(0))
        stop_next_launch(handle)
        handle.fb(*net.batch(1))
        batch = net.batch(2)
        with pytest.raises(vpps.KernelError, match=r"cell .\w+\.read., op '\S+'.*, from call \d+"):
            handle.fb(*batch) if behind else handle.sync_get_latest_loss()
        assert net.model.step == 2
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
