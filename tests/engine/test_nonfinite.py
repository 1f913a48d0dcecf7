"""A step whose loss or gradients are not finite changes nothing: weights, moments, averages, accumulated gradients."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.script.verify import verify

pytestmark = pytest.mark.usefixtures("roomy_kernels")

E = vpps.Expression
Bits = dict[str, bytes]

OPTIMIZERS: dict[str, Callable[[], vpps.Optimizer]] = {
    "sgd": lambda: vpps.SGD(lr=0.1, weight_decay=0.01),
    "momentum": lambda: vpps.Momentum(lr=0.1),
}
TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]


class Net:
    """A recurrent net with a matrix, a bias, a table, and ways to spoil a batch."""

    def __init__(self, hidden: int = 5) -> None:
        self.model = vpps.Model(seed=3)
        self.W = self.model.parameter("W", (hidden, hidden))
        self.b = self.model.parameter("b", (hidden,), init="normal")
        self.words = self.model.lookup("words", (6, hidden), init="normal")
        self.hidden = hidden

    @vpps.cell
    def step(self, h: E, word: int, x: E) -> E:
        return vpps.tanh(self.W @ h + vpps.lookup(self.words, word) * x + self.b)

    def batch(self, spoiled: str = "", at: int = 2) -> tuple[vpps.Graph, E]:
        graph = vpps.Graph()
        h, losses = graph.lookup(self.words, 0), []
        for k in range(5):
            x = np.ones(self.hidden)
            if k == at and spoiled in ("nan", "inf"):
                x[1] = float(spoiled)
            h = self.step(h, k, graph.input(x))
            losses.append(vpps.dot(h, h))
        loss = vpps.sum(losses)
        if "gradient" in spoiled:  # infinite under a finite loss: the derivative of a root at 0
            zeros = graph.zeros(self.hidden)
            loss = loss + vpps.sum(vpps.sqrt(vpps.square(self.W @ zeros + self.b * zeros)))
        elif spoiled == "overflow":  # of factors that are finite, in the gradient alone
            loss = loss + vpps.dot(graph.lookup(self.words, 2), graph.input([1e30] + [0] * (self.hidden - 1))) * 1e-5
            loss = loss + vpps.sum(self.W @ graph.input([1e25] * self.hidden)) * 1e-30
            loss = loss + vpps.sum(vpps.tanh(self.W @ graph.input([1e-30] * self.hidden)) * 1e32) * 1e-10
        if "loss" in spoiled:  # alone: no gradient comes from there
            loss = loss + vpps.sum(vpps.log(graph.input([-1.0])))
        return graph, loss

    def handle(self, optimizer: vpps.Optimizer, **options: Any) -> vpps.Handle:
        """One whose kernel does for all batches."""
        return vpps.Handle(self.model, optimizer, example=self.batch("gradient, loss"), **options)


def bits(net: Net) -> Bits:
    """All that a step changes."""
    model = net.model
    found = {name: value.tobytes() for name, value in model.numpy().items()}
    state, averages = model.optimizer_state, model.averages
    if state is not None:
        found |= {f"{m}/{p}": v.tobytes() for m, of in state.moments.items() for p, v in of.items()}
    if averages is not None:
        found |= {f"average/{p}": v.tobytes() for p, v in averages.values.items()}
        found |= {f"current/{p}": v.tobytes() for p, v in averages.current.items()}
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["", "clipped"])
@pytest.mark.parametrize("spoiled", ["nan", "inf", "gradient", "overflow", "loss"])
def test_a_step_that_is_not_finite_changes_nothing(spoiled: str, clip_norm: float | None, target: str) -> None:
    net = Net()
    with net.handle(
        vpps.Adam(lr=0.01), target=target, vps=2, clip_norm=clip_norm, ema=0.9, on_nonfinite="raise"
    ) as handle:
        handle.fb(*net.batch())
        before = bits(net)
        handle.fb(*net.batch(spoiled))
        with pytest.raises(vpps.NonFiniteError, match=r"step 2 .*left out"):
            handle.sync_get_latest_loss()
        assert bits(net) == before
        assert (net.model.step, handle.skipped) == (2, 1)
        handle.fb(*net.batch())
        assert math.isfinite(handle.sync_get_latest_loss())
        after = bits(net)
        assert all(after[name] != before[name] for name in ("W", "b", "words"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("ignore:the loss of step")
def test_a_schedule_sees_the_same_numbers_in_every_mode(target: str) -> None:
    seen = {}
    for mode in ("warn", "raise", "skip"):
        net, numbers = Net(), []
        rule = vpps.SGD(lr=lambda step, numbers=numbers: numbers.append(step) or 0.01)
        with net.handle(rule, target=target, vps=2, on_nonfinite=mode) as handle:  # type: ignore[arg-type]
            numbers.clear()
            for spoiled in ("", "nan", ""):
                handle.fb(*net.batch(spoiled))
                with contextlib.suppress(vpps.NonFiniteError):
                    handle.sync_get_latest_loss()
        seen[mode] = list(dict.fromkeys(numbers)), net.model.step
    assert set(map(str, seen.values())) == {"([1, 2, 3], 3)"}


@pytest.mark.cpu
@pytest.mark.parametrize("schedule", ["vector", "paper"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("vps", [1, 3])
def test_training_goes_on_as_if_skipped_steps_had_not_been(optimizer: str, schedule: str, vps: int) -> None:
    trained = []
    for batches in (["", "nan", "", "gradient", "loss", "", ""], ["", "", "", ""]):
        net = Net()
        with vpps.Handle(
            net.model, OPTIMIZERS[optimizer](), vps=vps, schedule=schedule, ema=0.9, on_nonfinite="skip"
        ) as handle:
            for spoiled in batches:
                handle.fb(*net.batch(spoiled))
            assert handle.skipped == len(batches) - 4
            assert net.model.step == len(batches)
            trained.append(bits(net))
    assert trained[0] == trained[1]


@pytest.mark.parametrize("target", TARGETS)
def test_accumulated_gradients_do_without_a_call_that_is_skipped(target: str) -> None:
    trained = []
    for batches in (["", "nan", "gradient", ""], ["", ""]):
        net = Net()
        with net.handle(vpps.SGD(lr=0.1), target=target, vps=2, on_nonfinite="skip") as handle:
            for spoiled in batches:
                handle.fb(*net.batch(spoiled), accumulate=True)
                handle.sync_get_latest_loss()
            assert handle.accumulated == 2
            handle.fb(*net.batch("inf"))  # the step that would use them
            assert handle.skipped == len(batches) - 1
            assert handle.accumulated == 2
            handle.fb(*net.batch())
            trained.append(bits(net))
    assert trained[0] == trained[1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("clip_norm", [None, 1e9], ids=["", "clipped"])
@pytest.mark.parametrize("spoiled", ["gradient", "loss"])
@pytest.mark.parametrize("matrix", [True, False], ids=["matrix", "vectors"])
def test_a_step_that_would_use_accumulated_gradients_leaves_them(
    spoiled: str, clip_norm: float | None, target: str, matrix: bool
) -> None:
    """Gradients are added to what is held in place: where no step goes with them, too, they must not be begun."""
    trained = []
    for batches in (["", spoiled, ""], ["", ""]):
        net = Net(hidden=32 if matrix else 5)
        net.W.trainable = matrix
        with net.handle(vpps.SGD(lr=0.1), target=target, vps=2, clip_norm=clip_norm, on_nonfinite="skip") as handle:
            for k, spoil in enumerate(batches):
                handle.fb(*net.batch(spoil), accumulate=k == 0)
            assert handle.skipped == len(batches) - 2
            trained.append(bits(net))
    assert trained[0] == trained[1]


@pytest.mark.cpu
def test_a_norm_that_is_infinite_by_itself_takes_accumulated_gradients_with_it() -> None:
    model = vpps.Model(seed=1)
    b = model.parameter("b", (1 << 12,))
    before = b.numpy().copy()

    @vpps.cell
    def steep(x: E) -> E:
        return vpps.dot(b * 1.0, x)

    graph = vpps.Graph()
    with vpps.Handle(model, clip_norm=1.0, on_nonfinite="skip") as handle:
        handle.fb(graph, steep(graph.input(np.ones(1 << 12))), accumulate=True)
        handle.fb(graph, steep(graph.input(np.full(1 << 12, 2.0**59))))
        with pytest.warns(RuntimeWarning, match="the accumulated gradients are discarded"):
            handle.sync_get_latest_loss()
        assert handle.accumulated == 0
        assert np.array_equal(b.numpy(), before)


@pytest.mark.cpu
@pytest.mark.parametrize("vps", [1, 2, 8])
def test_large_factors_of_different_rows_do_not_stop_a_step(vps: int) -> None:
    """A row that is masked may hold anything finite, whoever looks at it together with which others."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", (40, 40))

    @vpps.cell
    def read(x: E, mask: E) -> E:
        return vpps.sum(vpps.tanh(W @ (x * 1.0)) * mask)

    graph = vpps.Graph()
    losses = []
    for k in range(8):
        x, mask = graph.input(np.full(40, 1e30 if k == 7 else 1.0)), graph.input(np.full(40, float(k != 7)))
        losses.append(read(x, mask))
    with vpps.Handle(model, vps=vps, on_nonfinite="raise") as handle:
        handle.fb(graph, vpps.sum(losses))
        handle.sync_get_latest_loss()
        assert handle.skipped == 0


