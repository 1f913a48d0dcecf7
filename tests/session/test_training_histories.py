"""Random histories of training - updates, accumulation, averages, assignments, freezing, checkpoints, Ctrl-C, other
handles - follow a plain NumPy model of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.engine.test_parameter_store import interrupt_next_launch
from tests.fuzz.expected import Expected
from tests.session.test_accumulate import Net
from tests.tuning.test_online import Ready
from vpps.engine.configuration import Configuration
from vpps.reference import Reference
from vpps.tuning.online import Axis

pytestmark = pytest.mark.cpu

RULES: tuple[Callable[[], vpps.Optimizer], ...] = (
    lambda: vpps.SGD(lr=0.05, weight_decay=0.1),
    lambda: vpps.Momentum(lr=0.02, momentum=0.8),
    lambda: vpps.Adam(lr=0.01, eps=1e-3),
)


def tune_quickly(patch: pytest.MonkeyPatch) -> None:
    """Turns of a batch, candidates that need no compiling."""
    patch.setattr("vpps.tuning.online.UNTIMED", 0)
    patch.setattr("vpps.tuning.online.TIMED", 1)
    changes = [{"vps": 1, "policy": "depth"}, {"vps": 3}, {"vps": 2, "policy": "depth"}, {"vps": 1}, {"vps": 4}]
    axes = [Axis("any", tuple(changes), ordered=False)]
    patch.setattr("vpps.tuning.autotune.cpu_axes", lambda vps: axes)
    patch.setattr("vpps.tuning.autotune.Background", lambda compile, end: Ready())


@pytest.mark.parametrize("seed", range(24))
def test_follow_the_numpy_model(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    make = RULES[seed % 3]
    net = Net(vpps.Model(seed=seed))
    decay = 0.8
    expected = Expected(net.model, make(), decay)
    saved: tuple[Any, ...] | None = None

    if tuned := seed % 4 == 3:
        tune_quickly(monkeypatch)

    def open_handle() -> vpps.Handle:
        vps = int(rng.integers(1, 4))
        return vpps.Handle(net.model, make(), vps=None if tuned else vps, ema=decay, autotune=tuned)

    handle = open_handle()
    events = (
        ["fb"] * 5 + ["accumulate"] * 4 + ["gradients", "forward", "assign", "freeze", "thaw", "discard", "averaged"]
    )
    events += ["handle", "configure", "load", "save", "restore", "parameter", "interrupt", "check"]
    done: list[str] = []
    for _ in range(40):
        event = str(rng.choice(events))
        done.append(event)
        graph, loss = net.batch(*rng.integers(0, 12, rng.integers(1, 3)).tolist())
        parameters = list(net.model)
        p = parameters[rng.integers(len(parameters))]
        match event:
            case "fb" | "accumulate":
                handle.fb(graph, loss, accumulate=event == "accumulate")
                expected.accumulate(graph, loss)
                if event == "fb":
                    expected.update()
            case "gradients":
                value, gradients = handle.gradients(graph, loss)
                reference = Reference(graph, expected.weights)
                assert value == pytest.approx(float(reference.value(loss)), rel=1e-4)
                for name, g in reference.backward(loss).items():
                    if net.model[name].trainable:
                        assert relative_error(gradients.get(name, np.zeros_like(g)), g) < 1e-3
            case "forward":
                handle.forward(graph, [loss])
            case "assign":
                value = rng.normal(size=p.shape).astype(np.float32)
                p.assign(value)
                expected.assign(p.name, value)
            case "freeze" | "thaw":
                if p.name == "b":  # every loss depends on it, so that there is always something to learn
                    continue
                trained = event == "thaw"
                if p.trainable != trained:
                    expected.begin_average(p.name)
                p.trainable = trained
            case "discard":
                handle.discard_accumulated()
                expected.discard()
            case "averaged":
                shown = {
                    q.name: expected.averages[q.name] if q.trainable else expected.weights[q.name] for q in net.model
                }
                with net.model.averaged():
                    value = handle.forward(graph, [loss])[0]
                assert float(value) == pytest.approx(float(Reference(graph, shown).value(loss)), rel=1e-3)
            case "handle":
                handle.close()
                handle = open_handle()
            case "configure":
                configuration = Configuration(
                    vps=int(rng.integers(1, 4)), policy=str(rng.choice(["depth", "sinks-last"]))
                )
                handle._configurator.configure(configuration, records=bool(rng.integers(2)))
            case "save":
                net.model.save(tmp_path / "model")
                saved = (
                    {k: v.copy() for k, v in expected.weights.items()},
                    {k: [m.copy() for m in v] for k, v in expected.moments.items()},
                    {k: v.copy() for k, v in expected.averages.items()},
                    (expected.updates, dict(expected.counts)),
                    {k: v.copy() for k, v in expected.sums.items()},
                    {k: set(v) for k, v in expected.rows.items()},
                    set(expected.averaged),
                )
            case "load":
                net.model.save(tmp_path / "other")
                handle.close()
                net = Net(vpps.Model.load(tmp_path / "other"))
                expected.model = net.model
                handle = open_handle()
            case "restore":
                frozen = {q.name for q in net.model if not q.trainable} - {"frozen"}
                if saved is None or len(saved[0]) != len(net.model) or frozen:
                    continue
                net.model.restore(tmp_path / "model")
                weights, moments, averages, (expected.updates, counts), sums, rows, averaged = saved
                expected.counts = dict(counts)
                expected.averaged = set(averaged)
                expected.weights = {k: v.copy() for k, v in weights.items()}
                expected.moments = {k: [m.copy() for m in v] for k, v in moments.items()}
                expected.averages = {k: v.copy() for k, v in averages.items()}
                expected.sums = {k: v.copy() for k, v in sums.items()}
                expected.rows = {k: set(v) for k, v in rows.items()}
            case "parameter":
                q = net.model.parameter(f"p{len(net.model)}", (3, 2))
                expected.weights[q.name] = q.numpy().astype(np.float64)
                expected.begin_average(q.name)
                expected.counts[q.name] = 0
                expected.moments[q.name] = [np.zeros(q.shape) for _ in expected.rule.moments]
            case "interrupt":
                with interrupt_next_launch(handle, monkeypatch):
                    handle.fb(graph, loss, accumulate=bool(rng.integers(2)))
            case "check":
                expected.check()
    expected.check()
    handle.close()
    expected.check()
