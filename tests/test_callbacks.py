"""Callbacks: every loss comes with the number of its own update; a rate falls as PyTorch's ReduceLROnPlateau says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import vpps
from tests.classifier import Classifier, same_bits
from tests.cli.program import vpps_train
from vpps.callbacks import Callback, Loop, ProgressBar, ReduceOnPlateau, TensorBoard
from vpps.errors import HandleError, ModelError


class Recorder(Callback):
    """Keeps what it is told. It is a writer of TensorBoard as well."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, float]] = []
        self.epochs: list[tuple[int, dict[str, float]]] = []
        self.scalars: dict[str, dict[int, float]] = {}
        self.closed = 0

    def on_step(self, step: int, loss: float, **values: float) -> None:
        self.steps.append((step, loss, values["rate"]))

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self.epochs.append((epoch, dict(metrics)))

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.setdefault(tag, {})[global_step] = scalar_value

    def close(self) -> None:
        self.closed += 1


def losses_of(n: int) -> list[float]:
    """Return the losses of `n` updates, each waited for."""
    model = vpps.Model(seed=2)
    with vpps.Handle(model, vpps.SGD(lr=0.1), target="cpu") as handle:
        return Classifier(model).train(handle, range(n))


@pytest.mark.cpu
class TestLoop:
    def test_a_loss_comes_with_the_number_and_the_rate_of_its_update(self) -> None:
        model, seen = vpps.Model(seed=2), Recorder()
        net = Classifier(model)
        with vpps.Handle(model, vpps.SGD(lr=lambda update: 0.1 + update * 1e-9), target="cpu") as handle:
            with Loop(handle, seen, TensorBoard(seen), epoch=4) as loop:
                for seed in range(3):
                    loop.step(*net.batch(seed))
                assert len(seen.steps) == 2  # the third one may be running
                metrics = loop.finish_epoch(accuracy=0.5)
                loop.step(*net.batch(3))
            assert seen.closed == 2
        expected = losses_of(4)
        assert [step for step, *_ in seen.steps] == [1, 2, 3, 4]  # the last one at the end of the block
        assert [loss for _, loss, _ in seen.steps] == pytest.approx(expected)
        assert [rate for *_, rate in seen.steps] == [0.1 + update * 1e-9 for update in (1, 2, 3, 4)]
        assert seen.epochs == [(5, metrics)]
        assert metrics == {"loss": pytest.approx(np.mean(expected[:3])), "accuracy": 0.5}
        assert seen.scalars["loss"] == {step: loss for step, loss, _ in seen.steps}
        assert seen.scalars["epoch/accuracy"] == {5: 0.5}

    def test_accumulated_calls_are_one_update_whose_loss_is_their_sum(self) -> None:
        model, seen = vpps.Model(seed=2), Recorder()
        net = Classifier(model)
        with vpps.Handle(model, vpps.SGD(lr=0.0), target="cpu") as handle, Loop(handle, seen) as loop:
            for seed in range(4):
                loop.step(*net.batch(seed), accumulate=seed % 2 == 0)
            handle.sync_get_latest_loss()
            one_by_one = net.train(handle, range(4))
        sums = [sum(one_by_one[:2]), sum(one_by_one[2:])]
        assert [(step, loss) for step, loss, _ in seen.steps] == [(1, pytest.approx(sums[0])), (2, seen.steps[1][1])]

    def test_after_an_error_all_callbacks_are_closed_and_nothing_is_waited_for(self) -> None:
        class Broken(Recorder):
            def close(self) -> None:
                raise OSError("disk full")

        model, seen = vpps.Model(seed=2), Recorder()
        with vpps.Handle(model, target="cpu") as handle:
            loop = Loop(handle, Broken(), seen)
            loop.step(*Classifier(model).batch(0))
            with pytest.raises(OSError, match="disk full"), loop:
                raise ValueError
            assert (seen.closed, seen.steps) == (1, [])

    def test_a_handle_that_trains_with_others_is_refused(self) -> None:
        handle: Any = SimpleNamespace(_world=object())
        with pytest.raises(HandleError, match="call the callbacks on one rank"):
            Loop(handle)


