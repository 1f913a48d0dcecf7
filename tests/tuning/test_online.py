"""Tuning while training: the search, with a clock of its own; and that training does not notice."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import vpps
from tests.processes import finish, start
from tests.session.test_accumulate import new
from tests.tuning.telling import TellPriority
from vpps.engine.configuration import Configuration
from vpps.kernel.render import VARIANTS
from vpps.model.precisions import Precisions
from vpps.profiling.profiler import axes_named
from vpps.record.trace import TracedCell
from vpps.tuning.autotune import cpu_axes
from vpps.tuning.compiling import Compilers
from vpps.tuning.online import TIMED, UNTIMED, Axis, Background, OnlineTuner, Progress
from vpps.tuning.subject import Recipe, Subject

VPS = Axis("virtual processors", tuple({"vps": n} for n in range(2, 9)), ordered=True)
POLICY = Axis("policy", ({"policy": "sinks-last"}, {"policy": "depth"}), ordered=False)
START = Configuration(vps=1)


class Ready:
    """All candidates are there at once, but for those with a reason, and those that are late by some questions."""

    def __init__(self, reasons: Mapping[int, str] | None = None, late: int = 0) -> None:
        self.reasons = reasons or {}
        self.asked: list[Configuration] = []
        self.late = late
        self.closed = False

    def ask(self, configuration: Configuration) -> None:
        self.asked.append(configuration)
        self.questions = 0

    def answer(self, configuration: Configuration) -> str | None:
        assert configuration == self.asked[-1]
        self.questions += 1
        return None if self.questions <= self.late else self.reasons.get(configuration.vps or 0, "")

    def close(self) -> None:
        self.closed = True


class Machine:
    """Trains batches, each of which takes as long as its configuration says."""

    def __init__(
        self,
        seconds: Callable[[Configuration], float],
        axes: list[Axis],
        ready: Ready | None = None,
    ) -> None:
        self.seconds = seconds
        self.now = 1.0
        self.ready = ready or Ready()
        self.tuner = OnlineTuner(START, axes, self.ready, lambda: self.now)
        self.trained: list[Configuration] = []

    def train(self, batches: int, vertices: Iterator[int] | None = None) -> None:
        for _ in range(batches):
            if self.tuner.done:
                return
            configuration = self.tuner.configuration()
            size = next(vertices) if vertices else 100
            self.tuner.batch(size)
            self.trained.append(configuration)
            self.now += self.seconds(configuration) * size

    @property
    def exchanges(self) -> int:
        return sum(a != b for a, b in zip(self.trained, self.trained[1:], strict=False))


def valley(configuration: Configuration) -> float:
    """Four virtual processors are the best."""
    return 1.0 + abs((configuration.vps or 1) - 4) * 0.2


@pytest.mark.host
class TestTheSearch:
    def test_goes_on_until_it_gets_worse_and_keeps_the_best(self) -> None:
        machine = Machine(valley, [VPS])
        machine.train(1000)
        progress = machine.tuner.progress
        assert progress.done
        assert progress.best.vps == 4
        assert [t.configuration.vps for t in progress.trials] == [2, 3, 4, 5]
        assert progress.ratio == pytest.approx(1.6)
        assert machine.trained[-1].vps == 4
        assert machine.ready.closed

    def test_takes_few_batches_and_exchanges(self) -> None:
        machine = Machine(valley, [VPS])
        machine.train(1000)
        candidates = len(machine.tuner.progress.trials)
        assert machine.exchanges == machine.tuner.progress.exchanges <= 3 * candidates
        assert len(machine.trained) <= (3 * candidates + 1) * (TIMED + UNTIMED + 1)

    def test_goes_on_from_the_best_along_the_next_axis(self) -> None:
        def seconds(c: Configuration) -> float:
            return valley(c) * (0.5 if c.policy == "depth" else 1)

        machine = Machine(seconds, [VPS, POLICY])
        machine.train(1000)
        assert machine.tuner.progress.best == Configuration(vps=4, policy="depth")

    def test_what_is_hardly_faster_does_not_replace_what_there_is(self) -> None:
        machine = Machine(lambda c: 1.0 if c == START else 0.99, [VPS])
        machine.train(1000)
        assert machine.tuner.progress.best == START
        assert len(machine.tuner.progress.trials) == 1

    def test_batches_of_different_sizes_do_not_decide(self) -> None:
        sizes = iter([10, 500, 70, 1000] * 1000)
        machine = Machine(valley, [VPS])
        machine.train(1000, sizes)
        assert machine.tuner.progress.best.vps == 4
        assert machine.tuner.progress.seconds == pytest.approx(1.0), "per vertex of the batch that ran meanwhile"
        assert machine.tuner.progress.ratio == pytest.approx(1.6)

    def test_a_machine_that_grows_slower_meanwhile_does_not_decide(self) -> None:
        machine = Machine(valley, [VPS])
        machine.seconds = lambda c: valley(c) * (1 + machine.now * 1e-5)
        machine.train(2000)
        assert machine.tuner.progress.best.vps == 4

    def test_a_typical_batch_is_not_the_last_one(self) -> None:
        machine = Machine(valley, [VPS])
        machine.train(30, iter([80, 100, 120] * 9 + [100, 1, 1]))
        assert machine.tuner.progress.vertices == 100

    def test_pauses_between_batches_do_not_decide(self) -> None:
        machine = Machine(valley, [VPS])
        while not machine.tuner.done:
            machine.train(5)
            machine.now += 1e4  # an evaluation
            machine.tuner.interrupted()
        assert machine.tuner.progress.best.vps == 4


@pytest.mark.host
class TestProgress:
    def test_says_of_how_many_candidates(self) -> None:
        machine = Machine(valley, [VPS, POLICY])
        machine.train(1)
        first = machine.tuner.progress
        assert first.describe() == f"being tuned: {START.describe()} (0 of up to 9 candidates tried in 1 batch)"
        assert not first.is_gain
        machine.train(60)
        assert "of up to 9 candidates tried in 61 batches, 1." in machine.tuner.progress.describe()
        assert machine.tuner.progress.is_gain

    def test_of_one_candidate(self) -> None:
        machine = Machine(valley, [Axis("policy", ({"policy": "depth"},), ordered=False)])
        machine.train(1000)
        found, batches = machine.tuner.progress.describe(), len(machine.trained)
        assert found == f"tuned online: {START.describe()} (1 candidate tried in {batches} batches)"


@pytest.mark.host
class TestCandidates:
    def test_training_goes_on_while_one_is_compiled(self) -> None:
        machine = Machine(valley, [VPS], Ready(late=50))
        machine.train(40)
        assert all(c == START for c in machine.trained)
        machine.train(2000)
        assert machine.tuner.progress.best.vps == 4

    def test_one_that_cannot_be_had_ends_its_axis_with_the_reason(self) -> None:
        machine = Machine(valley, [VPS, POLICY], Ready({3: "it spills"}))
        machine.train(1000)
        trials = machine.tuner.progress.trials
        assert [t.configuration.vps for t in trials] == [2, 3, 2]
        assert trials[1].reason == "it spills"
        assert machine.tuner.progress.best.vps == 2

    def test_one_that_fails_in_training_gives_way_at_once(self) -> None:
        machine = Machine(valley, [VPS])
        while machine.tuner.configuration() == START:
            machine.train(1)
        back = machine.tuner.failed(vps_error := vpps.CapacityError("too large"))
        assert back == START
        assert machine.tuner.progress.trials[-1].reason == str(vps_error)
        machine.train(100)
        assert machine.tuner.progress.done

    def test_an_error_of_the_best_one_is_not_ours(self) -> None:
        machine = Machine(valley, [VPS])
        machine.train(3)
        assert machine.tuner.failed(vpps.CapacityError("too large")) is None

    def test_a_later_batch_for_which_the_best_does_not_do_gets_what_a_handle_usually_has(self) -> None:
        machine = Machine(valley, [VPS])
        machine.train(1000)
        assert machine.tuner.best != START
        assert machine.tuner.failed(vpps.CapacityError("too large")) == START
        assert machine.tuner.configuration() == START
        assert machine.tuner.done
        progress = machine.tuner.progress
        assert (progress.best, progress.ratio, progress.seconds) == (START, 1, 0), "nothing was measured of it"
        assert progress.trials[-1].reason == "too large"
        assert machine.tuner.failed(vpps.CapacityError("too large")) is None

    def test_nothing_to_try_is_over_at_once(self) -> None:
        machine = Machine(valley, [])
        assert machine.tuner.done
        assert machine.tuner.configuration() == START

    def test_closing_stays_with_the_best_so_far(self) -> None:
        machine = Machine(valley, [VPS])
        machine.train(60)
        machine.tuner.close()
        best = machine.tuner.progress.best
        assert machine.ready.closed
        assert best.vps in (2, 3)


@pytest.mark.host
class TestBackground:
    def test_answers_come_when_they_are_there(self) -> None:
        go = threading.Event()

        def compile(configuration: Configuration) -> str:
            go.wait(30)
            return "too wide" if configuration.vps == 2 else ""

        background = Background(compile, go.set)
        first, second = Configuration(vps=1), Configuration(vps=2)
        background.ask(first)
        background.ask(second)
        assert background.answer(first) is None
        go.set()
        thread = background._thread
        assert thread is not None
        assert thread.daemon
        while background.answer(second) is None:
            thread.join(0.01)
        assert background.answer(first) == ""
        assert background.answer(second) == "too wide"
        background.close()
        thread.join(30)
        assert not thread.is_alive()

    def test_whatever_happens_becomes_a_reason(self) -> None:
        def compile(configuration: Configuration) -> str:
            raise ZeroDivisionError("by zero")

        background = Background(compile)
        background.ask(START)
        while background.answer(START) is None:
            pass
        assert "by zero" in (background.answer(START) or "")
        background.close()

    def test_nothing_is_kept_alive_for_what_is_over(self) -> None:
        class Example:
            def compile(self, configuration: Configuration) -> str:
                return ""

        example = Example()
        alive = weakref.ref(example)
        background = Background(example.compile)
        background.ask(START)
        del example
        while background.answer(START) is None:
            time.sleep(0.01)
        background.close()
        thread = background._thread
        assert thread is not None
        thread.join(30)
        gc.collect()
        assert alive() is None

    def test_compilers_end_with_python(self, tmp_path: Path) -> None:
        """They are in sessions of their own, so nothing else ends them."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        process = start(f"""
            import threading, time
            from pathlib import Path
            from tests.tuning.models import Endless
            from vpps.tuning.compiling import Compilers
            job = Endless({str(pipe)!r})
            compilers = Compilers(1)
            threading.Thread(target=compilers.run, args=[job], daemon=True).start()
            while not Path({str(pipe)!r} + ".open").exists():
                time.sleep(0.01)
        """)
        with pipe.open("rb") as end:
            code, _, err = finish(process)
            assert code == 0, err
            assert end.read() == b""


class Trained(NamedTuple):
    losses: list[float]
    model: vpps.Model
    progress: Progress | None
    explained: str


def train(target: str = "cpu", batches: int = 120, until_done: bool = False, **options: Any) -> Trained:
    """Losses of steps, some of which accumulate, and of evaluations in between. No batch is trained before it is known
    whether the next candidate can be had, so that a few batches are enough for many of them."""
    net = new()
    losses = []
    with vpps.Handle(net.model, vpps.Adam(lr=0.01), target=target, ema=0.9, clip_norm=1.0, **options) as handle:
        for k in range(batches):
            # On simt that would be one more kernel for every candidate; tests/engine/test_engine.py does it there.
            handle.fb(*net.batch(k, k + 1), accumulate=k % 4 == 1 and target == "cpu")
            losses.append(handle.sync_get_latest_loss())
            if k % 7 == 3:
                graph, loss = net.batch(k)
                losses.append(float(handle.forward(graph, [loss])[0]))
            tuner = handle._configurator._tuner
            if until_done and tuner is not None and tuner.done:
                break
            while (
                k + 1 < batches
                and tuner is not None
                and tuner._trial
                and tuner._preparation.answer(tuner._trial) is None
            ):
                time.sleep(0.01)
        return Trained(losses, net.model, handle.tuning, handle.explain())


class TestTraining:
    @pytest.fixture(autouse=True)
    def _one_tile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Besides the usual one: each takes ten seconds to compile. Turns are short: nobody asks for the fastest."""
        monkeypatch.setattr("vpps.tuning.online.UNTIMED", 1)
        monkeypatch.setattr("vpps.tuning.online.TIMED", 2)
        monkeypatch.setenv("VPPS_VERIFY", "0")  # other tests verify these scripts
        monkeypatch.setattr("vpps.tuning.autotune.NICENESS", 0)  # else compilers wait until no other test is running
        for isa, tiles in VARIANTS.items():
            monkeypatch.setitem(VARIANTS, isa, tiles[:1])

    @pytest.mark.host
    def test_tries_on_cpu_only_what_leaves_every_bit_as_it_is(self) -> None:
        """Not policies: they sum the gradients of a value with several readers in another order."""
        changed = {name for axis in cpu_axes(2) for change in axis.changes for name in change}
        assert changed == {"vps", "tile"}
        assert set(axes_named((), "cpu")) == {"vps", "tile"}

    @pytest.mark.cpu
    def test_is_the_same_to_the_bit(self) -> None:
        plain = train(vps=1, batches=24)
        tuned = train(autotune=True, vps=1, batches=24)
        also = train(autotune=True, batches=24)
        assert plain.losses == tuned.losses == also.losses
        for p in plain.model:
            assert np.array_equal(p.numpy(), tuned.model[p.name].numpy())
            assert np.array_equal(p.average(), also.model[p.name].average())
        assert plain.progress is None
        assert tuned.progress is not None
        assert tuned.progress.trials
        assert all(t.configuration.vps == 1 for t in tuned.progress.trials), "the user's choice was changed"
        assert tuned.progress.exchanges >= 2
        assert "tuned online" in tuned.explained or "being tuned" in tuned.explained

    @pytest.mark.cpu
    def test_products_round_as_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        axes = [Axis("virtual processors", ({"vps": 1}, {"vps": 2}), ordered=False)]
        monkeypatch.setattr("vpps.tuning.autotune.cpu_axes", lambda vps: axes)
        plain, tuned = (train(precision="bf16", batches=12, autotune=on) for on in (False, True))
        assert plain.losses == tuned.losses
        assert tuned.progress is not None
        assert {t.configuration.precision for t in tuned.progress.trials} == {Precisions("bf16")}

    @pytest.mark.simt
    def test_begins_with_what_the_planner_chose_and_tries_groups_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_SIMT_RACES", "0")  # kernels compile sooner
        plain = train("simt", batches=10)
        tuned = train("simt", batches=10, autotune=True)
        np.testing.assert_allclose(tuned.losses, plain.losses, rtol=1e-4)
        assert tuned.losses[:2] == plain.losses[:2], "the first configuration was another one"
        assert tuned.progress is not None
        chip = tuned.progress.trials[0].configuration.onchip
        assert (chip.ownership, chip.groups) == ("aligned", 2)

    @pytest.mark.simt
    def test_what_is_compiled_in_the_background_is_what_a_step_needs(self) -> None:
        """It could evaluate, too, and not clip: training waited for other kernels."""
        model = vpps.Model(seed=1)
        W = model.parameter("W", (8, 8))
        step = vpps.cell(lambda h: vpps.tanh(W @ h) * vpps.sigmoid(W @ h))
        graph = vpps.Graph()
        loss = vpps.cross_entropy(step(step(graph.input(np.ones(8)))), 3)
        passes = vpps.Passes(fusion=True)
        with vpps.Handle(model, vpps.Adam(), target="simt", vps=2, clip_norm=1.0, passes=passes) as handle:
            handle.fb(graph, loss)
            handle.sync_get_latest_loss()
            machine, configuration = handle._engine.machine, handle._engine.configuration
            assert machine.device is not None
            subject = Subject(model, (graph, loss), vpps.Adam(), configuration, clip_norm=1.0)
            found = Recipe(subject, "simt", machine.device, machine.arch, 2).specs(configuration)
            assert next(found)[0] == machine.spec

    @pytest.mark.cpu
    def test_what_was_found_is_kept_for_other_handles(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_TUNING", "1")
        monkeypatch.setattr("vpps.tuning.files.cache_dir", lambda: tmp_path)
        first = train(autotune=True, batches=500, until_done=True)
        assert first.progress is not None
        assert first.progress.done
        again = train(autotune=True, batches=3)
        assert again.progress is None
        assert "by autotune on" in again.explained
        rounding = train(precision="bf16", batches=3)  # another kernel: it may be slow so
        assert "by autotune on" not in rounding.explained
        assert "products       precision bf16" in rounding.explained

    @pytest.mark.cpu
    def test_it_is_kept_even_if_the_last_candidate_cannot_be_had(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vpps.tuning.online.UNTIMED", 0)
        monkeypatch.setattr("vpps.tuning.online.TIMED", 1)
        axes = [Axis("virtual processors", ({"vps": 1}, {"vps": 2}, {"vps": 3}), ordered=False)]
        monkeypatch.setattr("vpps.tuning.autotune.cpu_axes", lambda vps: axes)
        monkeypatch.setattr(
            "vpps.tuning.autotune._cpu_compiler", lambda *_: lambda c: "no compiler" if c.vps == 3 else ""
        )
        kept: list[Progress] = []
        monkeypatch.setattr("vpps.session.configurator.keep", lambda *arguments: kept.append(arguments[-1]))
        train(autotune=True, batches=15)
        (progress,) = kept
        assert progress.trials[-1].reason == "no compiler"
        assert progress.seconds > 0

    @pytest.mark.cpu
    def test_waits_while_launches_are_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net = new()
        with vpps.Handle(net.model, target="cpu", vps=1, autotune=True) as handle:
            handle.fb(*net.batch(0))
            with handle.trace() as trace:
                for k in range(3):
                    handle.fb(*net.batch(k))
            assert len(trace.timelines) == 3
            assert handle.tuning is not None
            assert handle.tuning.batches == 1
            handle.fb(*net.batch(0))
            assert handle.tuning.batches == 2
        with pytest.raises(vpps.HandleError, match="timeline=True: recording takes time of its own"):
            vpps.Handle(net.model, autotune=True, timeline=True)

    @pytest.mark.cpu
    def test_it_is_kept_for_all_cells(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept: list[tuple[set[TracedCell], Progress]] = []

        def keep(model: object, cells: Iterable[TracedCell], machine: object, found: Progress) -> None:
            kept.append((set(cells), found))

        axis = Axis("vps", ({"vps": 2}, {"vps": 3}), ordered=False)
        monkeypatch.setattr("vpps.session.configurator.keep", keep)
        monkeypatch.setattr(
            "vpps.tuning.autotune.tuner_for", lambda *_: OnlineTuner(START, [axis], Ready({3: "it spills"}))
        )
        net = new()
        first, later = net.batch(0), net.batch(1)
        assert set(first[0].blocks) != set(later[0].blocks)
        with vpps.Handle(net.model, target="cpu", autotune=True) as handle:
            for k in range(4 * (TIMED + UNTIMED)):
                handle.fb(*(first if k < 3 else later))
        ((cells, progress),) = kept
        assert progress.done
        assert [trial.reason for trial in progress.trials] == ["", "it spills"]
        assert cells == set(first[0].blocks) | set(later[0].blocks)

    @pytest.mark.cpu
    @pytest.mark.parametrize("ratio, times", [(1.5, 1), (1.0, 0)])
    def test_what_is_better_by_then_is_kept_at_the_end(
        self, monkeypatch: pytest.MonkeyPatch, ratio: float, times: int
    ) -> None:
        monkeypatch.setattr("vpps.tuning.autotune._cpu_compiler", lambda *_: lambda c: "no compiler")
        kept: list[Progress] = []
        monkeypatch.setattr("vpps.session.configurator.keep", lambda *arguments: kept.append(arguments[-1]))
        net = new()
        with vpps.Handle(net.model, autotune=True) as handle:
            handle.fb(*net.batch(0))
            assert handle._configurator._tuner is not None
            assert not kept
            handle._configurator._tuner._ratio, handle._configurator._tuner._before = (
                ratio,
                [0.001],
            )  # as after a candidate that has won
        handle.close()
        assert [progress.ratio for progress in kept] == [ratio] * times

    @pytest.mark.host
    def test_compilers_step_back(self) -> None:
        """Training goes first. (A job answers by an error.)"""
        with Compilers(1, 3) as compilers, pytest.raises(vpps.CompileError) as error:
            compilers.run(TellPriority())
        assert str(error.value) == f"nice {min(os.nice(0) + 3, 19)}"

    @pytest.mark.cpu
    def test_closing_ends_compilers(self) -> None:
        net = new()
        with vpps.Handle(net.model, autotune=True) as handle:
            handle.fb(*net.batch(0))
            tuner = handle._configurator._tuner
        assert tuner is not None
        assert tuner.done
        assert isinstance(tuner._preparation, Background)
        thread = tuner._preparation._thread
        if thread is not None:
            thread.join(60)
            assert not thread.is_alive()

    @pytest.mark.host
    @pytest.mark.parametrize("wrong", ["yes", 1, None])
    def test_is_asked_for_by_a_bool(self, wrong: Any) -> None:
        with pytest.raises(vpps.HandleError, match=f"autotune={wrong!r}: expected True or False"):
            vpps.Handle(vpps.Model(seed=1), autotune=wrong)

    @pytest.mark.host
    def test_evaluation_is_not_tuned(self) -> None:
        with pytest.raises(vpps.HandleError, match="autotune=True: it is training that is tuned"):
            vpps.Handle(vpps.Model(seed=1), train=False, autotune=True)