@pytest.mark.cpu
def test_moments_are_no_older_for_steps_that_are_skipped() -> None:
    trained = []
    for batches in (["nan", "nan", "", "nan", ""], ["", ""]):
        net = Net()
        with vpps.Handle(net.model, vpps.Adam(lr=0.01), on_nonfinite="skip") as handle:
            for spoiled in batches:
                handle.fb(*net.batch(spoiled))
                handle.sync_get_latest_loss()
            trained.append(bits(net))
    assert trained[0] == trained[1]


@pytest.mark.cpu
def test_what_is_to_be_said_is_said_where_nobody_knows_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpps.engine.engine.where_it_began", lambda *given: 1 / 0)
    net = Net()
    with vpps.Handle(net.model, on_nonfinite="raise") as handle:
        handle.fb(*net.batch("nan"))
        with pytest.raises(vpps.NonFiniteError, match="left out"):
            handle.sync_get_latest_loss()


@pytest.mark.cpu
@pytest.mark.parametrize(
    "spoiled, said",
    [
        ("nan", "first such value is nan, of op 'input' of cell 'input', call 7"),
        ("gradient", "but its gradients are not finite.*backward of cell 'sqrt', call"),
        ("loss", "first such value is nan, of op 'log' of cell 'log', call"),
    ],
)
def test_where_it_began_is_named(spoiled: str, said: str) -> None:
    net = Net()
    with vpps.Handle(net.model) as handle:
        handle.fb(*net.batch(spoiled))
        with pytest.warns(RuntimeWarning, match=said):
            handle.sync_get_latest_loss()


