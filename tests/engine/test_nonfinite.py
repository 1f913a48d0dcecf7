"""A step with a non-finite loss or gradient changes nothing: weights, moments, averages, accumulated gradients."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from tests.fuzz.histories import state
from vpps.script.verify import verify

pytestmark = pytest.mark.usefixtures("roomy_kernels")

E = vpps.Expression
TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]


class Net:
    """A recurrent net with a matrix, a bias and a table, and ways to spoil a batch."""

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
        if "gradient" in spoiled:  # infinite although the loss is finite: the derivative of a root at 0
            zeros = graph.zeros(self.hidden)
            loss = loss + vpps.sum(vpps.sqrt(vpps.square(self.W @ zeros + self.b * zeros)))
        elif spoiled == "overflow":  # finite factors overflow only in the gradient
            loss = loss + vpps.dot(graph.lookup(self.words, 2), graph.input([1e30] + [0] * (self.hidden - 1))) * 1e-5
            loss = loss + vpps.sum(self.W @ graph.input([1e25] * self.hidden)) * 1e-30
            loss = loss + vpps.sum(vpps.tanh(self.W @ graph.input([1e-30] * self.hidden)) * 1e32) * 1e-10
        if "loss" in spoiled:  # only the loss: no gradient comes from this term
            loss = loss + vpps.sum(vpps.log(graph.input([-1.0])))
        return graph, loss

    def handle(self, optimizer: vpps.Optimizer, **options: Any) -> vpps.Handle:
        """Return a handle whose kernel serves all batches."""
        return vpps.Handle(self.model, optimizer, example=self.batch("gradient, loss"), **options)


def bits(net: Net) -> dict[str, bytes]:
    """Return the bytes of all state that a step changes."""
    return {name: value.tobytes() for name, value in state(net.model).items()}


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


HISTORIES = ("- nan - gradient loss - -", "nan nan - nan -", "-+ nan+ gradient+ -+ inf -", "-+ gradient -", "-+ loss -")
"""Calls by the way they are spoiled; those with a + accumulate."""
SGD = vpps.SGD(lr=0.1, weight_decay=0.01)
ON_CPU: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": SGD, "vps": 1},
    "momentum": {"optimizer": vpps.Momentum(lr=0.1), "vps": 3, "ema": 0.9},
    "paper": {"optimizer": vpps.Momentum(lr=0.1), "vps": 3, "schedule": "paper"},
    "adam": {"optimizer": vpps.Adam(lr=0.01), "vps": 2, "ema": 0.9},
    "clipped": {"optimizer": vpps.Adam(lr=0.01), "vps": 2, "clip_norm": 1e9},
}
ON_SIMT: dict[str, dict[str, Any]] = {
    "simt": {"optimizer": SGD, "target": "simt", "vps": 2},
    "clipped simt": {"optimizer": SGD, "target": "simt", "vps": 2, "clip_norm": 1e9},
}
CHIPS: dict[str, dict[str, Any]] = {
    str(options): {"optimizer": SGD, "target": "simt", "vps": 4, "onchip": vpps.ChipOptions(**options)}  # type: ignore[arg-type]
    for options in ({"groups": 2}, {"ownership": "round-robin", "rpw": 1})
}
CASES = [
    *((how, history, matrix) for how in ON_CPU for history in HISTORIES for matrix in (True, False)),
    *((how, history, matrix) for how in ON_SIMT for history in HISTORIES[2:] for matrix in (True, False)),
    *((how, HISTORIES[0], True) for how in CHIPS),
]


@pytest.mark.parametrize(
    "how, history, matrix",
    [pytest.param(*case, marks=pytest.mark.cpu if case[0] in ON_CPU else pytest.mark.simt) for case in CASES],
)
def test_training_goes_on_as_if_what_is_left_out_had_not_been(how: str, history: str, matrix: bool) -> None:
    """Gradients are added in place to held gradients. Unless a step applies them, a spoiled addition must not begin."""
    trained, spoiled = [], sum(call.strip("+") != "-" for call in history.split())
    for without in (False, True):
        net = Net(hidden=32 if matrix else 5)
        net.W.trainable = matrix
        with net.handle(**(ON_CPU | ON_SIMT | CHIPS)[how], on_nonfinite="skip") as handle:
            for call in history.split():
                held = handle.accumulated
                if not without or call.startswith("-"):
                    handle.fb(*net.batch(call.strip("+")), accumulate=call.endswith("+"))
                if "+" in history and not call.startswith("-"):
                    handle.sync_get_latest_loss()
                    assert handle.accumulated == held
            assert handle.skipped == (0 if without else spoiled)
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
    """A masked row may hold any finite value, and does not affect the check for other rows."""
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
def test_it_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning names the user's call, and also appears if the call is unknown."""
    monkeypatch.setattr("vpps.engine.engine.where_it_began", lambda *given: 1 / 0)
    net = Net()
    with vpps.Handle(net.model) as handle:
        handle.fb(*net.batch())
        handle.fb(*net.batch("nan"))
        with pytest.warns(RuntimeWarning, match="loss of step 2 is nan.*learning rate") as caught:
            handle.sync_get_latest_loss()
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                handle.fb(*net.batch("nan"))
            assert math.isnan(handle.sync_get_latest_loss())


@pytest.mark.cpu
@pytest.mark.parametrize("read", ["fb", "numpy", "close", "loss"])
def test_it_is_raised_at_the_next_synchronisation(read: str) -> None:
    """Synchronising has no other effect and loses nothing."""
    net, witness = Net(), Net()
    with vpps.Handle(witness.model, vpps.SGD(lr=1.0)) as other:
        other.fb(*witness.batch())
    handle = vpps.Handle(net.model, vpps.SGD(lr=1.0), on_nonfinite="raise")
    handle.fb(*net.batch())
    assert math.isfinite(handle.fb(*net.batch("nan")))  # the loss of the call before
    calls: dict[str, Callable[[], object]] = {
        "fb": lambda: handle.fb(*net.batch()),
        "numpy": net.model.numpy,
        "close": handle.close,
        "loss": handle.sync_get_latest_loss,
    }
    with pytest.raises(vpps.NonFiniteError, match=r"step 2 .*left out"):
        calls[read]()
    assert net.model.step == 2
    assert bits(net) == bits(witness)
    handle.close()


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


@pytest.mark.cpu
def test_gradients_that_are_asked_for_are_given_as_they_are() -> None:
    net = Net()
    with vpps.Handle(net.model, on_nonfinite="raise") as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        handle.fb(*net.batch())
        expected = handle.sync_get_latest_loss()
        loss, gradients = handle.gradients(*net.batch("nan"))
        assert math.isnan(loss)
        assert np.isnan(gradients["W"]).any()
        assert handle.sync_get_latest_loss() == expected


@pytest.mark.host
def test_scripts_of_steps_are_guarded_and_verified() -> None:
    net = Net()
    with vpps.Handle(net.model, vps=2) as handle:
        graph, loss = net.batch()
        text = handle.disassemble(graph, loss)
        names = [line.split()[1] for line in text.splitlines() if not line.startswith(";")]
        assert names.index("guard") < min(k for k, name in enumerate(names) if "update" in name)
        plan = handle._plan_step(handle._configurator.prepare(graph), graph, loss, accumulate=False)
        verify(plan.script, plan.layout, plan.origin)
