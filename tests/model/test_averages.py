"""Moving averages of the weights equal their definition, are shown and saved on demand, and never disturb training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.classifier import Classifier, new, same_bits
from tests.comparison import VP_COUNTS, relative_error
from tests.engine.test_parameter_store import interrupt_next_launch
from tests.model.test_optim import OPTIMIZERS, STEPS, make_batch, make_model
from tests.training import ReferenceTraining

pytestmark = pytest.mark.cpu

DECAY = 0.7  # averages of few steps differ from both the weights and where they began


def averages(model: vpps.Model) -> dict[str, NDArray[np.float32]]:
    return {p.name: p.average() for p in model}


class DenseAverages:
    """The definition, in float64: every element of every trained parameter moves at every update."""

    def __init__(self, weights: dict[str, Any], decay: float) -> None:
        self.decay = decay
        self.values = {k: np.array(w, np.float64) for k, w in weights.items()}

    def follow(self, weights: dict[str, Any]) -> None:
        for k, w in weights.items():
            self.values[k] = self.decay * self.values[k] + (1 - self.decay) * np.asarray(w, np.float64)

    def assert_are(self, found: dict[str, NDArray[np.float32]]) -> None:
        for k, value in found.items():
            assert relative_error(value, self.values[k]) < 1e-5, k


class TestDefinition:
    @pytest.mark.parametrize("clip_norm", [None, 0.5])
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_averages_follow_the_reference_for_every_optimizer(self, name: str, clip_norm: float | None) -> None:
        """Tables too, of which every batch uses other rows; bitwise equal for any number of processors."""
        model = make_model()
        reference = ReferenceTraining(model, OPTIMIZERS[name](), clip_norm, DECAY)
        for step in range(1, STEPS + 1):
            reference.fb(*make_batch(model, step))
        first: tuple[Any, Any] | None = None
        for vps in VP_COUNTS:
            model, plain = make_model(), make_model()
            with vpps.Handle(model, OPTIMIZERS[name](), vps=vps, clip_norm=clip_norm, ema=DECAY) as handle:
                for step in range(1, STEPS + 1):
                    handle.fb(*make_batch(model, step))
            assert all(relative_error(a, reference.averages[k]) < 1e-5 for k, a in averages(model).items())
            if first is None:
                with vpps.Handle(plain, OPTIMIZERS[name](), vps=vps, clip_norm=clip_norm) as handle:
                    for step in range(1, STEPS + 1):
                        handle.fb(*make_batch(plain, step))
                assert same_bits(plain.numpy(), model.numpy())  # averages do not change what is learned
                first = averages(model), model.numpy()
            assert same_bits(averages(model), first[0]), f"{vps} virtual processors"
            assert same_bits(model.numpy(), first[1])

    @pytest.mark.parametrize("decay", [0, 0.5, 0.999])
    def test_averages_follow_a_schedule_and_many_idle_updates(self, decay: float) -> None:
        model = vpps.Model(seed=2)
        table = model.lookup("E", (5, 33), init="normal")
        expected = DenseAverages(model.numpy(), decay)

        def batch(*rows: int) -> tuple[vpps.Graph, vpps.Expression]:
            graph = vpps.Graph()
            return graph, vpps.sum([vpps.sum(vpps.square(graph.lookup(table, r))) for r in rows])

        rng = np.random.default_rng(1)
        with vpps.Handle(model, vpps.SGD(lr=lambda update: 0.1 / update), vps=2, ema=decay) as handle:
            for step in range(60):
                rare = [1] if step % 7 == 3 else [3] if step == 30 else []
                handle.fb(*batch(0, *rare, *([2, 2] if rng.random() < 0.2 else [])))
                expected.follow(model.numpy())
                if step % 20 == 5:
                    expected.assert_are(averages(model))
        expected.assert_are(averages(model))
        assert np.array_equal(table.average()[4], table.numpy()[4])  # never used
        if decay == 0:
            assert same_bits(averages(model), model.numpy())

    def test_before_the_first_update_averages_are_the_weights(self) -> None:
        net = new()
        with vpps.Handle(net.model, ema=0.9) as handle:
            assert same_bits(averages(net.model), net.model.numpy())
            handle.forward(*_wanted(net))
            net.model["b"].assign(np.ones(20))  # pretrained weights: what was there before does not count
            assert same_bits(averages(net.model), net.model.numpy())
            before = net.model.numpy()
            handle.fb(*net.batch(1))
        expected = DenseAverages(before, 0.9)
        expected.follow(net.model.numpy())
        expected.assert_are(averages(net.model))

    def test_an_update_that_never_began_begins_no_average(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net = new()
        with vpps.Handle(net.model, ema=0.9) as handle:
            with interrupt_next_launch(handle, monkeypatch):
                handle.fb(*net.batch(1))
            assert net.model.step == 0
            net.model["b"].assign(np.ones(20))
            assert same_bits(averages(net.model), net.model.numpy())


class TestState:
    def test_another_decay_goes_on_with_the_averages(self) -> None:
        net = new()
        with vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=DECAY) as handle:
            net.train(handle, range(3))
        before = averages(net.model)
        expected = DenseAverages(before, 0.4)
        with vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=0.4) as handle:
            assert same_bits(averages(net.model), before)
            for seed in range(3, 6):
                net.train(handle, range(seed, seed + 1))
                expected.follow(net.model.numpy())
        expected.assert_are(averages(net.model))

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

    def test_restoring_a_file_without_them_begins_anew(self, tmp_path: Path) -> None:
        net = new()
        net.model.save(tmp_path / "model")
        with vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=DECAY) as handle:
            net.train(handle, range(3))
            net.model.restore(tmp_path / "model")
            assert same_bits(averages(net.model), net.model.numpy())
            expected = DenseAverages(net.model.numpy(), DECAY)
            for seed in range(3):
                net.train(handle, range(seed, seed + 1))
                expected.follow(net.model.numpy())
        expected.assert_are(averages(net.model))

    @pytest.mark.parametrize("damage", ["decay", "shape", "missing", "future", "updates", "dtype"])
    def test_damaged_averages_in_a_checkpoint_are_refused(self, tmp_path: Path, damage: str) -> None:
        from tests.model.test_checkpoint import rewrite

        net = new()
        with vpps.Handle(net.model, ema=DECAY) as handle:
            net.train(handle, range(2))
            net.model.save(tmp_path / "model")

        def change(tensors: dict[str, Any], description: dict[str, Any]) -> None:
            match damage:
                case "decay":
                    description["averages"]["decay"] = 1.0
                case "shape":
                    tensors["average/U"] = np.zeros((3, 3), np.float32)
                case "missing":
                    del tensors["average_current/words"]
                case "future":
                    tensors["average_current/words"] += 1
                case "updates":
                    del description["averages"]["updates"]
                case "dtype":
                    tensors["average_current/words"] = tensors["average_current/words"].astype(np.float32)

        rewrite(tmp_path / "model", change)
        with pytest.raises(vpps.CheckpointError, match="damaged"):
            net.model.restore(tmp_path / "model")


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
        """Factors of rows that idled stand in its script, and are others by then."""
        model = make_model()
        with vpps.Handle(model, vps=1, ema=DECAY, verify=False) as handle:
            for step in range(1, STEPS + 1):
                handle.fb(*make_batch(model, step))
            assert "gathered through them" in handle.explain()

    def test_the_block_puts_the_weights_back_after_an_exception(self) -> None:
        net = new()
        with vpps.Handle(net.model, vpps.SGD(lr=0.2), ema=DECAY) as handle:
            net.train(handle, range(2))
            weights = net.model.numpy()
            with pytest.raises(KeyboardInterrupt), net.model.averaged():
                raise KeyboardInterrupt
            assert same_bits(net.model.numpy(), weights)
            net.train(handle, range(1))

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
        ],
    )
    def test_what_would_change_the_weights_is_refused_inside(
        self, what: Callable[[Classifier, vpps.Handle], object], error: type[Exception]
    ) -> None:
        net, witness = new(), new()
        with (
            vpps.Handle(net.model, vpps.Adam(), ema=DECAY) as handle,
            vpps.Handle(witness.model, vpps.Adam(), ema=DECAY) as other,
        ):
            net.train(handle, range(2))
            with net.model.averaged(), pytest.raises(error, match="averaged"):
                what(net, handle)
            net.train(handle, range(2, 4))
            witness.train(other, range(4))
        assert same_bits(net.model.numpy(), witness.model.numpy())
        assert same_bits(averages(net.model), averages(witness.model))

    def test_a_handle_closed_inside_the_block_loses_nothing(self) -> None:
        net, witness = new(), new()
        handle = vpps.Handle(net.model, vpps.Adam(), ema=DECAY)
        net.train(handle, range(2))
        with net.model.averaged():
            handle.close()
            with pytest.raises(vpps.HandleError, match="leave the block"):
                vpps.Handle(net.model, vpps.Adam(), ema=DECAY)
        with vpps.Handle(net.model, vpps.Adam(), ema=DECAY) as handle:
            net.train(handle, range(2, 4))
        with vpps.Handle(witness.model, vpps.Adam(), ema=DECAY) as other:
            witness.train(other, range(4))
        assert same_bits(net.model.numpy(), witness.model.numpy())
        assert same_bits(averages(net.model), averages(witness.model))


@pytest.mark.parametrize("ema", [1, 1.0, -0.1, 2, float("nan"), "0.9", True])
def test_other_decays_are_refused(ema: Any) -> None:
    with pytest.raises(vpps.HandleError, match=r"ema=.*expected a number in \[0, 1\)"):
        vpps.Handle(vpps.Model(), ema=ema)


def test_a_forward_only_handle_makes_no_averages() -> None:
    with pytest.raises(vpps.HandleError, match=r"ema=0\.9: expected None, as the handle is forward-only"):
        vpps.Handle(vpps.Model(), train=False, ema=0.9)


def _wanted(net: Classifier) -> tuple[vpps.Graph, list[vpps.Expression]]:
    graph = vpps.Graph()
    return graph, [net.logits(graph, [1, 5, 3])]
