"""Every kind of launch of a graph, planned for every machine, without needing the machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np

import vpps
from vpps.compiler.arrangement import arrangements, matrices_of
from vpps.compiler.passes import Passes
from vpps.engine.ahead import gpu_for, stacks_of
from vpps.model.learned_policy import Encoding, LearnedPolicy
from vpps.model.precisions import Precisions
from vpps.ops.philox import LaunchKey
from vpps.placement.distribution import NOTHING_HELD, Distribution, HeldGradients
from vpps.placement.onchip import ChipOptions
from vpps.placement.update import Averaging, Update
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.native.typed_graphs import LearningSettings
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.planner.policies import learned_from
from vpps.script import verify as verifier

PANEL = 16  # for cpu, where machines differ
KEY = LaunchKey(5, 7)
RULES = {
    "sgd": vpps.SGD(lr=0.1),
    "momentum": vpps.Momentum(lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": vpps.Adam(lr=lambda update: 0.1 / update, groups={"*": {"weight_decay": 0.1}}),
}


class Configuration(NamedTuple):
    """The settings with which a graph is planned."""

    target: str
    groups: int
    schedule: str
    policy: str
    rule: str = "sgd"
    averages: bool = False
    fusion: bool = True
    lazy_batching: bool = True
    streaming: bool = True

    def __str__(self) -> str:
        """Return words that stay valid if a field is removed: three fields, then all that are not at their defaults."""
        given = [self.target, self.schedule, self.policy]
        for name, default in self._field_defaults.items() | {"groups": 1}.items():
            value = getattr(self, name)
            if value != default:
                given.append(f"{name}={value}")
        return " ".join([*given[:3], *sorted(given[3:])])


MACHINES = [
    (target, groups, schedule)
    for target, groups, schedule in product(("cpu", "simt", "cuda"), (1, 2, 4), ("vector", "paper"))
    if groups == 1 or (target != "cpu" and schedule == "vector")
]


def parse(text: str) -> Configuration:
    """Return a configuration from its words."""
    target, schedule, policy, *given = text.split()
    values: dict[str, Any] = {"groups": 1}
    for name, _, value in (word.partition("=") for word in given):
        values[name] = int(value) if value.isdigit() else {"True": True, "False": False}.get(value, value)
    return Configuration(target=target, schedule=schedule, policy=policy, **values)


def draw(random: Random, machine: tuple[str, int, str], policy: str = "") -> Configuration:
    """Draw a random configuration of one of `MACHINES`, with a random policy if none is given."""
    return Configuration(
        *machine,
        policy or random.choice(list(POLICIES)),
        rule=random.choice(list(RULES)),
        averages=random.random() < 0.5,
        fusion=random.random() < 0.5,
        lazy_batching=random.random() < 0.8,
        streaming=random.random() < 0.8,
    )


class Example(NamedTuple):
    """A graph to plan, with its model."""

    model: vpps.Model
    graph: vpps.Graph
    loss: vpps.Expression
    wanted: list[vpps.Expression]


def policy_for(name: str, graph: vpps.Graph) -> str | LearnedPolicy:
    """Return the policy for a handle: "fsm" is learned from the graph in a few trials, so other graphs have unknown
    states."""
    settings = LearningSettings(Encoding(phases=20), trials=3, check_every=1)
    return learned_from([graph], settings) if name == LearnedPolicy.name else name


def distribution_of(
    it: Example, c: Configuration, rule: vpps.Optimizer, averages: bool, passes: Passes, precision: str
) -> Distribution:
    """Return the parameter distribution that the configuration's machine would use."""
    update, moments = Update(rule, 1, 1, None), len(rule.moments)
    precisions = Precisions(precision)
    if c.target == "cpu":
        stacks = stacks_of(it.model, it.graph, update, passes, PANEL)
        return Distribution(it.model, 3, PANEL, moments, True, True, averages, stacks=stacks, precisions=precisions)
    chip = ChipOptions(groups=c.groups)
    gpu, _ = gpu_for(c.target, None, None, 12 if c.target == "simt" else 24)
    stacks = stacks_of(it.model, it.graph, update, passes, 1)
    vps = gpu.sms // c.groups
    matrices = matrices_of(it.graph.blocks, stacks, precisions)
    best = next(arrangements(matrices, gpu, vps * (chip.groups or 1), chip, train=True))
    return Distribution(it.model, vps, 1, moments, True, True, averages, best.held, c.groups, stacks, precisions)


def plans(it: Example, c: Configuration, made: type[Planner] = Planner, precision: str = "float32") -> Iterator[Plan]:
    """Yield every kind of launch: training, clipped, averaging, accumulating, on held gradients, halves, an update from
    given gradients, inference."""
    rule, passes = RULES[c.rule], Passes(fusion=c.fusion, lazy_batching=c.lazy_batching, streaming=c.streaming)
    distribution = distribution_of(it, c, rule, c.averages, passes, precision)
    planner = made(distribution, policy_for(c.policy, it.graph), c.schedule, passes)
    averaging = Averaging(0.9, _factors) if c.averages else None

    def training(clip_norm: float | None = None, updates: bool = True, **more: Any) -> Plan:
        update = Update(rule, 9, 5, clip_norm, averaging) if updates else None
        return planner.plan_training(it.graph, it.loss, update, 1, **more)

    yield training()
    yield training(clip_norm=0.5, key=KEY)
    yield training(updates=False)
    kept = training(updates=False, keep=True, key=KEY)
    yield kept
    held = kept.held
    more = HeldGradients(
        held.dense, {table: np.union1d(rows, [0, table.shape[0] - 1]) for table, rows in held.rows.items()}
    )
    yield training(updates=False, keep=True, held=more)
    yield training(clip_norm=2.0, held=more)
    for updates, clip_norm, before in ((False, None, NOTHING_HELD), (True, None, more), (True, 0.5, NOTHING_HELD)):
        update = Update(rule, 9, 5, clip_norm, averaging) if updates else None
        yield planner.plan_halves(it.graph, it.wanted, update, 1, KEY, before)
    for clip_norm in (None, 0.5):
        update = Update(rule, 9, 5, clip_norm, averaging)
        yield planner.plan_update(update, 1, HeldGradients(held.dense), more.rows)
    yield planner.plan_forward(it.graph, [it.loss])
    yield planner.plan_forward(it.graph, it.wanted)


def _factors(table: vpps.Parameter, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = (1 / (1 + rows)).astype(np.float32)
    return found


def verify(plan: Plan) -> None:
    """Verify all launches in a plan. Raises ScriptError."""
    verifier.verify(plan.script, plan.layout, plan.origin, plan.divisions)
