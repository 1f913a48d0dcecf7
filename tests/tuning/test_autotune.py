"""Tuning while training: its turns, with a simulated clock; training is not affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import vpps
from tests.classifier import new
from vpps.tuning import autotune
from vpps.tuning.autotune import TIMED, UNTIMED, Autotuner
from vpps.tuning.candidates import Candidate
from vpps.tuning.choices import Choice

FOUR = [Candidate(), Candidate(vps=1), Candidate(vps=2), Candidate(vps=3)]


class Machine:
    """Trains batches, each taking its candidate's time."""

    def __init__(self, seconds: Callable[[Candidate], float], candidates: list[Candidate] = FOUR) -> None:
        self.seconds = seconds
        self.now = 1.0
        self.tuner = Autotuner(candidates, lambda: self.now)
        self.trained: list[Candidate] = []

    def train(self, batches: int = 1000, sizes: Iterator[int] | None = None) -> None:
        for _ in range(batches):
            if self.tuner.done:
                return
            size = next(sizes) if sizes else 100
            self.trained.append(self.tuner.current)
            self.tuner.batch(size)
            self.now += self.seconds(self.trained[-1]) * size

    def best(self, sizes: Iterator[int] | None = None) -> Choice:
        self.train(sizes=sizes)
        assert self.tuner.done
        return self.tuner.choice()


def best_with_two(candidate: Candidate) -> float:
    return 1.0 if candidate.vps == 2 else 1.5


@pytest.mark.host
class TestTurns:
    def test_find_the_fastest_in_few_batches_and_exchanges(self) -> None:
        machine = Machine(best_with_two)
        assert machine.tuner.describe() == "being tuned: 8 turns of 10 batches left"
        assert machine.best() == Choice(Candidate(vps=2), pytest.approx(1.5), "autotune")
        assert len(machine.trained) == 8 * (TIMED + UNTIMED)
        assert sum(a != b for a, b in zip(machine.trained, machine.trained[1:], strict=False)) == 6

    def test_the_default_stays_unless_something_is_clearly_faster(self) -> None:
        found = Machine(lambda c: 1.0 if c == Candidate() else 0.99).best()
        assert found == Machine(best_with_two, [Candidate()]).best() == Choice(Candidate(), 1.0, "autotune")

    @pytest.mark.parametrize("candidates", [FOUR, [FOUR[0], *FOUR[:0:-1]]])
    def test_sizes_pauses_and_a_machine_that_becomes_slower_do_not_decide(self, candidates: list[Candidate]) -> None:
        assert Machine(best_with_two, candidates).best(cycle([10, 500, 70, 1000])).ratio == pytest.approx(1.5)
        machine = Machine(best_with_two, candidates)
        machine.seconds = lambda c: best_with_two(c) * (1 + machine.now * 1e-4)
        assert machine.best().candidate.vps == 2
        machine = Machine(best_with_two, candidates)
        while not machine.tuner.done:
            machine.train(5)
            machine.now += 1e4  # an evaluation
            machine.tuner.interrupted()
        assert machine.tuner.choice().candidate.vps == 2

    def test_what_cannot_be_had_gets_no_more_of_them(self) -> None:
        machine = Machine(best_with_two)
        while machine.tuner.current.vps != 2:
            machine.train(1)
        machine.tuner.failed(machine.tuner.current, vpps.CapacityError("too large"))
        assert machine.best().candidate == Candidate()
        assert Candidate(vps=2) not in machine.trained


class TrainingResult(NamedTuple):
    losses: list[float]
    model: vpps.Model
    tuning: list[str]  # for each step
    explained: str


def train(target: str = "cpu", batches: int = 24, **options: Any) -> TrainingResult:
    """Train with evaluations in between; some steps accumulate. Returns the losses."""
    net = new()
    losses, tuning = [], []
    with vpps.Handle(net.model, vpps.Adam(lr=0.01), target=target, ema=0.9, clip_norm=1.0, **options) as handle:
        for k in range(batches):
            # On simt, every candidate would need its own kernel; tests/engine/test_engine.py covers simt.
            handle.fb(*net.batch(k), accumulate=k % 4 == 1 and target == "cpu")
            losses.append(handle.sync_get_latest_loss())
            tuning.append(handle.tuning)
            if k % 7 == 3:
                graph, loss = net.batch(k)
                losses.append(float(handle.forward(graph, [loss])[0]))
        return TrainingResult(losses, net.model, tuning, handle.explain())


