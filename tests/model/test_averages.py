"""Moving averages of the weights equal their definition, are shown and saved on demand, and never affect training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.classifier import Classifier, new, same_bits
from tests.comparison import relative_error
from tests.engine.test_parameter_store import interrupt_next_launch
from tests.model.test_optim import DECAY, STEPS, make_batch, make_model

pytestmark = pytest.mark.cpu


def averages(model: vpps.Model) -> dict[str, NDArray[np.float32]]:
    return {p.name: p.average() for p in model}


def moved(
    before: dict[str, NDArray[np.float32]], weights: dict[str, NDArray[np.float32]], decay: float
) -> dict[str, NDArray[np.float64]]:
    """Return averages by definition: every element of every parameter is averaged at every update."""
    return {k: decay * np.float64(before[k]) + (1 - decay) * np.float64(w) for k, w in weights.items()}


def assert_near(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    for k, value in expected.items():
        assert relative_error(found[k], value) < 1e-5, k


@pytest.mark.parametrize("decay", [0, 0.5, 0.999])
def test_rows_of_tables_may_be_idle_for_many_updates(decay: float) -> None:
    model = vpps.Model(seed=2)
    table = model.lookup("E", (5, 33), init="normal")
    expected = model.numpy()

    def batch(*rows: int) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        return graph, vpps.sum([vpps.sum(vpps.square(graph.lookup(table, r))) for r in rows])

    rng = np.random.default_rng(1)
    with vpps.Handle(model, vpps.SGD(lr=lambda update: 0.1 / update), vps=2, ema=decay) as handle:
        for step in range(60):
            rare = [1] if step % 7 == 3 else [3] if step == 30 else []
            handle.fb(*batch(0, *rare, *([2, 2] if rng.random() < 0.2 else [])))
            expected = moved(expected, model.numpy(), decay)
            if step % 20 == 5:
                assert_near(averages(model), expected)
    assert_near(averages(model), expected)
    assert np.array_equal(table.average()[4], table.numpy()[4])  # never used
    if decay == 0:
        assert same_bits(averages(model), model.numpy())


class TestState:
    def test_another_decay_goes_on_with_the_averages_and_a_file_without_begins_anew(self, tmp_path: Path) -> None:
        net = new()
        net.model.save(tmp_path / "model")
        with vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=DECAY) as handle:
            net.train(handle, range(3))
        expected: dict[str, Any] = averages(net.model)
        with vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=0.4) as handle:
            assert same_bits(averages(net.model), expected)
            for seed in range(3, 6):
                if seed == 5:
                    net.model.restore(tmp_path / "model")
                    expected = net.model.numpy()
                    assert same_bits(averages(net.model), expected)
                net.train(handle, range(seed, seed + 1))
                expected = moved(expected, net.model.numpy(), 0.4)
                assert_near(averages(net.model), expected)

    def test_training_without_ends_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net = new()
        with vpps.Handle(net.model, ema=DECAY) as handle:
            net.train(handle, range(2))
        with vpps.Handle(net.model) as handle:
            assert handle.ema is None
            handle.forward(*_wanted(net))
            net.model["U"].average()
            with interrupt_next_launch(handle, monkeypatch):
                handle.fb(*net.batch(2))
            net.model["U"].average()
            handle.fb(*net.batch(2))
            with pytest.raises(vpps.ModelError, match="nothing has been averaged; train with Handle"):
                net.model["U"].average()
            with pytest.raises(vpps.ModelError, match="averaged: nothing"), net.model.averaged():
                pass


class TestShowing:
    def test_every_handle_evaluates_with_the_averages(self) -> None:
        net = new()
        with (
            vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=DECAY) as handle,
            vpps.Handle(net.model, train=False) as evaluator,
        ):
            net.train(handle, range(4))
            weights, means = net.model.numpy(), averages(net.model)
            twin = Classifier(vpps.Model())
            for p in twin.model:
                p.assign(means[p.name])
            with vpps.Handle(twin.model, train=False) as other:
                (expected,) = other.forward(*_wanted(twin))
            plain = handle.forward(*_wanted(net))[0]
            assert not np.array_equal(plain, expected)
            with net.model.averaged():
                assert same_bits(net.model.numpy(), means)
                assert same_bits(averages(net.model), means)
                for h in (handle, evaluator):
                    assert np.array_equal(h.forward(*_wanted(net))[0], expected)
                with vpps.Handle(net.model, train=False) as third:
                    assert np.array_equal(third.forward(*_wanted(net))[0], expected)
            for h in (handle, evaluator):
                assert np.array_equal(h.forward(*_wanted(net))[0], plain)
            assert same_bits(net.model.numpy(), weights)

    def test_a_step_is_explained_after_it_moved_the_averages(self) -> None:
        """The explained script holds factors for idle rows, which have changed by then."""
        model = make_model()
        with vpps.Handle(model, vps=1, ema=DECAY, verify=False) as handle:
            for step in range(1, STEPS + 1):
                handle.fb(*make_batch(model, step))
            assert "gathered through them" in handle.explain()

    def test_saving_inside_the_block_writes_a_model_to_use(self, tmp_path: Path) -> None:
        net = new()
        with vpps.Handle(net.model, vpps.Adam(lr=0.05), ema=DECAY) as handle:
            net.train(handle, range(3))
            means = averages(net.model)
            handle.fb(*net.batch(4), accumulate=True)
            with net.model.averaged():
                net.model.save(tmp_path / "averages")
            handle.fb(*net.batch(5))
        loaded = vpps.Model.load(tmp_path / "averages")
        assert same_bits(loaded.numpy(), means)
        assert (loaded.optimizer_state, loaded.averages, loaded.accumulated, loaded.step) == (None, None, None, 3)

    @pytest.mark.parametrize(
        "what, error",
        [
            (lambda net, handle: handle.fb(*net.batch(1)), vpps.HandleError),
            (lambda net, handle: handle.fb(*net.batch(1), accumulate=True), vpps.HandleError),
            (lambda net, handle: net.model["b"].assign(np.ones(20)), vpps.ModelError),
            (lambda net, handle: net.model.restore("nowhere"), vpps.ModelError),
            (lambda net, handle: net.model.averaged().__enter__(), vpps.ModelError),
            (lambda net, handle: handle.close() or vpps.Handle(net.model, vpps.Adam(), ema=0.9), vpps.HandleError),
            (lambda net, handle: (_ for _ in ()).throw(KeyError("averaged")), KeyError),
        ],
    )
    def test_the_block_ends_with_the_weights_and_what_would_change_them_is_refused(
        self, what: Callable[[Classifier, vpps.Handle], object], error: type[Exception]
    ) -> None:
        net, witness = new(), new()
        handle = vpps.Handle(net.model, vpps.Adam(), ema=DECAY)
        net.train(handle, range(2))
        with pytest.raises(error, match=r"averaged|leave the block"), net.model.averaged():
            what(net, handle)
        with handle if net.model.trainer else vpps.Handle(net.model, vpps.Adam(), ema=DECAY) as goes_on:
            net.train(goes_on, range(2, 4))
        with vpps.Handle(witness.model, vpps.Adam(), ema=DECAY) as other:
            witness.train(other, range(4))
        assert same_bits(net.model.numpy(), witness.model.numpy())
        assert same_bits(averages(net.model), averages(witness.model))


def _wanted(net: Classifier) -> tuple[vpps.Graph, list[vpps.Expression]]:
    graph = vpps.Graph()
    return graph, [net.logits(graph, [1, 5, 3])]
