"""The published scheme: models agree with the reference, without races in any order of the threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.kernels import know_gradients, widen
from tests.simt import models
from tests.simt.models import Network
from vpps.model.precisions import Precisions
from vpps.ops.precision import EXACT
from vpps.placement.onchip import ChipOptions as Options
from vpps.placement.onchip import OnChip
from vpps.reference import Reference, weights_of
from vpps.runtime.simt import SimtMachine

pytestmark = pytest.mark.simt


@pytest.fixture(autouse=True)
def one_kernel_for_both_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    widen(monkeypatch, SimtMachine, know_gradients)


SEEDS = (0, 1, 300, 50000)
Gradients = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """A model, placement options, and a check of the resulting plan.

    Attributes:
        network: function that creates the model.
        vps: virtual processors.
        options: placement options.
        holds: predicate on the plan; true if the case tests what its name says.
        paper: True to run the case with the schedule "paper", too.
        precision: precision of products, an argument of the handle.
    """

    network: Callable[[], Network]
    vps: int
    options: Options
    holds: Callable[[OnChip], bool]
    paper: bool = False
    precision: str | Mapping[str, str] = EXACT.name


def tiers(onchip: OnChip) -> set[str]:
    return {held.tier for held in onchip.held}


def in_slots(onchip: OnChip) -> bool:
    return bool(onchip.chip.slots) and tiers(onchip) <= {"registers", "atomic", "L2"}


def some_wide() -> Network:
    return models.layers((16, 512), (16, 128), (40, 40), (10, 64))


def some_square() -> Network:
    return models.layers((100, 60), (33, 70), n=20)


def unevenly_dealt() -> Network:
    return models.layers((70, 40), (9, 33), (130, 20), n=9)


def published(rpw: int | None = None) -> Options:
    return Options(ownership="round-robin", rpw=rpw)


CASES: dict[str, Case] = {
    "tree-lstm": Case(models.tree_lstm, 3, published(), in_slots, paper=True),
    "child-sum": Case(models.child_sum, 2, published(), in_slots, paper=True),
    "attention": Case(models.attention, 3, published(), in_slots),
    "tied": Case(models.tied, 3, published(2), in_slots, paper=True),
    "alone": Case(models.tree_lstm, 1, published(1), in_slots),
    **{
        f"uneven, rpw {rpw}": Case(
            unevenly_dealt, 3, published(rpw),
            lambda c, rpw=rpw: {slot.rows for slot in c.chip.slots} == {rpw},  # type: ignore[misc]
        )
        for rpw in (1, 4)
    },
    "many slots, several passes": Case(
        some_square, 2, published(1), lambda c: all(m.last - m.first > 1 for m in c.chip.matrices)
    ),
    "one vector at a time": Case(some_square, 2, published(40), lambda c: c.chip.tile == 1),
    "narrow and wide": Case(some_wide, 8, published(), in_slots),
    "more virtual processors than rows": Case(
        lambda: models.layers((5, 30), (12, 20), (3, 16)), 9, published(), lambda c: c.of("W2").tier == "L2"
    ),
    "a transpose in memory": Case(
        models.tree_lstm, 3, Options(ownership="round-robin", tiers={"tree_lstm/U^T": "L2"}),
        lambda c: c.of("tree_lstm/U^T").tier == "L2" and c.of("tree_lstm/U").tier == "registers", paper=True,
    ),
}  # fmt: skip
RUNS = [(name, "vector") for name in CASES] + [(name, "paper") for name, case in CASES.items() if case.paper]


@pytest.mark.parametrize("name, schedule", RUNS)
def test_gradients_agree_with_the_reference_in_any_order_of_the_threads(name: str, schedule: str) -> None:
    check(CASES[name], schedule)


def far_from_ties(network: Network, precisions: Precisions) -> int:
    """A batch whose vectors are as far as possible from rounding ties."""

    def distance(seed: int) -> float:
        graph, loss = network.batch(seed)
        reference = Reference(graph, weights_of(network.model), precisions=precisions)
        reference.backward(loss)
        return reference.nearest_tie

    return max(range(1, 12 if precisions.is_reduced else 2), key=distance)


def check(case: Case, schedule: str) -> None:
    """Assert that loss, gradients and values equal the reference, with the same bits in any order of the threads."""
    network = case.network()
    precisions = Precisions.given(case.precision)
    graph, loss = network.batch(far_from_ties(network, precisions))
    reference = Reference(graph, weights_of(network.model), precisions=precisions)
    expected = reference.backward(loss)
    with vpps.Handle(
        network.model,
        vps=case.vps,
        schedule=schedule,
        onchip=case.options,
        precision=case.precision,
        example=(graph, loss),  # with inference tails, so that one kernel suffices
    ) as handle:
        results = []
        for seed in SEEDS:
            assert isinstance(handle._engine.machine, SimtMachine)
            handle._engine.machine.seed = seed
            results.append(handle.gradients(graph, loss))
        onchip = handle._engine.arrangement.onchip
        assert onchip is not None
        assert case.holds(onchip)
        for x in network.inputs:
            assert relative_error(handle.input_gradient(x), reference.gradient(x)) < GRADIENT_TOLERANCE
        assert handle.forward(graph, [loss])[0] == pytest.approx(results[0][0], rel=FORWARD_TOLERANCE)
    for value, gradients in results:
        assert value == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
        for p in network.model:
            assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name
    if "atomic" not in tiers(onchip):  # atomic additions have no fixed order
        for value, gradients in results[1:]:
            assert value == results[0][0]
            for p in network.model:
                assert np.array_equal(gradients[p.name], results[0][1][p.name]), p.name