@pytest.mark.simt
@pytest.mark.parametrize("options", [{"groups": 2}, {"gradients": "gemm"}, {"gradients": "passes"}], ids=str)
def test_arrangements_of_the_chip_leave_steps_out(options: dict[str, object]) -> None:
    trained = []
    for batches in (["", "nan", "gradient", ""], ["", ""]):
        net = Net(hidden=32)
        chip = vpps.ChipOptions(**options)  # type: ignore[arg-type]
        with net.handle(vpps.SGD(lr=0.1), target="simt", vps=4, onchip=chip, on_nonfinite="skip") as handle:
            for spoiled in batches:
                handle.fb(*net.batch(spoiled))
            trained.append(bits(net))
    assert trained[0] == trained[1]


@pytest.mark.cpu
def test_gradients_that_are_asked_for_are_given_as_they_are() -> None:
    net = Net()
    with vpps.Handle(net.model, on_nonfinite="raise") as handle:
        loss, gradients = handle.gradients(*net.batch("nan"))
        assert math.isnan(loss)
        assert np.isnan(gradients["W"]).any()


@pytest.mark.host
def test_scripts_of_steps_are_guarded_and_verified() -> None:
    net = Net()
    with vpps.Handle(net.model, vps=2) as handle:
        graph, loss = net.batch()
        text = handle.disassemble(graph, loss)
        names = [line.split()[1] for line in text.splitlines() if not line.startswith(";")]
        assert names.index("guard") < min(k for k, name in enumerate(names) if "update" in name)
        plan = handle._plan_step(handle._configurator.prepare(graph), graph, loss, accumulate=False)
        verify(plan.script, plan.layout, plan.origin, plan.continuation)
