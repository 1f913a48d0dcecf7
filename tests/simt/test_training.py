"""Training with weights on the chip follows the cpu target, with the same bits in any order of the threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.simt import models
from vpps.kernel.chip import SCRIPT_WORDS
from vpps.placement.onchip import ChipOptions
from vpps.runtime.simt import SimtMachine

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("roomy_kernels")]


class Rule(NamedTuple):
    """Update settings of a training run.

    Attributes:
        optimizer: function that creates the optimizer.
        options: options of the handle.
        accumulates: True if every second call only adds its gradients.
        again: True to repeat the training with another thread order.
    """

    optimizer: Callable[[], vpps.Optimizer]
    options: dict[str, Any]
    accumulates: bool = False
    again: bool = False


PLACES = {
    "atomic, in turns": ChipOptions(ownership="round-robin", rpw=1),
    "aligned": ChipOptions(),
    "mixed": ChipOptions(tiers={"tree_lstm/W": "L2", "tree_lstm/W^T": "L2"}),
    "two groups": ChipOptions(groups=2),
    "three groups": ChipOptions(groups=3),
    "groups, mixed": ChipOptions(groups=2, tiers={"tree_lstm/U^T": "L2", "output/W": "L2"}),
}
EVERYTHING = "adam, clipped, averaged, accumulated"
RULES = {
    "sgd": Rule(lambda: vpps.SGD(lr=0.05, weight_decay=0.01), {}),
    "adam, averaged": Rule(lambda: vpps.Adam(lr=0.01, eps=1e-3), {"ema": 0.8}),
    EVERYTHING: Rule(
        lambda: vpps.Adam(lr=0.01, eps=1e-3), {"clip_norm": 0.05, "ema": 0.8}, accumulates=True, again=True
    ),
}


class TrainingResult(NamedTuple):
    """The results of training."""

    losses: list[float]
    weights: dict[str, Any]
    averages: dict[str, Any]


def train(rule: Rule, seed: int = 0, **options: Any) -> TrainingResult:
    """Call `fb` five times, with inference, gradients and a frozen matrix in between."""
    network = models.tree_lstm(dropout=0.3)
    losses = []
    with vpps.Handle(network.model, rule.optimizer(), example=network.batch(0), **rule.options, **options) as handle:
        if isinstance(handle._engine.machine, SimtMachine):
            handle._engine.machine.seed = seed
        for k in range(5):
            graph, loss = network.batch(k)
            handle.fb(graph, loss, accumulate=rule.accumulates and k % 2 == 0)
            losses.append(handle.sync_get_latest_loss())
            if k == 0:
                losses.append(float(handle.forward(graph, [loss])[0]))
            if k == 2:
                value, gradients = handle.gradients(graph, loss)
                losses += [value, float(np.linalg.norm(gradients["tree_lstm/U"]))]
                network.model["tree_lstm/U"].trainable = False
    averages = {p.name: p.average() for p in network.model} if "ema" in rule.options else {}
    return TrainingResult(losses, network.model.numpy(), averages)


@cache
def on_cpu(how: str) -> TrainingResult:
    return train(RULES[how], target="cpu", vps=2)


CASES = [
    (place, how)
    for place in PLACES
    for how in RULES
    if how == EVERYTHING or (how == "sgd" and "group" not in place) or place in ("aligned", "two groups")
]


@pytest.mark.parametrize("place, how", CASES)
def test_follows_the_cpu(place: str, how: str) -> None:
    vps = 2 * PLACES[place].groups if "group" in place else 3
    got = train(RULES[how], vps=vps, onchip=PLACES[place])
    expected = on_cpu(how)
    np.testing.assert_allclose(got.losses, expected.losses, rtol=1e-5)
    for name, w in expected.weights.items():
        assert relative_error(got.weights[name], w) < 1e-5, name
    for name, average in expected.averages.items():
        assert relative_error(got.averages[name], average) < 1e-5, name
    if "atomic" not in place and RULES[how].again:
        again = train(RULES[how], 12345, vps=vps, onchip=PLACES[place])
        assert again.losses == got.losses
        for name, w in got.weights.items():
            assert np.array_equal(again.weights[name], w), name


@pytest.mark.parametrize("schedule", ["vector", "paper"])
def test_scripts_may_be_longer_than_what_a_block_holds_of_them(schedule: str) -> None:
    """A sentence of 45 words; with both schedules, a block fetches parts of the script several times."""
    results = []
    options: dict[str, Any]
    for options in ({"vps": 2, "schedule": schedule}, {"target": "cpu", "vps": 1}):
        network = models.tagger(hidden=8, lengths=(45,))
        graph, loss = network.batch(0)
        with vpps.Handle(network.model, vpps.SGD(lr=0.1), **options) as handle:
            handle.fb(graph, loss)
            results.append((handle.sync_get_latest_loss(), network.model.numpy()))
            plan = handle._engine.plan
            assert plan is not None
            longest = max(stream.words for _, stream in plan.streams)
            assert longest > 3 * SCRIPT_WORDS
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    for name, w in results[1][1].items():
        assert relative_error(results[0][1][name], w) < 1e-5, name