@pytest.mark.host
class TestPlateau:
    @pytest.mark.parametrize("options, metrics, rates", [
        # Falls after more than 2 metrics in a row that are not better; improvements below the threshold do not count.
        ({}, [5, 4, 3.9999, 4, 3.99985, 4, 3, 3, 3, 3], [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25]),
        ({"threshold_mode": "abs", "threshold": 1}, [5, 4, 4.5, 4.2, 3.9, 3], [1, 1, 1, 0.5, 0.5, 0.5]),
        ({"mode": "max", "threshold": 0.1}, [1, 1.05, 1.1, 1.2, 1.3, 1.3, 1.31], [1, 1, 1, 1, 1, 1, 0.5]),
        ({"cooldown": 2, "patience": 0}, [1, 1, 1, 1, 1, 1], [1, 0.5, 0.5, 0.5, 0.25, 0.25]),
        ({"min_lr": 0.3, "patience": 0}, [1, 1, 1, 1], [1, 0.5, 0.3, 0.3]),
        ({"eps": 0.3, "patience": 0}, [1, 1, 1, 1], [1, 0.5, 0.5, 0.5]),
        ({"patience": 1}, [float("nan"), float("nan"), 1, float("nan"), float("nan")], [1, 0.5, 0.5, 0.5, 0.25]),
    ])  # fmt: skip
    def test_the_rate_falls_as_counted_by_hand(
        self, options: dict[str, Any], metrics: list[float], rates: list[float]
    ) -> None:
        rate, found = ReduceOnPlateau(1.0, **{"patience": 2, "factor": 0.5, **options}), []
        for metric in metrics:
            rate.on_epoch(len(found) + 1, {"loss": metric})
            found.append(rate(17))
        assert found == rates

    @pytest.mark.frameworks("torch")
    def test_the_rate_is_pytorchs_for_random_metrics(self) -> None:
        torch = pytest.importorskip("torch")
        for seed in range(30):
            rng = np.random.default_rng(seed)
            options = {
                "mode": ("min", "max")[seed % 2], "threshold_mode": ("rel", "abs")[seed // 2 % 2],
                "factor": float(rng.uniform(0.1, 0.9)), "patience": int(rng.integers(4)),
                "cooldown": int(rng.integers(3)), "threshold": float(rng.uniform(0, 0.3)),
                "min_lr": float(rng.uniform(0, 1e-2)),
            }  # fmt: skip
            theirs = torch.optim.SGD([torch.zeros(1)], lr=0.1)
            schedule, rate = (
                torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **options),
                ReduceOnPlateau(0.1, **options),
            )
            for metric in rng.choice([-1.5, 1.0, 1.2, 1.4, 2.0, np.inf, np.nan], 60):
                schedule.step(metric)
                rate.step(metric)
                assert rate.lr == theirs.param_groups[0]["lr"]

    def test_its_state_continues_a_run(self) -> None:
        rate = ReduceOnPlateau(1.0, patience=1, cooldown=1)
        for metric in (3, 3, 3, 3):
            rate.step(metric)
        again = ReduceOnPlateau(9.0, patience=1, cooldown=1)
        again.load_state_dict(json.loads(json.dumps(rate.state_dict())))
        for metric in (2, 3, 3, 3):
            rate.step(metric)
            again.step(metric)
            assert again.state_dict() == rate.state_dict()
        assert rate.lr == pytest.approx(0.01)

    @pytest.mark.parametrize("options, message", [
        ({"lr": -1}, r"ReduceOnPlateau\(lr=-1\): expected a finite number >= 0"),
        ({"factor": 1.0}, r"ReduceOnPlateau\(factor=1.0\): expected a number in \[0, 1\)"),
        ({"patience": 1.5}, "patience=1.5: expected an int, at least 0"),
        ({"mode": "least"}, "mode='least'.: expected min or max"),
        ({"threshold_mode": "relative"}, "expected rel or abs"),
    ])  # fmt: skip
    def test_wrong_arguments_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            ReduceOnPlateau(**{"lr": 0.1, **options})

    def test_a_missing_metric_and_a_foreign_state_are_refused(self) -> None:
        rate = ReduceOnPlateau(0.1, metric="dev_loss")
        with pytest.raises(ModelError, match="no such metric; did you mean 'dev_los'"):
            rate.on_epoch(1, {"dev_los": 1.0})
        for state in ({"lr": 0.1}, rate.state_dict() | {"best": "low"}, rate.state_dict() | {"bad": -1}):
            with pytest.raises(ModelError, match="expected"):
                rate.load_state_dict(state)
        assert rate.lr == 0.1