def assert_same(one: TrainingResult, other: TrainingResult) -> None:
    assert one.losses == other.losses
    for p in one.model:
        assert np.array_equal(p.numpy(), other.model[p.name].numpy()), p.name
        assert np.array_equal(p.average(), other.model[p.name].average()), p.name


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of choices that handles use."""
    monkeypatch.setenv("VPPS_TUNING", str(tmp_path / "choices.json"))
    return tmp_path / "choices.json"


TryOut = Callable[..., None]


@pytest.fixture
def try_out(monkeypatch: pytest.MonkeyPatch) -> TryOut:
    """Set the candidates besides the default, with short turns."""
    monkeypatch.setattr(autotune, "UNTIMED", 1)
    monkeypatch.setattr(autotune, "TIMED", 2)
    monkeypatch.setenv("VPPS_VERIFY", "0")  # other tests verify these scripts

    def candidates(*given: Candidate) -> None:
        monkeypatch.setattr("vpps.session.configurator.candidates_for", lambda *_: [Candidate(), *given])

    return candidates


def has_no_room(*_: Any, **__: Any) -> None:
    raise vpps.CapacityError("too large")


@pytest.mark.cpu
class TestTraining:
    @pytest.mark.parametrize("broken", [Candidate(vps=-1), Candidate(groups=2), Candidate(vps=1)], ids=str)
    def test_is_the_same_to_the_bit_whatever_is_tried(self, try_out: TryOut, broken: Candidate) -> None:
        """Candidates that cpu lacks are skipped."""
        plain = train()
        assert plain.tuning == [""] * 24
        try_out(broken, Candidate(vps=3))
        tuned = train(autotune=True)
        assert_same(tuned, plain)
        assert tuned.tuning[0] == "being tuned: 6 turns of 3 batches left"
        assert "(by autotune" in tuned.tuning[-1]
        assert f"tuned          {tuned.tuning[-1]}" in tuned.explained

    def test_what_the_user_chose_stays(self, try_out: TryOut) -> None:
        assert train(autotune=True, vps=1, batches=10).tuning[-1] == "default (by autotune)"

    def test_an_error_of_a_batch_is_the_users_and_leaves_the_model(self, try_out: TryOut) -> None:
        try_out(Candidate(vps=3))
        net = new()
        with vpps.Handle(net.model, target="cpu", autotune=True, pool_limit=200_000) as handle:
            for k in range(5):  # the candidate's turn
                handle.fb(*net.batch(k))
            before = net.model.numpy()
            with pytest.raises(vpps.CapacityError, match="pool"):
                handle.fb(*net.batch(0, 500, 20))
            assert net.model.step == 5
            assert all(np.array_equal(p.numpy(), before[p.name]) for p in net.model)
            handle.fb(*net.batch(0))

    @pytest.mark.parametrize("where", ["prepare", "launch"])
    def test_the_best_is_given_up_for_a_batch_that_it_does_not_do_for(
        self, try_out: TryOut, choices: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        try_out(Candidate(vps=3))
        monkeypatch.setattr(Autotuner, "choice", lambda _: Choice(Candidate(vps=3), 1.5, "autotune"))
        net = new()
        with vpps.Handle(net.model, target="cpu", autotune=True) as handle:
            for k in range(28):
                if k == 14:
                    assert (handle.vps, handle.tuning) == (3, "vps 3 (by autotune, 1.50x the default)")
                    monkeypatch.setattr(handle._engine, where, has_no_room)
                handle.fb(*net.batch(k))
            assert (handle.vps != 3, handle.tuning, net.model.step) == (True, "", 28)

    def test_goes_on_after_ctrl_c(self, try_out: TryOut, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C comes at every configuration change."""
        try_out(Candidate(vps=1), Candidate(vps=3))
        net, plain = new(), new()
        with vpps.Handle(net.model, target="cpu", autotune=True) as handle, vpps.Handle(plain.model, vps=2) as other:
            make = handle._configurator.make_engine
            for k in range(24):
                other.fb(*plain.batch(k))
                answers = iter([KeyboardInterrupt])

                def interrupted(*given: Any, answers: Iterator[type[BaseException]] = answers) -> Any:
                    for error in answers:
                        raise error
                    return make(*given)

                monkeypatch.setattr(handle._configurator, "make_engine", interrupted)
                try:
                    handle.fb(*net.batch(k))
                except KeyboardInterrupt:
                    assert net.model.step == k
                    handle.fb(*net.batch(k))
                assert handle.sync_get_latest_loss() == other.sync_get_latest_loss()
            assert "(by autotune" in handle.tuning

    def test_what_was_found_is_kept_for_other_handles(self, try_out: TryOut, choices: Path) -> None:
        first = train(autotune=True)
        assert train(autotune=True, batches=3).tuning == [first.tuning[-1]] * 3
        assert train(precision="bf16", batches=3).tuning == [""] * 3, "another kernel, which may be slow so"
        assert train(autotune=True, vps=2, batches=1).tuning == ["being tuned: 2 turns of 3 batches left"]

    def test_what_cannot_be_kept_is_told_in_the_log(
        self, try_out: TryOut, choices: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        choices.mkdir()
        assert "(by autotune" in train(autotune=True).tuning[-1]
        assert "cannot store the result of tuning: " in caplog.text

    def test_waits_while_launches_are_recorded(self, try_out: TryOut) -> None:
        net = new()
        with vpps.Handle(net.model, target="cpu", autotune=True) as handle:
            handle.fb(*net.batch(0))
            before = handle.tuning
            with handle.trace() as trace:
                for k in range(9):
                    handle.fb(*net.batch(k))
            assert (len(trace.timelines), handle.tuning) == (9, before)
            for k in range(9):
                handle.fb(*net.batch(k))
            assert handle.tuning != before


@pytest.mark.simt
def test_on_a_gpu_groups_and_rows_in_turns_learn_the_same(try_out: TryOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")  # kernels compile sooner
    plain = train("simt")
    try_out(Candidate(groups=2), Candidate(rpw=1))
    tuned = train("simt", autotune=True)
    np.testing.assert_allclose(tuned.losses, plain.losses, rtol=1e-4)
    assert "(by autotune" in tuned.tuning[-1]


@pytest.mark.host
@pytest.mark.parametrize(
    "options, words",
    [
        ({"autotune": "yes"}, "autotune='yes': expected True or False"),
        ({"autotune": True, "train": False}, "autotune=True: only training handles can be tuned"),
        ({"autotune": True, "timeline": True}, "timeline=True: recording takes time"),
    ],
)
def test_is_not_for_everything(options: dict[str, Any], words: str) -> None:
    with pytest.raises(vpps.HandleError, match=words):
        vpps.Handle(vpps.Model(seed=1), **options)