@pytest.mark.cpu
def test_a_resumed_run_with_a_plateau_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    def train(model: vpps.Model, rate: ReduceOnPlateau, metrics: list[float]) -> None:
        net = Classifier(model)
        with vpps.Handle(model, vpps.Adam(lr=rate), target="cpu") as handle, Loop(handle, rate) as loop:
            for metric in metrics:
                loop.step(*net.batch(model.step))
                loop.finish_epoch(loss=metric)
        model.save(tmp_path / "run", metadata={"rate": json.dumps(rate.state_dict())})

    whole, first = vpps.Model(seed=2), vpps.Model(seed=2)
    train(whole, ReduceOnPlateau(0.1, patience=1), [3, 3, 3, 3, 3, 3])
    train(first, ReduceOnPlateau(0.1, patience=1), [3, 3])
    second, rate = vpps.Model.load(tmp_path / "run"), ReduceOnPlateau(0.7, patience=1)
    rate.load_state_dict(json.loads(second.metadata["rate"]))
    train(second, rate, [3, 3, 3, 3])
    assert rate.lr == pytest.approx(0.001)
    assert same_bits(second.numpy(), whole.numpy())


@pytest.mark.host
class TestProgressBar:
    @staticmethod
    def shown(terminal: bool) -> str:
        text = StringIO()
        with ProgressBar(4, console=Console(file=text, force_terminal=terminal, width=100)) as bar:
            bar.on_step(1, 3.0)
            bar.on_step(2, 1.0, rate=0.1)
            bar.on_epoch(1, {"loss": 2.0, "[accuracy]": 0.5})
            bar.on_step(3, 7.0)
        return text.getvalue()

    def test_a_terminal_shows_updates_and_the_mean_loss_of_the_epoch(self) -> None:
        shown = self.shown(terminal=True)
        assert "epoch 2" in shown
        assert "1/4" in shown
        assert "loss 7.0000" in shown

    def test_a_file_gets_a_line_per_epoch(self) -> None:
        assert self.shown(terminal=False) == "epoch 1  loss 2.0000  [accuracy] 0.5000\n"


@pytest.mark.host
def test_tensorboard_takes_an_installed_package_or_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboardX"):
        TensorBoard("runs")
    code, _, err = vpps_train("tree-lstm", "--tensorboard", "runs", limit=4)
    assert (code, "pip install tensorboardX" in err) == (1, True)
    seen = Recorder()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda folder: seen))
    assert TensorBoard(Path("runs")).writer is seen


@pytest.mark.cpu
def test_vpps_train_writes_every_update_and_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = Recorder()
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=lambda folder: seen))
    run = {"limit": 20, "batch_size": 8, "hidden": 8, "embedding": 8, "checkpoint": tmp_path / "run"}
    assert vpps_train("tree-lstm", tensorboard=tmp_path / "curves", epochs=1, **run)[0] == 0
    assert vpps_train("tree-lstm", "--resume", tensorboard=tmp_path / "curves", epochs=2, **run)[0] == 0
    assert list(seen.scalars["loss"]) == [1, 2, 3, 4, 5, 6]
    assert list(seen.scalars["epoch/loss"]) == [1, 2]
    assert {"epoch/dev root accuracy", "epoch/examples/s"} < seen.scalars.keys()
    assert seen.closed == 2
    assert seen.scalars["epoch/loss"][2] == pytest.approx(np.mean(list(seen.scalars["loss"].values())[3:]), rel=0.1)
